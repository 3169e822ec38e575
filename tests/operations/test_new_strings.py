"""Compiled code for new strings writes the rows that Python writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.meta.compiled import plain_strings
from kvstream.meta.strings import WHOLE_BYTES_MAX
from kvstream.operations import strings
from kvstream.storage.batch import Family
from kvstream.types.clock import ManualClock
from tests.server.talking import Server, request, sound

pytestmark = pytest.mark.skipif(plain_strings is None, reason="kvstream is not compiled")
KEYS = st.sampled_from(["a", "b", ""])
VALUES = st.sampled_from(["", "1", "v" * 256, "v" * 257, "v" * 20_000])
COMMANDS = st.one_of(
    st.tuples(st.just("SET"), KEYS, VALUES),
    st.tuples(st.just("INCR"), KEYS),
    st.tuples(st.just("APPEND"), KEYS, VALUES),
    st.tuples(st.just("DEL"), KEYS),
    st.tuples(st.just("GET"), KEYS),
    st.tuples(*map(st.just, ("SET", "a", "v", "PX", "1"))),
    st.tuples(*map(st.just, ("XADD", "a", "1-*", "f", "v"))),
    st.sampled_from([("SELECT", "1"), ("SELECT", "0"), ("SWAPDB", "0", "1"), ("FLUSHDB",)]),
    st.sampled_from([("WATCH", "a"), ("MULTI",), ("EXEC",), ("DEBUG", "RELOAD"), ("DBSIZE",)]),
    st.sampled_from([("CONFIG", "SET", "notify-keyspace-events", "KEA"), ("RENAME", "a", "b")]),
)


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
            with sound(folder / name, ManualClock()) as server:
                ann, bob = server.client(), server.client()
                bob.send("PSUBSCRIBE", "*")
                for ends_turn, words in steps:
                    ann.send_bytes(request(*words))
                    if ends_turn:
                        server.turn()
                server.turn()
                seen.append((ann.heard(), bob.heard(), rows_of(server)))
    assert seen[0] == seen[1]


def test_the_compiled_bounds_are_pythons() -> None:
    assert plain_strings.BOUNDS == {"whole_bytes_max": WHOLE_BYTES_MAX}
