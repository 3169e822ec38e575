"""Compiled XREADGROUP, XACK and XDEL of plain words answer as Python does, with the same rows."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstream.commands import ack, delete, readgroup
from kvstream.meta.compiled import plain
from kvstream.types.clock import ManualClock
from tests.operations.test_new_strings import rows_of
from tests.server.talking import request, sound

pytestmark = pytest.mark.skipif(plain is None, reason="kvstream is not compiled")
Words = tuple[str, ...]
WORDS: dict[str, list[str]] = {
    "id": [
        *("1-1", "1-2", "2-1", "3-1", "4-1", "1", "01-1", "1-01", "0-0", "-", "1-", "-1", "1--1"),
        *(
            "1-1 ",
            "+1-1",
            "",
            "x",
            "1-18446744073709551615",
            "18446744073709551616-1",
            f"{1:030}-1",
        ),
        *("999999999999999999-1", "1-1-1", "1-*", "\0-1"),
    ],
    "count": ["1", "2", "16", "17", "0", "-1", "01", "", "x", "1 ", "9" * 30],
    "key": ["s", "t", "string", "none"],
    "group": ["g", "h"],
    "consumer": ["c", "d", ""],
}
CASES = ("XREADGROUP", "Group", "COUNT", "streams"), ("xreadgroup", "GROUP", "count", "STREAMS")


def of(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from(WORDS[name])


def read(words: tuple[Words, str, str, str, str]) -> Words:
    (command, group_word, count_word, streams_word), group, consumer, count, key = words
    return command, group_word, group, consumer, count_word, count, streams_word, key, ">"


READS = st.tuples(
    *(st.sampled_from(CASES), of("group"), of("consumer"), of("count"), of("key"))
).map(read)
STEPS = st.one_of(
    READS,
    READS.map(lambda words: (*words[:4], "NOACK", *words[4:])),
    READS.map(lambda words: words[:-1]),
    READS.map(lambda words: (*words[:4], *words[6:])),
    READS.map(lambda words: (*words[:-1], "0")),
    st.tuples(st.just("XACK"), of("key"), of("group"), of("id")),
    st.tuples(st.just("XACK"), of("key"), of("group"), of("id"), of("id")),
    st.tuples(st.sampled_from(["XDEL", "xdel"]), of("key"), of("id")),
    st.tuples(st.just("XDEL"), of("key"), of("id"), of("id")),
    st.tuples(
        st.just("XADD"), st.sampled_from(["s", "t"]), st.just("*"), st.just("f"), st.just("v")
    ),
    st.sampled_from([("MULTI",), ("EXEC",), ("SELECT", "1"), ("SELECT", "0"), ("XLEN", "s")]),
)
NEXT: Words = ("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "s", ">")


@given(st.lists(STEPS, max_size=25))
@example([NEXT, NEXT, ("XACK", "s", "g", "1-1"), ("XACK", "s", "g", "1-1"), ("XDEL", "s", "1-2")])
def test_plain_words_are_answered_as_by_python(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Words]
) -> None:
    folder, seen = tmp_path_factory.mktemp("stores"), []
    for name, twin in (("compiled", plain), ("python", None)):
        with pytest.MonkeyPatch.context() as patch, sound(folder / name, ManualClock()) as server:
            for module in (ack, delete, readgroup):
                patch.setattr(module, "plain", twin)
            ann = server.client()
            ann.ask("SET", "string", "v")
            for key in ("s", "t"):
                ann.ask("XGROUP", "CREATE", key, "g", "0", "MKSTREAM")
                for eid in ("1-1", "1-2", "2-1", "3-1"):
                    ann.ask("XADD", key, eid, "f", "v")
                ann.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", key, ">")
            for words in steps:
                ann.send_bytes(request(*words))
            server.turn()
            seen.append((ann.heard(), rows_of(server)))
    assert seen[0] == seen[1]
