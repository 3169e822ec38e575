"""Compare a queue with a model: each message is in exactly one state at any time.

A message is scheduled, new, leased, waiting, ready (given back), done or dead. The machine sets the
clock, and predicts which entries each read gets, in which order. It uses the library, which it
closes and reopens, a server's executor, and a shared directory, through its owner and a client that
becomes the owner. ``KVSTREAM_EXAMPLES=n`` sets the number of runs.
"""

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from kvstream import Group, ManualClock, Store, StreamID
from kvstream.engine import timer_thread
from kvstream.engine.engine import Engine
from kvstream.layout.keys import qualified
from kvstream.layout.values import encode_fields
from kvstream.operations.checks import check
from kvstream.operations.delayed import add as add_delayed
from kvstream.operations.queues import consumers, leases, policy
from kvstream.shared.engine import SharedEngine
from kvstream.types.options import NackMode
from tests.server.talking import parsed, sound

NAME = qualified(0, b"s")
CONSUMERS = ("a", "b", "c")
LEASE_MS, DELIVERIES, IN_FLIGHT = 1000, 3, 4
BACKOFF_MS = (100, 700)
Token = tuple[str, int]


class Face(Protocol):
    """The calls that the machine makes on a queue, and the state that it reads."""

    def add(self, number: int, delay_ms: int | None) -> None: ...
    def read(self, consumer: str, count: int) -> list[str]: ...
    def settle(
        self, how: str, consumer: str, tokens: list[Token], delay_ms: int | None, fatal: bool
    ) -> list[int]: ...
    def xnack(self, mode: str, ids: list[str]) -> int: ...
    def xack(self, ids: list[str]) -> int: ...
    def pause(self, paused: bool) -> None: ...
    def remove(self, consumer: str) -> int: ...
    def fire(self) -> None: ...
    def reopen(self) -> None: ...
    def carry(self) -> None: ...
    def stream(self, key: str) -> list[tuple[str, dict[str, str]]]: ...
    def pending(self) -> list[tuple[str, str, int]]: ...
    def last_delivered(self) -> StreamID: ...


RULES = {
    "lease_ms": LEASE_MS,
    "max_deliveries": DELIVERIES,
    "backoff_ms": BACKOFF_MS,
    "max_in_flight": IN_FLIGHT,
}


class ByLibrary:
    """The library on a directory."""

    def __init__(self, directory: Path, clock: ManualClock, ends: ExitStack) -> None:
        self._directory, self._clock, self._ends = directory, clock, ends
        self._open()
        self._store().stream("s").create_group("g", "0", mkstream=True)
        self._run(policy.set_policy, NAME, b"g", RULES)
        ends.callback(self._close)

    def _open(self) -> None:
        self._opened = [Store.open(self._directory, durability="no", clock=self._clock)]

    def _close(self) -> None:
        assert self._opened[0].check() == []
        self._opened[0].close()

    def _store(self) -> Store:
        """Return the store that the next call uses."""
        return self._opened[0]

    def _run(self, operation: Callable[..., Any], *args: Any) -> Any:
        return self._store()._engine.run(operation, *args)

    def _group(self) -> Group:
        return self._store().stream("s").group("g")

    def add(self, number: int, delay_ms: int | None) -> None:
        if delay_ms is None:
            self._store().stream("s").add({"n": number})
        else:
            at_ms = self._clock.ms + delay_ms
            self._run(add_delayed, NAME, *encode_fields({"n": str(number)}), at_ms)

    def read(self, consumer: str, count: int) -> list[str]:
        return [str(entry.id) for entry in self._group().consumer(consumer).read(count=count)]

    def settle(
        self, how: str, consumer: str, tokens: list[Token], delay_ms: int | None, fatal: bool
    ) -> list[int]:
        given = [(StreamID.parse(eid), deliveries) for eid, deliveries in tokens]
        found: list[int]
        if how == "nack":
            found = self._run(leases.nack, NAME, b"g", consumer.encode(), given, delay_ms, fatal)
        else:
            operation = leases.ack if how == "ack" else leases.extend
            found = self._run(operation, NAME, b"g", consumer.encode(), given)
        return found

    def xnack(self, mode: str, ids: list[str]) -> int:
        return self._group().nack(*ids, mode=NackMode(mode))

    def xack(self, ids: list[str]) -> int:
        return self._group().ack(*ids)

    def pause(self, paused: bool) -> None:
        group = self._group()
        group.pause() if paused else group.resume()

    def remove(self, consumer: str) -> int:
        return int(self._run(consumers.pass_on, NAME, b"g", consumer.encode()))

    def fire(self) -> None:
        while self._opened[0].engine.run(timer_thread.run_due, 100):
            pass

    def reopen(self) -> None:
        self._close()
        self._open()

    def carry(self) -> None:
        image = self._store().image("s")
        assert image is not None
        self._store().load("s", image, replace=True)

    def stream(self, key: str) -> list[tuple[str, dict[str, str]]]:
        return [
            (str(entry.id), {f.decode(): v.decode() for f, v in entry.fields.items()})
            for entry in self._store().stream(key).range()
        ]

    def pending(self) -> list[tuple[str, str, int]]:
        rows = self._group().pending_range(count=1000)
        return [(str(row.id), row.consumer.decode(), row.deliveries) for row in rows]

    def last_delivered(self) -> StreamID:
        return self._store().stream("s").groups()[0].last_delivered_id


class ByShared(ByLibrary):
    """A shared directory: the calls alternate between the owner and its client.

    Both are in this process and share its clock. The first one opened is the owner. When it closes,
    the other one becomes the owner.
    """

    def _open(self) -> None:
        self._calls = 0
        self._opened = [self._one(), self._one()]
        assert self._is_owner(0)
        assert not self._is_owner(1)

    def _one(self) -> Store:
        engine_type = partial(Engine, clock=self._clock)
        kind: Any = type("Turned", (SharedEngine,), {"engine_type": staticmethod(engine_type)})
        return Store(kind.open(self._directory, {"durability": "no"}))

    def _is_owner(self, at: int) -> bool:
        engine = self._opened[at]._engine
        assert isinstance(engine, SharedEngine)
        return engine.clients is not None

    def _close(self) -> None:
        self.reopen()
        for store in reversed(self._opened):
            store.close()

    def _store(self) -> Store:
        self._calls += 1
        return self._opened[self._calls % 2]

    def _own_engine(self) -> Engine:
        engine = self._opened[0]._engine
        assert isinstance(engine, SharedEngine)
        assert isinstance(engine._current, Engine)
        return engine._current

    def fire(self) -> None:
        while self._own_engine().run(timer_thread.run_due, 100):
            pass

    def carry(self) -> None:
        assert self._store().copy("s", "copy")
        assert self._store().rename("copy", "s")

    def reopen(self) -> None:
        assert self._own_engine().run(check) == []
        self._opened.pop(0).close()
        self._opened[0].size()  # it becomes the owner
        self._opened.append(self._one())
        assert self._is_owner(0)


class ByServer:
    """Commands of a client, by the executor of a server."""

    def __init__(self, directory: Path, clock: ManualClock, ends: ExitStack) -> None:
        self._clock = clock
        self._server = ends.enter_context(sound(directory, clock))
        self._client = self._server.client()
        self._ask("XGROUP CREATE s g 0 MKSTREAM")
        delays = ",".join(map(str, BACKOFF_MS))
        limits = f"LEASE {LEASE_MS} DELIVERIES {DELIVERIES} INFLIGHT {IN_FLIGHT}"
        self._ask(f"KVSTREAM.POLICY SET s g {limits} BACKOFF {delays}")

    def _ask(self, line: str) -> Any:
        reply = parsed(self._client.ask(*line.split()))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def add(self, number: int, delay_ms: int | None) -> None:
        delay = "" if delay_ms is None else f"AT {self._clock.ms + delay_ms}"
        self._ask(f"KVSTREAM.ADD s {delay} n {number}")

    def read(self, consumer: str, count: int) -> list[str]:
        reply = self._ask(f"XREADGROUP GROUP g {consumer} COUNT {count} STREAMS s >")
        return [] if reply is None else [entry[0].decode() for entry in reply[0][1]]

    def settle(
        self, how: str, consumer: str, tokens: list[Token], delay_ms: int | None, fatal: bool
    ) -> list[int]:
        given = " ".join(f"{eid} {deliveries}" for eid, deliveries in tokens)
        options = "FATAL " if fatal else "" if delay_ms is None else f"DELAY {delay_ms} "
        if how != "nack":
            options = ""
        found: list[int] = self._ask(f"KVSTREAM.{how} s g {consumer} {options}{given}")
        return found

    def xnack(self, mode: str, ids: list[str]) -> int:
        return int(self._ask(f"XNACK s g {mode} IDS {len(ids)} {' '.join(ids)}"))

    def xack(self, ids: list[str]) -> int:
        return int(self._ask(f"XACK s g {' '.join(ids)}"))

    def pause(self, paused: bool) -> None:
        self._ask(f"KVSTREAM.POLICY {'PAUSE' if paused else 'RESUME'} s g")

    def remove(self, consumer: str) -> int:
        return int(self._ask(f"KVSTREAM.POLICY REMOVE s g {consumer}"))

    def fire(self) -> None:
        while self._server.engine.run(timer_thread.run_due, 100):
            pass

    def reopen(self) -> None:
        self._server.engine.catalog.forget()

    def carry(self) -> None:
        assert self._ask("COPY s copy") == 1
        assert self._ask("RENAME copy s") == b"OK"

    def stream(self, key: str) -> list[tuple[str, dict[str, str]]]:
        found = []
        for eid, flat in self._ask(f"XRANGE {key} - +"):
            words = [word.decode() for word in flat]
            found.append((eid.decode(), dict(zip(words[::2], words[1::2], strict=True))))
        return found

    def pending(self) -> list[tuple[str, str, int]]:
        rows = self._ask("XPENDING s g - + 1000")
        return [(row[0].decode(), row[1].decode(), row[3]) for row in rows]

    def last_delivered(self) -> StreamID:
        (flat,) = self._ask("XINFO GROUPS s")
        return StreamID.parse(dict(zip(flat[::2], flat[1::2], strict=True))[b"last-delivered-id"])


@dataclass
class Message:
    number: int
    state: str
    at_ms: int = 0
    """The time of its lease, or when it will be added or ready."""
    deliveries: int = 0
    consumer: str = ""
    rank: int = 0
    id: str = ""


def order(message: Message) -> StreamID:
    return StreamID.parse(message.id)


class QueueMachine(RuleBasedStateMachine):
    """A queue with every rule of a policy that is deterministic."""

    face_of: Any = ByLibrary

    def __init__(self) -> None:
        super().__init__()
        self._ends = ExitStack()
        self.clock = ManualClock()
        self.messages: list[Message] = []
        self.rank = 0
        self.seen: set[str] = set()
        """The existing consumers."""

    @initialize()
    def begin(self) -> None:
        directory = self._ends.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))
        self.face: Face = self.face_of(Path(directory) / "store", self.clock, self._ends)
        self.add(6, None)
        self.read("a", 3)

    def teardown(self) -> None:
        self._ends.close()

    def of(self, *states: str) -> list[Message]:
        return [each for each in self.messages if each.state in states]

    def next_rank(self) -> int:
        self.rank += 1
        return self.rank

    # --- the rules of the model -----------------------------------------------------------------

    def learn_ids(self) -> None:
        ids = {int(fields["n"]): eid for eid, fields in self.face.stream("s")}
        for message in self.of("new"):
            message.id = message.id or ids[message.number]

    def give_back(
        self, messages: list[Message], delay_ms: int | None = None, fatal: bool = False
    ) -> None:
        if messages:
            rank = self.next_rank()
        for each in messages:
            if fatal or each.deliveries >= DELIVERIES:
                each.state = "dead"
                continue
            wait = delay_ms
            if wait is None:
                wait = BACKOFF_MS[min(max(1, each.deliveries), len(BACKOFF_MS)) - 1]
            each.state, each.rank, each.consumer = "waiting" if wait else "ready", rank, ""
            each.at_ms = self.clock.ms + wait

    def deliver(self, consumer: str, count: int) -> list[str]:
        given: list[Message] = []
        room = max(0, IN_FLIGHT - len(self.of("leased")))
        for each in sorted(self.of("ready"), key=lambda each: (each.rank, order(each))):
            if len(given) == count or not room:
                break
            if each.deliveries >= DELIVERIES:
                each.state = "dead"
                continue
            given.append(each)
            room -= 1
        lapsed = [each for each in self.of("leased") if each.at_ms <= self.clock.ms - LEASE_MS]
        for each in sorted(lapsed, key=lambda each: (each.at_ms, order(each))):
            if len(given) == count:
                break
            if each.deliveries >= DELIVERIES:
                each.state = "dead"
            else:
                given.append(each)
        held = [each for each in given if each.state == "ready"]
        room = max(0, IN_FLIGHT - len(self.of("leased")) - len(held))
        new = sorted(self.of("new"), key=order)
        given += new[: max(0, min(count - len(given), room))]
        for each in given:
            each.state, each.consumer, each.at_ms = "leased", consumer, self.clock.ms
            each.deliveries += 1
        return [each.id for each in given]

    # --- what is done ---------------------------------------------------------------------------

    @rule(count=st.integers(2, 4), delay=st.sampled_from([None, None, 50, 300]))
    def add(self, count: int, delay: int | None) -> None:
        for _ in range(count):
            number = len(self.messages)
            self.face.add(number, delay)
            at_ms = self.clock.ms + (delay or 0)
            self.messages.append(Message(number, "scheduled" if delay else "new", at_ms))
        self.learn_ids()

    @rule(consumer=st.sampled_from(CONSUMERS), count=st.integers(1, 6))
    @precondition(lambda self: self.of("new", "ready", "leased"))
    def read(self, consumer: str, count: int) -> None:
        self.seen.add(consumer)
        assert self.face.read(consumer, count) == self.deliver(consumer, count)

    @rule(consumer=st.sampled_from(CONSUMERS))
    @precondition(lambda self: self.of("new", "ready", "leased"))
    def read_all(self, consumer: str) -> None:
        self.read(consumer, 20)

    @rule()
    @precondition(lambda self: self.of("waiting", "leased"))
    def wait(self) -> None:
        self.turn_the_clock(LEASE_MS)

    @rule(data=st.data())
    @precondition(lambda self: self.of("leased"))
    def fail(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.of("leased")), unique_by=id, min_size=1))
        mode = data.draw(st.sampled_from(["FAIL", "SILENT"]))
        self.face.xnack(mode, [each.id for each in chosen])
        self.give_back_as(mode, chosen)

    @rule(ms=st.sampled_from([1, 50, 100, 300, 700, 1000]))
    def turn_the_clock(self, ms: int) -> None:
        self.clock.advance(ms)
        self.face.fire()
        waiting = [each for each in self.of("waiting") if each.at_ms <= self.clock.ms]
        for at_ms in sorted({each.at_ms for each in waiting}):
            rank = self.next_rank()
            for each in waiting:
                if each.at_ms == at_ms:
                    each.state, each.rank = "ready", rank
        for each in self.of("scheduled"):
            if each.at_ms <= self.clock.ms:
                each.state = "new"
        self.learn_ids()

    @rule(
        data=st.data(),
        how=st.sampled_from(["ack", "nack", "extend"]),
        consumer=st.sampled_from(CONSUMERS),
        delay=st.sampled_from([None, 0, 60]),
        fatal=st.sampled_from([False, False, True]),
    )
    @precondition(lambda self: any(each.deliveries for each in self.messages))
    def settle(
        self, data: st.DataObject, how: str, consumer: str, delay: int | None, fatal: bool
    ) -> None:
        """Settle current tokens of a consumer, and some stale ones."""
        if how != "nack" or fatal:
            delay = None
        fatal = fatal and how == "nack"
        known = [each for each in self.messages if each.deliveries]
        chosen = data.draw(st.lists(st.sampled_from(known), unique_by=id, min_size=1, max_size=4))
        late = data.draw(st.sampled_from([0, 0, 1]))
        chosen.sort(key=order)
        outcomes, valid = [], []
        for each in chosen:
            own = each.state == "leased" and each.consumer == consumer and not late
            pending = each.state in ("leased", "waiting", "ready")
            outcomes.append(1 if own else -1 if pending else 0)
            valid += [each] if own else []
        tokens = [(each.id, each.deliveries - late) for each in chosen]
        assert self.face.settle(how, consumer, tokens, delay, fatal) == outcomes
        if how == "nack":
            self.give_back(valid, delay, fatal)
        for each in valid:
            if how == "ack":
                each.state = "done"
            elif how == "extend":
                each.at_ms = self.clock.ms

    @rule(data=st.data(), mode=st.sampled_from(["FAIL", "SILENT", "FATAL"]))
    @precondition(lambda self: self.of("leased", "waiting", "ready"))
    def xnack(self, data: st.DataObject, mode: str) -> None:
        known = self.of("leased", "waiting", "ready")
        chosen = data.draw(st.lists(st.sampled_from(known), unique_by=id, min_size=1, max_size=4))
        assert self.face.xnack(mode, [each.id for each in chosen]) == len(chosen)
        self.give_back_as(mode, chosen)

    def give_back_as(self, mode: str, chosen: list[Message]) -> None:
        if mode == "SILENT":
            rank = self.next_rank()
            for each in chosen:
                each.state, each.rank, each.consumer = "ready", rank, ""
                each.deliveries = max(0, each.deliveries - 1)
        else:
            self.give_back(chosen, fatal=mode == "FATAL")

    @rule(data=st.data())
    @precondition(lambda self: self.of("leased", "waiting", "ready"))
    def xack(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(self.of("leased", "waiting", "ready")))
        assert self.face.xack([each.id]) == 1
        each.state = "done"

    @rule()
    @precondition(lambda self: self.of("new", "ready"))
    def pause(self) -> None:
        self.face.pause(True)
        assert self.face.read("a", 5) == []
        self.seen.add("a")
        self.face.pause(False)

    @rule(data=st.data())
    @precondition(lambda self: self.seen)
    def remove(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.seen)))
        own = [each for each in self.of("leased") if each.consumer == consumer]
        assert self.face.remove(consumer) == len(own)
        self.seen.discard(consumer)
        if own:
            rank = self.next_rank()
        for each in own:
            each.state, each.rank, each.consumer = "ready", rank, ""

    @rule()
    def reopen(self) -> None:
        self.face.reopen()

    @rule()
    def carry(self) -> None:
        """Replace a stream by its image or its copy."""
        self.face.carry()

    # --- what holds -----------------------------------------------------------------------------

    @invariant()
    def each_message_is_in_exactly_one_state(self) -> None:
        rows = self.face.pending()
        pending = self.of("leased", "waiting", "ready")
        expected = [(each.id, each.consumer, each.deliveries) for each in pending]
        assert rows == sorted(expected, key=lambda row: StreamID.parse(row[0]))
        dead = [int(fields["n"]) for _, fields in self.face.stream("s:dead")]
        assert sorted(dead) == [each.number for each in self.of("dead")]
        last = self.face.last_delivered()
        unread = [eid for eid, _ in self.face.stream("s") if StreamID.parse(eid) > last]
        assert unread == [each.id for each in sorted(self.of("new"), key=order)]


FOLDER: str | None = None
EXAMPLES: dict[type, int] = {ByLibrary: 25, ByServer: 8, ByShared: 8}
"""The number of runs; the core has the rules, and two of the faces only pass the commands on."""


@pytest.mark.parametrize("face", [ByLibrary, ByServer, ByShared])
def test_each_message_is_in_exactly_one_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, face: type
) -> None:
    monkeypatch.setattr("tests.operations.queues.test_queue_machine.FOLDER", str(tmp_path))
    machine = type("Machine", (QueueMachine,), {"face_of": face})
    run_machine(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("KVSTREAM_EXAMPLES") or EXAMPLES[face]),
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
