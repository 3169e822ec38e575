"""No text that kvstream makes of a place shows a password of its URL."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

import kvstream
from kvstream import Jobs, KVStreamError, Queue
from kvstream.adapters.places import Place
from kvstream.cli.app import main
from kvstream.cli.shell import _place as prompt_of
from kvstream.jobs import Worker
from kvstream.jobs.processes import jobs_of
from kvstream.migration.places import parse_place
from kvstream.remote.connection import connect
from kvstream.spark.options import places as spark_places
from kvstream.types.urls import show_place
from tests.ports import free_port
from tests.serving import ServerProcess

SECRET = "S3cr3t"
PASSWORD = f"{SECRET}@/?#"
USER = "ann"
QUOTED = quote(PASSWORD, safe="")
RIGHT = (
    f"redis://:{QUOTED}@{{}}",
    f"redis://default:{QUOTED}@{{}}/0",
    f"redis://{{}}/0?password={QUOTED}",
    f"valkey://:{QUOTED}@{{}}",
)
WRONG = (
    f"redis://{SECRET}@h:port",
    f"redis://:{SECRET}/x@h:1/0",
    f"redis://:{SECRET}?x@h:1",
    f"redis://:{SECRET}#@h",
    f"redis://:{SECRET}",
    f"redis://user:12?{SECRET}@h",
    f"redis://h:1?password={SECRET}&unknown=1",
    f"redis://h:1/x?password={SECRET}@x",
    f"redsi://:{SECRET}@h",
    f"redis:/:{SECRET}@h",
    f"redis//joe:{SECRET}@h",
    f"REDIS:joe:{SECRET}@h",
    f"unix:/run/a.sock?password={SECRET}",
    f" redis://joe:{SECRET}@h:1/x",
    f"\n rediss:/joe:{SECRET}@h\t",
    f'"redis://joe:{SECRET}@h"',
    f"url = valkey://:{SECRET}@h",
    f"redis ://:{SECRET}@h",
    f"redis+sentinel://joe:{SECRET}@h:port/m",
    f"REDISS+SENTINEL://:{SECRET}/x@h/m",
    f"valkeys+sentinel://h?password={SECRET}",
    f"valkey+sentinel://h/m?sentinel_password={SECRET}&wait_s={SECRET}",
    f"redis+sentinel:/joe:{SECRET}@h/m",
    Path(f"redis://:{SECRET}@h"),
    Path(f" redis://:{SECRET}@h"),
    Path(f"redis:joe:{SECRET}@h"),
)
SHOWN = (
    ("redis://:pw@h:1/0", "redis://h:1/0"),
    ("rediss://ann:pw@[::1]:1?db=3&password=pw", "rediss://[::1]:1?db=3"),
    ("unix://ann:pw@/run/a.sock?db=1", "unix:///run/a.sock?db=1"),
    ("redis://:p@w@h", "redis://h"),
    ("redis://h?db=pw", "redis://h"),
    ("redis://:p/w@h", "redis://..."),
    ("redis+sentinel://joe:pw@a:1,b/m/3?password=pw", "redis+sentinel://a:1,b/m/3"),
    ("REDISS+SENTINEL://:pw@a,b/m?sentinel_password=pw", "REDISS+SENTINEL://a,b/m"),
    ("valkeys+sentinel://:p@w@[::1]:1,b:2/m?db=2", "valkeys+sentinel://[::1]:1,b:2/m?db=2"),
    ("redis+sentinel://:p/w@a/m", "redis+sentinel://..."),
    ("kvstream:///srv/data", "kvstream:///srv/data"),
    ("/srv/a@b", "/srv/a@b"),
)


def texts_of(error: BaseException | None) -> Iterator[str]:
    """Yield what an exception, and those behind it, may show."""
    while error is not None:
        yield from ("".join(format_exception(error)), repr(error), str(error), repr(error.args))
        error = error.__cause__ or error.__context__


def refusal_of(call: Callable[[], object]) -> list[str]:
    """Return what the exception of a call may show."""
    with pytest.raises((KVStreamError, OSError)) as caught:
        call()
    return [*texts_of(caught.value)]


async def _async_text(url: str) -> str:
    async with kvstream.aio.open(url) as store:
        queue = kvstream.aio.AsyncQueue(store, "q")
        return f"{store!r} {store.stream('s')!r} {queue!r}"


def texts_of_jobs(url: Any) -> Iterator[str]:
    jobs = Jobs(url)

    @jobs.task
    def send() -> None: ...

    yield from map(repr, (jobs, send, jobs.handle("x"), jobs.schedules))
    yield str(jobs)
    yield jobs.application


def texts_of_places(url: str) -> Iterator[str]:
    yield repr(Place(url))
    migrated, (read,) = parse_place(url), spark_places({"url": url, "password": PASSWORD})
    yield from (str(migrated), repr(migrated), read.shown, repr(read), str(read))
    yield repr(kvstream.aio.open(url))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    served = ServerProcess(
        tmp_path_factory.mktemp("served") / "store", "--durability", "no", "--requirepass", PASSWORD
    )
    yield served
    served.stop(warned="wrong name or password")


@pytest.mark.parametrize(("url", "shown"), SHOWN)
def test_a_url_is_shown_without_user_password_and_options(url: str, shown: str) -> None:
    assert show_place(url) == shown


@pytest.mark.parametrize("form", RIGHT)
def test_nothing_that_is_made_of_a_url_shows_its_password(
    form: str, server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = form.format(f"127.0.0.1:{server.port}")
    texts = [*texts_of_jobs(url), *texts_of_places(url), asyncio.run(_async_text(url))]
    with kvstream.open(url) as store:
        queue = Queue(store, "q")
        queue.put({"n": 1})
        made = (store, queue, queue.get(), store.stream("q").group("workers"), store._engine)
        texts += [f"{each!r} {each!s}" for each in made]
        store.flush_all()
    with Jobs(url) as jobs:
        jobs.task(name="send")(lambda: None)
        texts += map(repr, (Worker(jobs), jobs.queues(), jobs.store))
    for words in (["ls"], ["info"], ["migrate", "plan", url, "store:x"]):
        done = CliRunner().invoke(main, ["--url", url, *words] if len(words) == 1 else words)
        texts += [done.output, *texts_of(done.exception)]
    texts += refusal_of(lambda: jobs_of(f"{url}:jobs"))
    assert not [text for text in (*texts, caplog.text) if SECRET in text]


@pytest.mark.parametrize("form", RIGHT)
def test_no_refusal_of_a_server_shows_the_password(form: str, server: ServerProcess) -> None:
    address = f"127.0.0.1:{server.port}"
    urls = (
        form.format(address).replace(SECRET, f"not-{SECRET}"),
        form.format(f"127.0.0.1:{free_port()}"),
    )
    for url in urls:
        texts = refusal_of(lambda: kvstream.open(url))  # noqa: B023
        texts += refusal_of(lambda: Jobs(url).store)  # noqa: B023
        texts += refusal_of(lambda: Place(url).store)  # noqa: B023
        texts += refusal_of(lambda: asyncio.run(_async_text(url)))  # noqa: B023
        done = CliRunner().invoke(main, ["--url", url, "--wait", "0", "ls"])
        assert done.exit_code
        texts += [done.output, *texts_of(done.exception)]
        assert not [text for text in texts if SECRET in text]


@pytest.mark.parametrize("url", WRONG, ids=str)
def test_no_refusal_of_a_wrong_url_shows_the_password(
    url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = refusal_of(lambda: kvstream.open(url))
    texts += [*texts_of_jobs(url)]
    texts += refusal_of(lambda: jobs_of(str(url)))
    texts += refusal_of(lambda: Queue(url, "q"))
    texts += refusal_of(lambda: kvstream.aio.AsyncQueue(url, "q"))
    if isinstance(url, str):
        texts += refusal_of(lambda: connect(url))
        for words in (["--url", url, "ls"], ["--store", url, "ls"], ["migrate", "plan", url, "x"]):
            done = CliRunner().invoke(main, words)
            assert done.exit_code
            texts += [done.output, *texts_of(done.exception)]
    assert not [text for text in texts if SECRET in text]


def test_the_prompt_of_the_shell_shows_no_password() -> None:
    with main.make_context("kvstream", ["--url", f"redis://:{QUOTED}@h:1/0", "ls"]) as context:
        assert prompt_of(context) == "h:1"
