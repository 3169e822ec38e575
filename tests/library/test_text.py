"""Stores opened with ``decode=True``, and lookups of fields by a name of the wrong type.

Decoding by every method is tested on every place: tests/remote/test_one_program.py.
"""

import pickle
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import InvalidArgument, NotText, RequestError, Store


@pytest.fixture
def texts(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "texts", decode=True, durability="no") as store:
        yield store


def test_a_store_of_text_explains_a_lookup_by_bytes(texts: Store[str]) -> None:
    texts.stream("s").add({"a": "1"})
    fields = texts.stream("s").range()[0].fields
    with pytest.raises(KeyError, match=r"no field b'a': the store was opened .*; use 'a'"):
        fields[b"a"]  # type: ignore[index]
    with pytest.raises(KeyError, match=r"^'b'$"):
        fields["b"]
    assert pickle.loads(pickle.dumps(fields)) == fields == {"a": "1"}


def test_fields_of_bytes_behave_like_a_dict_otherwise(store: Store) -> None:
    stream = store.stream("s")
    stream.add([("a", 1), ("b", 2)])
    stream.add([("a", 1), ("a", 2)])
    plain, repeated = stream.range()
    assert (plain.fields, repr(plain.fields)) == (
        {b"a": b"1", b"b": b"2"},
        "{b'a': b'1', b'b': b'2'}",
    )
    assert plain.fields | {b"c": b"3"} == {b"a": b"1", b"b": b"2", b"c": b"3"}
    for entry in (plain, repeated):
        with pytest.raises(KeyError, match="use b'x', or open the store with decode=True"):
            entry.fields["x"]  # type: ignore[index]
        with pytest.raises(KeyError, match=r"^b'x'$"):
            entry.fields[b"x"]
        again = pickle.loads(pickle.dumps(entry))
        assert (again, again.pairs) == (entry, entry.pairs)
    assert stream.get(stream.add(plain.fields)) is not None


def test_names_that_decode_alike_stay_two_pairs(store: Store, tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", decode=True, errors="replace") as texts:
        texts.stream("s").add({b"\xff": "1", b"\xfe": "2"})
        (entry,) = texts.stream("s")
    assert (entry.fields, entry.pairs) == ({"�": "2"}, (("�", "1"), ("�", "2")))


def test_delivered_binary_entries_stay_pending(texts: Store[str]) -> None:
    jobs = texts.stream("jobs")
    bad = jobs.add({"a": b"\xff"})
    group = jobs.create_group("g", "0")
    with pytest.raises(NotText) as refused:
        group.consumer("w").read()
    assert str(refused.value) == (
        f"entry {bad} of stream 'jobs': the value of field 'a' is not UTF-8: b'\\xff'; open the "
        'store with errors="replace" or without decode'
    )
    assert isinstance(refused.value, RequestError | UnicodeError)
    assert group.ack(bad) == 1


def test_the_error_names_what_has_no_id_yet(texts: Store[str]) -> None:
    jobs = texts.stream("jobs")
    ticket = jobs.add({"a": b"\xff"}, delay=60)
    jobs.schedule("nightly", "0 3 * * *", {b"\xff": "a"})
    with pytest.raises(NotText, match=f"^message {ticket} of stream 'jobs': the value of field"):
        jobs.delayed()
    with pytest.raises(NotText, match=r"^schedule 'nightly' of stream 'jobs': the field name"):
        jobs.schedules()


def test_the_error_shows_a_binary_name(texts: Store[str]) -> None:
    texts.stream(b"\xff").add({"a": 1})
    with pytest.raises(NotText, match=r"^the key is not UTF-8: b'\\xff'$"):
        texts.keys()
    assert repr(texts.stream(b"\xff")) == "<Stream b'\\xff'>"


def test_the_selected_database_has_text_too(texts: Store[str]) -> None:
    other = texts.select(3)
    other.stream("s").add({"a": "1"})
    assert [entry.fields for entry in other.stream("s")] == [{"a": "1"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clock": 5}, r"clock is an object with now_ms\(\), such as kvstream.ManualClock"),
        ({"decode": "utf-8"}, "decode is True or False, not 'utf-8'"),
        ({"decode": True, "errors": "repalce"}, "errors is that of bytes.decode, such as"),
        ({"decode": True, "errors": None}, "errors is that of bytes.decode, such as"),
        ({"errors": "replace"}, "errors='replace' needs decode=True"),
    ],
)
@pytest.mark.parametrize("opens", [kvstream.open, kvstream.aio.open, Store.open])
def test_wrong_options_are_named_before_anything_is_opened(
    tmp_path: Path, opens: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        opens(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()
