"""Delayed messages and unique IDs behave as a small model, for any clock and order of calls."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvstream import ManualClock, Store
from kvstream.engine import timer_thread
from tests.folders import fast_folder
from tests.operations.queue_commands import ok, values

CONFLICTS = ("SKIP", "REPLACE", "DEBOUNCE", "AFTER")
DELAYED, WAITING, DELIVERED, DONE = "delayed", "waiting", "delivered", "done"


@dataclass
class Message:
    """A message of the model."""

    n: int
    state: str
    name: str = ""
    """Its ticket or ID."""
    unique_id: str = ""

    @property
    def due(self) -> tuple[int, int]:
        """When it is due, and its number."""
        at_ms, _, number = self.name[1:].partition("-")
        return int(at_ms), int(number)


class QueueMachine(RuleBasedStateMachine):
    """A stream with one group, whose timers fire when the machine fires them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=fast_folder()))
        self.clock = ManualClock()
        self.open()
        ok(self.store, "XGROUP CREATE s g 0 MKSTREAM")
        self.messages: list[Message] = []
        self.stream: list[Message] = []
        self.holders: dict[str, tuple[Message, int]] = {}
        """The holder of each unique ID, and the end of its window, 0 for none."""
        self.number = 0

    def open(self) -> None:
        self.store = Store.open(self.folder / "store", durability="no", clock=self.clock)
        self.store.engine.timers.paused = True

    def teardown(self) -> None:
        try:
            assert self.store.check() == []
        finally:
            self.store.close()
            shutil.rmtree(self.folder)

    @property
    def delayed(self) -> list[Message]:
        found = [each for each in self.messages if each.state == DELAYED]
        return sorted(found, key=lambda each: each.due)

    # --- adding -------------------------------------------------------------------------------

    @rule(delay=st.none() | st.integers(0, 40))
    def add(self, delay: int | None) -> None:
        self._add("" if delay is None else f"DELAY {delay}")

    @rule(
        delay=st.none() | st.integers(0, 40),
        window=st.sampled_from([0, 0, 25]),
        conflict=st.sampled_from(CONFLICTS),
        unique_id=st.sampled_from("uv"),
    )
    def add_unique(self, delay: int | None, window: int, conflict: str, unique_id: str) -> None:
        if conflict == "DEBOUNCE" and delay is None:
            delay = 3
        options = "" if delay is None else f"DELAY {delay}"
        holder, until_ms = self.holders.get(unique_id, (None, 0))
        if until_ms and until_ms <= self.clock.ms:
            holder = None
        if holder is not None and not until_ms and holder.state == DONE:
            holder = None
        rest = f"UNIQUE {unique_id} WINDOW {window} {conflict}"
        if holder is not None and self._keeps_out(holder, conflict):
            found = ok(self.store, f"KVSTREAM.ADD s {options} {rest} n 0")
            assert found.decode() == holder.name
            return
        if holder is not None and (
            (holder.state == DELAYED and conflict in ("REPLACE", "DEBOUNCE"))
            or (holder.state == WAITING and conflict == "REPLACE")
        ):
            holder.state = DONE
            self.stream = [each for each in self.stream if each is not holder]
        added = self._add(f"{options} {rest}", unique_id)
        self.holders[unique_id] = added, self.clock.ms + window if window else 0

    @staticmethod
    def _keeps_out(holder: Message, conflict: str) -> bool:
        if holder.state == DELAYED:
            return conflict in ("SKIP", "AFTER")
        if conflict in ("SKIP", "DEBOUNCE"):
            return conflict == "SKIP"
        return (holder.state == WAITING) == (conflict == "AFTER")

    def _add(self, options: str, unique_id: str = "") -> Message:
        self.number += 1
        name = ok(self.store, f"KVSTREAM.ADD s {options} n {self.number}").decode()
        state = DELAYED if name.startswith("@") else WAITING
        added = Message(self.number, state, name, unique_id)
        self.messages.append(added)
        if state == WAITING:
            self.stream.append(added)
        return added

    # --- changes ------------------------------------------------------------------------------

    @precondition(lambda self: self.delayed)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.delayed))
        assert ok(self.store, f"KVSTREAM.DELAYED CANCEL s {chosen.name}") == 1
        chosen.state = DONE
        if self.holders.get(chosen.unique_id, (None, 0))[0] is chosen:
            del self.holders[chosen.unique_id]

    @precondition(lambda self: self.delayed)
    @rule(data=st.data(), by_ms=st.integers(-20, 60))
    def move(self, data: st.DataObject, by_ms: int) -> None:
        chosen = data.draw(st.sampled_from(self.delayed))
        at_ms = self.clock.ms + by_ms
        moved = ok(self.store, f"KVSTREAM.DELAYED MOVE s {chosen.name} {at_ms}").decode()
        assert moved == f"@{max(at_ms, self.clock.ms)}-{chosen.due[1]}"
        chosen.name = moved

    @rule(ms=st.integers(-30, 40))
    def tick(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.integers(60_000, 4_000_000))
    def wait_long(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(limit=st.integers(1, 5))
    def fire(self, limit: int) -> None:
        self._fire(limit)

    def _fire(self, limit: int) -> None:
        while self.store.engine.run(timer_thread.run_due, limit):
            pass
        fired = [each for each in self.delayed if each.due[0] <= self.clock.ms]
        ids = [str(entry.id) for entry in self.store.stream("s")][len(self.stream) :]
        for each, name in zip(fired, ids, strict=True):
            each.state, each.name = WAITING, name
            self.stream.append(each)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()
        self._fire(5)  # the store's thread may have started it

    # --- work ---------------------------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def read(self, count: int) -> None:
        found = self.store.stream("s").group("g").consumer("c").read(count=count)
        waiting = [each for each in self.stream if each.state == WAITING][:count]
        assert [str(entry.id) for entry in found] == [each.name for each in waiting]
        for each in waiting:
            each.state = DELIVERED

    @rule(delete=st.booleans())
    def finish(self, delete: bool) -> None:
        for each in self.stream:
            if each.state == DELIVERED:
                ok(self.store, f"XACK s g {each.name}")
                each.state = DONE
                if delete:
                    ok(self.store, f"XDEL s {each.name}")
                    self.stream.remove(each)
                return

    # --- what holds at any time ---------------------------------------------------------------

    @invariant()
    def messages_are_where_the_model_has_them(self) -> None:
        assert values(self.store) == [str(each.n) for each in self.stream]
        listed = ok(self.store, "KVSTREAM.DELAYED LIST s COUNT 1000")
        assert listed == [[each.name.encode(), [b"n", b"%d" % each.n]] for each in self.delayed]
        assert ok(self.store, "KVSTREAM.DELAYED LEN s") == len(self.delayed)
        pending = self.store.stream("s").group("g").pending().count
        assert pending == sum(each.state == DELIVERED for each in self.stream)


QueueMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=40)
TestQueueMachine = QueueMachine.TestCase
