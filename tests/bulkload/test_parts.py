"""Parts written without the store, and the one commit that loads them."""

import pickle
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from kvstream import Corruption, IDTooSmall, InvalidArgument, Store, WrongType
from kvstream.bulkload import commit
from kvstream.bulkload.parts import BulkTicket, Part, PartWriter
from kvstream.layout.values import encode_many
from kvstream.operations.append import BulkResult
from kvstream.storage.database import Database
from kvstream.types.ids import StreamID
from tests.opening import Stores
from tests.operations.images.kept import take_image
from tests.operations.images.kills import lives


def values(*numbers: int) -> list[bytes]:
    return [value for value, _ in encode_many([{"n": str(n), "f": "v" * 9} for n in numbers])]


def ids(*numbers: int) -> list[bytes]:
    return [StreamID(n, n % 2).packed for n in numbers]


def numbers_in(store: Store, key: str) -> list[int]:
    return [int((entry.fields or {})[b"n"]) for entry in store.stream(key).range()]


Rows = dict[bytes, tuple[list[int] | None, list[int]]]
"""By key: the numbers that are its IDs, or None, and those in its entries."""


def parts_of(place: Path, ticket: BulkTicket, partitions: list[Rows]) -> list[Part]:
    """Write the parts of some tasks, as other processes would."""
    made = []
    for partition, rows in enumerate(partitions):
        writer = PartWriter(place, pickle.loads(pickle.dumps(ticket)), partition=partition)
        for key, (given, contents) in rows.items():
            writer.extend(key, None if given is None else ids(*given), values(*contents))
        made += pickle.loads(pickle.dumps(writer.close()))
    return made


def load(store: Store, place: Path, partitions: list[Rows], named: list[str]) -> BulkResult:
    ticket = store.bulk_ticket(named)
    return store.bulk_load(ticket, parts_of(place, ticket, partitions))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of the parts."""
    folder = tmp_path / "parts"
    folder.mkdir()
    return folder


KEYS = {"named": ["old", "new"], "unnamed": [], "half": ["new"]}


@pytest.mark.parametrize("named", KEYS)
def test_entries_with_ids_keep_their_ids(store: Store, place: Path, named: str) -> None:
    store.stream("old").add({"n": 0}, id="1-1")
    result = load(
        store,
        place,
        [
            {b"old": ([40, 50, 60], [4, 5, 6]), b"new": ([7], [7])},
            {b"old": ([20, 10, 30], [2, 1, 3])},
        ],
        KEYS[named],
    )
    assert numbers_in(store, "old") == [0, 1, 2, 3, 4, 5, 6]
    assert numbers_in(store, "new") == [7]
    assert result.entries == 7
    assert result.ranges[b"old"] == (StreamID(10, 0), StreamID(60, 0))
    assert list(place.iterdir()) == []
    assert len(take_image(store, "old").found[0].ids) == 1
    store.stream("old").add({"n": 8})
    assert store.stream("old").info().entries_added == 8


@pytest.mark.parametrize("named", KEYS)
def test_entries_without_ids_get_ascending_ids(store: Store, place: Path, named: str) -> None:
    store.stream("old").add({"n": 0})
    rows: list[Rows] = [
        {b"old": (None, [1, 2, 3]), b"new": (None, [10])},
        {b"old": (None, [4])},
        {b"old": (None, [5, 6]), b"new": (None, [11, 12])},
    ]
    load(store, place, rows, KEYS[named])
    assert numbers_in(store, "old") == [0, 1, 2, 3, 4, 5, 6]
    assert numbers_in(store, "new") == [10, 11, 12]


def test_new_streams_need_not_be_named(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.bulkload.commit.Merged", None)  # nothing is written once more
    ticket = store.bulk_ticket(["old"])
    store.stream("old").add({"n": 0}, id="1-1")
    ticket = store.bulk_ticket(["old"])
    rows: Rows = {b"s%d" % n: (None, [n, n + 1]) for n in range(50)}
    store.bulk_load(ticket, parts_of(place, ticket, [rows, {b"old": ([5], [5])}, rows]))
    for n in range(50):
        assert numbers_in(store, f"s{n}") == [n, n + 1, n, n + 1]
    assert store.check() == []
    for n in range(50):
        store.stream(f"s{n}").add({"n": 100})
    store.rename("s0", "t")
    store.delete("s1")
    store.bulk_load(ticket, [])
    assert numbers_in(store, "t") == [0, 1, 0, 1, 100]
    assert store.check() == []
    store.flush()
    assert store.check() == []


def test_a_ticket_that_is_used_again_changes_nothing(store: Store, place: Path) -> None:
    for named in ([], ["s"]):
        store.flush()
        ticket = store.bulk_ticket(named)
        for number in range(3):
            parts = parts_of(place, ticket, [{b"s": ([7], [number])}])
            store.bulk_load(ticket, parts)
            store.rename("s", f"t{number}")
        assert [numbers_in(store, f"t{number}") for number in range(3)] == [[0], [1], [2]]
        assert store.check() == []


def test_parts_that_interleave_are_merged(store: Store, place: Path) -> None:
    odd, even = [n for n in range(1, 400) if n % 2], [n for n in range(2, 400) if n % 2 == 0]
    load(store, place, [{b"s": (odd, odd)}, {b"s": (even, even)}, {b"t": ([5], [5])}], ["s", "t"])
    assert numbers_in(store, "s") == list(range(1, 400))
    assert [len(node.ids) for node in take_image(store, "s").found] == [100, 100, 100, 99]
    assert numbers_in(store, "t") == [5]


def test_a_task_may_write_several_parts(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.bulkload.parts.PART_BYTES", 100)
    ticket = store.bulk_ticket(["s"])
    writer = PartWriter(place, ticket)
    for n in range(0, 300, 3):
        writer.extend(b"s", None, values(n, n + 1, n + 2))
        writer.extend(b"t", ids(n + 1, n + 2), values(n, n))
    store.bulk_load(ticket, writer.close())
    assert numbers_in(store, "s") == list(range(300))
    assert len(store.stream("t")) == 200


def test_a_load_whose_end_was_not_seen_can_be_repeated_with_its_mark(
    store: Store, place: Path
) -> None:
    ticket = store.bulk_ticket(["s"])
    parts = parts_of(place, ticket, [{b"s": (None, [1, 2])}])
    assert store.bulk_load(ticket, parts, mark=("m", 1)).applied
    assert not store.bulk_load(ticket, parts, mark=("m", 1)).applied
    with pytest.raises(Corruption, match="is missing: a load removes its parts"):
        store.bulk_load(ticket, parts, mark=("m", 2))
    assert numbers_in(store, "s") == [1, 2]


def test_a_key_takes_entries_with_and_without_ids(store: Store, place: Path) -> None:
    rows: list[Rows] = [{b"s": ([5, 6], [1, 2])}, {b"s": (None, [3, 4])}]
    load(store, place, rows, ["s"])
    load(store, place, [{b"t": ([5, 6], [1, 2])}, {b"t": (None, [3, 4])}], [])
    assert numbers_in(store, "s") == numbers_in(store, "t") == [1, 2, 3, 4]


def test_entries_get_later_ids_if_the_stream_has_grown(store: Store, place: Path) -> None:
    store.stream("s").add({"n": 0})
    ticket = store.bulk_ticket(["s", "t"])
    parts = parts_of(place, ticket, [{b"s": (None, [2, 3]), b"t": (None, [5])}])
    store.stream("s").add({"n": 1}, id=(ticket.base_ms + 10_000, 0))
    store.stream("t").add({"n": 4})
    store.bulk_load(ticket, parts)
    assert numbers_in(store, "s") == [0, 1, 2, 3]
    assert numbers_in(store, "t") == [4, 5]


def deleted(store: Store) -> None:
    store.delete("s")


def flushed(store: Store) -> None:
    store.flush()


def swapped(store: Store) -> None:
    from kvstream.operations import keyspace

    store.engine.run(keyspace.swap, 0, 3)
    store.delete("s")


@pytest.mark.parametrize("change", [deleted, flushed, swapped])
def test_a_load_with_an_outdated_ticket_adds_its_entries(
    store: Store, place: Path, change: Callable[[Store], None]
) -> None:
    store.stream("s").add({"n": 0})
    ticket = store.bulk_ticket(["s", "t"])
    parts = parts_of(place, ticket, [{b"s": (None, [1, 2]), b"t": ([9], [9])}])
    change(store)
    store.bulk_load(ticket, parts)
    assert numbers_in(store, "s") == [1, 2]
    assert numbers_in(store, "t") == [9]
    assert store.check() == []


@pytest.mark.parametrize("named", [["s", "u"], []])
@pytest.mark.parametrize("wrong", [[5], [4, 6], [10, 10], [7]])
def test_impossible_ids_are_refused_and_change_nothing(
    store: Store, place: Path, named: list[str], wrong: list[int]
) -> None:
    store.stream("s").add({"n": 0}, id="5-1")
    before = take_image(store, "s")
    rows: list[Rows] = [{b"s": ([n], [n])} for n in wrong]
    rows += [{b"s": ([7], [7]), b"u": ([1], [1])}]
    ticket = store.bulk_ticket(named)
    parts = parts_of(place, ticket, rows)
    with pytest.raises(IDTooSmall, match="stream 's'"):
        store.bulk_load(ticket, parts)
    assert take_image(store, "s") == before
    assert not store.exists("u")
    assert all(Path(part.table).exists() for part in parts)
    assert list(store.engine.database.staging().iterdir()) == []


def test_a_load_into_the_key_of_a_string_is_refused(store: Store, place: Path) -> None:
    ticket = store.bulk_ticket(["s"])
    parts = parts_of(place, ticket, [{b"s": ([7], [7])}])
    store.bulk_append({}, mark=("s", 1))
    with pytest.raises(WrongType, match=r"^'s' is a string, not a stream$"):
        store.bulk_ticket(["s"])
    with pytest.raises(WrongType, match=r"^'s' is a string, not a stream$"):
        store.bulk_load(ticket, parts)
    assert store.type("s") == "string"


def test_a_batch_that_was_applied_before_is_dropped(store: Store, place: Path) -> None:
    for batch, applied in ((3, True), (3, False), (2, False), (4, True)):
        ticket = store.bulk_ticket(["s"])
        parts = parts_of(place, ticket, [{b"s": (None, [batch])}])
        result = store.bulk_load(ticket, parts, mark=("query", batch))
        assert result.applied is applied
        assert list(place.iterdir()) == []
    assert numbers_in(store, "s") == [3, 4]
    result = store.bulk_append({"s": (None, values(5, 6))}, mark=("query", 4))
    assert not result.applied
    result = store.bulk_append({"s": (None, values(5, 6))}, mark=("query", 5))
    assert (result.applied, result.entries) == (True, 2)
    assert numbers_in(store, "s") == [3, 4, 5, 6]
    store.stream("other").add({"f": "v"})
    with pytest.raises(WrongType):
        store.bulk_append({}, mark=("other", 4))
    store.restore("word", _string_payload(store))
    with pytest.raises(InvalidArgument, match="no number"):
        store.bulk_append({}, mark=("word", 4))


def _string_payload(store: Store) -> bytes:
    store.engine.run(lambda txn: txn.catalog.create_string(txn, b"\0\0tmp", b"x"))
    payload = store.dump("tmp")
    store.delete("tmp")
    assert payload is not None
    return payload


def test_small_batches_fill_the_open_node(store: Store) -> None:
    for n in range(0, 240, 3):
        store.bulk_append({"s": (None, values(n, n + 1, n + 2)), "t": (ids(n + 1), values(n))})
    assert numbers_in(store, "s") == list(range(240))
    assert [len(node.ids) for node in take_image(store, "s").found] == [100, 100, 40]
    with pytest.raises(IDTooSmall):
        store.bulk_append({"u": (None, values(1)), "t": (ids(1), values(1))})
    assert not store.exists("u")


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda store: store.stream("old").add({"n": 5}), [0, 1, 5, 2, 3]),
        (lambda store: store.delete("old"), [2, 3]),
        (lambda store: store.flush(), [2, 3]),
        (lambda store: store.stream("old").trim(maxlen=1), [1, 2, 3]),
    ],
    ids=["added", "deleted", "flushed", "trimmed"],
)
@pytest.mark.parametrize("times", [1, commit.TRIES - 1])
def test_other_writes_go_on_while_a_load_is_prepared(
    store: Store,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Store], object],
    left: list[int],
    times: int,
) -> None:
    store.stream("old").add({"n": 0})
    ticket = store.bulk_ticket(["old", "new"])
    parts = parts_of(place, ticket, [{b"old": (None, [2, 3]), b"new": (None, [9])}])
    store.stream("old").add({"n": 1}, id="9000000000000-0")  # the part is written once more
    ready, made = commit._Load._prepare, []

    def disturbed(load: commit._Load) -> commit._Prepared:
        found = ready(load)
        made.append(found)
        if len(made) <= times:
            other = Thread(target=change, args=(store,))
            other.start()
            other.join(60)
            assert not other.is_alive()
        return found

    monkeypatch.setattr(commit._Load, "_prepare", disturbed)
    assert store.bulk_load(ticket, parts).entries == 3
    found = numbers_in(store, "old")
    assert len(made) == 1 + (times if 5 in found else 0 not in found and 1 not in found)
    assert [number for at, number in enumerate(found) if number not in found[:at]] == left
    assert numbers_in(store, "new") == [9]
    assert list(place.iterdir()) == []
    assert not any(path.suffix == ".sst" for path in store.engine.database.staging().iterdir())


@pytest.mark.parametrize("which", ["table", "pieces"])
def test_changed_files_are_refused(store: Store, place: Path, which: str) -> None:
    ticket = store.bulk_ticket(["s"])
    (part,) = parts_of(place, ticket, [{b"s": (None, list(range(500)))}])
    path = Path(getattr(part, which))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(Corruption, match="not as it was written"):
        store.bulk_load(ticket, [part])
    link = place / "link"
    path.rename(link)
    path.symlink_to(link)
    with pytest.raises(Corruption, match="not as it was written"):
        store.bulk_load(ticket, [part])
    assert not store.exists("s")


def test_an_aborted_writer_leaves_no_file(store: Store, place: Path) -> None:
    writer = PartWriter(place, store.bulk_ticket(["s"]))
    writer.extend(b"s", None, values(1))
    writer.close()
    writer.abort()
    assert list(place.iterdir()) == []
    writer = PartWriter(place, store.bulk_ticket(["s"]))
    writer.extend(b"s", ids(1, 1), values(1, 1))
    with pytest.raises(InvalidArgument, match="twice"):
        writer.close()
    assert list(place.iterdir()) == []


def test_blocked_readers_get_the_loaded_entries(store: Store, place: Path) -> None:
    got: list[object] = []
    store.engine.submit(
        [b"\0\0s"], lambda txn: txn.stream(b"\0\0s"), lambda outcome: got.append(outcome.reply)
    )
    load(store, place, [{b"s": (None, [1])}], ["s"])
    assert len(got) == 1


@pytest.mark.parametrize("named", [["old", "new"], []])
def test_a_killed_load_is_applied_whole_or_not_at_all(
    open_store: Stores, tmp_path: Path, place: Path, named: list[str]
) -> None:
    store = open_store("target")
    for n in range(30):  # the record lags behind its rows
        store.stream("old").add({"n": n}, id=(n + 1, 0))
    ticket = store.bulk_ticket(named)
    parts = parts_of(
        place,
        ticket,
        [{b"old": (list(range(40, 290)), list(range(40, 290))), b"new": ([5], [5])}],
    )
    with lives(store, tmp_path, Database.flush_wal) as left:
        store.bulk_load(ticket, parts, mark=("query", 7))
    outcomes = []
    for life in left:
        with Store.open(life, read_only=True) as found:
            read = (len(found.stream("old")), found.exists("new"), found.exists("query"))
        found = open_store(life)
        assert found.check() == []
        outcomes.append((len(found.stream("old")), found.exists("new"), found.exists("query")))
        assert outcomes[-1] == read
        found.stream("old").add({"n": 1000})
        assert numbers_in(found, "old")[-1] == 1000
        found.close()
    assert len(outcomes) >= 8
    assert set(outcomes) == {(30, False, False), (280, True, True)}
    assert outcomes == sorted(outcomes)


def test_a_load_whose_last_commit_fails_is_undone(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        store.stream("s").add({"n": n})
    ticket = store.bulk_ticket(["s"])
    parts = parts_of(place, ticket, [{b"s": (None, [5, 6])}])

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("kvstream.operations.append.put_mark", fail)
        with pytest.raises(ZeroDivisionError):
            store.bulk_load(ticket, parts)
    assert numbers_in(store, "s") == [0, 1, 2, 3, 4]
    assert store.check() == []
    store.bulk_load(ticket, parts)
    assert numbers_in(store, "s") == [0, 1, 2, 3, 4, 5, 6]
