"""Large strings: their pieces after every kind of change, and the loss of pieces."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from kvstream import Corruption, ManualClock, Store
from kvstream.errors import InvalidArgument, ReplyTooLarge
from kvstream.layout.keys import stream_row
from kvstream.meta import strings as pieces
from kvstream.meta.strings import StringMeta
from kvstream.operations import keyspace, strings, watch
from kvstream.operations import strings as several
from kvstream.operations.images import copy, dump
from kvstream.storage.batch import Family
from tests.opening import Stores, change_thresholds
from tests.operations.checks.seeding import MESSAGES, METADATA, Rows, fault_texts
from tests.pieces import small_pieces

NAME, OTHER = b"\0\0large", b"\0\0other"
VALUE = b"a value of some fifty bytes, which takes seven pieces"
FAR = 4_000_000_000_000


@pytest.fixture
def small() -> Iterator[None]:
    with small_pieces():
        yield


@pytest.fixture
def large(small: None, store: Store) -> Store:
    """A store with a large string."""
    put(store, VALUE)
    return store


def put(store: Store, value: bytes, name: bytes = NAME, expire_at: int = 0) -> None:
    store.engine.run(strings.put, name, value, expire_at)


def get(store: Store, name: bytes = NAME) -> bytes | None:
    return store.engine.run(strings.get, name)


def messages(store: Store) -> list[tuple[bytes, bytes]]:
    return list(store.engine.database.scan(MESSAGES, b"", b"\xff" * 64))


def test_no_row_of_a_large_string_is_large(store: Store) -> None:
    value = random.Random(1).randbytes(1 << 20)
    put(store, value)
    assert len(Rows(store).get(METADATA, stream_row(NAME))) < 100
    assert [len(row) for _, row in messages(store)] == [pieces.PIECE_BYTES] * 16
    assert get(store) == value
    put(store, value[: pieces.WHOLE_BYTES_MAX])
    assert messages(store) == []
    put(store, value[: pieces.WHOLE_BYTES_MAX + 1])
    assert [len(row) for _, row in messages(store)] == [pieces.WHOLE_BYTES_MAX + 1]


def test_strings_of_any_length_behave_as_if_stored_in_one_row(small: None, store: Store) -> None:
    chance = random.Random(7)
    held = b""
    changes: list[Callable[[], bytes]] = [
        lambda: _put(chance.randbytes(chance.choice((0, 3, 5, 8, 16, 17, 60)))),
        lambda: _append(chance.randbytes(chance.choice((0, 1, 8, 20)))),
        lambda: _overwrite(chance.randrange(90), chance.randbytes(chance.choice((0, 1, 9, 30)))),
    ]

    def _put(value: bytes) -> bytes:
        put(store, value)
        return value

    def _append(more: bytes) -> bytes:
        assert store.engine.run(strings.append, NAME, more) == len(held + more)
        return held + more

    def _overwrite(at: int, part: bytes) -> bytes:
        expected = held[:at].ljust(at, b"\0") + part + held[at + len(part) :] if part else held
        assert store.engine.run(strings.overwrite, NAME, at, part) == len(expected)
        return expected

    for _ in range(300):
        several = chance.random() < 0.3
        if several:
            with store.transaction():
                for _ in range(2):
                    held = chance.choice(changes)()
                    assert (get(store) or b"") == held
        else:
            held = chance.choice(changes)()
        assert (get(store) or b"") == held
        assert store.engine.run(strings.length, NAME) == len(held)
        first, last = chance.randrange(100), chance.randrange(100)
        assert store.engine.run(strings.part, NAME, first, last) == held[first : last + 1]
        assert store.check() == []
    store.delete("large")
    assert messages(store) == []


def test_a_large_string_keeps_its_value_through_every_change(
    large: Store, open_store: Stores
) -> None:
    large.rename("large", "other")
    put(large, b"in its place, of three pieces", NAME, FAR)
    assert large.engine.run(copy.copy, OTHER, b"\0\1copied")
    large.engine.run(keyspace.swap, 1, 2)
    payload = large.engine.run(dump.dump, OTHER)
    assert payload is not None
    large.engine.run(dump.restore, b"\0\0restored", payload)
    large.engine.run(keyspace.persist, NAME)
    reopened = open_store.reopen(large)
    assert get(reopened) == b"in its place, of three pieces"
    assert {get(reopened, name) for name in (OTHER, b"\0\2copied", b"\0\0restored")} == {VALUE}
    assert reopened.engine.run(strings.take, OTHER) == VALUE
    assert reopened.check() == []


@pytest.mark.parametrize("end", ["delete", "expire", "become a stream", "flush", "sweep"])
def test_no_piece_is_left_of_a_large_string(large: Store, clock: ManualClock, end: str) -> None:
    ends: dict[str, Callable[[], object]] = {
        "delete": lambda: large.delete("large"),
        "expire": lambda: large.engine.run(strings.put, NAME, VALUE, clock.ms + 1000),
        "become a stream": lambda: (large.delete("large"), large.stream("large").add({"a": "b"})),
        "flush": large.flush,
        "sweep": lambda: (large.flush_all(), large.engine.run(keyspace.sweep, 10)),
    }
    ends[end]()
    clock.advance(1000)
    large.exists("large")
    assert len(messages(large)) == (end == "become a stream")
    assert large.check() == []


def test_a_new_string_over_a_flushed_one_is_complete(large: Store) -> None:
    large.flush()
    put(large, VALUE[::-1])
    large.engine.run(keyspace.sweep, 10)
    assert get(large) == VALUE[::-1]
    assert large.check() == []


def test_a_large_string_in_one_row_is_readable_until_it_is_rewritten(store: Store) -> None:
    """The row is of the form that versions without pieces wrote."""
    put(store, VALUE, expire_at=FAR)
    with small_pieces():
        assert get(store) == VALUE
        assert messages(store) == []
        store.rename("large", "other")
        assert store.engine.run(strings.append, OTHER, b"!") == len(VALUE) + 1
        assert len(messages(store)) == 7
        assert get(store, OTHER) == VALUE + b"!"
        assert store.engine.run(keyspace.expiry, OTHER) == FAR
        assert store.check() == []


def test_watch_sees_each_write(large: Store) -> None:
    for change in (lambda: put(large, VALUE), lambda: large.engine.run(strings.append, NAME, b"!")):
        watched = watch.Watched()
        large.engine.run(watched.add, NAME)
        assert not large.engine.run(watched.is_changed)
        change()
        assert large.engine.run(watched.is_changed)


def test_a_change_that_fails_leaves_all_pieces(large: Store) -> None:
    with suppress(KeyError), large.transaction():
        put(large, b"another value of many pieces")
        large.engine.run(strings.append, NAME, b"!")
        raise KeyError
    assert get(large) == VALUE


def test_a_string_that_would_become_too_long_is_refused(large: Store) -> None:
    change_thresholds(large.engine, string_bytes_max=len(VALUE))
    with pytest.raises(InvalidArgument, match="maximum"):
        large.engine.run(strings.append, NAME, b"!")
    with pytest.raises(InvalidArgument, match="maximum"):
        large.engine.run(strings.overwrite, NAME, len(VALUE) - 1, b"!!")
    assert get(large) == VALUE


def test_mget_refuses_too_large_a_reply_before_it_reads(large: Store) -> None:
    large.engine.catalog.limits.reply_max = 2 * len(VALUE)
    assert large.engine.run(several.get_several, [NAME, OTHER, NAME]) == [VALUE, None, VALUE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StringMeta, "read", lambda *_: b"")
        with pytest.raises(ReplyTooLarge):
            large.engine.run(several.get_several, [NAME] * 3)


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("left", [None, b"", b"7 bytes"])
def test_a_lost_piece_is_reported_and_never_skipped(
    large: Store, at: int, left: bytes | None
) -> None:
    rows = Rows(large)
    key = rows.pieces_of(NAME)[at]
    sound = rows.get(MESSAGES, key)
    rows.delete(MESSAGES, key) if left is None else rows.put(MESSAGES, key, left)
    calls: list[Callable[[], object]] = [
        lambda: get(large),
        lambda: large.engine.run(strings.take, NAME),
        lambda: large.engine.run(strings.part, NAME, 8 * at, 8 * at),
        lambda: large.engine.run(several.get_several, [NAME]),
        lambda: large.engine.run(copy.copy, NAME, OTHER),
        lambda: large.engine.run(dump.dump, NAME),
    ]
    for call in calls:
        with pytest.raises(Corruption, match=f"damaged: piece {at}"):
            call()
    other = (at + 3) % 6
    assert (
        large.engine.run(strings.part, NAME, 8 * other, 8 * other + 7)
        == (VALUE[8 * other : 8 * other + 8])
    )
    for _ in range(2):
        assert fault_texts(large.check(repair=True)) == ["pieces of its value are lost"]
    rows.put(MESSAGES, key, sound)
    assert get(large) == VALUE


def test_rows_beside_pieces_are_reported_and_removed(large: Store) -> None:
    rows = Rows(large)
    first = rows.pieces_of(NAME)[0]
    rows.put(MESSAGES, first[:-4] + (7).to_bytes(4), b"an eighth")
    rows.put(MESSAGES, first + b"\0", b"between")
    assert fault_texts(large.check(repair=True)) == ["rows beside the pieces of its value"]
    assert large.check() == []
    assert get(large) == VALUE


def test_pieces_without_a_record_are_reported_and_removed(large: Store) -> None:
    Rows(large).delete(METADATA, stream_row(NAME))
    assert "entries of no stream" in fault_texts(large.check(repair=True))
    assert large.check() == []
    assert messages(large) == []


def test_a_damaged_block_of_a_piece_is_reported(open_store: Stores) -> None:
    store = open_store()
    value = random.Random(3).randbytes(1 << 20)
    put(store, value)
    store.close()
    tables = sorted(open_store.path_of(store).glob("*.sst"), key=lambda path: path.stat().st_size)
    damaged = bytearray(tables[-1].read_bytes())
    at = damaged.index(value[500_000:500_050])
    damaged[at] ^= 1
    tables[-1].write_bytes(damaged)
    store = open_store()
    with pytest.raises(Corruption):
        get(store)
    assert store.engine.run(strings.part, NAME, 0, 99) == value[:100]
    with pytest.raises(Corruption):
        store.check()
    store.close()


def test_small_rows_are_read_without_the_large_one_beside_them(open_store: Stores) -> None:
    """Blocks that are read stay in the cache, so the test checks that nothing large is in it."""
    store = open_store(block_cache_bytes=64 << 20)
    rows = [(b"a%04d" % number, b"small") for number in range(100)]
    rows.append((b"a0050x", random.Random(5).randbytes(300_000)))
    for family in Family:
        for key, value in rows:
            Rows(store).put(family, key, value)
    store = open_store.reopen(store)
    database = store.engine.database
    before = database.property_int("rocksdb.block-cache-usage", 0)
    for family in Family:
        assert len(database.page(family, b"a0040", b"a0050", 100)) == 10
        assert database.get(family, b"a0050") == b"small"
        assert database.get(family, b"a0051") == b"small"
        assert database.get(family, b"a0049x") is None
        assert database.property_int("rocksdb.block-cache-usage", 0) - before < 100_000
    assert database.get(Family.TREES, b"a0050x") == rows[-1][1]
    assert database.property_int("rocksdb.block-cache-usage", 0) - before > 300_000
    for family in Family:
        Rows(store).delete(family, *(key for key, _ in rows))
