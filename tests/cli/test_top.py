"""``kvstream top``: on servers of kvstream and Redis, on a terminal and in a pipe."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result
from rich.console import Console

from kvstream import Store, StreamID
from kvstream.cli import main
from kvstream.cli.session import DirectorySession
from kvstream.cli.tables import cells
from kvstream.cli.top import samples as taken
from kvstream.cli.top import view
from kvstream.cli.top.command import top
from kvstream.cli.top.samples import (
    GROUPS_MAX,
    SORTS,
    GroupSample,
    Sample,
    Sampler,
    ServerSample,
    StreamSample,
    lines_of,
    with_rates,
)
from kvstream.cli.top.screen import Screen
from kvstream.errors import RequestError
from kvstream.remote import connection
from kvstream.remote.engine import RemoteEngine
from tests import forking
from tests.cli.program import ENVIRONMENT, Program, examples_of
from tests.cli.terminal import Terminal
from tests.cli.test_examples import words_of
from tests.server.conftest import Served

Look = Callable[..., list[dict[str, Any]]]
ENTER, LEAVE, CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
"""The terminal sequences for the alternate screen, the normal one, and the cursor."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "served")
    yield served
    if not served.stopped.is_set():
        served.stop()


@pytest.fixture(params=["kvstream", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    """A server of kvstream, and then one of Redis."""
    ours = request.param == "kvstream"
    port = request.getfixturevalue("served").port if ours else request.getfixturevalue("redis_port")
    return f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def client(url: str) -> Iterator["redis.Redis"]:
    client = redis.Redis.from_url(url)
    yield client
    client.close()


def sampler_of(engine: RemoteEngine, **options: Any) -> Sampler:
    return Sampler(lambda: nullcontext(Store(engine, engine.db)), "here", **options)


@pytest.fixture
def engine(url: str) -> Iterator[RemoteEngine]:
    with closing(RemoteEngine(url)) as engine:
        yield engine


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["top", *arguments], prog_name="kvstream")
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def seen(url: str, *arguments: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run("--url", url, "--once", "--json", *arguments).stdout)
    return shown


def fill(client: "redis.Redis") -> None:
    """Create a stream of five entries with two groups, and one of one entry without groups."""
    for number in range(5):
        client.xadd("orders", {"n": number}, id=f"{1_700_000_000_000 + number}-0")
    client.xgroup_create("orders", "billing", "0")
    client.xgroup_create("orders", "audit", "$")
    client.xreadgroup("billing", "worker", {"orders": ">"}, count=3)
    client.xclaim("orders", "billing", "worker", 0, ["1700000000001-0"], idle=90_000)
    client.xadd("lone", {"f": "v"}, id="5-5")
    client.set("plain", "string")


def test_one_sample_is_complete_in_json(url: str, client: "redis.Redis") -> None:
    fill(client)
    shown = seen(url, "--sort", "name")
    assert shown["keys"] == 3
    assert shown["server"]["clients"] >= 1
    assert shown["server"]["memory"] > 0
    assert re.fullmatch(r"(kvstream|Redis) [0-9.]+", shown["server"]["version"])
    assert (shown["left_out"], shown["whole"]) == (0, True)
    streams = {stream["name"]: stream for stream in shown["streams"]}
    orders = streams["orders"]
    assert (orders["length"], orders["added"]) == (5, 5)
    assert (orders["last_id"], orders["rate"]) == ("1700000000004-0", None)
    assert orders["memory"] > 0
    groups = {group.pop("name"): group for group in orders["groups"]}
    oldest = groups["billing"].pop("oldest_ms")
    assert 90_000 <= oldest < 150_000
    assert groups == {
        "billing": {"consumers": 1, "lag": 2, "pending": 3},
        "audit": {"consumers": 0, "lag": 0, "pending": 0, "oldest_ms": None},
    }
    assert streams["lone"]["groups"] == []


def test_one_sample_is_a_table_on_a_terminal(url: str, client: "redis.Redis") -> None:
    fill(client)
    client.xadd(b"odd\xff\x1b[31m", {"f": "v"})
    lines = run("--url", url, "--once").stdout.splitlines()
    assert re.match(r"(kvstream|Redis) [0-9.]+ at 127\.0\.0\.1:\d+, database 0   up ", lines[0])
    assert re.search(
        r"clients?, 0 blocked   .* commands/s   in .*, out .*   memory .*   4 keys$", lines[1]
    )
    assert re.match(r"3 streams, 2 groups   lag 2   3 pending, the oldest for 1m 30s", lines[2])
    assert lines[3].split() == [
        *("stream", "length", "added/s", "memory", "group", "consumers"),
        *("lag", "pending", "oldest"),
    ]
    assert lines[4].split()[:3] == ["orders", "5", "-"]
    assert lines[4].split()[-6:] == ["billing", "1", "2", "3", "1m", "30s"]
    assert any(line.startswith(r"odd\xff\x1b[31m ") for line in lines)
    assert len(lines) == 4 + 4


def test_workers_are_shown_with_what_they_run(url: str, client: "redis.Redis") -> None:
    client.xadd("other:workers", {"f": "v"})  # no registry
    assert "workers" not in seen(url)
    runs = json.dumps([["id", "resize", "jobs", "1-1", 0, None]])
    fields: dict[Any, Any] = {"state": "working", "hanging": "1", "jobs": runs}
    client.xadd("jobs:workers", {**fields, "name": "a", "jobs": "[]"})
    client.xadd("jobs:workers", {**fields, "name": "b"})
    (workers,) = seen(url)["workers"]
    assert workers.pop("oldest_ms") > 1_700_000_000_000
    assert workers == {"jobs": "jobs", "states": {"working": 2}, "running": 1, "late": 3}
    shown = run("--url", url, "--once").stdout
    assert re.search(
        r"^workers of jobs: 2 working   1 running, the oldest .*, 3 late$", shown, re.M
    )


def test_each_order_puts_another_line_first(url: str, client: "redis.Redis") -> None:
    for name, length in (("a", 1), ("long", 50), ("pended", 5), ("lagging", 9), ("waited", 3)):
        for _ in range(length):
            client.xadd(name, {"f": "v"})
    client.xadd("large", {"f": b"x" * 100_000})
    for name in ("pended", "lagging", "waited"):
        client.xgroup_create(name, "g", "0")
    client.xreadgroup("g", "c", {"pended": ">"})
    client.xreadgroup("g", "c", {"waited": ">"}, count=1)
    client.xclaim(
        "waited",
        "g",
        "c",
        0,
        [client.xpending_range("waited", "g", "-", "+", 1)[0]["message_id"]],
        idle=9000,
    )
    first = {
        sort: run("--url", url, "--once", "--sort", sort).stdout.splitlines()[4].split()[0]
        for sort in SORTS
    }
    del first["rate"]  # needs two samples
    assert first == {
        "lag": "lagging",
        "pending": "pended",
        "oldest": "waited",
        "length": "long",
        "memory": "large",
        "name": "a",
    }


def test_rates_are_computed_from_two_samples(engine: RemoteEngine, client: "redis.Redis") -> None:
    fill(client)
    looking = sampler_of(engine)
    before = looking.sample()
    for _ in range(20):
        client.xadd("lone", {"f": "v"})
    client.delete("orders")
    client.xadd("orders", {"f": "v"})
    time.sleep(0.1)
    after = looking.sample()
    seconds = after.taken - before.taken
    sample = with_rates(after, before)
    assert {stream.name: stream.rate for stream in sample.streams} == {
        b"lone": pytest.approx(20 / seconds),
        b"orders": None,  # a new stream
    }
    assert sample.server is not None
    assert sample.server.command_rate >= 20 / seconds
    assert sample.server.in_rate > 0
    assert lines_of(sample, "rate")[0].stream.name == b"lone"
    assert with_rates(before, None) is before


def test_many_streams_cost_no_more_than_the_shown_ones(url: str, client: "redis.Redis") -> None:
    for number in range(130):
        client.xadd(f"s{number}", {"f": "v"})
    client.config_resetstat()
    shown = seen(url, "--streams", "5")
    assert (len(shown["streams"]), shown["left_out"]) == (5, 125)
    calls = client.info("commandstats")
    assert calls["cmdstat_xinfo|stream"]["calls"] == calls["cmdstat_xinfo|groups"]["calls"] == 5
    assert (
        "not shown: 125 more streams (see --streams)"
        in run("--url", url, "--once", "--streams", "5").stdout
    )
    assert len(seen(url, "--match", "s1?")["streams"]) == 10


def test_a_scan_over_many_keys_continues_with_the_next_sample(
    engine: RemoteEngine, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEYS_PAGE", 10)
    for number in range(95):
        client.xadd(f"s{number:02}", {"f": "v"})
    looking = sampler_of(engine, most=3, scan_s=(0.0, 0.0))
    samples = [looking.sample()]
    assert not samples[0].whole
    assert "still being scanned" in "".join(view.head(samples[0]))
    while not samples[-1].whole:
        samples.append(looking.sample())
        assert len(samples) < 50
    assert samples[-1].left_out == 92
    client.delete(*(stream.name for stream in samples[-1].streams))
    for _ in range(30):
        last = looking.sample()
    assert len(last.streams) == 3
    assert not {stream.name for stream in last.streams} & {
        stream.name for stream in samples[-1].streams
    }


def test_keys_deleted_or_changed_between_samples_are_skipped(
    engine: RemoteEngine, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "string", "stays"):
        client.xadd(name, {"f": "v"})
        client.xgroup_create(name, "g", "0")
        client.xreadgroup("g", "c", {name: ">"})
    looking = sampler_of(engine)
    assert len(looking.sample().streams) == 3
    client.delete("gone")
    client.set("string", "now")
    monkeypatch.setattr(looking, "_scan", lambda store: None)  # they are deleted just after it
    (stream,) = looking.sample().streams
    assert stream.name == b"stays"
    assert [group.pending for group in stream.groups] == [1]


def test_groups_beyond_fifty_are_counted_not_shown(url: str, client: "redis.Redis") -> None:
    client.xadd("s", {"f": "v"})
    for number in range(GROUPS_MAX + 2):
        client.xgroup_create("s", f"g{number}")
    (stream,) = seen(url)["streams"]
    assert (len(stream["groups"]), stream["groups_left_out"]) == (GROUPS_MAX, 2)
    assert "not shown: 2 more groups" in run("--url", url, "--once").stdout


def test_a_user_without_the_right_to_read_memory_sees_the_rest(
    url: str, client: "redis.Redis"
) -> None:
    fill(client)
    client.acl_setuser(
        "watcher", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-memory"]
    )
    streams = seen(url.replace("//", "//watcher:pw@"))["streams"]
    assert [stream["memory"] for stream in streams] == [None, None]


def test_a_wrong_password_is_not_shown(served: Served) -> None:
    client = served.client()
    client.config_set("requirepass", "correct horse")
    result = run("--url", f"redis://:geheim@127.0.0.1:{served.port}", "--once", code=5)
    assert "password" in result.stderr
    assert "geheim" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("redis://:geheim@127.0.0.1:1", 5, "no connection to 127.0.0.1:1"),
        ("redis://localhost/geheim", 2, "redis://"),
        ("nonsense", 2, "redis://"),
    ],
)
def test_a_wrong_url_is_reported_without_the_password(url: str, code: int, said: str) -> None:
    (error,) = run("--url", url, "--once", code=code).stderr.splitlines()[-1:]
    assert error.startswith("Error: ")
    assert said in error
    assert "geheim" not in error


def test_the_server_may_be_named_before_the_command_or_in_the_environment(served: Served) -> None:
    served.client(db=3).xadd("s", {"f": "v"})
    url = f"redis://127.0.0.1:{served.port}"
    for words, variable in (
        (["--url", url, "--db", "3", "top"], None),
        (["--db", "3", "top"], url),
        (["top"], f"{url}/3"),
        (["--url", "redis://127.0.0.1:1", "top", "--url", f"{url}/3"], None),
    ):
        result = CliRunner().invoke(
            main, [*words, "--once", "--json"], env={"KVSTREAM_URL": variable}
        )
        assert result.exit_code == 0, result.stderr
        shown = json.loads(result.stdout)
        assert shown["place"] == f"127.0.0.1:{served.port}, database 3"
        assert [stream["name"] for stream in shown["streams"]] == ["s"]


def test_a_server_with_unusual_info_is_shown_as_far_as_possible() -> None:
    found = {"redis_version": "7\x1b[31m", "connected_clients": "many", "used_memory": "12.7"}
    server = taken.server_sample_of(found)
    assert server.version == r"Redis 7\x1b[31m"
    assert (server.clients, server.memory, server.command_rate) == (0, 12, 0.0)
    with pytest.raises(RequestError, match="INFO names no version"):
        taken.server_sample_of({})


def test_the_role_of_a_server_is_shown_if_it_has_replicas_or_is_one() -> None:
    redis = {"redis_version": "7.0.15", "role": "master", "connected_slaves": "0"}
    ours = {"kvstream_version": "1", "replication_lag_rows": "3", "replication_lag_seconds": "0.2"}
    follows = {"role": "slave", "master_host": "h", "master_port": "1", "master_link_status": "up"}
    for info, line in (
        (redis, None),
        ({**redis, "connected_slaves": "2"}, "primary, 2 replicas"),
        (
            {**ours, "role": "master", "connected_slaves": "1", "replication_state": "fenced"},
            "primary, 1 replica, fenced   3 rows behind, heard 200 ms ago",
        ),
        (
            {**ours, **follows, "replication_state": "replica"},
            "replica of h:1, link up   3 rows behind, heard 200 ms ago",
        ),
    ):
        server = taken.server_sample_of(info)
        lines = view.head(Sample("h:1", 0.0, 0, server, []))
        assert [each for each in lines if "primary" in each or "replica" in each] == (
            [] if line is None else [line]
        )


def test_without_a_place_the_error_explains_how_to_name_one() -> None:
    assert "--url redis://HOST[:PORT]" in run("--once", code=2).stderr


def test_a_group_has_no_oldest_entry_if_all_were_given_back(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        stream = store.stream("orders")
        stream.add({"n": 1})
        group = stream.create_group("billing", start="0")
        group.nack(*(entry.id for entry in group.consumer("worker").read()))
    shown = json.loads(run("--store", str(tmp_path / "store"), "--once", "--json").stdout)
    (billing,) = shown["streams"][0]["groups"]
    assert (billing["pending"], billing["oldest_ms"]) == (1, None)


def test_a_store_without_an_owner_is_read_directly(orders: Program) -> None:
    (shown,) = orders.json("top", "--once", "--sort", "name")
    assert shown["server"] is None
    assert shown["place"] == str(orders.directory)
    (group,) = shown["streams"][0]["groups"]
    assert group.pop("oldest_ms") > 0
    assert group == {"name": "billing", "consumers": 2, "lag": 3, "pending": 2}
    assert [stream["name"] for stream in shown["streams"]] == ["orders", "orders:2025"]
    lines = orders.lines("top", "--once", "--match", "orders:*")
    assert lines[0] == f"{orders.directory}   2 keys"
    assert lines[3].split()[:2] == ["orders:2025", "1"]


def test_the_store_of_a_server_is_read_by_its_url(orders: Program) -> None:
    with Store.open(orders.directory):
        result = orders("top", "--once", code=3)
    assert "if it is a server, use --url" in result.stderr


def test_a_store_of_many_streams_shows_some(tmp_path: Path) -> None:
    with Store.open(tmp_path / "many") as store:
        for number in range(7):
            store.stream(f"s{number}").add({"f": "v"})
    result = CliRunner().invoke(
        main, ["--store", str(tmp_path / "many"), "top", "--once", "--json", "--streams", "3"]
    )
    shown = json.loads(result.stdout)
    assert (len(shown["streams"]), shown["left_out"], shown["whole"]) == (3, 4, True)
    session = DirectorySession(tmp_path / "many")
    sample = Sampler(session.reading, "many", scan_s=(0.0, 0.0)).sample()
    assert "still being scanned" in "".join(view.head(sample))


def test_the_examples_run_unchanged(served: Served) -> None:
    fill(served.client())
    lines = [line for line in examples_of(top) if "--once" in line]
    assert lines
    for line in lines:
        run(*words_of(line.replace("6390", str(served.port)))[1:])


# --- live -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_the_terminal_is_restored_afterwards(served: Served, number: int, code: int) -> None:
    client = served.client()
    fill(client)
    terminal = Terminal("top", "--url", f"redis://127.0.0.1:{served.port}", "--interval", "100ms")
    terminal.await_text(b"orders")
    client.xadd("another", {"f": "v"})
    terminal.await_text(b"another")
    assert terminal.end(number) == code
    assert terminal.said.index(ENTER) < terminal.said.index(LEAVE)
    assert CURSOR in terminal.said[terminal.said.index(LEAVE) - 20 :]
    assert b"Traceback" not in terminal.said


def test_a_lost_server_is_reported_and_the_last_sample_stays(served: Served) -> None:
    fill(served.client())
    terminal = Terminal("top", "--url", f"redis://127.0.0.1:{served.port}", "--interval", "100ms")
    terminal.await_text(b"orders")
    served.stop()
    terminal.await_text(b"no answer: ")
    terminal.await_text(b"orders")
    assert terminal.end(signal.SIGINT) == 130
    assert LEAVE in terminal.said


def test_a_pipe_receives_one_sample_after_another(served: Served) -> None:
    client = served.client()
    client.xadd("s", {"f": "v"})
    words = ["top", "--url", f"redis://127.0.0.1:{served.port}", "--interval", "100ms"]
    with forking.start(
        [sys.executable, "-m", "kvstream", *words, "--json"],
        stdout=subprocess.PIPE,
        env={**os.environ, **ENVIRONMENT},
    ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        client.xadd("s", {"f": "v"})
        rates = [json.loads(process.stdout.readline())["streams"][0]["rate"] for _ in range(3)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert first["streams"][0]["rate"] is None
    assert max(rates) > 0
    assert process.returncode == 130


def _drawn(sample: Sample, height: int, trouble: str = "", width: int = 120) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height, highlight=False)
    with console.capture() as capture:
        console.print(view.live(sample, Screen("name"), width, height, trouble))
    return capture.get().splitlines()


def test_a_frame_is_never_higher_than_the_terminal(served: Served, tmp_path: Path) -> None:
    client = served.client()
    for number in range(40):
        client.xadd(f"s{number:02}", {"f": "v"})
    with closing(RemoteEngine(f"redis://127.0.0.1:{served.port}")) as engine:
        sample = sampler_of(engine, most=30).sample()
    for height in (12, 24, 60):
        lines = _drawn(sample, height, "no answer")
        assert len(lines) <= height
        assert [line for line in lines if line.startswith("s0")]
    assert any("more lines" in line for line in _drawn(sample, 12))
    assert any("no answer" in line for line in _drawn(sample, 12, "no answer"))


def test_a_store_is_drawn_too(orders: Program) -> None:
    session = DirectorySession(orders.directory)
    lines = _drawn(Sampler(session.reading, str(orders.directory)).sample(), 24)
    assert lines[0].startswith(str(orders.directory)[:40])
    assert any(line.startswith("orders:2025") for line in lines)


@pytest.mark.parametrize("width", [120, 80, 60, 40])
@pytest.mark.parametrize(
    "name",
    [b"s", b"name" * 75, "\u6f22\u5b57".encode() * 50, b"\x07\xff" * 9],
    ids=["short", "long", "wide", "binary"],
)
def test_numbers_are_complete_on_terminals_of_any_width(name: bytes, width: int) -> None:
    length, lag, pending = 10**15 - 1, 123_456_789_012, 856_000
    group = GroupSample(name, 3, lag, pending, 90_000_000)
    stream = StreamSample(name, length, length, StreamID(1, 1), 10**12, [group], rate=12_345.0)
    server = ServerSample("kvstream 1.0", 10**6, 10**4, 12, 10**12, 1, 1, 1, 98_765.0, 1e9, 1e9)
    drawn = _drawn(Sample("a" * 90, 0.0, 10**9, server, [stream]), 24, width=width)
    shown = " ".join(line.strip() for line in drawn)
    for number in (length, lag, pending, 98_765, 10**9, 10**4):
        assert re.search(rf"(?<![0-9,]){number:,}(?![0-9,])", shown), (number, drawn)
    assert "1d 1h" in shown
    assert all(cells(line) <= width for line in drawn)
    assert len(drawn) <= 24


# --- keys -----------------------------------------------------------------------------------------


def test_keys_sort_filter_and_scroll(url: str, client: "redis.Redis") -> None:
    fill(client)
    terminal = Terminal("top", "--url", url, "--interval", "200ms")
    terminal.await_text(b"by lag   ?: help   q: quit")
    for typed, text in (
        ("?", b"show only streams and groups whose names"),
        ("x", b"by lag"),  # any key closes the help
        ("s", b"by pending"),
        ("S", b"by lag"),
        ("/bil", b"filter: bil_"),
    ):
        terminal.type(typed)
        terminal.await_text(text)
    terminal.type("x\x7f\r")
    shown = terminal.await_text(b"filter: bil   ?: help")
    assert "lone" not in shown.rpartition("filter: bil_")[2]
    terminal.type("G jkg\x1b[6~\x1b[5~\x1b[F\x1b[A\x1b[B\x1b[H")
    terminal.type("\x1b")
    terminal.await_text(b"by lag   ?: help")
    terminal.type("q")
    assert terminal.wait() == 0
    assert terminal.said.index(ENTER) < terminal.said.index(LEAVE)
    assert b"Traceback" not in terminal.said


def _sample(*lines: tuple[str, str, int]) -> Sample:
    """Return a sample of streams with one group each, with a lag."""
    streams = [
        StreamSample(
            name.encode(), 1, 1, StreamID(1, 0), 0, [GroupSample(group.encode(), 1, lag, 0, None)]
        )
        for name, group, lag in lines
    ]
    return Sample("here", 0.0, len(streams), None, streams)


def test_the_filter_matches_names_of_streams_and_groups() -> None:
    sample = _sample(("orders", "billing", 1), ("refunds", "audit", 1), ("Bills", "x", 1))
    screen = Screen("name")
    for key in "/bil":
        screen.press(key)
    assert [line.stream.name for line in screen.lines(sample)] == [b"Bills", b"orders"]
    screen.press("esc")
    assert len(screen.lines(sample)) == 3
    for key in ("/", "q", "up", "enter"):
        screen.press(key)
    assert (screen.filter, screen.ended) == ("q", False)
    screen.press("esc")
    assert screen.filter == ""
    screen.press("q")
    assert screen.ended


def test_keys_scroll_within_the_lines() -> None:
    screen = Screen("name")
    first = []
    for key in ("down", "pgdn", "end", "up", "home", "up", "G", "k", "j", "pgup"):
        screen.press(key)
        shown = screen.scroll(20, 12)
        assert shown.stop - shown.start == 12
        first.append(shown.start)
    assert first == [1, 8, 8, 7, 0, 0, 8, 7, 8, 0]
    screen.press("end")
    screen.press("s")
    assert (screen.sort, screen.first) == (SORTS[0], 0)
    assert screen.scroll(3, 12) == slice(0, 12)
