"""Kill a process while retention trims its streams.

No entry that a rule or a group needs is lost, and no removed entry comes back.
"""

import time
from pathlib import Path

import pytest

from kvstream import Entry, Store
from kvstream.layout.keys import qualified
from kvstream.operations.queues import retention
from tests.crash.retention_writer import AGE_S, BYTES, GROUPS, LENGTH, RULES
from tests.crash.rounds import rounds
from tests.crash.test_order_crashes import work_until_killed

NODE_BYTES = 4096


class Expected:
    """The output of the writers of one store."""

    def __init__(self) -> None:
        self.added: dict[str, list[int]] = {key: [] for key in RULES}
        self.times_ms: dict[int, int] = {}
        self.acked: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.maybe_acked: dict[str, set[int]] = {group: set() for group in GROUPS}
        """Entries of acknowledgements without a reply."""
        self.doubtful: set[int] = set()
        """The entries of the last command, if it has no reply."""

    def add_output(self, words: list[list[str]]) -> None:
        self.doubtful = set()
        for word, what, *numbers in words:
            named = [int(number) for number in numbers]
            self.doubtful = set(named) if word == "try" else set()
            if word == "did" and what in RULES:
                self.added[what].append(named[0])
                self.times_ms[named[0]] = named[1]
            elif word == "did":
                self.acked[what] |= set(named)
        if self.doubtful and what in GROUPS:
            self.maybe_acked[what] |= self.doubtful

    def check_stream(self, key: str, entries: list[Entry]) -> None:
        """Compare a stream with the added entries; find out whether the last add was committed."""
        found = numbers(entries)
        added = self.added[key]
        if found and found[-1] in self.doubtful - {*added[-1:]}:
            added.append(found[-1])
        assert set(found) <= set(added)
        assert found == sorted(found)
        if key == "age":
            young_ms = time.time() * 1000 - AGE_S * 1000
            assert {n for n in added if self.times_ms.get(n, 0) > young_ms} <= set(found)
        if key in ("age", "bytes", "length"):
            assert found == added[len(added) - len(found) :]
        elif key == "latest":
            assert set(latest(added)) <= set(found)
        else:
            a, b = (self.acked[group] | self.maybe_acked[group] for group in GROUPS)
            done = a & b
            assert set(added) - done - set(found) <= self.doubtful


def numbers(entries: list[Entry]) -> list[int]:
    return [int(entry.fields[b"n"]) for entry in entries]


def latest(added: list[int]) -> list[int]:
    return sorted({n % 7: n for n in added}.values())


def check_kept(store: Store, expected: Expected) -> None:
    """Remove all that the rules allow, and check that nothing else was removed."""
    for key in RULES:
        while store.engine.run(retention.run, qualified(0, key.encode()))[1]:
            pass
    kept = {key: list(store.stream(key)) for key in RULES}
    for key, entries in kept.items():
        expected.check_stream(key, entries)
    assert numbers(kept["latest"]) == latest(expected.added["latest"])
    assert len(kept["length"]) == min(LENGTH, len(expected.added["length"]))
    size = sum(len(entry.fields[b"padding"]) for entry in kept["bytes"])
    assert size <= BYTES
    if len(kept["bytes"]) < len(expected.added["bytes"]):
        overhead = 30 * len(kept["bytes"])
        assert size + overhead >= BYTES - 2 * NODE_BYTES
    needed = set()
    stream = store.stream("acked")
    for info in stream.groups():
        pending = {row.id for row in stream.group(info.name).pending_range(count=1 << 20)}
        needed |= {e.id for e in kept["acked"] if e.id in pending or e.id > info.last_delivered_id}
        assert pending <= {entry.id for entry in kept["acked"]}
        waiting = {int(e.fields[b"n"]) for e in kept["acked"] if e.id in pending}
        assert waiting.isdisjoint(expected.acked[info.name.decode()])
    assert {entry.id for entry in kept["acked"]} == needed


@pytest.mark.timeout(3600)
def test_a_killed_process_loses_no_entry_that_its_rules_keep(tmp_path: Path) -> None:
    expected = Expected()
    for seed in range(1, rounds(2) + 1):
        expected.add_output(work_until_killed(tmp_path / "store", seed, "retention_writer"))
        old_ms = (time.time() - AGE_S) * 1000
        with Store.open(tmp_path / "store", free_space_reserve=0) as store:
            assert store.check() == []
            for key in RULES:
                expected.check_stream(key, list(store.stream(key)))
            check_kept(store, expected)
            assert all(entry.id.ms >= old_ms for entry in store.stream("age"))
            assert store.check() == []
