"""Compiled code for plain strings writes the rows that Python writes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream import Store
from kvstream.layout.keys import COUNTED_MAX
from kvstream.meta.compiled import plain_strings
from kvstream.meta.strings import WHOLE_BYTES_MAX
from kvstream.operations import strings
from kvstream.storage.batch import Family
from kvstream.types.clock import ManualClock
from tests.operations.checks.seeding import fault_texts
from tests.server.talking import Server, request, sound

pytestmark = pytest.mark.skipif(plain_strings is None, reason="kvstream is not compiled")
KEYS = st.sampled_from(["a", "b", ""])
VALUES = st.sampled_from(["", "1", "-1", "-0", "01", "0", "v" * 256, "v" * 257, "v" * 20_000])
NUMBERS = st.sampled_from(["1", "-1", "9" * 18, "9" * 19, str((1 << 63) - 1), str(-(1 << 63))])
COMMANDS = st.one_of(
    st.tuples(st.just("SET"), KEYS, VALUES),
    st.tuples(st.just("INCR"), KEYS),
    st.tuples(st.just("SET"), KEYS, NUMBERS),
    st.tuples(st.sampled_from(["INCRBY", "DECRBY"]), KEYS, NUMBERS),
    st.tuples(st.just("MSET"), KEYS, VALUES, KEYS, VALUES),
    st.tuples(st.just("GETSET"), KEYS, VALUES),
    st.tuples(st.sampled_from(["STRLEN", "TYPE", "PERSIST", "EXISTS", "DUMP"]), KEYS),
    st.tuples(st.just("EXPIRE"), KEYS, st.just("1")),
    st.tuples(st.just("APPEND"), KEYS, VALUES),
    st.tuples(st.just("DEL"), KEYS),
    st.tuples(st.just("GET"), KEYS),
    st.tuples(*map(st.just, ("SET", "a", "v", "PX", "1"))),
    st.tuples(*map(st.just, ("XADD", "a", "1-*", "f", "v"))),
    st.sampled_from([("SELECT", "1"), ("SELECT", "0"), ("SWAPDB", "0", "1"), ("FLUSHDB",)]),
    st.sampled_from([("WATCH", "a"), ("MULTI",), ("EXEC",), ("DEBUG", "RELOAD"), ("DBSIZE",)]),
    st.sampled_from([("CONFIG", "SET", "notify-keyspace-events", "KEA"), ("RENAME", "a", "b")]),
)

SIZES = {"flush_keys": 1, "strings_cached": 2}
"""A flush gives the database another number, and keys leave memory."""


def rows_of(server: Server) -> list[tuple[bytes, bytes]]:
    database = server.engine.database
    return [row for family in Family for row in database.scan(family, b"", b"\xff" * 9)]


@given(st.lists(st.tuples(st.booleans(), COMMANDS), max_size=30))
def test_both_twins_create_strings_alike(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, tuple[str, ...]]]
) -> None:
    folder, seen = tmp_path_factory.mktemp("stores"), []
    for name, twin in (("compiled", plain_strings), ("python", None)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(strings, "plain_strings", twin)
            with sound(folder / name, ManualClock(), **SIZES) as server:
                ann, bob = server.client(), server.client()
                bob.send("PSUBSCRIBE", "*")
                for ends_turn, words in steps:
                    ann.send_bytes(request(*words))
                    if ends_turn:
                        server.turn()
                server.turn()
                seen.append((ann.heard(), bob.heard(), rows_of(server)))
    assert seen[0] == seen[1]


def test_set_and_incr_are_plain_in_a_database_that_was_flushed(tmp_path: Path) -> None:
    with sound(tmp_path / "store", flush_keys=1) as server:
        ann = server.client()
        for number in range(3):
            ann.ask("SET", f"before:{number}", "v")
        ann.ask("FLUSHALL")
        ann.ask("SET", "first", "v")  # Python counts the keys of the new number
        ann.ask("SET", "a", "1")
        assert ann.ask("INCR", "a") == b":2\r\n"
        known = server.engine.catalog.strings
        assert type(known[b"\0\0a"]) is bytes


def test_check_reports_a_record_in_memory_that_is_not_that_on_disk(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        engine = store.engine
        engine.run(strings.put, b"\0\0first", b"1")  # Python reads the counters
        engine.run(strings.put, b"\0\0a", b"1")
        known = engine.catalog.strings
        record = known[b"\0\0a"]
        assert type(record) is bytes
        known[b"\0\0a"] = record[:-1] + b"2"
        assert fault_texts(store.check()) == ["the record in memory is another than on disk"]
        known[b"\0\0a"] = record
        assert fault_texts(store.check()) == []


def test_the_compiled_bounds_are_pythons() -> None:
    assert plain_strings.BOUNDS == {"whole_bytes_max": WHOLE_BYTES_MAX, "counted_max": COUNTED_MAX}
