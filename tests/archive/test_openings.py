"""Every way of opening a store takes an archive: it gets what was acknowledged."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import InvalidArgument, Jobs, Store
from kvstream.archive import restore
from kvstream.archive.history import read_history
from kvstream.archive.objects import open_objects


def add_in_a_directory(place: Path, **options: Any) -> None:
    with kvstream.open(place, **options) as store:
        store.stream("orders").add({"n": "1"})


def add_in_a_shared_directory(place: Path, **options: Any) -> None:
    with (
        kvstream.open(place, shared=True, **options),
        kvstream.open(place, shared=True, **options) as client,
    ):
        client.stream("orders").add({"n": "1"})


async def add_in_a_loop(place: Path, **options: Any) -> None:
    async with kvstream.aio.open(place, **options) as store:
        await store.stream("orders").add({"n": "1"})


def add_with_asyncio(place: Path, **options: Any) -> None:
    asyncio.run(add_in_a_loop(place, **options))


def add_with_asyncio_shared(place: Path, **options: Any) -> None:
    asyncio.run(add_in_a_loop(place, shared=True, **options))


def add_with_jobs(place: Path, **options: Any) -> None:
    with Jobs(place, **options) as jobs:
        jobs.store.stream("orders").add({"n": "1"})


@pytest.mark.parametrize(
    "add",
    [
        add_in_a_directory,
        add_in_a_shared_directory,
        add_with_asyncio,
        add_with_asyncio_shared,
        add_with_jobs,
    ],
)
def test_an_acknowledged_entry_is_in_the_archive(
    tmp_path: Path, url: str, add: Callable[..., None]
) -> None:
    add(tmp_path / "data", archive=url, durability="archive")
    restore.restore(url, tmp_path / "back")
    with Store.open(tmp_path / "back", decode=True) as back:
        assert [entry.fields for entry in back.stream("orders").range()] == [{"n": "1"}]
    add(tmp_path / "new", archive=url, take_over=True)
    with Store.open(tmp_path / "new") as new:
        assert new.stream("orders").info().length == 2
    head = read_history(open_objects(url)).head
    assert head is not None
    assert head.owner.endswith(str(tmp_path / "new"))


def test_a_shared_store_has_one_archive(tmp_path: Path, url: str) -> None:
    with (
        kvstream.open(tmp_path / "data", shared=True, archive=url),
        pytest.raises(InvalidArgument, match=r"with archive file://.*, not None: open it alike"),
    ):
        kvstream.open(tmp_path / "data", shared=True)


def test_a_store_that_is_written_all_the_time_is_behind_by_an_interval(
    tmp_path: Path, url: str
) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.05) as store:
        status = store.engine.archiving.archiver.status
        begun, lags = time.monotonic(), list[float]()
        while not lags or status().piece < 20:
            store.stream("orders").add({"n": "1"})
            lags.append(status().behind_s)
        assert 0 < min(lag for lag in lags if lag) < max(lags) < (time.monotonic() - begun) / 2


def test_a_store_whose_commits_are_all_in_a_snapshot_is_not_behind(
    tmp_path: Path, url: str
) -> None:
    with Store.open(tmp_path / "data") as store:
        store.stream("orders").add({"n": "1"})
    with Store.open(tmp_path / "data", archive=url) as store:
        archiver = store.engine.archiving.archiver
        archiver._sample()
        archiver._sample()
        status = archiver.status()
        assert status.reached == store.engine.database.sequence > status.sequence
        assert (status.behind_s, status.behind_bytes) == (0, 0)
