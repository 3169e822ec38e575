"""Compare retention with a model: it removes what its rules cover, and nothing that a group needs.

The model has the entries in a list, and for each group its last ID and its pending entries. LATEST
is compared once nothing is pending, since it waits at the first entry that a group needs.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvstream import ManualClock, Store
from kvstream.engine import timer_thread
from kvstream.engine.timer_thread import TimerThread
from kvstream.engine.upkeep import Upkeep
from kvstream.layout.keys import qualified
from kvstream.meta.policy import Retention
from kvstream.operations.queues import retention
from kvstream.types.thresholds import Thresholds
from tests.opening import open_with

NAME = qualified(0, b"s")
GROUPS = st.sampled_from([b"g", b"h"])
START_MS = 1_000_000
AGES = st.sampled_from([0, 5, 50])
LENGTHS = st.sampled_from([0, 1, 4, 20])


class RetentionMachine(RuleBasedStateMachine):
    """A store and the model of one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = ExitStack()
        for threads, name in ((TimerThread, "start"), (Upkeep, "before_cycle")):
            self.ends.enter_context(patch.object(threads, name, lambda *_: None))
        self.folder = Path(self.ends.enter_context(tempfile.TemporaryDirectory()))
        self.clock = ManualClock(START_MS)
        self.store: Store = self.open()
        self.policy: Retention | None = None
        self.entries: dict[int, bytes | None] = {}
        """The value of the field ``u`` of each entry, by the milliseconds of its ID."""
        self.last: dict[bytes, int] = {}
        self.pending: dict[bytes, set[int]] = {}
        self.ms = START_MS

    def open(self) -> Store:
        return open_with(
            self.folder / "store",
            Thresholds(retained_entries=15, thinned_entries=6, thinned_more=3),
            clock=self.clock,
            durability="no",
            stream_node_max_entries=3,
        )

    def teardown(self) -> None:
        assert self.store.check() == []
        self.store.close()
        self.ends.close()

    @initialize(
        age=AGES,
        length=LENGTHS,
        acked=st.booleans(),
        latest=st.sampled_from([b"", b"u"]),
        force=st.booleans(),
    )
    def begin(self, age: int, length: int, acked: bool, latest: bytes, force: bool) -> None:
        rules = Retention(age, length, 0, acked, latest, force)
        self.add(1, b"a")
        if not rules.is_empty:
            self.policy = rules
            self.store.engine.run(retention.set_rules, NAME, rules)

    # --- what clients do ------------------------------------------------------------------------

    @rule(count=st.integers(1, 12), value=st.sampled_from([b"a", b"b", b"c", None]))
    def add(self, count: int, value: bytes | None) -> None:
        stream = self.store.stream("s")
        for _ in range(count):
            self.ms = max(self.ms + 1, self.clock.ms)
            fields = {b"x": b"y"} if value is None else {b"u": value}
            stream.add(fields, id=f"{self.ms}-0")
            self.entries[self.ms] = value

    @rule(group=GROUPS, start=st.sampled_from(["0", "$"]))
    def make_group(self, group: bytes, start: str) -> None:
        if group not in self.last:
            self.store.stream("s").create_group(group, start)
            self.last[group] = 0 if start == "0" else self.ms
            self.pending[group] = set()

    @rule(group=GROUPS)
    def end_group(self, group: bytes) -> None:
        if group in self.last:
            self.store.stream("s").group(group).destroy()
            del self.last[group], self.pending[group]

    @rule(group=GROUPS, count=st.integers(1, 10))
    def read(self, group: bytes, count: int) -> None:
        if group in self.last:
            found = self.store.stream("s").group(group).consumer("c").read(count, noack=False)
            fresh = [entry.id.ms for entry in found]
            expected = sorted(ms for ms in self.entries if ms > self.last[group])[:count]
            assert fresh == expected
            self.last[group] = max([self.last[group], *fresh])
            self.pending[group] |= set(fresh)

    @rule(group=GROUPS, seed=st.randoms(use_true_random=False), share=st.sampled_from([0.3, 1.0]))
    def ack(self, group: bytes, seed: object, share: float) -> None:
        if self.pending.get(group):
            some = sorted(self.pending[group])
            chosen = [ms for ms in some if share == 1 or seed.random() < share]  # type: ignore[attr-defined]
            if chosen:
                self.store.stream("s").group(group).ack(*[f"{ms}-0" for ms in chosen])
                self.pending[group] -= set(chosen)

    @rule(seed=st.randoms(use_true_random=False))
    def delete(self, seed: object) -> None:
        some = [ms for ms in self.entries if seed.random() < 0.1]  # type: ignore[attr-defined]
        if some:
            self.store.stream("s").delete(*[f"{ms}-0" for ms in some])
            for ms in some:
                del self.entries[ms]

    @rule(ms=st.sampled_from([1, 10, 2000, 100_000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    # --- what the background does ---------------------------------------------------------------

    @rule()
    def step(self) -> None:
        """Run a part of the due work of the background thread."""
        self.store.engine.run(retention.check_changed_streams)
        self.store.engine.run(timer_thread.run_due, 1)
        self.agree(whole=False)

    @rule()
    def finish(self) -> None:
        """Run all due work of the background thread."""
        if self.policy is not None:
            while self.store.engine.run(retention.run, NAME)[1]:
                pass
            self.agree(whole=True)

    def find_needed(self) -> set[int]:
        found: set[int] = set()
        for group, last in self.last.items():
            found |= self.pending[group] | {ms for ms in self.entries if ms > last}
        return found

    def agree(self, whole: bool) -> None:
        """Assert that only removable entries are gone, and all of them if the work is done."""
        there = {entry.id.ms for entry in self.store.stream("s").range()}
        assert there <= set(self.entries)
        may_go = self.may_go()
        assert set(self.entries) - there <= may_go
        if whole and self.policy is not None and not self.policy.latest:
            assert there == set(self.entries) - self.must_go()
        if whole and self.policy == Retention(latest=b"u") and not self.find_needed():
            values = [value for value in (self.entries[ms] for ms in there) if value]
            assert len(values) == len(set(values))
        self.entries = {ms: value for ms, value in self.entries.items() if ms in there}

    def by_rules(self) -> set[int]:
        """Return the entries that MAXAGE and ACKED remove."""
        rules = self.policy or Retention()
        kept = set() if rules.force else self.find_needed()
        gone: set[int] = set()
        if rules.max_age_ms:
            gone |= {ms for ms in self.entries if self.clock.ms - ms >= rules.max_age_ms} - kept
        if rules.acked and self.last:
            gone |= set(self.entries) - self.find_needed()
        return gone

    def must_go(self) -> set[int]:
        """Return the removable entries, in the order of removal, of those above MAXLEN."""
        rules = self.policy or Retention()
        gone = self.by_rules()
        if rules.max_length:
            rest = sorted(set(self.entries) - gone)
            kept = set() if rules.force else self.find_needed()
            excess = max(0, len(rest) - rules.max_length)
            gone |= set([ms for ms in rest if ms not in kept][:excess])
        return gone

    def may_go(self) -> set[int]:
        """Return the removable entries: with LATEST those with a later entry of their value."""
        rules = self.policy or Retention()
        gone = self.by_rules()
        kept = set() if rules.force else self.find_needed()
        if rules.max_length:
            gone |= set(self.entries) - kept  # the order of steps decides which of them
        if rules.latest:
            last = {value: ms for ms, value in sorted(self.entries.items()) if value}
            gone |= {ms for ms, value in self.entries.items() if value and ms < last[value]} - kept
        return gone

    @invariant()
    def what_a_group_needs_is_there(self) -> None:
        if self.policy is None or not self.policy.force:
            there = {entry.id.ms for entry in self.store.stream("s").range()}
            assert self.find_needed() & set(self.entries) <= there


RetentionMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=40)
TestRetention = RetentionMachine.TestCase
