"""Pieces that are merged: every moment stays, whoever merges, reads or is killed meanwhile.

KVSTREAM_CRASH_ROUNDS sets how many owners are killed.
"""

import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import merging, pieces, restore, retention
from kvstream.archive.archiver import Archiver
from kvstream.archive.format import piece_key
from kvstream.archive.history import put_fence, read_history
from kvstream.archive.merging import Merger
from kvstream.archive.objects import Folder, Found, Objects, open_objects
from kvstream.archive.pieces import Source, get_piece, list_merged, list_numbers, read_pieces
from kvstream.archive.retention import pin
from kvstream.archive.verify import verify
from kvstream.errors import ArchiveTaken, Corruption
from tests.archive.conftest import Rows, all_rows, rows_in, wait_archived
from tests.archive.owner import Owner
from tests.archive.writer import numbers_in
from tests.crash.rounds import rounds
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete what is merged in the same turn."""
    monkeypatch.setattr(merging, "DELAY_S", 0.0)


def archiver_of(store: Store) -> Archiver:
    return store.engine.archiving.archiver


def merger_of(store: Store) -> Merger:
    return archiver_of(store)._merger


def put_pieces(store: Store, count: int) -> dict[int, Rows]:
    """Put pieces of one entry each; return the rows behind each commit."""
    copies = {}
    for _ in range(count):
        store.stream("orders").add({"n": str(len(store.stream("orders")))})
        wait_archived(store)
        copies[store.engine.database.sequence] = all_rows(store)
    return copies


def merged_in(url: str) -> list[tuple[int, int]]:
    return sorted((each.first, each.last) for each in list_merged(open_objects(url)))


def singles_in(url: str) -> list[int]:
    return list_numbers(open_objects(url), "log/")


def assert_sound(url: str) -> None:
    assert verify(open_objects(url)).faults == []


# --- what is merged -------------------------------------------------------------------------------


def merge_while_writing(tmp_path: Path, url: str) -> None:
    copies: dict[int, Rows] = {}
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.0) as store:
        until = time.monotonic() + PATIENCE_S
        while Source(16, 31) not in list_merged(open_objects(url)):
            copies |= put_pieces(store, 5)
            assert time.monotonic() < until
        copies |= put_pieces(store, 9)
    history = read_history(open_objects(url))
    assert_sound(url)
    for sequence in {*sorted(copies)[2:60:7], max(copies)}:
        place = tmp_path / f"back-{sequence}"
        plan = restore.restore(url, place, sequence=sequence)
        assert plan.pieces <= history.next
        assert rows_in(place) == copies[sequence]


def test_pieces_are_merged_while_they_are_written(tmp_path: Path, url: str) -> None:
    merge_while_writing(tmp_path, url)


def test_pieces_in_a_bucket_are_merged_while_they_are_written(
    tmp_path: Path, bucket_url: str
) -> None:
    merge_while_writing(tmp_path, bucket_url)


@pytest.mark.usefixtures("by_hand")
def test_merged_objects_have_the_pieces_as_they_were(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        put_pieces(store, 38)
        objects, last = open_objects(url), archiver_of(store)._next - 1
        before = {number: get_piece(objects, number) for number in range(last + 1)}
        for _ in range(3):
            merger_of(store).work()
        assert merged_in(url) == [(0, 15), (16, 31), (32, 35)]
        assert singles_in(url) == [0, *range(36, last + 1)], "the fence, and what is not full"
        assert {number: get_piece(objects, number) for number in range(last + 1)} == before
        assert [each.piece.number for each in read_pieces(objects, 5)] == [*range(5, last + 1)]
        assert merger_of(store)._next_block() is None
    assert_sound(url)


@pytest.mark.usefixtures("by_hand")
def test_a_moment_within_merged_pieces_is_restored(tmp_path: Path, url: str) -> None:
    moments: dict[int, Rows] = {}
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        for _ in range(6):
            put_pieces(store, 3)
            time.sleep(0.06)
            moments[time.time_ns() // 1_000_000 - 20] = all_rows(store)
        for _ in range(3):
            merger_of(store).work()
    for at_ms, expected in moments.items():
        restore.restore(url, tmp_path / f"at-{at_ms}", at_ms=at_ms)
        assert rows_in(tmp_path / f"at-{at_ms}") == expected


@pytest.mark.usefixtures("by_hand")
def test_large_pieces_are_merged_by_parts_of_a_block(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(1)
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        for size in (10, 10, 10, 10, 10, 3000, 10, 10, 900, 900, 900, 900, 10, 10, 10, 10, 10, 10):
            store.stream("orders").add({"v": chance.randbytes(size)})
            wait_archived(store)
        size = max(len(open_objects(url).get(piece_key(each)) or b"") for each in range(5))
        monkeypatch.setattr(merging, "BYTES_MAX", max(3000, 5 * size))
        for _ in range(3):
            merger_of(store).work()
        expected = all_rows(store)
    merged = merged_in(url)
    assert (0, 3) in merged
    assert len(merged) > 3
    assert all(found.size < 1.2 * merging.BYTES_MAX for found in open_objects(url).list("merged/"))
    assert_sound(url)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


@pytest.mark.usefixtures("by_hand")
def test_writers_do_not_wait_for_a_merge(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, hangs, goes_on = Folder.create, threading.Event(), threading.Event()

    def hang(folder: Folder, key: str, data: bytes) -> bool:
        if key.startswith("merged/"):
            hangs.set()
            assert goes_on.wait(PATIENCE_S)
        return create(folder, key, data)

    with Store.open(tmp_path / "data", archive=url, durability="archive") as store:
        put_pieces(store, 6)
        monkeypatch.setattr(Folder, "create", hang)
        merge = threading.Thread(target=merger_of(store).work)
        merge.start()
        assert hangs.wait(PATIENCE_S)
        put_pieces(store, 20)
        archiver_of(store)._snapshot()
        assert merged_in(url) == []
        goes_on.set()
        merge.join()
        assert merged_in(url)


# --- who is killed --------------------------------------------------------------------------------


class _Killed(BaseException):
    """Ends a merge as SIGKILL would."""


class _Killing:
    """Objects that end at a call; the call before has been done."""

    def __init__(self, objects: Objects, calls: int) -> None:
        self._objects, self._calls = objects, calls

    def __getattr__(self, name: str) -> Callable[..., object]:
        plain = getattr(self._objects, name)

        def call(*args: object) -> object:
            self._calls -= 1
            if self._calls < 0:
                raise _Killed
            return plain(*args)

        return call

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._calls -= 1
            if self._calls < 0:
                raise _Killed
            self._objects.delete([key])


def merge_all(objects: Objects, put: dict[int, bytes]) -> None:
    """Merge all that a new owner finds, and delete what that replaces."""
    merger = Merger(objects, lambda: False)
    for number, data in put.items():
        merger.add(number, data)
    for _ in range(4):
        merger.work()


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("is_recent", [True, False])
def test_a_merge_that_is_killed_at_any_step_is_gone_on_with(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch, is_recent: bool
) -> None:
    if not is_recent:
        monkeypatch.setattr(merging, "RECENT_MAX", 0)
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        copies = put_pieces(store, 22)
        end = archiver_of(store)._next
    put = {number: (bucket / piece_key(number)).read_bytes() for number in range(end)}
    for calls in itertools.count():
        place = tmp_path / "killed"
        shutil.copytree(bucket, place)
        objects = open_objects(f"file://{place}")
        is_killed = False
        try:
            merge_all(_Killing(objects, calls), put)  # type: ignore[arg-type]
        except _Killed:
            is_killed = True
        assert [each.piece.number for each in read_pieces(objects, 0)] == [*range(end)]
        merge_all(objects, put)
        assert retention.prune(objects, read_history(objects).snapshots, 1000)
        assert merged_in(objects.url) == [(0, 15), (16, 19)]
        assert singles_in(objects.url) == [0, *range(20, end)]
        assert_sound(objects.url)
        if not is_killed:
            break
        shutil.rmtree(place)
    assert calls > (40 if is_recent else 60)
    for sequence in sorted(copies)[::5]:
        restore.restore(f"file://{place}", tmp_path / f"back-{sequence}", sequence=sequence)
        assert rows_in(tmp_path / f"back-{sequence}") == copies[sequence]


def kill_owners(tmp_path: Path, url: str) -> None:
    chance, acked = random.Random(5), set[int]()
    for seed in range(rounds(2)):
        owner = Owner(tmp_path / "data", url, "archive", seed)
        owner.write_for(chance.uniform(0.5, 1.2))
        owner.kill()
        acked |= owner.acked.keys()
        assert_sound(url)
    assert merged_in(url)
    with Store.open(tmp_path / "data", archive=url) as store:
        found = numbers_in(store)
        expected = all_rows(store)
    assert found == list(range(len(found)))
    assert acked <= set(found)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


def test_owners_that_merge_are_killed(tmp_path: Path, url: str) -> None:
    kill_owners(tmp_path, url)


def test_owners_that_merge_in_a_bucket_are_killed(tmp_path: Path, bucket_url: str) -> None:
    kill_owners(tmp_path, bucket_url)


@pytest.mark.usefixtures("by_hand")
def test_pieces_stay_while_somebody_reads(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        put_pieces(store, 22)
        with pin(open_objects(url)):
            for _ in range(4):
                merger_of(store).work()
            assert merged_in(url)
            assert len(singles_in(url)) == archiver_of(store)._next
        merger_of(store).work()
        assert len(singles_in(url)) < 10
    assert_sound(url)


@pytest.mark.usefixtures("by_hand")
def test_who_reads_without_a_pin_follows_pieces_into_merged_objects(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        put_pieces(store, 22)
        merger, end = merger_of(store), archiver_of(store)._next
        plain = Folder.list

        def merge_after(folder: Folder, prefix: str, after: str = "") -> Iterator[Found]:
            found = list(plain(folder, prefix, after))
            if prefix == "log/":
                monkeypatch.setattr(Folder, "list", plain)
                for _ in range(3):
                    merger.work()
            yield from found

        monkeypatch.setattr(pieces, "FETCHES", 1)
        merger.work()
        merger._reached = None
        monkeypatch.setattr(Folder, "list", merge_after)
        numbers = [each.piece.number for each in read_pieces(open_objects(url), 0)]
        assert numbers == [*range(end)]
        assert plain is Folder.list


# --- who owns the archive -------------------------------------------------------------------------


@pytest.mark.usefixtures("by_hand")
def test_a_former_owner_that_merges_does_no_harm(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as former:
        put_pieces(former, 10)
        archiver_of(former)._stop.set()
        archiver_of(former)._thread.join()
        merger_of(former)._is_stopped = lambda: False
        with Store.open(tmp_path / "new", archive=url, take_over=True) as new:
            put_pieces(new, 30)
            fence = archiver_of(former)._next
            for owner in (new, former, new, former, former, new):
                merger_of(owner).work()
            assert {fence - 1, fence} <= set(singles_in(url)), "it must find its number taken"
            former.stream("orders").add({"n": "lost"})
            with pytest.raises(ArchiveTaken):
                wait_archived(former)
            expected = all_rows(new)
    assert_sound(url)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


@pytest.mark.usefixtures("by_hand")
def test_a_fence_whose_number_was_merged_meanwhile_is_none(tmp_path: Path, url: str) -> None:
    """Who takes over may have been stopped between its look at the end and its fence."""
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        put_pieces(store, 3)
        objects = open_objects(url)
        history = read_history(objects)
        put_pieces(store, 15)
        for _ in range(3):
            merger_of(store).work()
        assert history.head is not None
        number = history.next
        assert number not in singles_in(url)
        fence = replace(history.head, number=number, epoch="other", before=history.sum, parts=[])
        assert put_fence(objects, fence) is None
        assert number not in singles_in(url)
        put_pieces(store, 2)
    assert_sound(url)


@pytest.mark.usefixtures("by_hand")
def test_a_piece_whose_answer_was_lost_before_a_take_over_stays(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former owner that is stopped then puts its next commits under the same number."""
    create, is_lost = Folder.create, True

    def lose(folder: Folder, key: str, data: bytes) -> bool:
        made = create(folder, key, data)
        if is_lost and key.startswith("log/"):
            raise Corruption("no answer")
        return made

    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as former:
        put_pieces(former, 5)
        archiver_of(former)._stop.set()
        archiver_of(former)._thread.join()
        former.stream("orders").add({"n": "arrives"})
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "create", lose)
            with pytest.raises(Corruption):
                wait_archived(former)
        with Store.open(tmp_path / "new", archive=url, take_over=True) as new:
            put_pieces(new, 30)
            for _ in range(4):
                merger_of(new).work()
            assert retention.prune(open_objects(url), read_history(open_objects(url)).snapshots, 0)
            former.stream("orders").add({"n": "lost"})
            with pytest.raises(ArchiveTaken):
                wait_archived(former)


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("harm", ["flip", "remove"])
def test_a_damaged_piece_is_not_merged(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    monkeypatch.setattr(merging, "RECENT_MAX", 0)
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        put_pieces(store, 22)
        path = bucket / piece_key(6)
        data = bytearray(path.read_bytes())
        data[60] ^= 1
        path.write_bytes(bytes(data)) if harm == "flip" else path.unlink()
        with pytest.raises(Corruption, match=piece_key(6)):
            merger_of(store).work()
        for _ in range(4):
            merger_of(store).work()
        assert merged_in(url) == [(0, 3), (4, 5), (8, 15), (16, 19)]
        assert 7 in singles_in(url)
        (fault,) = verify(open_objects(url)).faults
        assert fault.key == piece_key(6)


@pytest.mark.usefixtures("by_hand")
def test_pieces_of_a_damaged_merged_object_stay(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        put_pieces(store, 22)
        with monkeypatch.context() as patched:
            patched.setattr(merging, "DELAY_S", 1000.0)
            merger_of(store).work()
        path = bucket / Source(0, 15).key
        path.write_bytes(path.read_bytes()[:-1])
        merger_of(store)._reached = None  # as after an opening
        merger_of(store)._delete_at = 0.0
        for _ in range(4):
            merger_of(store).work()
        assert retention.prune(open_objects(url), read_history(open_objects(url)).snapshots, 0)
        assert {*range(4)} <= set(singles_in(url))
        (fault,) = verify(open_objects(url)).faults
        assert fault.key == Source(0, 15).key
        path.unlink()
        assert_sound(url)
