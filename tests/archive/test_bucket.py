"""The core of the archive on a real S3 server."""

import os
import time
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import archiver, objects, restore
from kvstream.archive.objects import open_objects
from kvstream.errors import ArchiveUnavailable, Corruption, UnknownOutcome
from kvstream.types.options import Durability
from tests.archive import test_archive as core
from tests.archive import test_failures as failures
from tests.archive import test_moments as moments
from tests.archive.conftest import all_rows, rows_in, wait_archived
from tests.archive.seaweed import Seaweed
from tests.patience import until

HANG_S = 5.0
"""How long a request may take of a server that may hang: on a busy machine a creation takes two."""

# The same tests as with a folder: their fixture is the one below.
test_end = core.test_a_store_is_restored_to_its_end
test_commits = core.test_any_commit_can_be_restored
test_moment = core.test_a_moment_can_be_restored
test_going_on = core.test_a_store_goes_on_with_its_archive_when_it_is_opened_again
test_anew = core.test_what_was_written_without_the_archive_begins_it_anew
test_take_over = core.test_a_store_that_takes_over_goes_on_from_the_end
test_bulk_load = core.test_bulk_loads_are_in_the_archive
test_mixed_load = moments.test_any_moment_and_commit_of_a_mixed_load
test_retention = failures.test_a_former_owner_that_slept_through_a_retention_writes_nothing
test_free_place = core.test_a_restore_needs_a_free_place


@pytest.fixture
def url(bucket_url: str) -> str:
    """Return the URL of an archive that is empty."""
    return bucket_url


def test_objects_are_created_once_listed_and_deleted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_objects(url)
    assert [store.create("log/1", b"one"), store.create("log/1", b"two")] == [True, False]
    assert store.get("log/1") == b"one"
    assert store.get("log/2") is None
    assert list(store.chunks("log/2")) == []
    large = os.urandom(objects._RANGE + 1)
    store.create("tables/large", large)
    assert b"".join(store.chunks("tables/large")) == large
    for size in (0, 3, objects._PART, 3 * objects._PART + 5):
        parts = [os.urandom(1 << 20)] * (size >> 20) + [os.urandom(size % (1 << 20))]
        for _ in range(2):  # the second one replaces the first
            store.upload("tables/parts", iter(parts))
        assert b"".join(store.chunks("tables/parts")) == b"".join(parts)
    store.create("pins/none", b"")
    assert store.get("pins/none") == b""
    for number in range(2, 5):
        store.create(f"log/{number}", b"x")
    assert [found.key for found in store.list("log/", "log/2")] == ["log/3", "log/4"]
    store.delete(["log/1", "log/3", "log/none"])
    assert [found.key for found in store.list("log/")] == ["log/2", "log/4"]
    monkeypatch.setattr(objects, "PROBES", 8)
    objects.refuse_overwriting(store)


def test_a_wrong_key_and_a_missing_bucket_are_said(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RETRY_S", 0.1)
    with pytest.raises(ArchiveUnavailable, match="no-such-bucket"):
        Store.open(tmp_path / "data", archive="s3://no-such-bucket/orders")
    with Store.open(tmp_path / "data", archive=url) as store:
        store.stream("orders").add({"n": "1"})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ArchiveUnavailable, match=r"403|denied|Forbidden|SignatureDoesNotMatch"):
        Store.open(tmp_path / "data", archive=url)
    with pytest.raises(ArchiveUnavailable):
        restore.restore(url, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_damaged_table_is_named(tmp_path: Path, url: str) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        store.stream("orders").add_many([{"n": str(number)} for number in range(1000)])
        store.engine.flush()
        store.stream("orders").add({"n": "last"})
        store.engine.archiving.archiver._snapshot()
    bucket = open_objects(url)
    key = next(found.key for found in bucket.list("tables/"))
    data = bytearray(bucket.get(key) or b"")
    data[100] ^= 1
    for harmed in (bytes(data), bytes(data[:-1]), None):
        bucket.delete([key])
        if harmed is not None:
            bucket.create(key, harmed)
        with pytest.raises(Corruption, match=key):
            restore.restore(url, tmp_path / "back")
        assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("level", [Durability.ARCHIVE, Durability.EVERYSEC])
def test_a_server_that_hangs_or_ends_is_followed_again(
    tmp_path: Path, url: str, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch, level: Durability
) -> None:
    monkeypatch.setattr(objects, "RETRY_S", 0.1)
    monkeypatch.setattr(objects, "TIMEOUT_S", HANG_S)
    monkeypatch.setattr(archiver, "BACKOFF_MAX_S", 0.1)
    with Store.open(
        tmp_path / "data", archive=url, durability=level, archive_interval_s=0.01
    ) as store:
        orders = store.stream("orders")
        orders.add({"n": "1"})
        seaweed.stop()
        try:
            if level is Durability.ARCHIVE:
                with monkeypatch.context() as patched:
                    patched.setattr(archiver, "TIMEOUT_S", 0.3)
                    with pytest.raises(UnknownOutcome, match="not in the archive"):
                        orders.add({"n": "2"})
            else:
                begun = time.monotonic()
                orders.add({"n": "2"})
                assert time.monotonic() - begun < HANG_S
            assert orders.info().length == 2
            status = store.engine.archiving.archiver.status
            until(lambda: status().state == "unreachable", "a server that hangs")
        finally:
            seaweed.go_on()
        until(lambda: not status().behind_s, "what was written meanwhile")
        orders.add({"n": "3"})
        wait_archived(store)
        expected = all_rows(store)
    monkeypatch.undo()
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected
