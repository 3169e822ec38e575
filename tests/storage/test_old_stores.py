"""Stores that earlier code has written, one of each layout from 3 on, open with all their rows."""

import zipfile
from pathlib import Path

import pytest

import kvstream
from kvstream.storage.directory import LAYOUT_VERSION
from tests.storage.old_store import FOLDER, LARGE

ARCHIVES = sorted(FOLDER.glob("layout-*.zip"))


@pytest.fixture
def old_store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    directory = tmp_path / "old"
    directory.mkdir(mode=0o700)
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(directory)
    return directory


def test_there_is_a_store_of_the_current_layout() -> None:
    assert FOLDER / f"layout-{LAYOUT_VERSION}.zip" in ARCHIVES


@pytest.mark.parametrize("old_store", ARCHIVES, ids=lambda path: path.stem, indirect=True)
def test_an_old_store_has_all_that_was_written(old_store: Path) -> None:
    with kvstream.open(old_store) as store:
        assert store.check() == []
        orders = store.stream("orders")
        assert [int(entry.fields[b"qty"]) for entry in orders.range()] == [
            *range(9),
            *range(10, 250),
        ]
        billing = orders.group("billing")
        assert billing.pending().consumers == {b"worker-1": 6}
        assert store.stream("blobs").range()[0].fields[b"body"] == LARGE
        mails = kvstream.Queue(store, "mails")
        (letter,) = mails.dead()
        assert (letter.fields[b"to"], letter.error) == (b"ann", b"no such host")
        assert mails.info().delayed == 1
        assert mails.get(1)[0].fields[b"to"] == b"bob"
        assert [each.name for each in store.stream("mails").schedules()] == [b"nightly"]
    client = kvstream.connect(old_store)
    assert client.get("plain") == b"text"
    client.close()


@pytest.mark.parametrize("old_store", ARCHIVES, ids=lambda path: path.stem, indirect=True)
def test_an_old_store_takes_writes(old_store: Path) -> None:
    with kvstream.open(old_store) as store:
        orders = store.stream("orders")
        orders.add({"sku": "new"})
        assert len(orders.group("billing").consumer("worker-2").read(count=500)) == 241
        kvstream.Queue(store, "mails").put({"to": "sam", "user": "2"})
        assert store.check() == []
    with kvstream.open(old_store) as store:
        assert len(store.stream("orders")) == 250
        assert store.check() == []
