"""``kvstream doctor``: it finds what a machine lacks, and says what to do."""

import fcntl
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream import Store
from kvstream.cli import doctor
from kvstream.cli.doctor import Finding
from tests.cli.program import Program


def only(found: Iterator[Finding]) -> Finding:
    [finding] = found
    return finding


def test_a_machine_that_runs_the_tests_has_no_problem(kvstream: Program, tmp_path: Path) -> None:
    rows = {row["check"]: row for row in kvstream.json("doctor", str(tmp_path))}
    assert {"python", "package", "clock", "file system", "locks", "fsync", "space"} <= rows.keys()
    assert not [row for row in rows.values() if row["result"] == "problem"]
    assert list(tmp_path.iterdir()) == []
    assert "what to do" in kvstream("doctor", str(tmp_path / "new")).stdout
    assert not (tmp_path / "new").exists()


def test_a_store_that_is_open_stays_as_it_is(kvstream: Program, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        store.stream("s").add({"f": "v"})
        kvstream("doctor", str(tmp_path / "store"))
        assert store.check() == []


def test_a_problem_is_the_exit_code(
    kvstream: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(tmp_path, 12345, -1)
    shown = kvstream("doctor", str(tmp_path), code=1).stdout
    assert "owner 12345" in shown
    assert "sudo chown" in shown


@pytest.mark.parametrize(
    ("names", "result"),
    [
        (["kvstream-db"], "ok"),
        ([], "ok"),
        (["kvstream"], "warning"),
        (["kvstream", "kvstream-db"], "problem"),
    ],
)
def test_the_package_of_another_project_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: list[str], result: str
) -> None:
    monkeypatch.setattr(doctor, "packages_distributions", lambda: {"kvstream": names})
    found = only(doctor._distribution(tmp_path))
    assert found.result == result
    assert ("pip uninstall kvstream" in found.advice) == (result != "ok")


def test_locks_that_let_two_in_are_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lax = SimpleNamespace(
        flock=lambda file, how: None, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB
    )
    monkeypatch.setattr(doctor, "fcntl", lax)
    assert only(doctor._locks(tmp_path)).result == "problem"


@pytest.mark.parametrize(
    ("seconds", "result", "said"),
    [(1e-6, "warning", "lost with the power"), (1e-3, "ok", ""), (0.1, "warning", "always")],
)
def test_an_fsync_is_judged_by_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float, result: str, said: str
) -> None:
    ticks = count()
    monkeypatch.setattr(doctor, "perf_counter", lambda: next(ticks) * seconds)
    found = only(doctor._fsync(tmp_path))
    assert found.result == result
    assert said in found.advice


def test_a_wrong_clock_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch()
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime + 3600))
    [good, ahead] = doctor._clock(tmp_path)
    assert (good.result, ahead.result) == ("ok", "warning")
    monkeypatch.setattr(doctor, "BUILT", datetime(2100, 1, 1, tzinfo=UTC))
    assert next(doctor._clock(tmp_path)).result == "problem"


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("ext4", "ok"),
        ("", "ok"),
        ("nfs4", "warning"),
        ("fuse.sshfs", "warning"),
        ("tmpfs", "warning"),
    ],
)
def test_the_kind_of_a_file_system_is_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, result: str
) -> None:
    monkeypatch.setattr(doctor, "_kind_of", lambda directory: kind)
    assert only(doctor._file_system(tmp_path)).result == result


def test_a_full_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = SimpleNamespace(f_bavail=1, f_frsize=4096, f_files=10, f_favail=1)
    statvfs: Callable[[Any], Any] = lambda path: full  # noqa: E731
    monkeypatch.setattr(doctor, "os", SimpleNamespace(statvfs=statvfs))
    assert [each.result for each in doctor._space(tmp_path)] == ["warning", "warning"]
