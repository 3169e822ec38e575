"""Compare flushes, swaps and their sweep with a model: a dictionary for each database.

A flush of a single key already gives its database another number, so the numbers of databases
change all the time, and the sweep runs while keys are created again under the old names.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstream import ManualClock, Store
from kvstream.layout.keys import qualified
from kvstream.operations import keyspace, strings
from kvstream.storage.batch import Family
from kvstream.types.thresholds import Thresholds
from tests.examples import examples
from tests.opening import change_thresholds, open_with

DBS = st.integers(0, 2)
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
START_MS = 1_000_000
LARGE = b"x" * 20_000
"""A value with rows of its own."""


class FlushMachine(RuleBasedStateMachine):
    """A store, and the expected state of each database."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = ExitStack()
        self.folder = Path(self.ends.enter_context(tempfile.TemporaryDirectory()))
        self.clock = ManualClock(START_MS)
        self.store: Store = self.open()
        self.expected: dict[int, dict[bytes, object]] = {0: {}, 1: {}, 2: {}}
        """A string's value, or the entries of a stream."""
        self.ends_at: dict[tuple[int, bytes], int] = {}

    def open(self) -> Store:
        sizes = Thresholds(cycle_pause_s=3600, flush_keys=1, groups_together=2, groups_of_commit=3)
        return open_with(self.folder / "store", sizes, clock=self.clock, durability="no")

    def teardown(self) -> None:
        try:
            self._flush_everything()
        finally:
            self.store.close()
            self.ends.close()

    def _flush_everything(self) -> None:
        """Check that only the allocator, counts, and the numbers of databases remain."""
        for db, keys in self.expected.items():
            assert self.store.select(db).flush() == len(keys)
        while self.store.engine.run(keyspace.sweep, 3):
            pass
        rows = self.store.engine.database
        left = [{key[:1] for key, _ in rows.scan(f, b"", b"\xff" * 64)} for f in Family]
        assert left[Family.METADATA] <= {b"A", b"C", b"D"}
        assert left[Family.MESSAGES] == left[Family.TREES] == set()
        assert self.store.check() == []

    @rule(db=DBS, key=KEYS, value=st.sampled_from([b"1", LARGE]))
    def put(self, db: int, key: bytes, value: bytes) -> None:
        self.store.engine.run(strings.put, qualified(db, key), value)
        self.expected[db][key] = value
        self.ends_at.pop((db, key), None)

    @rule(db=DBS, key=KEYS, groups=st.sampled_from([0, 1, 7]), entries=st.sampled_from([1, 130]))
    def add(self, db: int, key: bytes, groups: int, entries: int) -> None:
        found = self.expected[db].get(key, 0)
        if isinstance(found, bytes):
            return
        stream = self.store.select(db).stream(key)
        stream.add_many([{"n": n} for n in range(entries)])
        for number in range(groups):
            stream.create_group(f"g{number}", "0", exist_ok=True).consumer("c").read(count=5)
        assert isinstance(found, int)
        self.expected[db][key] = found + entries

    @rule(db=DBS, key=KEYS, delay=st.integers(1, 50))
    def delay(self, db: int, key: bytes, delay: int) -> None:
        if isinstance(self.expected[db].get(key), int):
            self.store.select(db).stream(key).add({"n": "later"}, delay=3600 + delay)

    @rule(db=DBS, key=KEYS, seconds=st.integers(1, 60))
    def expire(self, db: int, key: bytes, seconds: int) -> None:
        assert self.store.select(db).expire(key, seconds) == (key in self.expected[db])
        if key in self.expected[db]:
            self.ends_at[db, key] = self.clock.ms + 1000 * seconds

    @rule(db=DBS, keys=st.sets(KEYS), many=st.booleans())
    def delete(self, db: int, keys: set[bytes], many: bool) -> None:
        found = [self.expected[db].pop(key, None) for key in keys]
        for key in keys:
            self.ends_at.pop((db, key), None)
        change_thresholds(self.store.engine, long_keys=0 if many else 100)
        assert self.store.select(db).delete(*keys) == sum(each is not None for each in found)

    @rule(db=DBS)
    def flush(self, db: int) -> None:
        assert self.store.select(db).flush() == len(self.expected[db])
        self._forget(db)

    @rule()
    def flush_all(self) -> None:
        assert self.store.flush_all() == sum(map(len, self.expected.values()))
        for db in self.expected:
            self._forget(db)

    def _forget(self, db: int) -> None:
        self.expected[db] = {}
        self.ends_at = {place: at for place, at in self.ends_at.items() if place[0] != db}

    @rule(one=DBS, other=DBS)
    def swap(self, one: int, other: int) -> None:
        self.store.engine.run(keyspace.swap, one, other)
        both = self.expected
        both[one], both[other] = both[other], both[one]
        numbers = {one: other, other: one}
        self.ends_at = {(numbers.get(db, db), key): at for (db, key), at in self.ends_at.items()}

    @rule(limit=st.integers(1, 5))
    def sweep(self, limit: int) -> None:
        self.store.engine.run(keyspace.sweep, limit)
        assert self.store.check() == []

    @rule(seconds=st.integers(1, 40))
    def advance(self, seconds: int) -> None:
        self.clock.advance(1000 * seconds)
        gone = [place for place, at in self.ends_at.items() if at <= self.clock.ms]
        for db, key in gone:
            del self.expected[db][key], self.ends_at[db, key]
        while self.store.engine.run(keyspace.delete_expired, 2):
            pass

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    @rule()
    def check(self) -> None:
        assert self.store.check() == []

    @invariant()
    def has_what_is_expected(self) -> None:
        for db, keys in self.expected.items():
            store = self.store.select(db)
            assert (store.size(), sorted(store.keys())) == (len(keys), sorted(keys))
            for key, value in keys.items():
                if isinstance(value, int):
                    assert len(store.stream(key).range()) == value
                else:
                    assert store.engine.run(strings.get, qualified(db, key)) == value


TestFlushMachine = FlushMachine.TestCase
TestFlushMachine.settings = settings(
    max_examples=examples(15), stateful_step_count=40, deadline=None
)
