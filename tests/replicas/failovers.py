"""Fail a pair over under load, again and again, and say what was lost::

    python -m tests.replicas.failovers kvstream "replica-acks 1" "kill -9" 20

The system is kvstream or redis (Debian's), the level ``replica-acks 1``, ``WAIT 1`` or ``none``,
the fault ``kill -9``, ``stop`` (SIGSTOP, and SIGCONT after the failover), ``cut`` or
``cut-one-way`` (the network of the primary, with clients left on its side). Each round has a new
pair under three unmodified redis-sentinel. It ends with 1 if a promise was broken.
"""

import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import redis

from tests.replicas.cutting import Cut
from tests.replicas.load import Findings, Level, Load
from tests.replicas.sentinels import TOLD_S, Sentinels, sentinel_program
from tests.replicas.systems import (
    SYSTEMS,
    compare_and_stop,
    follows,
    is_primary,
    wait_equal,
)

DOWN_MS = 1500
"""After how long a silent primary is down for a Sentinel; above ``replica-lease-ms``."""
LOAD_S = (0.5, 2.0)
"""How long the clients work before the fault."""
ALONE_S = 1.0
"""How long a former primary that is stopped, or cut off, stays so after the promotion."""
LINKED_S = 0.5
"""How long the clients work once both servers are together again."""


class Fault(StrEnum):
    """What happens to the primary."""

    KILL = "kill -9"
    STOP = "stop"
    CUT = "cut"
    CUT_ONE_WAY = "cut-one-way"


@dataclass
class Results:
    """What some rounds have shown."""

    rounds: int = 0
    promoted_s: list[float] = field(default_factory=list)
    """From the fault until the Sentinels and the server say that it is the primary."""
    first_write_s: list[float] = field(default_factory=list)
    """From the fault until the new primary acknowledges a write."""
    found: dict[str, Findings] = field(default_factory=dict)

    @property
    def total(self) -> Findings:
        """Return the sum over all kinds of clients."""
        total = Findings()
        for each in self.found.values():
            total.add(each)
        return total

    def lines(self) -> list[str]:
        """Return what there is to say."""
        times = [(self.promoted_s, "promoted"), (self.first_write_s, "first write")]
        said = [
            f"{what} after {statistics.median(all_s):.2f} s (at most {max(all_s):.2f})"
            for all_s, what in times
            if all_s
        ]
        lines = [f"{self.rounds} rounds, " + ", ".join(said)]
        for kind, each in self.found.items():
            lines.append(
                f"  {kind:17} {each.confirmed:7} confirmed, {each.lost} lost, {each.undone} undone;"
                f" {each.acknowledged:7} others acknowledged, {each.lost_acknowledged} lost"
            )
        lines += [f"  {each}" for each in self.total.invented[:20]]
        return lines


class Round:
    """One pair, its Sentinels and its clients, from the start to the comparison."""

    def __init__(self, system: str, level: Level, fault: Fault, place: Path, seed: int) -> None:
        self._fault, self._chance = fault, random.Random(seed)
        is_cut = fault in (Fault.CUT, Fault.CUT_ONE_WAY)
        make = SYSTEMS[system]
        self._former = make(place / "one", level, is_cut)
        self._next = make(place / "two", level, is_cut)
        self._closings: list[Callable[[], None]] = []
        self._level, self._place, self._is_kvstream = level, place, system == "kvstream"

    def run(self, results: Results) -> None:
        """Run it; AssertionError if the servers differ at the end, or one is not sound."""
        try:
            self._start()
            self._work(results)
        finally:
            for close in reversed(self._closings):
                close()

    def _start(self) -> None:
        for machine, follows_port in ((self._former, None), (self._next, self._former.port)):
            machine.start(follows_port)
            self._closings.append(machine.close)
        _wait(lambda: follows(self._next, self._former), "the link")
        program = sentinel_program()
        self._sentinels = Sentinels(program, self._place, self._former.port, DOWN_MS)
        self._closings.append(self._sentinels.stop)
        self._sentinels.hurry()
        self._sentinels.wait_known(1)

    def _work(self, results: Results) -> None:
        url = self._sentinels.url
        load = Load(self._level, self._sentinels.primary, self._is_kvstream, url)
        load.begin(self._former.port)
        self._closings.append(load.end)
        if self._former.proxy is not None:
            load.add_stale(self._former.own_port)
        time.sleep(self._chance.uniform(*LOAD_S))
        self._break()
        broken = time.monotonic()
        _wait(self._is_promoted, "the promotion")
        results.promoted_s.append(time.monotonic() - broken)
        self._mend()
        _wait(lambda: follows(self._former, self._next), "the return of the former primary")
        time.sleep(LINKED_S)
        load.end()
        if self._next.port in load.first_ack:
            results.first_write_s.append(load.first_ack[self._next.port] - broken)
        wait_equal(self._next, self._former)
        for kind, found in load.find(self._next.own_port).items():
            results.found.setdefault(kind, Findings()).add(found)
        self._sentinels.stop()
        compare_and_stop(self._next, self._former)
        results.rounds += 1

    def _is_promoted(self) -> bool:
        with suppress(redis.RedisError):
            return self._sentinels.primary() == self._next.port and is_primary(self._next)
        return False

    def _break(self) -> None:
        if self._fault is Fault.KILL:
            self._former.kill()
        elif self._fault is Fault.STOP:
            self._former.send_signal(signal.SIGSTOP)
        else:
            assert self._former.proxy is not None
            one_way = self._chance.choice((Cut.TO_SERVER, Cut.FROM_SERVER))
            self._former.proxy.cut(Cut.BOTH if self._fault is Fault.CUT else one_way)

    def _mend(self) -> None:
        if self._fault is Fault.KILL:
            self._former.start()
            return
        time.sleep(ALONE_S)
        if self._fault is Fault.STOP:
            self._former.send_signal(signal.SIGCONT)
        else:
            assert self._former.proxy is not None
            self._former.proxy.cut(Cut.NONE)


def _wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TOLD_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def run_rounds(
    system: str, level: Level, fault: Fault, rounds: int, place: Path, seed: int
) -> Results:
    """Run some rounds in new folders of ``place``."""
    results = Results()
    for number in range(rounds):
        folder = place / f"round-{number}"
        folder.mkdir()
        Round(system, level, fault, folder, seed + number).run(results)
    return results


def main(words: list[str]) -> int:
    """Run what the words say, and print each round and the sum; return the exit code."""
    system, level, fault, rounds = words[0], Level(words[1]), Fault(words[2]), int(words[3])
    total = Results()
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="failovers-") as place:
            seed = int(words[4]) + number if len(words) > 4 else random.randrange(1 << 30)
            print(f"round {number}, seed {seed}", flush=True)
            Round(system, level, fault, Path(place), seed).run(total)
        print(f"{system}, {level}, {fault}: " + "\n".join(total.lines()), flush=True)
        if total.total.is_broken:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
