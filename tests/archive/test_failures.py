"""What must not be lost when an archive, its store, or the way between fails."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream import Queue, Store
from kvstream.archive import archiver, logs, restore
from kvstream.archive import format as formats
from kvstream.archive.archiver import Archiver
from kvstream.archive.format import Piece, piece_key
from kvstream.archive.history import read_history
from kvstream.archive.mark import Mark
from kvstream.archive.objects import Folder, open_objects
from kvstream.archive.pieces import get_piece
from kvstream.archive.restart import End, find_end, restart
from kvstream.archive.verify import verify
from kvstream.errors import (
    ArchiveTaken,
    ArchiveUnavailable,
    Corruption,
    InvalidArgument,
    KVStreamError,
    UnknownOutcome,
)
from kvstream.storage.changes import ARCHIVE
from kvstream.storage.database import Database
from kvstream.storage.opening import Loss
from kvstream.types.options import Durability
from tests.archive.conftest import all_rows, numbers, rows_in, wait_archived
from tests.patience import PATIENCE_S

Create = Callable[[Folder, str, bytes], bool]


def archiver_of(store: Store) -> Archiver:
    return store.engine.archiving.archiver


def wrap_creates(monkeypatch: pytest.MonkeyPatch, wrapped: Callable[[Create], Create]) -> None:
    """Put a function between the archive and its folder."""
    monkeypatch.setattr(Folder, "create", wrapped(Folder.create))


def add(store: Store, *names: str) -> None:
    for name in names:
        store.stream("orders").add({"n": name})


def names_in(directory: Path) -> list[str]:
    with Store.open(directory, decode=True) as store:
        assert store.check() == []
        return [entry.fields["n"] for entry in store.stream("orders").range()]


def test_a_piece_that_came_after_its_put_had_failed_is_this_owners(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def lose_answers(create: Create) -> Create:
        def wrapped(folder: Folder, key: str, data: bytes) -> bool:
            made = create(folder, key, data)
            if key.startswith("log/") and int(key[-4:], 16) % 3 == 1 and key not in lost:
                lost.append(key)
                raise ArchiveUnavailable("no answer")
            return made

        return wrapped

    monkeypatch.setattr(archiver, "SAMPLE_S", 10.0)
    with Store.open(tmp_path / "data", archive=url) as store:
        wrap_creates(monkeypatch, lose_answers)
        for number in range(20):
            add(store, f"{number} a")
            try:
                wait_archived(store)
            except ArchiveUnavailable:
                add(store, f"{number} b")  # so the next piece differs from the one that is there
                wait_archived(store)
        expected = all_rows(store)
    assert len(lost) > 5
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


@pytest.mark.parametrize("overwrites", [False, True])
def test_a_store_of_objects_that_overwrites_is_refused_one_that_loses_an_answer_not(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch, overwrites: bool
) -> None:
    """The first creation is sent again after its answer was lost, and finds its object."""

    def probed(create: Create) -> Create:
        def wrapped(folder: Folder, key: str, data: bytes) -> bool:
            if not key.startswith("probes/"):
                return create(folder, key, data)
            if overwrites:
                (bucket / key).unlink(missing_ok=True)
                return create(folder, key, data)
            create(folder, key, data)
            return False

        return wrapped

    wrap_creates(monkeypatch, probed)
    if overwrites:
        with pytest.raises(ArchiveUnavailable, match="does not compare and set"):
            Store.open(tmp_path / "data", archive=url)
    else:
        Store.open(tmp_path / "data", archive=url).close()
    assert not list((bucket / "probes").iterdir())


def test_an_interrupt_at_any_call_puts_nothing_twice(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "SAMPLE_S", 10.0)
    with Store.open(tmp_path / "data", archive=url) as store:
        ours = archiver_of(store)
        owners = {"create": ours._objects, "trim": ours._logs}
        owners |= {"until": ours._times, "drop": ours._times}
        for place in ("create", "_count", "until", "drop", "_piece", "trim"):
            owner = owners.get(place, ours)
            plain = getattr(owner, place)

            def interrupt(*args: object, plain: Callable[..., object] = plain) -> object:
                plain(*args)
                raise KeyboardInterrupt

            add(store, place)
            monkeypatch.setattr(owner, place, interrupt)
            with pytest.raises(KeyboardInterrupt):
                wait_archived(store)
            monkeypatch.setattr(owner, place, plain)
            add(store, f"behind {place}")
            wait_archived(store)
        expected = all_rows(store)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


def test_a_history_that_begins_anew_at_the_commit_of_a_snapshot_has_one_of_its_own(
    tmp_path: Path, url: str
) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "1")
        archiver_of(store)._snapshot()
    Store.open(tmp_path / "data").close()  # removes the logs, and writes nothing
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "2")
    history = read_history(open_objects(url))
    assert history.is_based
    restore.restore(url, tmp_path / "back")
    assert names_in(tmp_path / "back") == ["1", "2"]


class _Killed(BaseException):
    """Ends an opening as SIGKILL would: nothing more is written."""


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_openings_that_are_killed_at_any_step_do_not_lock_the_store_out(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "1")
    calls = 0
    for step in range(4 * rounds):
        with monkeypatch.context() as patched:
            calls = step % 4

            def killed(plain: Callable[..., object]) -> Callable[..., object]:
                def wrapped(*args: object) -> object:
                    nonlocal calls
                    if calls == 0:
                        raise _Killed
                    calls -= 1
                    return plain(*args)

                return wrapped

            patched.setattr(Folder, "create", killed(Folder.create))
            patched.setattr(Mark, "write", killed(Mark.write))
            with pytest.raises(_Killed):
                Store.open(tmp_path / "data", archive=url)
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "2")
    restore.restore(url, tmp_path / "back")
    assert names_in(tmp_path / "back") == ["1", "2"]


def test_a_piece_of_a_killed_process_that_comes_late_is_followed(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "1")
    late: list[bool] = []

    def comes_late(create: Create) -> Create:
        def wrapped(folder: Folder, key: str, data: bytes) -> bool:
            if key.startswith("log/") and not late:
                head = get_piece(folder, int(key[4:], 16) - 1).piece
                sum_of = read_history(folder).sum
                piece = replace(head, number=head.number + 1, before=sum_of, parts=[], times=[])
                late.append(create(folder, key, formats.encode(piece)))
            return create(folder, key, data)

        return wrapped

    wrap_creates(monkeypatch, comes_late)
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "2")
    assert late == [True]
    restore.restore(url, tmp_path / "back")
    assert names_in(tmp_path / "back") == ["1", "2"]


def test_commits_are_put_while_a_snapshot_is_made(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, waits = threading.Event(), threading.Event()

    upload = Folder.upload

    def upload_slowly(folder: Folder, key: str, parts: Iterable[bytes]) -> None:
        waits.set()
        assert goes_on.wait(10)
        upload(folder, key, parts)

    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.0) as store:
        add(store, "1")
        monkeypatch.setattr(Folder, "upload", upload_slowly)
        monkeypatch.setattr(archiver, "SNAPSHOT_LOG_BYTES", -1)
        store.engine.flush()
        add(store, "2")
        assert waits.wait(10)
        add(store, "while it is made")
        sequence, until = store.engine.database.sequence, time.monotonic() + PATIENCE_S
        while archiver_of(store).status().sequence < sequence:
            assert time.monotonic() < until
            time.sleep(0.01)
        monkeypatch.setattr(archiver, "SNAPSHOT_LOG_BYTES", 1 << 30)
        goes_on.set()


def test_moments_of_a_time_without_the_archive_are_kept(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the logs that waited are more than one piece."""
    monkeypatch.setattr(logs, "RAW_MAX", 3000)
    moments: list[tuple[int, list[str]]] = []
    away = True

    def refuse(create: Create) -> Create:
        def wrapped(folder: Folder, key: str, data: bytes) -> bool:
            if away and key.startswith("log/"):
                raise ArchiveUnavailable("away")
            return create(folder, key, data)

        return wrapped

    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.0) as store:
        wrap_creates(monkeypatch, refuse)
        names: list[str] = []
        for number in range(10):
            for part in range(10):
                names.append(f"{number} {part}" + "x" * 100)
                add(store, names[-1])
            time.sleep(0.1)
            moments.append((time.time_ns() // 1_000_000 - 20, list(names)))
        away = False
        wait_archived(store)
    assert read_history(open_objects(url)).head.number > 3  # type: ignore[union-attr]
    for at_ms, expected in moments[::4]:
        restore.restore(url, tmp_path / f"at-{at_ms}", at_ms=at_ms)
        assert names_in(tmp_path / f"at-{at_ms}") == expected


def test_commits_are_noted_while_a_piece_is_on_its_way(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put of an object store may take longer than moments are apart."""
    waits, goes_on = threading.Event(), threading.Event()

    def slow(create: Create) -> Create:
        def wrapped(folder: Folder, key: str, data: bytes) -> bool:
            waits.set()
            assert goes_on.wait(PATIENCE_S)
            return create(folder, key, data)

        return wrapped

    moments: list[tuple[int, list[str]]] = []
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.0) as store:
        wrap_creates(monkeypatch, slow)
        add(store, "0")
        assert waits.wait(PATIENCE_S)
        for number in range(1, 4):
            add(store, f"{number}")
            time.sleep(0.1)
            moments.append((time.time_ns() // 1_000_000, [f"{each}" for each in range(number + 1)]))
            time.sleep(0.05)
        goes_on.set()
    for at_ms, names in moments:
        restore.restore(url, tmp_path / f"at-{at_ms}", at_ms=at_ms)
        assert names_in(tmp_path / f"at-{at_ms}") == names


def test_logs_that_wait_too_long_are_given_up(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.0) as store:
        add(store, "1")
        wait_archived(store)
        first = read_history(open_objects(url)).head
        bucket.rename(tmp_path / "away")
        bucket.write_bytes(b"")
        monkeypatch.setattr(archiver, "BACKLOG_BYTES_MAX", 20_000)
        monkeypatch.setattr(archiver, "BACKOFF_MAX_S", 0.05)
        for number in range(10):
            add(store, f"{number}" + "x" * 5000)
            store.engine.flush()
        until = time.monotonic() + PATIENCE_S
        while not archiver_of(store)._needs_base or archiver_of(store)._logs.kept_bytes() > 30_000:
            assert time.monotonic() < until, "50,000 bytes that nobody has read are kept"
            time.sleep(0.01)
        bucket.unlink()
        (tmp_path / "away").rename(bucket)
        until = time.monotonic() + PATIENCE_S
        while not read_history(open_objects(url)).is_based or archiver_of(store)._needs_base:
            assert time.monotonic() < until
            time.sleep(0.01)
        add(store, "last")
        expected = all_rows(store)
    head = read_history(open_objects(url)).head
    assert first is not None
    assert head is not None
    assert head.base > first.base
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected
    moment_ms = get_piece(open_objects(url), head.base).piece.written_ms - 1
    with pytest.raises(InvalidArgument, match=rf"has a gap.*give sequence={first.last}"):
        restore.restore(url, tmp_path / "gap", at_ms=moment_ms)
    restore.restore(url, tmp_path / "before", sequence=first.last)
    assert names_in(tmp_path / "before") == ["1"]


def test_a_damaged_log_is_left_behind(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "BACKOFF_MAX_S", 0.05)
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.0) as store:
        add(store, "1")
        wait_archived(store)
        archiver_of(store)._stop.set()
        archiver_of(store)._thread.join()
        add(store, "2" * 100)
        log = max((tmp_path / "data").glob("*.log"))
        with log.open("r+b") as file:
            file.seek(-50, os.SEEK_END)
            file.write(b"damaged")
        ours = archiver_of(store)
        base = ours._base
        ours._stop.clear()
        ours._thread = threading.Thread(target=ours._run)
        ours._thread.start()
        until = time.monotonic() + PATIENCE_S
        while ours._base == base or ours._needs_base:
            assert time.monotonic() < until
            time.sleep(0.01)
            add(store, "more")
        expected = all_rows(store)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


def test_the_thread_survives_what_it_meets(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.0) as store:
        ours, failing = archiver_of(store), threading.Event()

        def fail(*_: object) -> None:
            failing.set()
            raise OSError("not this time")

        monkeypatch.setattr(archiver, "BACKOFF_MAX_S", 0.02)
        for place in ("_make_local", "_refuse_backlog"):
            failing.clear()
            with monkeypatch.context() as patched:
                patched.setattr(ours, place, fail)
                assert failing.wait(10)
        store.engine.reopen()
        add(store, "1")
        until = time.monotonic() + PATIENCE_S
        while ours.status().behind_s or ours.status().state != "follows":
            assert time.monotonic() < until
            time.sleep(0.01)
        assert ours._thread.is_alive()


def test_the_level_archive_needs_one(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store:
        with pytest.raises(InvalidArgument, match="URL of an archive"):
            store.engine.set_durability(Durability.ARCHIVE)
        assert store.engine.durability is Durability.EVERYSEC


def test_levels_can_be_changed(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        add(store, "1")
        store.engine.set_durability(Durability.ARCHIVE)
        add(store, "2")
        sequence = store.engine.database.sequence
        assert read_history(open_objects(url)).head.last == sequence  # type: ignore[union-attr]
        store.engine.set_durability(Durability.NO)
        add(store, "3")
        store.engine.set_durability(Durability.ARCHIVE)
        add(store, "4")
        shutil.copytree(tmp_path / "bucket", tmp_path / "lost" / "bucket")
    restore.restore(f"file://{tmp_path}/lost/bucket", tmp_path / "back")
    assert names_in(tmp_path / "back") == ["1", "2", "3", "4"]


def test_many_writers_do_not_wait_one_after_the_other(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "TIMEOUT_S", 0.5)

    def refuse(create: Create) -> Create:
        def wrapped(folder: Folder, key: str, data: bytes) -> bool:
            raise ArchiveUnavailable("away")

        return wrapped

    with Store.open(tmp_path / "data", archive=url, durability="archive") as store:
        outcomes: list[str] = []

        def write() -> None:
            try:
                add(store, "1")
            except UnknownOutcome as error:
                outcomes.append(str(error))

        threads = [threading.Thread(target=write) for _ in range(10)]
        begun = time.monotonic()
        with monkeypatch.context() as patched:
            wrap_creates(patched, refuse)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(outcomes) == 10
        assert time.monotonic() - begun < 3.0
        add(store, "2")
        assert archiver_of(store).status().sequence == store.engine.database.sequence


def test_a_repeated_write_waits_as_the_first_one(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "TIMEOUT_S", 0.2)

    def refuse(create: Create) -> Create:
        def wrapped(folder: Folder, key: str, data: bytes) -> bool:
            raise ArchiveUnavailable("away")

        return wrapped

    with Store.open(tmp_path / "data", archive=url, durability="archive") as store:
        jobs = Queue(store, "jobs")
        with monkeypatch.context() as patched:
            wrap_creates(patched, refuse)
            for _ in range(2):
                with pytest.raises(UnknownOutcome):
                    jobs.put({"n": "1"}, unique="once")
        jobs.put({"n": "1"}, unique="once")
        sequence = store.engine.database.sequence
        assert archiver_of(store).status().sequence == sequence


def test_a_former_owner_that_slept_through_a_retention_writes_nothing(
    tmp_path: Path, url: str
) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        add(store, "1")
        wait_archived(store)
        archiver_of(store)._stop.set()
        with Store.open(tmp_path / "new", archive=url, take_over=True, archive_keep_s=0.0) as new:
            for number in range(4):
                add(new, f"new {number}")
                new.engine.flush()
                wait_archived(new)
                archiver_of(new)._snapshot()
                time.sleep(0.01)
            history = read_history(open_objects(url))
            assert min(each.first_piece for each in history.snapshots) > archiver_of(store)._next
        add(store, "lost")
        with pytest.raises(ArchiveTaken):
            wait_archived(store)


def test_a_take_over_where_the_log_has_ended_goes_on(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "1")
        wait_archived(store)
        store.engine.flush()
        (tmp_path / "bucket" / "unknown").mkdir()
        archiver_of(store)._put_base()
        archiver_of(store)._snapshots.clear()
        archiver_of(store)._snapshot()
    with Store.open(tmp_path / "new", archive=url, take_over=True) as new:
        history = read_history(open_objects(url))
        assert history.is_based
        assert not archiver_of(new)._needs_base, "it began the history anew"
        add(new, "2")
        expected = all_rows(new)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


def test_a_take_over_that_cannot_restore_leaves_the_owner(
    tmp_path: Path, url: str, bucket: Path
) -> None:
    with Store.open(tmp_path / "data", archive=url, durability="archive") as store:
        store.stream("orders").add_many([{"n": "1"}] * 1000)
        store.engine.flush()
        add(store, "2")
        archiver_of(store)._snapshot()
        for path in (bucket / "tables").iterdir():
            path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(Corruption, match="tables/"):
            Store.open(tmp_path / "new", archive=url, take_over=True)
        assert not (tmp_path / "new").exists()
        add(store, "3")


def test_other_objects_in_the_bucket_are_ignored(tmp_path: Path, url: str, bucket: Path) -> None:
    for _ in range(2):
        with Store.open(tmp_path / "data", archive=url, archive_keep_s=0.0) as store:
            add(store, "1")
            wait_archived(store)
            archiver_of(store)._snapshot()
            for kind in ("log", "snapshots", "pins", "fences"):
                (bucket / kind).mkdir(exist_ok=True)
                (bucket / kind / "README").write_text("hello")
    restore.restore(url, tmp_path / "back")
    assert names_in(tmp_path / "back") == ["1", "1"]


@pytest.mark.usefixtures("by_hand")
def test_a_missing_piece_is_named(tmp_path: Path, url: str, bucket: Path) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        for number in range(5):
            add(store, f"{number}")
            wait_archived(store)
        archiver_of(store)._snapshot()
    pieces = list(numbers(bucket / "log"))
    snapshot = read_history(open_objects(url)).snapshots[-1]
    for number in pieces:
        if number >= snapshot.first_piece + 2:
            (bucket / piece_key(number)).unlink()
    with pytest.raises(Corruption, match=piece_key(snapshot.first_piece + 2)):
        restore.restore(url, tmp_path / "back")


def test_a_loss_that_was_accepted_begins_the_history_anew(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "1")
    with Store.open(tmp_path / "data", archive=url) as store:
        ours, history = archiver_of(store), read_history(open_objects(url))
        own = Mark.read(tmp_path / "data")
        assert ours._goes_on(history, own)
        store.engine.database.loss = Loss("damage", 1, 1, True, tmp_path)
        assert not ours._goes_on(history, own)


def test_a_child_does_not_reach_buckets_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_REGION", "here")
    open_objects("s3://bucket/orders")
    child = os.fork()
    if child == 0:
        try:
            open_objects("s3://bucket/orders")
        except KVStreamError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_late_thread_cannot_touch_the_next_store(tmp_path: Path, url: str) -> None:
    """The path of a closed store may lead to another one, with logs that nobody has read."""
    store = Store.open(tmp_path / "data", archive=url)
    ours = archiver_of(store)
    store.close()
    (tmp_path / "data").rename(tmp_path / "old")
    (tmp_path / "data" / ARCHIVE).mkdir(parents=True)
    log = tmp_path / "data" / ARCHIVE / "000001.log"
    log.write_bytes(b"unread")
    ours._logs.position = logs.Position(1000, 0)
    ours._logs.trim()
    assert log.exists()


def test_pieces_of_unknown_content_stop_the_store(tmp_path: Path, url: str, bucket: Path) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        number = archiver_of(store)._next
        (bucket / piece_key(number)).write_bytes(b"what is this")
        add(store, "1")
        with pytest.raises(ArchiveTaken, match="another owner has taken over"):
            wait_archived(store)
    assert Piece.kind == 1


def test_a_log_that_cannot_be_read_fails_a_write_as_an_archive_does(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "TIMEOUT_S", 0.2)

    def fail(*_: object) -> logs.Chunk:
        raise OSError("too many open files")

    with Store.open(tmp_path / "data", archive=url, durability="archive") as store:
        with monkeypatch.context() as patched:
            patched.setattr(logs.Logs, "read", fail)
            with pytest.raises(UnknownOutcome, match="too many open files"):
                add(store, "1")
        add(store, "2")


def test_a_clock_that_goes_back_restores_no_later_commit(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = time.time_ns() // 1_000_000 - 10_000
    monkeypatch.setattr(archiver, "now_ms", lambda: now_ms)
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        begun_ms = now_ms
        for name, after_ms in (("1", 100), ("2", 300), ("3", 200), ("4", 400)):
            now_ms = begun_ms + after_ms
            add(store, name)
            wait_archived(store)
    for after_ms, names in ((150, ["1"]), (250, ["1"]), (350, ["1", "2", "3"])):
        place = tmp_path / f"at-{after_ms}"
        restore.restore(url, place, at_ms=begun_ms + after_ms)
        assert names_in(place) == names


def test_a_commit_of_more_than_a_piece_is_a_piece(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "RAW_MAX", 1000)
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        for size in (10, 3_000_000, 10, 200_000):
            store.stream("orders").add({"n": os.urandom(size)})
        wait_archived(store)
        expected = all_rows(store)
        assert archiver_of(store)._next > 2
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


@pytest.mark.parametrize("is_away", [False, True])
def test_a_full_disk_gives_up_logs_only_while_the_archive_is_away(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    def refuse(create: Create) -> Create:
        def wrapped(folder: Folder, key: str, data: bytes) -> bool:
            if is_away:
                raise ArchiveUnavailable("away")
            return create(folder, key, data)

        return wrapped

    monkeypatch.setattr(archiver, "BACKOFF_MAX_S", 0.02)
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.0) as store:
        ours = archiver_of(store)
        base = ours._base
        with monkeypatch.context() as patched:
            wrap_creates(patched, refuse)
            patched.setattr(Database, "needs_space", True)
            for number in range(5):
                add(store, f"{number}")
                store.engine.flush()
                time.sleep(0.03)
            if is_away:
                until = time.monotonic() + PATIENCE_S
                while ours._base == base:
                    assert time.monotonic() < until
                    time.sleep(0.01)
        assert (ours._base == base) is not is_away
        until = time.monotonic() + PATIENCE_S
        while ours._needs_base or ours.status().behind_s:
            assert time.monotonic() < until
            time.sleep(0.01)
        expected = all_rows(store)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


def test_an_old_snapshot_that_is_damaged_is_left_out(
    tmp_path: Path, url: str, bucket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copies: dict[int, list[str]] = {}
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        for name in ("1", "2", "3"):
            add(store, name)
            archiver_of(store)._snapshot()
            copies[store.engine.database.sequence] = [*copies.get(max(copies, default=0), []), name]
    path = sorted((bucket / "snapshots").iterdir())[-2]
    path.write_bytes(path.read_bytes()[:-1])
    for sequence, names in copies.items():
        restore.restore(url, tmp_path / f"back-{sequence}", sequence=sequence)
        assert names_in(tmp_path / f"back-{sequence}") == names
    assert f"snapshots/{path.name}" in caplog.text
    Store.open(tmp_path / "data", archive=url).close()


def restart_archive(url: str, place: Path) -> End:
    """Do what ``kvstream archive restart`` does."""
    objects = open_objects(url)
    with Store.open(place, read_only=True) as store:
        end = find_end(objects)
        restart(objects, end, place, store.engine.database.sequence)
    return end


def damage(path: Path, harm: str) -> None:
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if harm == "cut" else b"")


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("harm", ["cut", "empty"])
@pytest.mark.parametrize("kind", ["log", "snapshots"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_store_goes_on_with_an_archive_whose_end_is_damaged(
    tmp_path: Path, url: str, bucket: Path, kind: str, harm: str, count: int
) -> None:
    copies: dict[int, list[str]] = {}
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        for number in range(6):
            add(store, str(number))
            archiver_of(store)._snapshot() if number in (1, 3) else wait_archived(store)
            copies[store.engine.database.sequence] = [str(each) for each in range(number + 1)]
    paths = sorted((bucket / kind).iterdir())[-count if kind == "log" else -1 :]
    for path in paths:
        damage(path, harm)
    for _ in range(2):
        with pytest.raises(Corruption, match=f"{kind}/"):
            Store.open(tmp_path / "data", archive=url)
    end = restart_archive(url, tmp_path / "data")
    assert sorted(end.damaged) == [f"{kind}/{path.name}" for path in paths]
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        add(store, "6")
        expected = all_rows(store)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected
    assert names_in(tmp_path / "back") == [str(each) for each in range(7)]
    assert end.head is not None
    for sequence in [each for each in copies if each <= end.head.last][-1:]:
        restore.restore(url, tmp_path / "before", sequence=sequence)
        assert names_in(tmp_path / "before") == copies[sequence]
    assert {key for key, _ in verify(open_objects(url)).faults} == {*end.damaged}
    with Store.open(tmp_path / "new", archive=url, take_over=True) as new:
        assert all_rows(new) == expected


def test_a_restart_that_is_killed_at_any_step_can_be_repeated(
    tmp_path: Path, url: str, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "1")
    damage(max((bucket / "log").iterdir()), "cut")
    for step in range(4):
        calls = step

        def killed(plain: Callable[..., object]) -> Callable[..., object]:
            def wrapped(*args: object) -> object:
                nonlocal calls
                if calls == 0:
                    raise _Killed
                calls -= 1
                return plain(*args)

            return wrapped

        with monkeypatch.context() as patched:
            patched.setattr(Folder, "create", killed(Folder.create))
            patched.setattr(Mark, "write", killed(Mark.write))
            with pytest.raises(_Killed):
                restart_archive(url, tmp_path / "data")
    assert find_end(open_objects(url)).damaged == [], "the fence was put by the last one"
    with Store.open(tmp_path / "data", archive=url) as store:
        add(store, "2")
    restore.restore(url, tmp_path / "back")
    assert names_in(tmp_path / "back") == ["1", "2"]


def test_an_archive_is_begun_anew_by_its_owner_alone(
    tmp_path: Path, url: str, bucket: Path
) -> None:
    Store.open(tmp_path / "other").close()
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        add(store, "1")
        wait_archived(store)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        add(store, "2")
        wait_archived(store)
    (tmp_path / "copy" / "ARCHIVE").write_bytes((tmp_path / "data" / "ARCHIVE").read_bytes())
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        damage(max((bucket / "log").iterdir()), "cut")
        for place, says in ((tmp_path / "other", "has never put"), (tmp_path / "copy", "old copy")):
            with pytest.raises(ArchiveTaken, match=says):
                restart_archive(url, place)
        end = find_end(open_objects(url))
        restart(open_objects(url), end, tmp_path / "data", store.engine.database.sequence)
        add(store, "3")
        with pytest.raises(ArchiveTaken, match="refuses all writes"):
            wait_archived(store)  # who went on meanwhile is fenced
    for path in (bucket / "log").iterdir():
        damage(path, "empty")
    with pytest.raises(Corruption, match="no piece of the archive"):
        restart_archive(url, tmp_path / "data")
