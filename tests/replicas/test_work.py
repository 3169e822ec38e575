"""``kvstream work`` through Sentinels: workers are killed, and the primary under them.

No effect of a job or of a step of a workflow is lost or there twice, and each has its result.
KVSTREAM_CRASH_ROUNDS sets how often.
"""

import os
import random
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstream
from tests import forking
from tests.crash.rounds import rounds
from tests.replicas.sentinels import TOLD_S
from tests.replicas.servers import refuse_differences
from tests.replicas.test_clients import Pair

JOBS, WORKFLOWS = 24, 4
"""Those of one round."""
APPLICATION = Path(__file__).with_name("working.py")


class Workers:
    """The application on a pair, and two processes that work for it."""

    def __init__(self, pair: Pair, folder: Path, level: str, patch: pytest.MonkeyPatch) -> None:
        self.pair, self._errors = pair, folder / "errors"
        patch.setenv("KVSTREAM_TEST_PLACE", pair.url)
        patch.setenv("KVSTREAM_TEST_LEVEL", level)
        patch.setenv("KVSTREAM_TEST_FILE", str(folder / "starts"))
        self.tasks: dict[str, Any] = runpy.run_path(str(APPLICATION))
        self.processes = [self._start() for _ in range(2)]

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "kvstream", "work", "tests.replicas.working:jobs"]
        options = ["--processes", "1", "--concurrency", "3", "--no-job-log"]
        with self._errors.open("ab") as errors:
            return forking.start([*command, *options], stderr=errors, start_new_session=True)

    def replace(self, number: int) -> None:
        """Kill one of them with all of its processes, and start another one."""
        os.killpg(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].wait()
        self.processes[number] = self._start()

    def stop(self) -> None:
        """Stop them in order."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            assert process.wait(TOLD_S) == 0, self._errors.read_text()
        self.tasks["jobs"].close()

    def close(self) -> None:
        """End what a failed test has left."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("level", ["", "replica"] if rounds(0) else ["replica"])
def test_work_survives_its_workers_and_its_primary(
    pair: Pair, tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replicas are waited for by the server, or with ``level`` by the clients alone."""
    chance = random.Random()
    if level:
        for each in pair.nodes:
            each.client().config_set("replica-acks", 0)
    workers = Workers(pair, tmp_path, level, monkeypatch)
    try:
        done = run_rounds(workers, chance, bool(level))
        workers.stop()
    finally:
        workers.close()
    with kvstream.open(pair.url, decode=True) as store:
        effects = Counter(entry.fields["n"] for entry in store.stream("effects"))
        steps = Counter(entry.fields["n"] for entry in store.stream("steps"))
    assert effects == Counter(str(n) for n in range(JOBS * done))
    assert steps == Counter(f"{n} {at}" for n in range(WORKFLOWS * done) for at in range(3))
    pair.settle()
    pair.close()
    refuse_differences(*(each.directory for each in pair.nodes))


def run_rounds(workers: Workers, chance: random.Random, is_alone: bool) -> int:
    """Enqueue, kill, and wait for all results, round after round; return how many there were."""
    effect, several = workers.tasks["effect"], workers.tasks["several"]
    count = rounds(1)
    for number in range(count):
        first = [effect.enqueue(number * JOBS + n) for n in range(JOBS // 2)]
        flows = [several.enqueue(number * WORKFLOWS + n) for n in range(WORKFLOWS)]
        time.sleep(chance.uniform(0, 0.5))
        workers.replace(number % 2)
        if number % 2:
            workers.pair.fail_over()
        else:
            workers.pair.replace_killed()
        if is_alone:
            workers.pair.nodes[1].client().config_set("replica-acks", 0)
        first += [effect.enqueue(number * JOBS + JOBS // 2 + n) for n in range(JOBS // 2)]
        assert [each.result(timeout=TOLD_S) for each in first] == [
            number * JOBS + n for n in range(JOBS)
        ]
        assert [each.result(timeout=TOLD_S) for each in flows] == WORKFLOWS * [[0, 1, 2]]
        workers.pair.settle()
        if number % 10 == 9:
            print(f"{number + 1} rounds", flush=True)
    return count
