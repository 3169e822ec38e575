"""A workflow in its store: the stream of its history, and a string with its state.

The history (``<name>:history:<id>``) says what has been done. The state (``<name>:workflow:<id>``,
a string of JSON) says what is next, so a program that sends a signal or ends a child reads one
value. A message of the queue, the *wake*, makes a worker run the workflow. A workflow that waits
has none, or a delayed one: it costs rows on disk alone.

The *generation* counts the waits. A wake has the generation of its wait, and one of an earlier wait
is dropped. Wakes of one workflow have its ID as their key, so one runs at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from kvstream.errors import Conflict
from kvstream.jobs.history.events import ENDS, Fields, History
from kvstream.jobs.job import AnyJobs, Job
from kvstream.jobs.results import Addition, add_all
from kvstream.operations import strings
from kvstream.queue import finish
from kvstream.stream import Stream
from kvstream.types.ids import StreamID, Ticket
from kvstream.types.records import Entry

if TYPE_CHECKING:
    from kvstream.queue import Message

T = TypeVar("T")

SCHEDULED, QUEUED, RUNNING, WAITING = "scheduled", "queued", "running", "waiting"
WORKFLOW, HISTORY = "workflow", "history"
"""Parts of the keys of states and histories."""
NUDGE = 10**18
"""The generation of a message which tells a workflow that a child has ended."""
NO_ARGUMENTS = b"[[],{}]"
"""A wake has no arguments: the history has them."""
_TRIES = 50
"""Attempts of a commit that conflicts with other clients."""
_PAGE = 500


@dataclass
class State:
    """What is next for a workflow, and what others need to know of it."""

    status: str
    task: str
    queue: str
    """The key of the stream that its wakes are put into."""
    generation: int = 0
    at_ms: int = 0
    """When it was created."""
    ttl_ms: int = 0
    """How long it is kept after its end."""
    bound: int = 0
    """Events that its history may have."""
    parent: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """The signals that wake it."""
    after: bool = False
    """It has not begun, and waits for the jobs that it depends on."""
    left: int = 0
    """So many children have to end before it is woken; 0: it waits for none."""
    raises: bool = False
    """The first child that fails wakes it."""
    child: str = ""
    """The child that it waits for, if it is only one."""
    ticket: str = ""
    """The delayed wake, if that can be cancelled."""
    why: str = ""
    """What it waits for, as text."""
    lives: int = 0
    """Runs that have ended without a word since the last progress."""
    progress: int = 0
    """``History.progress`` when a run was cut short."""
    attempt: int = 0
    """The delivery of the wake with which the last run has begun."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDS

    def pack(self) -> bytes:
        """Return it as JSON; empty fields are left out."""
        found = {name: value for name, value in vars(self).items() if value}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def of(cls, packed: bytes) -> State:
        """Return a packed state; fields of later versions are left out."""
        found = json.loads(packed)
        return cls(**{name: found[name] for name in found.keys() & _FIELDS})

    def rest(self) -> None:
        """Forget what it has waited for."""
        self.names, self.left, self.raises, self.ticket, self.why = [], 0, False, "", ""
        self.after, self.child = False, ""


_FIELDS = frozenset(State.__dataclass_fields__)


class WorkflowLog:
    """The history, the state and the wakes of one workflow."""

    def __init__(self, jobs: AnyJobs, workflow_id: str) -> None:
        self.jobs, self.id = jobs, workflow_id
        self.store = jobs.store
        self.written = b""
        """The state that was written last through this object, packed."""

    @property
    def stream(self) -> Stream[bytes]:
        """The stream of its history."""
        return self.store.stream(self._history_key)

    @property
    def _history_key(self) -> str:
        return f"{self.jobs.name}:{HISTORY}:{self.id}"

    @property
    def _state_key(self) -> str:
        return f"{self.jobs.name}:{WORKFLOW}:{self.id}"

    # --- reading --------------------------------------------------------------------------------

    def state(self, known: tuple[bytes, State] | None = None) -> State | None:
        """Return the state; None if there is no such workflow.

        ``known``: a packed state and what it is unpacked; then it is not unpacked again.
        """
        packed: bytes | None = self.store.run(strings.get, self._state_key)
        if known is not None and packed == known[0]:
            return known[1]
        return None if packed is None else State.of(packed)

    def entries(self, after: StreamID) -> Iterator[Entry[bytes]]:
        """Yield the events after an ID."""
        return self.stream.scan(after.next(), page=_PAGE)

    def history(self) -> History:
        """Return the whole history."""
        return History().read(self.entries(History().read_to))

    # --- writing, in a transaction --------------------------------------------------------------

    def commit(self, block: Callable[[], T]) -> T:
        """Run a block as one commit, or within this thread's transaction; repeat it on a conflict.

        In a transaction on a server the block reads before it writes.
        """
        if self.store.has_transaction():
            return block()
        for _ in range(_TRIES - 1):
            try:
                with self.store.brief_transaction():
                    return block()
            except Conflict:
                continue
        with self.store.brief_transaction():
            return block()

    def add(self, kind: str, **values: str | bytes) -> None:
        """Add an event."""
        self.stream.add({"event": kind, **values})

    def add_all(self, events: list[tuple[str, Fields]]) -> None:
        """Add events."""
        for kind, values in events:
            self.add(kind, **values)

    def write(self, state: State, expire_at: int = 0) -> None:
        """Replace the state; ``expire_at`` is in Unix milliseconds, 0 for never."""
        self.written = state.pack()
        self.store.run(strings.put, self._state_key, self.written, expire_at)

    def wake(self, state: State, at_ms: int | None = None) -> None:
        """Put the message that makes a worker run the workflow, at a time or now."""
        job = Job(
            *(self.id, state.task, NO_ARGUMENTS, "json", "", self.id),
            headers=state.headers,
            enqueued_ms=state.at_ms,
            generation=state.generation,
        )
        at = None if at_ms is None else at_ms / 1000
        where = self.store.stream(state.queue).add(job.fields(), at=at)
        state.ticket = str(where) if type(where) is Ticket else ""

    def wake_now(self, state: State) -> None:
        """Wake a workflow that waits, instead of at a later time."""
        self._cancel_timer(state)
        state.rest()
        state.status = QUEUED
        self.wake(state)
        self.write(state)

    def _cancel_timer(self, state: State) -> None:
        if state.ticket:
            self.store.stream(state.queue).cancel(state.ticket)

    def record(self, state: State, status: str, outcome: Fields) -> Addition:
        """Return the record of the outcome, for those who wait for it."""
        fields = {"status": status, "task": state.task, **outcome}
        return self.jobs.results.own_key(self.id), fields, state.ttl_ms / 1000

    def end(
        self,
        state: State,
        status: str,
        outcome: Fields,
        is_recorded: bool = False,
        wake: Message | None = None,
    ) -> None:
        """Write the end of the workflow, and let everything of it expire.

        ``is_recorded``: the record of the outcome was written before. ``wake`` is acknowledged.
        """
        self._cancel_timer(state)
        state.rest()
        state.status, state.generation = status, state.generation + 1
        self.write(state, self.store.now_ms() + state.ttl_ms)
        shown = {name: value for name, value in outcome.items() if name in _SHOWN}
        additions: list[Addition] = [
            (self._history_key, {"event": status, **shown}, state.ttl_ms / 1000)
        ]
        if not is_recorded:
            kept = {name: value for name, value in outcome.items() if name != "cause"}
            additions.append(self.record(state, status, kept))
        job = Job(self.id, state.task, NO_ARGUMENTS, enqueued_ms=state.at_ms, generation=0)
        additions += self.jobs.additions_of_end(job, status, str(outcome.get("error", "")))
        if wake is None:
            add_all(self.store, additions)
        else:
            finish([wake], additions)

    def persist(self) -> None:
        """Keep the history; to write the state keeps that."""
        self.store.persist(self.stream.key)


_SHOWN = frozenset({"error", "traceback", "cause"})
"""What the last event has of the outcome, which is a stream of its own."""
