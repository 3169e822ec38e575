"""``kvstream work`` on an application of the tests."""

import runpy
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Jobs
from tests import forking
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


class Program:
    """The application on a place, and the processes that work for it."""

    def __init__(
        self, target: str, place: str, shared: bool, file: Path, patch: pytest.MonkeyPatch
    ) -> None:
        """``target`` is what ``kvstream work`` is given, a module of the tests."""
        self.target, self.file, self.place = target, file, place
        patch.setenv("KVSTREAM_TEST_PLACE", place)
        patch.setenv("KVSTREAM_TEST_SHARED", "1" if shared else "")
        patch.setenv("KVSTREAM_TEST_FILE", str(file))
        path = ROOT / f"{target.partition(':')[0].replace('.', '/')}.py"
        self.tasks: dict[str, Any] = runpy.run_path(str(path))
        self.jobs: Jobs = self.tasks["jobs"]
        self._ends = ExitStack()

    def said(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []

    def work(self, *options: str, **streams: Any) -> "subprocess.Popen[str]":
        """Start ``kvstream work``."""
        command = [sys.executable, "-m", "kvstream", "work", self.target, *options]
        process = forking.start(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **streams)
        self._ends.callback(self._end, process)
        return process

    @staticmethod
    def _end(process: "subprocess.Popen[str]") -> None:
        for _ in range(2):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                time.sleep(0.1)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors

    def close(self) -> None:
        self._ends.close()
        self.jobs.close()
        if not self.place.startswith("redis"):
            with kvstream.open(self.place) as store:
                assert store.check() == []
