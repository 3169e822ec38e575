"""Fixtures of all tests: a clock, and stores that must be sound when a test is over.

And the settings of hypothesis, and of signals, for all of them.
"""

import functools
import gc
import os
import re
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.utils
from hypothesis import HealthCheck, settings

from kvstream import ManualClock, Store
from kvstream.logs import emit_deferred
from tests.dealing import place, scheduling
from tests.examples import examples
from tests.folders import fast_folder
from tests.opening import Stores

# A machine that does other work too may stall any one example, so there are no deadlines.
settings.register_profile(
    "kvstream",
    deadline=None,  # a deadline and this check measure the load of the machine
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(),
)
settings.load_profile("kvstream")

TESTS = Path(__file__).parent

# A shell that starts the tests in the background has them, and their children, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# redis-py reads and parses its own metadata for each connection: three milliseconds.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


def pytest_configure(config: pytest.Config) -> None:
    """Give tests their folders in memory, unless somebody has said where; sort the arguments.

    A file among the arguments has pytest 9.1 collect its folder again, and the folders in it lose
    the fixtures of a conftest.py that was loaded for an argument before. So files come first, and
    what is deeper later.
    """
    if (folder := fast_folder()) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))
    config.args.sort(key=_depth)


def _depth(argument: str) -> tuple[int, bool]:
    path = Path(argument.partition("::")[0]).absolute()
    return len(path.parts), path.is_dir()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Deal out tests by file."""
    return scheduling(config, log) if config.option.dist == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long."""
    items.sort(key=lambda item: place(below_tests(item)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt modules and tests, which stay, from garbage collection: it took a tenth of a run.

    What tests leave is collected less often than by default.
    """
    gc.disable()
    done = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)
    return done


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append each test that fails to the file that ``KVSTREAM_FAILED_TESTS`` names, if it does.

    CI runs these once more. A test whose process died is among them, even if another process of
    xdist has then run it with success; pytest's ``--last-failed`` does not know such a test.
    """
    path = os.environ.get("KVSTREAM_FAILED_TESTS")
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(path, "a") as file:
            file.write(re.sub(r"@[^@\[\]]+$", "", report.nodeid) + "\n")  # xdist adds its group


def below_tests(item: pytest.Item) -> str:
    """Return the file of a test, named from ``tests`` on."""
    return item.path.relative_to(TESTS).as_posix()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Leave keywords out of reports: nobody reads them, and xdist sends three for each test."""
    report = yield
    report.keywords = {}
    return report


@pytest.fixture(autouse=True)
def no_deferred_records() -> Iterator[None]:
    """Emit the log records that a test has left: the next test must not see them."""
    yield
    emit_deferred()


@pytest.fixture(autouse=True)
def same_signal_handlers() -> Iterator[None]:
    """Fail a test that leaves other handlers of signals, and restore them for later tests."""
    # PySpark sets a handler when the session of all tests of a process begins.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in signals]
    yield
    after = [signal.getsignal(number) for number in signals]
    for number, handler in zip(signals, before, strict=True):
        signal.signal(number, handler)
    assert after == before


@pytest.fixture
def clock() -> ManualClock:
    """The clock of every store of the test; only the test moves it."""
    return ManualClock()


@pytest.fixture
def open_store(tmp_path: Path, clock: ManualClock) -> Iterator[Stores]:
    """Open stores under ``tmp_path``: ``open_store("name", **options)``."""
    stores = Stores(tmp_path, clock)
    yield stores
    stores.finish()


@pytest.fixture
def store(open_store: Stores) -> Store:
    """An empty store in ``tmp_path / "store"``."""
    return open_store()


@pytest.fixture
def reopen(open_store: Stores) -> Callable[..., Store]:
    """Close a store and open it anew: ``store = reopen(store, **options)``."""
    return open_store.reopen
