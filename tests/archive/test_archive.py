"""Stores that an archive follows, restored and taken over."""

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Store
from kvstream.archive import archiver, mark, restore
from kvstream.archive.format import piece_key
from kvstream.archive.history import read_history
from kvstream.archive.objects import Folder, open_objects
from kvstream.errors import (
    ArchiveTaken,
    Corruption,
    InvalidArgument,
    StoreError,
    UnknownOutcome,
)
from kvstream.types.options import Durability
from tests.archive.conftest import all_rows, numbers, rows_in, wait_archived
from tests.bulkload.test_parts import load


@pytest.mark.parametrize("durability", Durability)
def test_a_store_is_restored_to_its_end(tmp_path: Path, url: str, durability: Durability) -> None:
    with Store.open(tmp_path / "data", archive=url, durability=durability) as store:
        orders = store.stream("orders")
        orders.add_many([{"n": str(number)} for number in range(300)])
        group = orders.create_group("workers", start="0")
        group.consumer("ann").read(count=7)
        store.stream("large").add({"value": "v" * 400_000})
        for number in range(50):
            orders.add({"n": str(number)})
        expected = all_rows(store)
    plan = restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected
    assert plan.sequence == read_history(open_objects(url)).head.last  # type: ignore[union-attr]


def test_any_commit_can_be_restored(tmp_path: Path, url: str) -> None:
    copies = {}
    with Store.open(tmp_path / "data", archive=url) as store:
        orders = store.stream("orders")
        for number in range(12):
            orders.add_many([{"n": str(number), "text": "x" * 5000} for _ in range(10)])
            orders.trim(maxlen=40)
            if number == 5:
                store.engine.flush()
            if number in (3, 8):
                wait_archived(store)
                store.engine.archiving.archiver._snapshot()
            copies[store.engine.database.sequence] = all_rows(store)
    for sequence, expected in copies.items():
        place = tmp_path / f"back-{sequence}"
        if sequence < read_history(open_objects(url)).snapshots[0].sequence:
            with pytest.raises(InvalidArgument, match="begins with commit"):
                restore.restore(url, place, sequence=sequence)
            assert not place.exists()
            continue
        assert restore.restore(url, place, sequence=sequence).sequence == sequence
        assert rows_in(place) == expected


def test_a_restore_gets_each_piece_once(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        for number in range(12):
            store.stream("orders").add({"n": str(number)})
            wait_archived(store)
        expected = all_rows(store)
    head = read_history(open_objects(url)).head
    assert head is not None
    get, counts = Folder.get, Counter[str]()

    def counted(folder: Folder, key: str) -> bytes | None:
        data = get(folder, key)
        counts[key] += data is not None and key.startswith(("log/", "merged/"))
        return data

    monkeypatch.setattr(Folder, "get", counted)
    for name, sequence in (("end", None), ("then", head.last - 3)):
        counts.clear()
        restore.restore(url, tmp_path / name, sequence=sequence)
        counts.pop(piece_key(head.number), 0)  # the end is looked at first
        assert max(counts.values()) == 1
        assert not list((tmp_path / name).glob(".*"))
    counts.clear()
    restore.take_over(url, tmp_path / "new")
    counts.pop(piece_key(head.number), 0)  # and again for the fence
    assert max(counts.values()) == 1
    assert rows_in(tmp_path / "new") == expected


def test_a_moment_can_be_restored(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url, durability="archive") as store:
        store.stream("orders").add({"n": "before"})
        time.sleep(0.1)
        then, expected = time.time_ns() // 1_000_000, all_rows(store)
        time.sleep(0.1)
        store.stream("orders").delete(*[entry.id for entry in store.stream("orders").range()])
    plan = restore.restore(url, tmp_path / "back", at_ms=then)
    assert then - 500 <= plan.moment_ms <= then
    assert rows_in(tmp_path / "back") == expected


def test_a_store_goes_on_with_its_archive_when_it_is_opened_again(tmp_path: Path, url: str) -> None:
    for number in range(4):
        with Store.open(tmp_path / "data", archive=url) as store:
            store.stream("orders").add_many([{"n": str(number)}] * 100)
            store.engine.flush()
            store.stream("orders").add({"n": "last"})
            wait_archived(store)
            if number == 0:
                store.engine.archiving.archiver._snapshot()
    snapshots = read_history(open_objects(url)).snapshots
    assert len(snapshots) == 2, "each opening made a snapshot"
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == rows_in(tmp_path / "data")


def test_what_was_written_without_the_archive_begins_it_anew(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        store.stream("orders").add({"n": "1"})
        store.engine.archiving.archiver._snapshot()
    with Store.open(tmp_path / "data") as store:
        store.stream("orders").add({"n": "2"})
    assert not (tmp_path / "data" / "archive").exists()
    with Store.open(tmp_path / "data", archive=url) as store:
        store.stream("orders").add({"n": "3"})
        store.engine.archiving.archiver._snapshot()
        expected = all_rows(store)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


def test_a_store_that_takes_over_goes_on_from_the_end(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url, durability="archive") as store:
        store.stream("orders").add({"n": "1"})
        expected = all_rows(store)
        with Store.open(tmp_path / "new", archive=url, take_over=True) as new:
            assert all_rows(new) == expected
            new.stream("orders").add({"n": "2"})
            with pytest.raises(UnknownOutcome, match="has taken over the archive"):
                store.stream("orders").add({"n": "lost"})
            with pytest.raises(ArchiveTaken, match="refuses all writes"):
                store.stream("orders").add({"n": "refused"})
            assert store.stream("orders").info().length == 2, "reads go on"
    restore.restore(url, tmp_path / "back")
    with Store.open(tmp_path / "back", decode=True) as back:
        assert [entry.fields for entry in back.stream("orders").range()] == [{"n": "1"}, {"n": "2"}]
    with Store.open(tmp_path / "new", archive=url, take_over=True) as new:
        assert new.stream("orders").info().length == 2, "it is its own: nothing is taken over"
    with pytest.raises(ArchiveTaken, match="was continued by another owner"):
        Store.open(tmp_path / "data", archive=url)


def test_an_old_copy_of_a_store_does_not_continue_its_archive(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        store.stream("orders").add({"n": "1"})
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with Store.open(tmp_path / "data", archive=url) as store:
        store.stream("orders").add({"n": "2"})
    with pytest.raises(ArchiveTaken, match="continued by"):
        Store.open(tmp_path / "copy", archive=url)
    with Store.open(tmp_path / "copy") as copy:
        assert copy.stream("orders").info().length == 1


def test_a_piece_whose_answer_was_lost_is_recognised(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Folder.create
    lost: list[str] = []

    def lose_answers(folder: Folder, key: str, data: bytes) -> bool:
        made = create(folder, key, data)
        if key.startswith("log/") and made and len(lost) < 3:
            lost.append(key)
            return create(folder, key, data)  # as an object store that is asked again
        return made

    monkeypatch.setattr(Folder, "create", lose_answers)
    with Store.open(tmp_path / "data", archive=url, durability="archive") as store:
        for number in range(5):
            store.stream("orders").add({"n": str(number)})
        expected = all_rows(store)
    assert len(lost) == 3
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


def test_writers_get_an_error_while_the_archive_is_away(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "TIMEOUT_S", 0.3)
    with Store.open(tmp_path / "data", archive=url, durability="archive") as store:
        store.stream("orders").add({"n": "1"})
        bucket.rename(tmp_path / "away")
        bucket.write_bytes(b"")
        with pytest.raises(UnknownOutcome, match="is durable here and not in the archive"):
            store.stream("orders").add({"n": "2"})
        assert store.stream("orders").info().length == 2
        bucket.unlink()
        (tmp_path / "away").rename(bucket)
        store.stream("orders").add({"n": "3"})
        expected = all_rows(store)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


def test_bulk_loads_are_in_the_archive(tmp_path: Path, url: str) -> None:
    rows: list[dict[bytes, Any]] = [{b"orders": (None, [*range(3000)])}, {b"new": (None, [1, 2])}]
    with Store.open(tmp_path / "data", archive=url) as store:
        store.stream("orders").add({"n": "1"})
        load(store, tmp_path, rows, ["orders"])
        assert store.stream("orders").info().length == 3001
        expected = all_rows(store)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
@pytest.mark.parametrize("kind", ["log", "snapshots", "tables"])
def test_damaged_objects_are_named_and_nothing_is_restored(
    tmp_path: Path, url: str, bucket: Path, kind: str, harm: str
) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        store.stream("orders").add_many([{"n": str(number)} for number in range(1000)])
        store.engine.flush()
        store.stream("orders").add({"n": "last"})
        wait_archived(store)
        store.engine.archiving.archiver._snapshot()
        for _ in range(3):
            store.stream("orders").add({"n": "more"})
            wait_archived(store)
    paths = sorted((bucket / kind).iterdir())
    path = paths[-2] if kind == "log" else paths[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    if harm == "flip":
        path.write_bytes(bytes(data))
    elif harm == "cut":
        path.write_bytes(bytes(data[: len(data) // 2]))
    elif kind != "snapshots":  # without it an older one is taken, if there is one
        path.unlink()
    else:
        return
    with pytest.raises(Corruption, match=f"{kind}/{path.name}"):
        restore.restore(url, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_old_snapshots_go_with_what_only_they_need(tmp_path: Path, url: str, bucket: Path) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_keep_s=0.0) as store:
        for number in range(4):
            store.stream("orders").add_many([{"n": str(number)}] * 1000)
            store.engine.compact()
            wait_archived(store)
            store.engine.archiving.archiver._snapshot()
            time.sleep(0.01)
        expected = all_rows(store)
    kept = read_history(open_objects(url)).snapshots
    assert len(kept) <= 2
    first = min(each.first_piece for each in kept)
    assert [each for each in numbers(bucket / "log") if each < first] == [0], "only the fence"
    assert first > 1
    named = {digest for each in kept for digest, _ in each.tables.values()}
    assert {path.name for path in (bucket / "tables").iterdir()} == named
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


def test_a_restore_needs_a_free_place(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        store.stream("orders").add({"n": "1"})
    with pytest.raises(StoreError, match="is not empty"):
        restore.restore(url, tmp_path / "data")
    (tmp_path / "empty").mkdir(mode=0o700)
    restore.restore(url, tmp_path / "empty")
    assert rows_in(tmp_path / "empty") == rows_in(tmp_path / "data")


def test_a_damaged_mark_is_reported(tmp_path: Path, url: str) -> None:
    Store.open(tmp_path / "data", archive=url).close()
    path = tmp_path / "data" / mark.FILE_NAME
    assert set(json.loads(path.read_text())) == {"archive", "epoch", "next"}
    path.write_text("{}")
    with pytest.raises(Corruption, match="ARCHIVE"):
        Store.open(tmp_path / "data", archive=url)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("ftp://host/x", "s3://"),
        ("/mnt/disk", "file:///mnt/disk"),
        ("file://host/x", "absolute path"),
        ("s3://", "names no bucket"),
    ],
)
def test_a_wrong_url_says_what_to_give(tmp_path: Path, wrong: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Store.open(tmp_path / "data", archive=wrong)


def test_options_that_need_an_archive_say_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="URL of an archive"):
        Store.open(tmp_path / "data", durability="archive")
    with pytest.raises(InvalidArgument, match="URL of an archive"):
        Store.open(tmp_path / "data", take_over=True)
    assert kvstream.open is not None
