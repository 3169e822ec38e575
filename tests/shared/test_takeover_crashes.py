"""Owners of a shared store are killed under load: nothing acknowledged is lost or done twice."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import kvstream
from kvstream import Group, PendingEntry, StreamID
from kvstream.shared.owner import SOCKET
from tests import forking
from tests.crash.rounds import rounds
from tests.patience import until
from tests.shared.conftest import owner_of

WORKERS = 4
ROUNDS = rounds(4)
BATCH = 20
"""Rounds on one store."""
LOAD_S = 0.15
"""How long the processes work between two kills."""


class Worker:
    """A process of ``tests.shared.worker``; what it says goes to a file."""

    def __init__(self, directory: Path, number: int, said: Path) -> None:
        self.number, self.said = number, said
        with said.open("wb") as output:
            self.process = forking.start(
                [sys.executable, "-m", "tests.shared.worker", str(directory), str(number)],
                stdin=subprocess.PIPE,
                stdout=output,
            )

    def lines(self) -> list[list[str]]:
        return [
            line.split()
            for line in self.said.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0
        assert self.lines()[-1] == ["done"]


def is_served(directory: Path, workers: list[Worker]) -> bool:
    owner = owner_of(directory)
    return owner in [each.process.pid for each in workers] and (directory / SOCKET).exists()


@pytest.mark.parametrize("kills", [min(BATCH, ROUNDS - at) for at in range(0, ROUNDS, BATCH)])
def test_owners_are_killed_under_load(directory: Path, tmp_path: Path, kills: int) -> None:
    numbers = iter(range(1000))

    def start() -> Worker:
        number = next(numbers)
        return Worker(directory, number, tmp_path / f"said-{number}")

    workers = [start() for _ in range(WORKERS)]
    ended: list[Worker] = []
    for _ in range(kills):
        until(lambda: is_served(directory, workers), "an owner")
        until(lambda: sum(bool(each.lines()) for each in workers) > 1, "workers", 0.02)
        time.sleep(LOAD_S)
        owner = owner_of(directory)
        killed = next((each for each in workers if each.process.pid == owner), None)
        if killed is not None:
            killed.kill()
            workers.remove(killed)
            ended.append(killed)
            workers.append(start())
    for each in workers:
        each.stop()
    check(directory, workers, ended)


def check(directory: Path, workers: list[Worker], killed: list[Worker]) -> None:
    """Compare the store with what the processes were promised."""
    said = [line for each in (*workers, *killed) for line in each.lines()]
    promised = {line[1]: line[2] for line in said if line[0] == "="}
    in_flight = {line[1] for each in killed for line in each.lines() if line[0] == "+"}
    got = Counter(line[1] for line in said if line[0] == "<")
    acked = {line[1] for line in said if line[0] == "-"}
    with kvstream.open(directory) as store:
        stream = store.stream("jobs")
        group = stream.group("g")
        entries = [(entry.fields[b"n"].decode(), str(entry.id)) for entry in stream]
        pending = {str(row.id): row.consumer for row in pending_rows(group)}
        last = group.info().last_delivered_id
    stored = dict(entries)
    assert len(stored) == len(entries), "an entry was added twice"
    assert {name: stored.get(name) for name in promised} == promised
    assert stored.keys() - promised.keys() <= in_flight
    assert [name for name, count in got.items() if count > 1] == []
    assert {stored[name] for name in acked}.isdisjoint(pending)
    delivered = {name for name, eid in entries if StreamID.parse(eid) <= last}
    assert {name for name in delivered if stored[name] not in pending} <= got.keys()
    living = {f"worker-{each.number}".encode() for each in workers}
    of_living = {name for name in delivered if pending.get(stored[name]) in living}
    assert of_living <= got.keys(), "a delivery to a living process was lost"
    assert len(promised) > len(workers) + len(killed)


def pending_rows(group: Group) -> list[PendingEntry]:
    rows: list[PendingEntry] = []
    while page := group.pending_range(f"({rows[-1].id}" if rows else "-", count=1000):
        rows += page
    return rows
