"""Bytes and entries survive JSON; invalid entries are refused with a reason."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream import BareEntry, ClaimedIDs, Entry, Outcome, StreamID
from kvstream.cli.json_values import (
    Unreadable,
    bytes_json,
    dumps,
    entry_json,
    jsonable,
    loads_entry,
    loads_fields,
)
from kvstream.types.records import RepeatedFields

parts = st.binary(max_size=12) | st.text(max_size=8).map(str.encode)
pairs_lists = st.lists(st.tuples(parts, parts), min_size=1, max_size=6)


def entry_of(pairs: list[tuple[bytes, bytes]]) -> Entry:
    """Return an entry as the store would return it."""
    flat = tuple(part for pair in pairs for part in pair)
    unique = dict(pairs)
    return Entry(StreamID(7, 1), unique if len(unique) == len(pairs) else RepeatedFields(flat))


@given(pairs_lists)
def test_entries_survive_json_with_binary_and_repeated_fields(
    pairs: list[tuple[bytes, bytes]],
) -> None:
    line = dumps(entry_json(entry_of(pairs))).encode()
    assert b"\n" not in line
    assert loads_entry(line) == ("7-1", pairs)


@given(pairs_lists)
def test_json_for_terminals_without_unicode_is_equivalent(pairs: list[tuple[bytes, bytes]]) -> None:
    line = dumps(entry_json(entry_of(pairs)), ascii_only=True)
    assert line.isascii()
    assert loads_entry(line.encode()) == ("7-1", pairs)


def test_text_stays_text_and_other_bytes_are_base64() -> None:
    assert bytes_json("Grüße".encode()) == "Grüße"
    assert bytes_json(b"\xff\x00") == {"base64": "/wA="}
    assert entry_json(entry_of([(b"a", b"1"), (b"b", b"2")]))["fields"] == {"a": "1", "b": "2"}
    assert entry_json(entry_of([(b"a", b"1"), (b"a", b"2")]))["fields"] == [["a", "1"], ["a", "2"]]


@pytest.mark.parametrize(
    ("line", "eid", "pairs"),
    [
        ('{"sku": "a1", "qty": 2}', None, [(b"sku", b"a1"), (b"qty", b"2")]),
        ('{"price": 1.10, "big": 1e400}', None, [(b"price", b"1.10"), (b"big", b"1e400")]),
        ('{"yes": true, "no": false, "none": null}', None, [(b"yes", b"true"), (b"no", b"false")]),
        ('{"a": {"b": [1.50, "ü", null]}}', None, [(b"a", '{"b":[1.50,"ü",null]}'.encode())]),
        ('{"a": 1, "a": 2}', None, [(b"a", b"1"), (b"a", b"2")]),
        ('{"id": "x", "name": "y"}', None, [(b"id", b"x"), (b"name", b"y")]),
        ('{"fields": "f"}', None, [(b"fields", b"f")]),
        ('{"fields": {"a": "1"}, "other": 1}', None, [(b"fields", b'{"a":"1"}'), (b"other", b"1")]),
        ('{"id": "5-1", "fields": {"a": "1"}}', "5-1", [(b"a", b"1")]),
        ('{"id": 5, "fields": [["a", "1"], ["a", 2]]}', "5", [(b"a", b"1"), (b"a", b"2")]),
        ('{"id": null, "fields": {"a": {"base64": "/w=="}}}', None, [(b"a", b"\xff")]),
        ('{"fields": {"base64": "text"}}', None, [(b"base64", b"text")]),
        ('{"id": "5", "fields": {"a": "1"}, "deliveries": 2}', "5", [(b"a", b"1")]),
    ],
)
def test_an_entry_is_read_from_many_kinds_of_objects(
    line: str, eid: str | None, pairs: list[tuple[bytes, bytes]]
) -> None:
    assert loads_entry(line.encode()) == (eid, pairs)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON at character 2"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 8"),
        (b"{}", "no fields"),
        (b'{"a": null}', "no fields"),
        (b'{"fields": {}}', "no fields"),
        (b'{"fields": [["a"]]}', "pairs"),
        (b'{"id": {}, "fields": {"a": 1}}', "the id must be a string"),
        (b'{"a": "\\ud800"}', "half a surrogate"),
        (b'{"a": {"base64": "%%"}}', "base64"),
        (b'{"a": {"base64": [1]}}', "base64"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": ' * 700 + b"1" + b"}" * 700, "nested too deeply"),
    ],
)
def test_an_invalid_entry_is_refused_with_a_reason(line: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        loads_entry(line)


@given(st.binary())
def test_any_bytes_are_read_or_raise_the_expected_error(line: bytes) -> None:
    pairs = [(b"", b"")]
    with suppress(Unreadable):
        _, pairs = loads_entry(line)
    assert pairs


def test_fields_for_the_command_line_are_an_object_or_pairs() -> None:
    assert loads_fields('{"a": 1}') == [(b"a", b"1")]
    with pytest.raises(Unreadable, match="an object or a list"):
        loads_fields('"text"')


def test_every_record_of_the_library_has_a_json_form() -> None:
    claimed = ClaimedIDs(StreamID(0, 0), [BareEntry(StreamID(1, 2))], [StreamID(3, 4)])
    assert jsonable(claimed) == {
        "cursor": "0-0",
        "entries": [{"id": "1-2", "fields": None}],
        "deleted": ["3-4"],
    }
    assert jsonable(Outcome.KEPT) == "kept"
    assert jsonable({b"\xff": 1}) == [[{"base64": "/w=="}, 1]]
    assert jsonable({b"a": (b"b", None)}) == {"a": ["b", None]}
    assert json.loads(dumps(jsonable(Entry(StreamID(1, 1), {b"a": b"b"}, 5, 2)))) == {
        "id": "1-1",
        "fields": {"a": "b"},
        "idle_ms": 5,
        "deliveries": 2,
    }
