"""Rows staged by tasks become visible in one commit of the store, in order, and once."""

import os
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.bulkload.parts import BulkTicket
from kvstream.errors import Corruption, IDTooSmall, InvalidArgument, StoreLocked, WrongType
from kvstream.layout.values import encode_fields
from kvstream.spark.options import Place
from kvstream.spark.write.commit import Commit, Gathering, Share, Spilled
from kvstream.spark.write.spill import DELIVERIES, FileSpill, PartSpill, discard, spill_of
from kvstream.spark.write.stage import (
    StagedRows,
    Staging,
    Transaction,
    pack_page,
    slot_of,
    store_of,
    unpack_page,
)
from kvstream.spark.write.stores import BATCH_ROWS, commit_into, ticket_of
from kvstream.spark.write.writers import prepare
from tests.spark.staged import QUERY, rows, share

MANY = ["x"] * BATCH_ROWS
"""Values with which a commit of some more rows is a bulk load."""


def commit(path: Path, *shares: Share, marked: bool = False, skip: bool = False) -> int:
    """Commit and return the number of rows; -1 if the store already had the transaction."""
    found = commit_into(str(path), 0, 0, Commit(QUERY, marked, shares, skip))
    return found.rows if found.done else -1


def values(path: Path, key: bytes) -> list[str]:
    with Store.open(path) as store:
        assert store.check() == []
        return [(entry.fields or {})[b"v"].decode() for entry in store.stream(key)]


def test_rows_without_ids_keep_the_order_of_partitions_and_of_rows(tmp_path: Path) -> None:
    first = share(rows(b"a", "1", "2"), rows(b"b", "x"))
    assert commit(tmp_path / "s", first, share(rows(b"a", "3"))) == 4
    assert values(tmp_path / "s", b"a") == ["1", "2", "3"]
    assert values(tmp_path / "s", b"b") == ["x"]


def test_rows_with_ids_are_sorted_by_them_and_precede_those_without(tmp_path: Path) -> None:
    one = share(rows(b"a", "late", "none", ids=["9-1", "*"]))
    other = share(rows(b"a", "open", "early", ids=["9-*", "3-4"]), rows(b"a", "last"))
    assert commit(tmp_path / "s", one, other) == 5
    assert values(tmp_path / "s", b"a") == ["early", "late", "open", "none", "last"]
    with Store.open(tmp_path / "s") as store:
        ids = [str(entry.id) for entry in store.stream("a")]
    assert ids[:3] == ["3-4", "9-1", "9-2"]


def test_an_id_that_does_not_rise_refuses_all_streams_of_the_commit(tmp_path: Path) -> None:
    commit(tmp_path / "s", share(rows(b"a", "old", ids=["5-0"])))
    with pytest.raises(IDTooSmall, match=r"stream 'a': 5-0: .*: the option skipExisting skips"):
        commit(tmp_path / "s", share(rows(b"0", "new"), rows(b"a", "again", ids=["5-0"])))
    with Store.open(tmp_path / "s") as store:
        assert store.keys() == [b"a"]


def test_an_id_that_a_bulk_load_refuses_is_named(tmp_path: Path) -> None:
    commit(tmp_path / "s", share(rows(b"a", "old", ids=["5-0"])))
    low = rows(b"a", "1", "2", ids=["4-2", "6-0"])
    work = Commit(QUERY, False, [share(low, rows(b"many", *MANY))])
    work = work._replace(folder=str(tmp_path / "parts"))
    with pytest.raises(IDTooSmall, match=r"the ID 4-2 for stream 'a' .*: the option skipExisting"):
        commit_into(str(tmp_path / "s"), 0, 0, work)
    assert values(tmp_path / "s", b"a") == ["old"]


def test_existing_entries_are_skipped_on_request(tmp_path: Path) -> None:
    commit(tmp_path / "s", share(rows(b"a", "old", ids=["5-0"])))
    again = share(rows(b"a", "again", "low", "new", ids=["5-0", "4-*", "5-1"]))
    assert commit(tmp_path / "s", again, skip=True) == 1
    assert values(tmp_path / "s", b"a") == ["old", "new"]
    twice = share(rows(b"a", "one", "other", ids=["6-0", "6-0"]))
    with pytest.raises(IDTooSmall, match=r"stream 'a': 6-0: .* top item$"):
        commit(tmp_path / "s", twice, skip=True)


def test_a_key_of_another_kind_refuses_all(tmp_path: Path) -> None:
    commit(tmp_path / "s", share(rows(b"a", "1")), marked=True)
    with pytest.raises(WrongType, match=r"^'kvstream:spark:query' is a string, not a stream$"):
        commit(tmp_path / "s", share(rows(b"b", "1"), rows(QUERY.key, "2")))
    assert values(tmp_path / "s", b"b") == []


def test_a_transaction_happens_once(tmp_path: Path) -> None:
    assert commit(tmp_path / "s", share(rows(b"a", "1")), marked=True) == 1
    assert commit(tmp_path / "s", share(rows(b"a", "1")), marked=True) == -1
    assert values(tmp_path / "s", b"a") == ["1"]


def test_only_the_last_number_of_a_writer_is_kept(tmp_path: Path) -> None:
    for number in (1, 2, 10, 9, 10):
        work = Commit(Transaction("q", number), True, [share(rows(b"a", str(number)))])
        commit_into(str(tmp_path / "s"), 0, 0, work)
    assert values(tmp_path / "s", b"a") == ["1", "2", "10"]
    with Store.open(tmp_path / "s") as store:
        assert sorted(store.keys()) == [b"a", b"kvstream:spark:q"]


def test_a_store_open_elsewhere_refuses_the_commit(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s"), pytest.raises(StoreLocked, match="option url"):
        commit(tmp_path / "s", share(rows(b"a", "1")))


def test_pages_are_unpacked_as_they_were_packed() -> None:
    given = [
        StagedRows(b"k", [encode_fields({"v": "1"}), encode_fields([("v", "1"), ("v", "2")])]),
        StagedRows(b"", [(b"\x01\x81\xa1v\xa1\xff", (b"v",))], [b"\x00" * 16]),
    ]
    plain = [
        StagedRows(
            each.key, [(value, tuple(map(_raw, names))) for value, names in each.rows], each.ids
        )
        for each in given
    ]
    assert list(unpack_page(pack_page(given))) == plain


def _raw(name: str | bytes) -> bytes:
    return name.encode() if isinstance(name, str) else name


@pytest.mark.parametrize("page", [b"", b"\xc0", b"\x91\x01", pack_page([])[:0] + b"\x92\x90\x90"])
def test_a_damaged_page_raises(page: bytes) -> None:
    with pytest.raises(Corruption):
        list(unpack_page(page))


def test_a_large_share_is_spilled_into_files_and_read_back(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "s"), QUERY).make()
    gathering = Gathering(1, lambda at: FileSpill(staging.file(0)))
    big = "x" * 400_000
    for number in range(30):
        gathering.add(rows(b"a", f"{number}{big}"))
    found = gathering.finish()[0]
    assert found.rows == 30
    assert found.page == b""
    assert len(found.spilled.files) == 1
    assert commit(tmp_path / "s", found) == 30
    assert [value.rstrip("x") for value in values(tmp_path / "s", b"a")] == [*map(str, range(30))]
    staging.remove()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["s"]


def parts_of(path: Path, ticket: BulkTicket, partition: int, *streams: StagedRows) -> Share:
    """Return the tables that a task has made."""
    spill = PartSpill(Staging(str(path), QUERY).make(), ticket, partition)
    spill.write(list(streams))
    return Share(sum(len(each.rows) for each in streams), spill.close(), b"", partition)


def test_tables_of_tasks_are_committed_with_the_rows_of_other_tasks(tmp_path: Path) -> None:
    path = tmp_path / "s"
    ticket = ticket_of(str(path), 0, b"a")
    assert ticket is not None
    one = parts_of(path, ticket, 0, rows(b"a", "1", "2"), rows(b"new", "x", ids=["5-1"]))
    other = Share(1, Spilled(), share(rows(b"a", "3")).page, 1)
    folder = str(Staging(str(path), QUERY).folder)
    work = Commit(QUERY, True, [one, other], False, ticket, folder)
    assert commit_into(str(path), 0, 0, work) == (True, 4, 0)
    assert values(path, b"a") == ["1", "2", "3"]
    assert values(path, b"new") == ["x"]
    again = work._replace(shares=[other], ticket=None)
    assert commit_into(str(path), 0, 0, again) == (False, 0, 0)


def test_a_large_commit_makes_tables_unless_ids_must_be_completed(tmp_path: Path) -> None:
    path, size = tmp_path / "s", len(MANY)
    folder = str(Staging(str(path), QUERY).folder)
    many = share(rows(b"a", "2", "1", "3", ids=["9-2", "9-1", "*"]), rows(b"b", *MANY))
    work = Commit(QUERY, False, [many], folder=folder)
    assert commit_into(str(path), 0, 0, work).rows == 3 + size
    assert values(path, b"a") == ["1", "2", "3"]
    partial = share(rows(b"c", "1", "2", "3", ids=["9-*", "9-*", "8-1"]), rows(b"d", *MANY))
    completed = work._replace(shares=[partial])
    assert commit_into(str(path), 0, 0, completed).rows == 3 + size
    assert values(path, b"c") == ["3", "1", "2"]
    with pytest.raises(IDTooSmall):
        commit_into(str(path), 0, 0, work)
    assert values(path, b"b") == list(MANY)


def test_a_store_open_elsewhere_returns_no_ticket(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s"):
        assert prepare(Place("path", str(tmp_path / "s")), b"a")[1] is None


def test_a_modified_staged_file_is_refused_without_a_write(tmp_path: Path) -> None:
    file = Staging(str(tmp_path / "s"), QUERY).make().file(0)
    file.write(share(rows(b"a", "1")).page)
    staged = file.close()
    damaged = bytearray(Path(staged.path).read_bytes())
    damaged[-1] ^= 1
    Path(staged.path).write_bytes(damaged)
    with pytest.raises(Corruption, match="checksum of the staged file"):
        commit(tmp_path / "s", Share(1, Spilled((staged,)), b""))
    with Store.open(tmp_path / "s") as store:
        assert store.keys() == []


def test_a_commit_removes_the_files_of_its_writer_and_of_dead_jobs_only(
    tmp_path: Path,
) -> None:
    others = [Transaction(name, 1) for name in ("other", "dead", "slow")]
    for transaction in (QUERY, QUERY._replace(number=3), *others):
        staging = Staging(str(tmp_path / "s"), transaction).make()
        path = Path(staging.file(0).close().path)
        if transaction.writer == "dead":
            os.utime(path, (0, 0))
        if transaction.writer in ("dead", "slow"):  # whose task writes one file for days
            os.utime(staging.folder, (0, 0))
    Staging(str(tmp_path / "s"), QUERY).remove()
    assert {each.name for each in (tmp_path / "s.staging").iterdir()} == {"other-1", "slow-1"}


def test_a_task_that_outlives_its_write_stages_nothing(tmp_path: Path) -> None:
    places = [Place("path", str(tmp_path / "s"))]
    file = Staging(places[0].address, QUERY).make().file(0)
    discard(places, None, QUERY)
    file.write(share(rows(b"a", "1")).page)
    file.close()
    with pytest.raises(InvalidArgument, match="the write has ended"):
        spill_of(places, None, DELIVERIES[0], [None], QUERY, True, 0, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "slot"),
    [(b"123456789", 12739), (b"foo", 12182), (b"{foo}bar", 12182), (b"{}foo", 9500), (b"", 0)],
)
def test_slots_are_those_of_redis_cluster(key: bytes, slot: int) -> None:
    assert slot_of(key) == slot


def test_every_store_has_its_share_of_the_slots() -> None:
    keys = [b"key:%d" % number for number in range(3000)]
    found = [store_of(key, 3) for key in keys]
    assert {found.count(at) // 900 for at in range(3)} == {1}
