"""Jobs on each kind of place, and workers in this process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import kvstream
from kvstream import Jobs
from kvstream.jobs import Worker
from kvstream.jobs.worker import Times
from tests.patience import PATIENCE_S
from tests.remote.conftest import Places, places

__all__ = ["places"]

PLACES = ("directory", "shared", "server")


class Working:
    """A worker in a thread, from ``start`` until ``stop``."""

    def __init__(
        self, jobs: Jobs, *, stopping: Any = None, times: Times = Worker.times, **options: Any
    ) -> None:
        self.worker = Worker(jobs, **options)
        self.worker.times = times
        self.stopping = stopping or threading.Event()
        self.at_once = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run(self.stopping, self.at_once)
        except BaseException as error:
            self._error = error

    def stop(self, *, at_once: bool = False) -> None:
        """Stop the worker; raise the exception that ended it."""
        if at_once:
            self.at_once.set()
        self.stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, places: Places) -> Iterator[tuple[str, dict[str, Any]]]:
    """A place without any key, and the options to open it with.

    In "client" the directory has an owner already.
    """
    if request.param == "server":
        yield places.of("server"), {}
        return
    options = {"durability": "no", "shared": request.param != "directory"}
    found = places.of("directory")
    with ExitStack() as ends:
        if request.param == "client":
            ends.enter_context(kvstream.open(found, **options))
        yield found, options


@pytest.fixture
def make_jobs(place: tuple[str, dict[str, Any]]) -> Iterator[Callable[..., Jobs]]:
    """Create Jobs on the place; the store is checked at the end."""
    made: list[Jobs] = []

    def make(**options: Any) -> Jobs:
        made.append(Jobs(place[0], **place[1], **options))
        return made[-1]

    yield make
    for jobs in made:
        jobs.close()


@pytest.fixture
def jobs(make_jobs: Callable[..., Jobs]) -> Jobs:
    return make_jobs()


@pytest.fixture
def working() -> Iterator[Callable[..., Working]]:
    """Start workers; they stop at the end of the test."""
    with ExitStack() as ends:

        def start(jobs: Jobs, **options: Any) -> Working:
            made = Working(jobs, **options)
            ends.callback(made.stop, at_once=True)
            return made

        yield start
