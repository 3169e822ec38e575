"""Archives that are encrypted: all they promise holds, and nothing is read without the key."""

import base64
import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import merging, restore
from kvstream.archive.archiver import Archiver
from kvstream.archive.format import piece_key
from kvstream.archive.history import read_history
from kvstream.archive.keys import VARIABLE, Key
from kvstream.archive.objects import open_objects
from kvstream.archive.parts import Parts, find_moment
from kvstream.archive.pieces import get_piece, list_merged
from kvstream.archive.retention import prune
from kvstream.archive.verify import verify
from kvstream.errors import ArchiveTaken, Corruption, InvalidArgument, WrongArchiveKey
from kvstream.storage.batch import Family
from tests.archive import test_archive as core
from tests.archive import test_failures as failures
from tests.archive import test_owners as owners
from tests.archive.conftest import all_rows, numbers, rows_in, wait_archived
from tests.archive.test_merging import put_pieces

SECRET, OTHER = bytes(range(32)), bytes(range(32, 64))
FIRST, SECOND = SECRET.hex(), base64.b64encode(OTHER).decode()
FIRST_ID, SECOND_ID = Key(SECRET).id.hex(), Key(OTHER).id.hex()

# The same tests as without encryption.
test_end = core.test_a_store_is_restored_to_its_end
test_commits = core.test_any_commit_can_be_restored
test_moment = core.test_a_moment_can_be_restored
test_going_on = core.test_a_store_goes_on_with_its_archive_when_it_is_opened_again
test_anew = core.test_what_was_written_without_the_archive_begins_it_anew
test_take_over = core.test_a_store_that_takes_over_goes_on_from_the_end
test_bulk_load = core.test_bulk_loads_are_in_the_archive
test_lost_answers = core.test_a_piece_whose_answer_was_lost_is_recognised
test_damage = core.test_damaged_objects_are_named_and_nothing_is_restored
test_retention = core.test_old_snapshots_go_with_what_only_they_need
test_late_pieces = failures.test_a_piece_that_came_after_its_put_had_failed_is_this_owners
test_killed_openings = failures.test_openings_that_are_killed_at_any_step_do_not_lock_the_store_out
test_sleeper = failures.test_a_former_owner_that_slept_through_a_retention_writes_nothing
test_unknown_pieces = failures.test_pieces_of_unknown_content_stop_the_store
place, lossy, lossy_url = owners.place, owners.lossy, owners.lossy_url
test_killed_owners = owners.test_killed_owners_go_on_in_place
test_stopped_owner = owners.test_a_stopped_owner_acknowledges_nothing_after_the_fence
test_take_overs = owners.test_take_overs_while_answers_are_lost


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the key as a server gets it; processes of tests inherit it."""
    monkeypatch.setenv(VARIABLE, FIRST)


def fill(directory: Path, url: str, snapshots: int = 1, key: str = "") -> None:
    """Write a store with an archive that has pieces, tables and snapshots."""
    with Store.open(directory, archive=url, archive_key=key) as store:
        for number in range(snapshots):
            store.stream("orders").add_many([{"n": str(number), "secret": "SECRET" * 10}] * 300)
            store.engine.flush()
            store.stream("orders").add({"n": "last"})
            wait_archived(store)
            store.engine.archiving.archiver._snapshot()
            time.sleep(0.01)
        store.stream("orders").add({"n": "SECRET"})


def contents(bucket: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(bucket.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(bucket)), path.read_bytes()


def test_nothing_is_there_in_the_clear(tmp_path: Path, url: str, bucket: Path) -> None:
    fill(tmp_path / "data", url)
    shutil.copytree(tmp_path / "data", tmp_path / "same")
    found = dict(contents(bucket))
    assert {name.partition("/")[0] for name in found} >= {"log", "snapshots", "tables", "fences"}
    for name, data in found.items():
        assert data.startswith(b"KVCR"), name
        for word in (b"SECRET", b"orders", str(tmp_path).encode(), b"rocksdb", b"KVSA"):
            assert word not in data
    # the same tables have other names and other bytes with another key
    (tmp_path / "same" / "ARCHIVE").unlink()
    fill(tmp_path / "same", f"file://{tmp_path}/other", key=SECOND)
    other = dict(contents(tmp_path / "other"))
    assert not {name for name in other if name.startswith("tables/")} & found.keys()


def test_a_large_store_is_restored_from_a_bucket(tmp_path: Path, bucket_url: str) -> None:
    with Store.open(tmp_path / "data", archive=bucket_url) as store:
        for _ in range(60):
            store.stream("orders").add({"value": os.urandom(300_000)})
        store.engine.flush()
        store.compact()
        store.engine.archiving.archiver._snapshot()
        store.stream("orders").add({"n": "1"})
        expected = all_rows(store)
    objects = open_objects(bucket_url)
    assert max(found.size for found in objects.list("tables/")) > 10_000_000
    assert verify(objects).faults == []
    restore.restore(bucket_url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected
    with Store.open(tmp_path / "new", archive=bucket_url, take_over=True) as new:
        assert all_rows(new) == expected
    with pytest.raises(WrongArchiveKey):
        restore.restore(bucket_url, tmp_path / "wrong", key=SECOND)


# --- keys -----------------------------------------------------------------------------------------


def test_without_its_key_an_archive_is_neither_read_nor_continued(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, bucket: Path
) -> None:
    fill(tmp_path / "data", url)
    before = dict(contents(bucket))
    for key, says in ((None, "is encrypted, as its object"), (SECOND, FIRST_ID)):
        monkeypatch.delenv(VARIABLE, raising=False)
        if key:
            monkeypatch.setenv(VARIABLE, key)
        for place, take_over in (("data", False), ("new", True)):
            with pytest.raises(WrongArchiveKey, match=f"{says}.*{VARIABLE}"):
                Store.open(tmp_path / place, archive=url, take_over=take_over)
        with pytest.raises(WrongArchiveKey, match=says):
            restore.restore(url, tmp_path / "back")
        with pytest.raises(WrongArchiveKey, match=says):
            verify(open_objects(url))
    assert not (tmp_path / "back").exists()
    assert not (tmp_path / "new").exists()
    assert {name: data for name, data in contents(bucket) if "pins" not in name} == before


def test_an_archive_that_is_not_encrypted_is_refused_with_a_key(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    fill(tmp_path / "data", url)
    for call in (
        lambda: Store.open(tmp_path / "data", archive=url, archive_key=FIRST),
        lambda: restore.restore(url, tmp_path / "back", key=FIRST),
        lambda: verify(open_objects(url, FIRST)),
    ):
        with pytest.raises(WrongArchiveKey, match=r"is not encrypted .* at another URL"):
            call()
    expected = rows_in(tmp_path / "data")
    with Store.open(tmp_path / "data", archive=f"{url}-encrypted", archive_key=FIRST):
        pass
    restore.restore(f"{url}-encrypted", tmp_path / "back", key=FIRST)
    assert rows_in(tmp_path / "back") == expected


def test_a_key_needs_an_archive_and_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="needs its URL"):
        Store.open(tmp_path / "data", archive_key=FIRST)
    with Store.open(
        tmp_path / "data", archive=f"file://{tmp_path}/bucket", archive_key=FIRST
    ) as store:
        assert FIRST not in repr(store.engine.options)


def test_a_rotated_key_reads_all_and_writes_with_the_first(
    tmp_path: Path, url: str, bucket: Path
) -> None:
    fill(tmp_path / "data", url)
    begun = set(dict(contents(bucket)))
    with Store.open(
        tmp_path / "data", archive=url, archive_key=f"{SECOND}, {FIRST}", archive_keep_s=0.0
    ) as store:
        store.stream("orders").add({"n": "rotated"})
        wait_archived(store)
        restore.restore(url, tmp_path / "between", key=f"{SECOND},{FIRST}")
        store.engine.archiving.archiver._snapshot()
        found = dict(contents(bucket))
        new = {name: data for name, data in found.items() if name not in begun}
        assert {name.partition("/")[0] for name in new} >= {"log", "snapshots", "tables", "fences"}
        assert {data[5:13].hex() for data in new.values()} == {SECOND_ID}
        store.engine.archiving.archiver._snapshots[:-1] = []
        expected = all_rows(store)
    assert rows_in(tmp_path / "between")
    # what the retention has left can be read with the new key alone
    objects = open_objects(url, f"{SECOND},{FIRST}")
    prune(objects, read_history(objects).snapshots, 0.0)
    objects = open_objects(url, f"{SECOND},{FIRST}")
    verified = verify(objects)
    assert (verified.faults, set(verified.keys)) == ([], {SECOND_ID})
    assert verify(open_objects(url, SECOND)).faults == []
    restore.restore(url, tmp_path / "back", key=SECOND)
    assert rows_in(tmp_path / "back") == expected


def test_pieces_are_merged_when_an_old_key_is_gone(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fences are kept for ever: those of former keys cannot be read any more."""
    monkeypatch.setattr(merging, "LEVELS", (4, 16))
    monkeypatch.setattr(merging, "DELAY_S", 0.0)
    monkeypatch.setattr(Archiver, "_start_merging", lambda _: None)
    for key in (FIRST, f"{SECOND},{FIRST}", SECOND):
        with Store.open(
            tmp_path / "data", archive=url, archive_key=key, archive_keep_s=0.0
        ) as store:
            ours = store.engine.archiving.archiver
            put_pieces(store, 2)
            store.engine.flush()
            ours._snapshot()
            if key == SECOND:
                with pytest.raises(WrongArchiveKey):  # the piece before a fence
                    ours._merger.work()
                put_pieces(store, 20)
                for _ in range(10):  # each finds one piece missing that was deleted
                    with contextlib.suppress(Corruption):
                        ours._merger.work()
                ours._merger.work()
            expected = all_rows(store)
    objects = open_objects(url, SECOND)
    with pytest.raises(WrongArchiveKey):
        get_piece(objects, 0)
    assert max(each.last for each in list_merged(objects)) > ours._next - 6
    assert verify(objects).faults == []
    restore.restore(url, tmp_path / "back", key=SECOND)
    assert rows_in(tmp_path / "back") == expected


def test_parts_of_an_encrypted_archive_are_read(tmp_path: Path, url: str) -> None:
    fill(tmp_path / "data", url)
    (tmp_path / "shelf").mkdir()
    parts = Parts(find_moment(url), tmp_path / "shelf")
    parts.make(tmp_path / "part", [(family, b"", b"\xff" * 64) for family in Family])
    with Store.open(tmp_path / "part", read_only=True) as store:
        assert store.stream("orders").info().length == 302


def test_a_former_owner_is_fenced_by_one_with_a_newer_key(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        store.stream("orders").add({"n": "1"})
        wait_archived(store)
        both = f"{SECOND},{FIRST}"
        with Store.open(tmp_path / "new", archive=url, archive_key=both, take_over=True) as new:
            assert all_rows(new) == all_rows(store)
        store.stream("orders").add({"n": "lost"})
        with pytest.raises(ArchiveTaken, match="another owner has taken over"):
            wait_archived(store)
    with pytest.raises(WrongArchiveKey, match=SECOND_ID):
        Store.open(tmp_path / "data", archive=url)
    with pytest.raises(ArchiveTaken, match="continued by"):
        Store.open(tmp_path / "data", archive=url, archive_key=both)


# --- objects that somebody has changed ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["log", "snapshots", "tables"])
def test_exchanged_objects_are_found(tmp_path: Path, url: str, bucket: Path, kind: str) -> None:
    fill(tmp_path / "data", url, snapshots=3)
    for path in sorted((bucket / "snapshots").iterdir())[:-2]:
        path.unlink()
    paths = sorted((bucket / kind).iterdir())
    if kind == "log":  # nobody needs those before
        paths = paths[read_history(open_objects(url)).snapshots[0].first_piece :]
    first, last = paths[0].read_bytes(), paths[-1].read_bytes()
    paths[0].write_bytes(last)
    paths[-1].write_bytes(first)
    with pytest.raises(Corruption, match=f"{kind}/.*changed, cut, exchanged or renamed"):
        restore.restore(url, tmp_path / "back")
    faults = {fault.key for fault in verify(open_objects(url)).faults}
    assert {f"{kind}/{path.name}" for path in (paths[0], paths[-1])} <= faults


def test_objects_of_another_archive_of_the_same_key_are_found(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/one", f"file://{tmp_path}/two"]
    for name, url in zip(("data", "other"), urls, strict=True):
        fill(tmp_path / name, url)
    for kind in ("log", "snapshots"):
        shutil.copytree(tmp_path / "one", tmp_path / f"mixed-{kind}")
        shutil.rmtree(tmp_path / f"mixed-{kind}" / kind)
        shutil.copytree(tmp_path / "two" / kind, tmp_path / f"mixed-{kind}" / kind)
        for path in (tmp_path / "two" / "tables").iterdir():
            shutil.copy(path, tmp_path / f"mixed-{kind}" / "tables")
        with pytest.raises(Corruption, match="another archive"):
            restore.restore(f"file://{tmp_path}/mixed-{kind}", tmp_path / "back")


@pytest.mark.parametrize("kind", ["log", "snapshots", "tables"])
@pytest.mark.parametrize("harm", ["flip", "cut", "head", "plain", "empty"])
def test_verify_names_what_is_harmed(
    tmp_path: Path, url: str, bucket: Path, kind: str, harm: str
) -> None:
    fill(tmp_path / "data", url, snapshots=2)
    path = sorted((bucket / kind).iterdir())[1 if kind == "log" else 0]
    data = path.read_bytes()
    harmed = {
        "flip": data[:-1] + bytes([data[-1] ^ 1]),
        "cut": data[:-1],
        "head": data[:7] + bytes([data[7] ^ 1]) + data[8:],  # in the ID of the key
        "plain": b"what is this",
        "empty": b"",
    }[harm]
    path.write_bytes(harmed)
    faults = [fault.key for fault in verify(open_objects(url)).faults]
    assert faults[0] == f"{kind}/{path.name}"
    assert len(faults) == 1


def test_a_piece_in_the_clear_is_not_taken(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can write into the bucket and has no key cannot make a piece of his own."""
    fill(tmp_path / "data", url)
    last = max(numbers(bucket / "log"))
    forged = open_objects(url).get(piece_key(last))
    assert forged is not None
    (bucket / piece_key(last)).write_bytes(forged)
    with pytest.raises(WrongArchiveKey, match="is not encrypted"):
        restore.restore(url, tmp_path / "back")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(WrongArchiveKey, match="is encrypted"):
        restore.restore(url, tmp_path / "back")
