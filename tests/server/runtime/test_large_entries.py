"""Large entries: which ones a server accepts, on every path, and their cost."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream import Store
from kvstream.inprocess.host import OPTIONS
from kvstream.server.runtime.xadd_batching import LARGE
from kvstream.types.options import ENTRY_BYTES_MAX, STREAM_ENTRY_MAX_BYTES
from tests.cli.test_serving import port_of
from tests.cli.test_serving import served as process
from tests.server.asking import Asker, Failure
from tests.server.conftest import Served
from tests.server.runtime.test_turn_retries import first_commit_fails
from tests.server.talking import Server, Talker, parsed, request

MEGABYTE = 1 << 20
FITS, LARGER = b"v" * (MEGABYTE - 1), b"v" * MEGABYTE
REFUSED = Failure(
    f"ERR an entry of {MEGABYTE + 1} bytes is larger than the stream-entry-max-bytes of "
    f"{MEGABYTE}: make it smaller, or set more by CONFIG SET"
)


@pytest.fixture
def asker(served: Served) -> Iterator[Asker]:
    with served.asker() as made:
        made.ask("CONFIG SET stream-entry-max-bytes 1mb")
        yield made


def test_the_limit_is_a_setting_with_a_default(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask("CONFIG GET stream-entry-max-bytes") == [
            b"stream-entry-max-bytes",
            b"%d" % STREAM_ENTRY_MAX_BYTES,
        ]
        for wrong in ("0", "1048575", "513mb", "x"):
            assert "stream-entry-max-bytes" in asker.ask(
                "CONFIG", "SET", "stream-entry-max-bytes", wrong
            )
        assert asker.ask("CONFIG SET stream-entry-max-bytes 512mb") == b"OK"
    assert OPTIONS.stream_entry_max_bytes == ENTRY_BYTES_MAX


@pytest.mark.parametrize(
    "options",
    [
        "*",
        "1-1",
        "1-*",
        "MAXLEN 5 *",
        "MAXLEN ~ 5 1-1",
        "MINID 0 *",
        "NOMKSTREAM *",
        "IDMP p i *",
        "IDMPAUTO p *",
        "KEEPREF MAXLEN 5 *",
    ],
)
def test_a_larger_entry_is_refused_and_changes_nothing(asker: Asker, options: str) -> None:
    words = options.split()
    assert asker.ask("XADD", "s", *words, "f", LARGER) == REFUSED
    assert asker.ask("EXISTS s") == 0
    if "NOMKSTREAM" not in words:
        assert re.fullmatch(rb"\d+-\d+", asker.ask("XADD", "s", *words, "f", FITS))
        assert asker.ask("XLEN s") == 1


def test_names_count_and_so_do_all_fields(asker: Asker) -> None:
    half = b"v" * (MEGABYTE // 2)
    assert asker.ask("XADD", "s", "*", half, half) != REFUSED
    assert asker.ask("XADD", "s", "*", half + b"n", half) == REFUSED
    assert asker.ask("XADD", "s", "*", "", half, "", half + b"v") == REFUSED
    many = [b"name"] * 400_000
    assert str(asker.ask("XADD", "s", "*", *many)).startswith("ERR an entry of 1600000 bytes")
    assert asker.ask("XLEN s") == 1


def test_only_the_large_entry_of_a_batch_is_refused(asker: Asker) -> None:
    small, large = request("XADD", "s", "*", "f", "v"), request("XADD", "s", "*", "f", LARGER)
    asker.send_bytes(small * 3 + large + small + large + request("XLEN", "s"))
    said = [asker.read() for _ in range(7)]
    assert [each == REFUSED for each in said] == [False] * 3 + [True, False, True, False]
    assert said[-1] == 4


def test_only_the_large_entry_of_a_transaction_is_refused(asker: Asker) -> None:
    for words in (["MULTI"], ["XADD", "s", "1-1", "f", LARGER], ["XADD", "s", "1-2", "f", "v"]):
        asker.ask(*words)
    assert asker.ask("EXEC") == [REFUSED, b"1-2"]


def test_restored_moved_and_reloaded_entries_may_be_larger(asker: Asker) -> None:
    asker.ask("CONFIG SET stream-entry-max-bytes 4mb")
    assert asker.ask("XADD", "s", "1-1", "f", LARGER + LARGER) == b"1-1"
    payload = asker.ask("DUMP s")
    asker.ask("CONFIG SET stream-entry-max-bytes 1mb")
    whole = [[b"1-1", [b"f", LARGER + LARGER]]]
    assert asker.ask("RESTORE", "restored", "0", payload) == b"OK"
    assert asker.ask("COPY s copied") == 1
    assert asker.ask("RENAME s renamed") == b"OK"
    assert asker.ask("DEBUG RELOAD") == b"OK"
    for key in ("restored", "copied", "renamed"):
        assert asker.ask("XRANGE", key, "-", "+") == whole
    assert asker.ask("CONFIG GET stream-entry-max-bytes")[1] == b"%d" % MEGABYTE


def test_the_library_has_no_such_limit(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", durability="no") as store:
        stream = store.stream("s")
        stream.add({"f": b"v" * (STREAM_ENTRY_MAX_BYTES + 1)})
        assert len(stream) == 1


@pytest.mark.parametrize("how", ["flag", "environment", "file"])
def test_a_server_is_started_with_it(tmp_path: Path, how: str) -> None:
    flags, environment = ["--dir", str(tmp_path / "store"), "--port", "0"], dict[str, Any]()
    if how == "flag":
        flags += ["--stream-entry-max-bytes", "2097152"]
    elif how == "environment":
        environment["KVSTREAM_SERVE_STREAM_ENTRY_MAX_BYTES"] = "2097152"
    else:
        (tmp_path / "kvstream.toml").write_text("stream-entry-max-bytes = 2097152\n")
        flags += ["--config", str(tmp_path / "kvstream.toml")]
    with process(*flags, **environment) as (_, lines), Asker(port_of(lines)) as asker:
        assert asker.ask("XADD", "s", "*", "f", FITS + FITS) != REFUSED
        reply = asker.ask("XADD", "s", "*", "f", LARGER + LARGER)
        assert reply.startswith("ERR an entry of 2097153 bytes")


@pytest.mark.parametrize("options", ["*", "MAXLEN 5 *"])
@pytest.mark.parametrize("fields", [[b"*", b"v" * LARGE], [b"f", b"v" * LARGE, b"f", b"again"]])
def test_a_large_entry_of_a_turn_that_fails_is_added_when_it_runs_again(
    server: Server, ann: Talker, options: str, fields: list[bytes]
) -> None:
    ann.send("XADD", "s", *options.split(), *fields)
    with first_commit_fails(server):
        server.turn()
    eid = parsed(ann.heard())
    assert parsed(ann.ask("XRANGE", "s", "-", "+")) == [[eid, fields]]


def test_only_the_row_of_a_large_entry_is_kept_until_it_is_written(
    server: Server, ann: Talker
) -> None:
    value = b"v" * LARGE
    taken = server.executor._xadds.take(ann.client, [b"XADD", b"s", b"*", b"f", value])
    assert taken is not None
    assert taken.sent == (b"XADD", b"s", b"*")
