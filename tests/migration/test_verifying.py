"""``verify`` finds any difference, and names its place."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream import ManualClock, Store
from kvstream.layout.values import encode_fields
from kvstream.migration import differences, run, verify
from kvstream.migration.differences import Digester, Mismatch, StreamDigest, windows
from kvstream.types.ids import StreamID
from kvstream.types.images import (
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    ProducerImage,
    StreamState,
)
from tests.migration.filling import fill
from tests.migration.servers import RedisServer

MANY = 100_000


def packed(*numbers: int) -> list[bytes]:
    return [StreamID(number, 0).packed for number in numbers]


def digest_of(ids: list[bytes], values: list[bytes]) -> StreamDigest:
    digester = Digester()
    digester.update(ids, values)
    return digester.finish()


# --- digests ----------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 5000), unique=True, max_size=3000).map(sorted),
    st.lists(st.integers(1, 700), min_size=1),
)
def test_a_digest_does_not_depend_on_pages(numbers: list[int], cuts: list[int]) -> None:
    ids = packed(*numbers)
    values = [b"%d" % number for number in numbers]
    digester = Digester()
    at = 0
    for cut in cuts:
        digester.update(ids[at : at + cut], values[at : at + cut])
        at += cut
    digester.update(ids[at:], values[at:])
    assert digester.finish() == digest_of(ids, values)


@settings(max_examples=30)
@given(st.data())
def test_windows_cover_all_differences_and_little_else(data: st.DataObject) -> None:
    numbers = range(1, 5000)
    ids, values = packed(*numbers), [b"%d" % number for number in numbers]
    changed = dict(zip(ids, values, strict=True))
    touched = data.draw(st.sets(st.sampled_from(ids), max_size=4))
    for eid in touched:
        if data.draw(st.booleans()):
            del changed[eid]
        else:
            changed[eid] = b"other"
    found = list(windows(digest_of(ids, values), digest_of(list(changed), list(changed.values()))))
    inside = {eid for eid in ids for each in found if each.first <= eid <= each.last}
    assert touched <= inside
    assert bool(found) == bool(touched)
    assert all(each.last < after.first for each, after in pairwise(found))


def test_empty_equals_empty_and_differs_from_anything_else() -> None:
    nothing, something = digest_of([], []), digest_of(packed(1, 2), [b"a", b"b"])
    assert list(windows(nothing, nothing)) == []
    for pair in ((nothing, something), (something, nothing)):
        (window,) = windows(*pair)
        assert window.first <= packed(1)[0]
        assert window.last >= packed(2)[0]


# --- states -----------------------------------------------------------------------------------


def state() -> StreamState:
    group = GroupImage(b"g", StreamID(5, 0), 3)
    group.consumers = [ConsumerImage(b"c", 1000, 900), ConsumerImage(b"d", 1000, -1)]
    for number in (1, 2, 3):
        group.pending.add(StreamID(number, 0).packed, b"c", 500 + number, number)
    return StreamState(9, StreamID(9, 0), StreamID(1, 0), StreamID(4, 0), 10, [group])


def changed(**values: Any) -> StreamState:
    found = state()
    for name, value in values.items():
        setattr(found, name, value)
    return found


def regrouped(**values: Any) -> StreamState:
    found = state()
    for name, value in values.items():
        setattr(found.groups[0], name, value)
    return found


def with_pending(*entries: tuple[int, bytes | None, int, int]) -> StreamState:
    found = state()
    group = found.groups[0] = GroupImage(b"g", StreamID(5, 0), 3, found.groups[0].consumers)
    for number, owner, time_ms, deliveries in entries:
        group.pending.add(StreamID(number, 0).packed, owner, time_ms, deliveries)
    return found


REMEMBERED = IdempotencyImage(100, 100, [ProducerImage(b"p", [(b"i", StreamID(1, 0))])])
ALIKE = [(1, b"c", 501, 1), (2, b"c", 502, 2), (3, b"c", 503, 3)]
CASES = [
    (changed(last=StreamID(10, 0)), "last ID", "9-0", "10-0"),
    (changed(max_deleted=StreamID(0, 0)), "greatest deleted ID", "4-0", "0-0"),
    (changed(entries_added=11), "entries added", "10", "11"),
    (changed(groups=[]), "group 'g'", "there", "absent"),
    (regrouped(last_delivered=StreamID(6, 0)), "group 'g', last delivered ID", "5-0", "6-0"),
    (regrouped(entries_read=4), "group 'g', entries read", "3", "4"),
    (regrouped(consumers=[ConsumerImage(b"c", 1000, 900)]), "group 'g', consumer 'd'", "there",
     "absent"),
    (with_pending(*ALIKE[:2]), "group 'g', pending 3-0", "of 'c'", "absent"),
    (with_pending(*ALIKE, (4, b"c", 1, 1)), "group 'g', pending 4-0", "absent", "of 'c'"),
    (with_pending((1, b"d", 501, 1), *ALIKE[1:]), "group 'g', pending 1-0, owner", "'c'", "'d'"),
    (with_pending((1, None, 0, 1), *ALIKE[1:]), "group 'g', pending 1-0, owner", "'c'", "nobody"),
    (with_pending((1, b"c", 502, 1), *ALIKE[1:]), "group 'g', pending 1-0, time of delivery",
     "501", "502"),
    (with_pending((1, b"c", 501, 9), *ALIKE[1:]), "group 'g', pending 1-0, deliveries", "1", "9"),
    (changed(idempotency=REMEMBERED), "idempotent IDs", "none", "1 producers"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "what", "source", "target"), CASES, ids=lambda case: str(case)[:40]
)
def test_each_part_of_a_state_is_compared(
    other: StreamState, what: str, source: str, target: str
) -> None:
    assert list(differences.states(state(), other)) == [Mismatch(what, source, target)]
    (back,) = differences.states(other, state())
    assert (back.source, back.target) == (target, source)


def test_states_without_anything_pending_are_compared_too() -> None:
    assert list(differences.states(with_pending(), with_pending())) == []
    assert len(list(differences.states(with_pending(), state()))) == 3
    assert len(list(differences.states(state(), with_pending()))) == 3


def test_times_within_the_tolerance_are_equal() -> None:
    other = with_pending((1, b"c", 521, 1), *ALIKE[1:])
    assert len(list(differences.states(state(), other, 19))) == 1
    assert list(differences.states(state(), other, 20)) == []


def test_times_of_consumers_may_differ() -> None:
    other = regrouped(consumers=[ConsumerImage(b"c", 2000, 1900), ConsumerImage(b"d", 1000, -1)])
    found = list(differences.states(state(), other))
    assert [(shown.what, shown.may_move) for shown in found] == [
        ("group 'g', consumer 'c', seen time", True),
        ("group 'g', consumer 'c', active time", True),
    ]


def test_values_missing_from_a_format_are_not_compared() -> None:
    other = changed(first=None, max_deleted=None, entries_added=None)
    other.groups[0].entries_read = None
    assert list(differences.states(state(), other)) == []


# --- places -----------------------------------------------------------------------------------


def made(directory: Path, change: int | None = None, without: int | None = None) -> Path:
    with Store.open(directory, durability="no", clock=ManualClock()) as store:
        stream = store.stream("s")
        with store.transaction():
            for number in range(1, MANY // 20 + 1):
                if number != without:
                    stream.add({"n": -number if number == change else number}, (number, 0))
        store.stream("other").add({"a": 1}, (1, 0))
    return directory


def test_one_changed_field_is_found_between_two_stores(tmp_path: Path) -> None:
    whole, other = made(tmp_path / "a"), made(tmp_path / "b", change=3210)
    found = verify(whole, other)
    assert not found.equal
    (difference,) = found.differences
    assert (difference.key, difference.what) == (b"s", "entry 3210-0")
    assert (difference.source, difference.target) == ("{'n': '3210'}", "{'n': '-3210'}")


def test_one_missing_entry_is_found_between_any_two_places(tmp_path: Path) -> None:
    whole, other = made(tmp_path / "a"), made(tmp_path / "b", without=4000)
    files = [tmp_path / "a.rdb", tmp_path / "b.rdb"]
    for store, file in zip((whole, other), files, strict=True):
        run(store, file)
    for source in (whole, files[0]):
        for target in (other, files[1]):
            found = [each for each in verify(source, target).differences if "entry" in each.what]
            assert [(each.what, each.source, each.target) for each in found] == [
                ("entry 4000-0", "{'n': '4000'}", "absent")
            ]
            back = [each for each in verify(target, source).differences if "entry" in each.what]
            assert [(each.what, each.source) for each in back] == [("entry 4000-0", "absent")]


def test_keys_missing_from_one_place_are_found(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    for directory, key in ((one, "mine"), (other, "theirs")):
        with Store.open(directory) as store:
            store.stream(key).add({"a": 1})
    for directory in (one, other):
        run(directory, directory.with_suffix(".rdb"))
    for source in (one, one.with_suffix(".rdb")):
        for target in (other, other.with_suffix(".rdb")):
            found = sorted(verify(source, target).differences)
            assert [(each.key, each.source, each.target) for each in found] == [
                (b"mine", "stream", "absent"),
                (b"theirs", "absent", "stream"),
            ]


def test_one_changed_field_among_a_hundred_thousand_is_found_at_a_live_server(
    source: RedisServer, target: RedisServer
) -> None:
    for server in (source, target):
        client = server.client()
        script = (
            "for n = 1, tonumber(ARGV[1]) do local v = n; "
            "if n == tonumber(ARGV[2]) then v = 'other' end; "
            "redis.call('XADD', KEYS[1], n .. '-0', 'n', v) end"
        )
        client.eval(script, 1, "s", MANY, 77_777 if server is target else 0)
    found = verify(source.url, target.url)
    assert found.entries == MANY
    assert [(each.what, each.source, each.target) for each in found.differences] == [
        ("entry 77777-0", "{'n': '77777'}", "{'n': 'other'}")
    ]


def test_an_expiry_and_a_string_are_compared(source: RedisServer, target: RedisServer) -> None:
    fill(source.client())
    run(source.url, target.url)
    target.client().persist("orders")
    target.client().set("a string", "changed")
    found = {each.key: each for each in verify(source.url, target.url).differences}
    assert (found[b"orders"].what, found[b"orders"].target) == ("expiry", "never")
    assert (found[b"a string"].what, found[b"a string"].target) == ("value", "'changed'")


def test_equal_entries_have_equal_bytes_from_any_source(tmp_path: Path) -> None:
    assert encode_fields({"a": 1, "b": "x"})[0] == encode_fields([(b"a", b"1"), ("b", b"x")])[0]
