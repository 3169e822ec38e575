"""What retention deletes, also of what was killed or stopped halfway, and what it leaves alone."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import retention
from kvstream.archive.archiver import Archiver
from kvstream.archive.format import PINS, SNAPSHOTS, TABLES
from kvstream.archive.history import read_history
from kvstream.archive.objects import Folder, Found, open_objects
from kvstream.archive.retention import SNAPSHOT, Pin, Pruned, count_readers, is_pinned, pin, prune
from kvstream.archive.verify import verify
from tests.archive.conftest import wait_archived


def archiver_of(store: Store) -> Archiver:
    return store.engine.archiving.archiver


def make_snapshots(store: Store, count: int) -> None:
    """Make snapshots that have no table in common."""
    for number in range(count):
        store.stream("orders").add_many([{"n": str(number)}] * 100)
        store.engine.compact()
        wait_archived(store)
        archiver_of(store)._snapshot()
        time.sleep(0.01)


def make_old(folder: Path) -> None:
    """Set the times of all files in a folder two days back."""
    then = time.time() - 2 * 86400
    for path in folder.iterdir():
        os.utime(path, (then, then))


def prune_all(url: str) -> Pruned | None:
    """Delete all that the newest snapshot does not need."""
    objects = open_objects(url)
    return prune(objects, read_history(objects).snapshots, 0.0)


def unneeded_in(url: str) -> int:
    found = verify(open_objects(url))
    assert found.faults == []
    return found.unneeded


def test_tables_of_a_snapshot_that_was_killed_go_after_a_day(
    tmp_path: Path, url: str, bucket: Path
) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        make_snapshots(store, 1)
    assert prune_all(url) is not None
    (bucket / TABLES / ("0" * 64)).write_bytes(b"of a snapshot that was killed")
    assert prune_all(url) == (0, 0, 0), "it may be put just now"
    assert unneeded_in(url) == 1
    make_old(bucket / TABLES)
    assert prune_all(url) == (0, 1, 0)
    assert unneeded_in(url) == 0


def test_a_prune_that_a_pin_has_ended_goes_on(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = Folder.delete

    def delete_and_pin(folder: Folder, keys: Iterable[str]) -> None:
        names = [*keys]
        delete(folder, names)
        if any(key.startswith(SNAPSHOTS) for key in names):
            Pin(folder, "restore")

    with Store.open(tmp_path / "data", archive=url) as store:
        make_snapshots(store, 3)
    before = len(read_history(open_objects(url)).snapshots)
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "delete", delete_and_pin)
        assert prune_all(url) is None
    assert len(read_history(open_objects(url)).snapshots) == 1 < before
    left = unneeded_in(url)
    assert left > 0
    for path in (bucket / PINS).iterdir():
        path.unlink()
    make_old(bucket / TABLES)
    pruned = prune_all(url)
    assert pruned is not None
    assert (pruned.tables, pruned.pieces > 0) == (left, True)
    assert unneeded_in(url) == 0


def test_tables_that_a_snapshot_has_named_meanwhile_stay(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Folder.list
    with Store.open(tmp_path / "data", archive=url) as store:
        make_snapshots(store, 1)

        def put_meanwhile(folder: Folder, prefix: str, after: str = "") -> Iterator[Found]:
            if prefix == TABLES:
                monkeypatch.setattr(Folder, "list", plain)
                make_snapshots(store, 1)
                make_old(bucket / TABLES)
            yield from plain(folder, prefix, after)

        monkeypatch.setattr(Folder, "list", put_meanwhile)
        assert prune_all(url) is not None
    assert unneeded_in(url) == 0


def test_a_snapshot_holds_off_others_and_its_own_pin_does_not_stay(
    tmp_path: Path, url: str, bucket: Path
) -> None:
    objects = open_objects(url)
    with Store.open(tmp_path / "data", archive=url) as store:
        make_snapshots(store, 2)
        with pin(objects, SNAPSHOT):
            assert is_pinned(objects)
            assert count_readers(objects) == 0
            assert prune_all(url) is None
            make_snapshots(store, 1)  # by the owner: that pin is a former owner's
        assert list((bucket / PINS).iterdir()) == []
        assert prune_all(url) is not None


def test_a_pin_is_renewed_and_an_old_one_counts_no_more(
    url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = open_objects(url)
    with pin(objects) as pinned:
        (first,) = (bucket / PINS).iterdir()
        assert list(pinned.hold([1, 2])) == [1, 2]
        assert list((bucket / PINS).iterdir()) == [first]
        monkeypatch.setattr(retention, "RENEW_MS", -1)
        list(pinned.hold([1]))
        (second,) = (bucket / PINS).iterdir()
        assert second != first
        assert is_pinned(objects)
        monkeypatch.setattr(retention, "PIN_MS", -1000)
        assert not is_pinned(objects)
        assert list((bucket / PINS).iterdir()) == []


@pytest.mark.usefixtures("by_hand")
def test_merged_pieces_go_with_the_snapshots_that_need_them(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        for number in range(22):
            store.stream("orders").add({"n": str(number)})
            wait_archived(store)
        archiver_of(store)._merger.work()
        make_snapshots(store, 1)
        assert [found.key[-33:] for found in open_objects(url).list("merged/")]
        assert prune_all(url) is not None
        first = read_history(open_objects(url)).snapshots[0].first_piece
        assert first > 20
        assert [found.key for found in open_objects(url).list("merged/")] == []
        assert [
            found.key for found in open_objects(url).list("log/") if int(found.key[4:], 16) < first
        ] == ["log/0000000000000000"]
    assert unneeded_in(url) == 0
