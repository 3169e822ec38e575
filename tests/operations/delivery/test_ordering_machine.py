"""Order by key under random acknowledgements, failures, claims, deletions, leases and restarts.

At any time at most ``max_per_key`` entries of a key are in flight, and a held entry has that many
entries of its key in flight before it. First deliveries of a key follow the order of IDs. At the
end every entry has been delivered.
"""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvstream import ManualClock, Store, StreamID
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified
from kvstream.operations.queues import policy
from kvstream.types.options import NackMode, RefPolicy
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.folders import fast_folder
from tests.opening import open_with
from tests.operations.checks.seeding import SMALL_TREE_ROWS

NAME = qualified(0, b"s")
LEASE_MS = 10_000
DELAYS_MS = (500, 2000)
KEYS = st.sampled_from(["a", "a", "a", "b", "c", ""])
CONSUMERS = st.sampled_from(["v", "w"])
PLACES = st.integers(0, 30)


class OrderMachine(RuleBasedStateMachine):
    """Uses one group ordered by ``user``, and records its expected state."""

    thresholds = DEFAULT
    fair = False

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(dir=fast_folder()))
        self._clock = ManualClock()
        self._store = self._open()
        self._keys: dict[StreamID, str] = {}
        self._delivered: dict[StreamID, None] = {}
        """In the order of their first delivery."""
        self._over: set[StreamID] = set()
        """Acknowledged, or deleted."""
        self._forced: set[str] = set()
        """Keys with a held entry that was claimed by force: their order no longer holds."""

    def _open(self) -> Store:
        place = self._folder / "store"
        return open_with(place, self.thresholds, durability="no", clock=self._clock)

    def teardown(self) -> None:
        try:
            self._drain()
        finally:
            self._store.close()
            shutil.rmtree(self._folder)

    @initialize(most=st.integers(1, 3), deliveries=st.sampled_from([0, 3]))
    def begin(self, most: int, deliveries: int) -> None:
        self._most = most
        self._store.stream("s").create_group("g")
        rules = {
            "order_by": b"user",
            "max_per_key": most,
            "fair": self.fair,
            "lease_ms": LEASE_MS,
            "backoff_ms": DELAYS_MS,
            "max_deliveries": deliveries,
        }
        self._store.engine.run(policy.set_policy, NAME, b"g", rules)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=8))
    def add(self, keys: list[str]) -> None:
        fields = [{"user": key, "also": key} if key else {"n": "1"} for key in keys]
        ids = self._store.stream("s").add_many(fields)
        self._keys.update(zip(ids, keys, strict=True))

    @rule(consumer=CONSUMERS, count=st.sampled_from([1, 2, 5, None]))
    def read(self, consumer: str, count: int | None) -> None:
        found = self._store.stream("s").group("g").consumer(consumer).read(count=count)
        for entry in found:
            assert entry.id not in self._over
            self._delivered.setdefault(entry.id)

    def _pick(self, at: int, held: bool = False) -> list[StreamID]:
        """Return an entry that is in flight, or held, or none."""
        rows = self._store.stream("s").group("g").pending_range(count=1000)
        ids = [row.id for row in rows if (row.id not in self._delivered) == held]
        return [ids[at % len(ids)]] if ids else []

    @rule(at=PLACES, delete=st.booleans())
    def ack(self, at: int, delete: bool) -> None:
        for eid in self._pick(at):
            group = self._store.stream("s").group("g")
            if delete:
                group.ack_delete(eid, ref_policy=RefPolicy.DELREF)
            else:
                group.ack(eid)
            self._over.add(eid)

    @rule(at=PLACES)
    def fail(self, at: int) -> None:
        for eid in self._pick(at):
            self._store.stream("s").group("g").nack(eid)
            self._note_dead()

    @rule(at=PLACES, consumer=CONSUMERS, held=st.booleans(), force=st.booleans())
    def claim(self, at: int, consumer: str, held: bool, force: bool) -> None:
        for eid in self._pick(at, held):
            group = self._store.stream("s").group("g")
            for entry in group.claim(consumer, [eid], force=force):
                if held:
                    self._forced.add(self._keys[eid])
                self._delivered.setdefault(entry.id)

    @rule(consumer=CONSUMERS, count=st.sampled_from([1, 3, 100]))
    def claim_all(self, consumer: str, count: int) -> None:
        found = self._store.stream("s").group("g").autoclaim(consumer, count=count)
        self._delivered.update(dict.fromkeys(entry.id for entry in found.entries))
        self._over.update(found.deleted)

    @rule(at=PLACES, held=st.booleans(), references=st.booleans())
    def delete(self, at: int, held: bool, references: bool) -> None:
        how = RefPolicy.DELREF if references else RefPolicy.KEEPREF
        for eid in self._pick(at, held):
            self._store.stream("s").delete_entries(eid, ref_policy=how)
            self._over.add(eid)

    @rule(consumer=CONSUMERS)
    def delete_consumer(self, consumer: str) -> None:
        group = self._store.stream("s").group("g")
        rows = group.pending_range(count=1000, consumer=consumer)
        group.delete_consumer(consumer)
        self._over.update(row.id for row in rows)

    @rule(ms=st.sampled_from([1, 500, 2000, LEASE_MS]))
    def wait(self, ms: int) -> None:
        self._clock.advance(ms)
        while self._store.engine.run(timer_thread.run_due, 100):
            pass

    @rule()
    def reopen(self) -> None:
        self._store.close()
        self._store = self._open()

    @rule(field=st.sampled_from([b"user", b"also"]))
    def change_field(self, field: bytes) -> None:
        """Sort what is pending by another field, which has the same values."""
        self._store.engine.run(policy.set_policy, NAME, b"g", {"order_by": field})

    def _note_dead(self) -> None:
        """Note the entries that were given up."""
        for letter in self._store.stream("s:dead").range():
            self._over.add(StreamID.parse(letter.fields[b"dead:id"]))

    @invariant()
    def keys_are_in_order(self) -> None:
        if not self._keys:
            return
        self._note_dead()
        rows = self._store.stream("s").group("g").pending_range(count=1000)
        ready = {row.id for row in rows if row.id in self._delivered}
        assert self._store.check() == []
        flying = Counter(self._keys[eid] for eid in ready if self._keys[eid])
        for key, count in flying.items():
            assert count <= self._most or key in self._forced
        for key in set(self._keys.values()) - self._forced - {""}:
            first = [eid for eid in self._delivered if self._keys[eid] == key]
            assert first == sorted(first)

    def _drain(self) -> None:
        """Deliver and acknowledge all that is left."""
        if not self._keys:
            return
        group = self._store.stream("s").group("g")
        for _ in range(10 * len(self._keys) + 10):
            self._note_dead()
            self.wait(LEASE_MS)
            found = group.consumer("w").read(count=3)
            for entry in found:
                self._delivered.setdefault(entry.id)
            group.ack(*[entry.id for entry in found]) if found else None
            self._note_dead()
            if not found and group.pending().count == 0:
                break
        self.keys_are_in_order()
        assert set(self._keys) <= self._delivered.keys() | self._over


class IndexedOrderMachine(OrderMachine):
    """The same with so small trees that runs and keys are read from disk."""

    thresholds = Thresholds(cached_rows=SMALL_TREE_ROWS, store_rows=0)


class FairOrderMachine(IndexedOrderMachine):
    """The same if the keys take turns, with changes of the policy and copies of the stream."""

    fair = True

    @rule(fair=st.booleans(), more=st.integers(0, 1))
    def change_policy(self, fair: bool, more: int) -> None:
        self._most += more
        changes = {"fair": fair, "max_per_key": self._most}
        self._store.engine.run(policy.set_policy, NAME, b"g", changes)

    @rule(at=PLACES, held=st.booleans(), justid=st.booleans(), consumer=CONSUMERS)
    def take_untried(self, at: int, held: bool, justid: bool, consumer: str) -> None:
        """Give an entry back untried, or claim its ID alone, also before its first delivery."""
        group = self._store.stream("s").group("g")
        for eid in self._pick(at, held):
            if held:
                self._forced.add(self._keys[eid])
            if not justid:
                group.nack(eid, mode=NackMode.SILENT)
            elif group.claim(consumer, eid, justid=True):
                self._delivered.setdefault(eid)

    @rule(keep=st.integers(0, 9), how=st.sampled_from(RefPolicy))
    def trim(self, keep: int, how: RefPolicy) -> None:
        stream = self._store.stream("s")
        before = {entry.id for entry in stream.range()}
        stream.trim(maxlen=keep, ref_policy=how)
        self._over |= before - {entry.id for entry in stream.range()}

    @rule(count=st.sampled_from([1, 5, None]))
    def read_without_pending(self, count: int | None) -> None:
        consumer = self._store.stream("s").group("g").consumer("n")
        found = {entry.id: None for entry in consumer.read(count=count, noack=True)}
        self._delivered |= found
        self._over |= found.keys()

    @rule(copies=st.booleans())
    def move(self, copies: bool) -> None:
        store = self._store
        if copies:
            store.copy("s", "t")
            store.delete("s")
        else:
            store.rename("s", "t")
        store.rename("t", "s")


TestOrder = OrderMachine.TestCase
TestIndexedOrder = IndexedOrderMachine.TestCase
TestFairOrder = FairOrderMachine.TestCase
TestOrder.settings = TestIndexedOrder.settings = TestFairOrder.settings = settings(
    max_examples=12, stateful_step_count=40, deadline=None
)
