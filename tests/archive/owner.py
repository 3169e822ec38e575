"""Processes that own an archive and write until they die, and what they said until then."""

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvstream import Store
from tests.archive.writer import FIELD, WRITER
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
INTERVAL_S = 0.2
SLACK_S = 1.5
"""How much later than due something may come on a busy machine."""


class Owner:
    """A writing process; its output is read at once, so that it never waits."""

    def __init__(
        self,
        directory: Path,
        url: str,
        level: str,
        seed: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        program = [sys.executable, "-m", "tests.archive.writer", str(directory), url, level]
        self.process = subprocess.Popen(
            [*program, str(INTERVAL_S), str(seed)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.acked: dict[int, float] = {}
        """The numbers that it had acknowledged, and when."""
        self.lag_s = 0.0
        """How far the archive was behind at the last acknowledgement."""
        self.refused: list[str] = []
        self.ended_at = 0.0
        """When it died."""
        self._spoke = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):  # it was killed meanwhile
                break
            first, second, *lag_s = line.split()
            if first == "refused":
                self.refused.append(second)
            else:
                self.acked[int(first)], self.lag_s = float(second), float(lag_s[0])
            self._spoke.set()
        self.ended_at = time.monotonic()
        self._spoke.set()

    @property
    def written(self) -> set[tuple[int, int]]:
        """What it had acknowledged: numbers, with its process ID."""
        return {(number, self.process.pid) for number in self.acked}

    def write_for(self, seconds: float, may_be_dead: bool = False) -> None:
        """Let it write for a while after its first acknowledgement."""
        assert self._spoke.wait(PATIENCE_S)
        time.sleep(seconds)
        if not self.acked and not may_be_dead:
            self.process.kill()
            pytest.fail(str(self.process.communicate()[1]))

    def kill(self) -> float:
        """Kill it; return when it died."""
        self.process.kill()
        self.wait()
        return self.ended_at

    def wait(self) -> None:
        """Wait until it has ended."""
        self._reader.join(PATIENCE_S)
        self.process.communicate(timeout=PATIENCE_S)


def written_in(store: Store) -> list[tuple[int, int]]:
    """Return the numbers of the entries of a store in their order, with who wrote each."""
    number, writer = FIELD.encode(), WRITER.encode()
    entries = store.stream("orders").range()
    return [(int(entry.fields[number]), int(entry.fields[writer])) for entry in entries]


def refuse_gaps(written: list[tuple[int, int]]) -> None:
    """Raise AssertionError unless every number up to the last is there, once."""
    assert [number for number, _ in written] == list(range(len(written)))
