"""Commit watchers receive the time of each commit and fsync."""

from pathlib import Path

import pytest

from kvstream.errors import StoreError
from kvstream.store import Store
from kvstream.types.options import Durability
from tests.opening import LEVELS


@pytest.mark.parametrize("durability", LEVELS)
def test_every_commit_and_fsync_is_reported(tmp_path: Path, durability: Durability) -> None:
    commits: list[float] = []
    fsyncs: list[float] = []
    with Store.open(tmp_path / "store", durability=durability) as store:
        store.engine.watch_commits(commits.append)
        store.engine.committer.watch_fsyncs(fsyncs.append)
        for number in range(10):
            store.stream("s").add({"n": number})
        store.stream("s").range()
        store.sync()
        counts = len(commits), len(fsyncs)
        assert store.check() == []
    assert counts[0] == 10
    assert counts[1] >= (10 if durability is Durability.ALWAYS else 1)
    assert all(0 < seconds < 60 for seconds in commits + fsyncs)


def test_a_failed_write_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[float] = []

    def fails(*_: object) -> int:
        raise StoreError("disk")

    with Store.open(tmp_path / "store") as store:
        store.engine.watch_commits(commits.append)
        with monkeypatch.context() as broken:
            broken.setattr(store.engine.database, "write", fails)
            with pytest.raises(StoreError, match="disk"):
                store.stream("s").add({"f": "v"})
        assert commits == []
        store.stream("s").add({"f": "v"})
        assert len(commits) == 1
