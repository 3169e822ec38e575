"""The history of a workflow: its events, and the state that they build.

An event is an entry of the workflow's stream, so ``kvstream range`` shows it. The run that executes
the workflow writes most events; signals and the ends of children are written by others. The calls
of a workflow's function are numbered from 1 (``seq``), so that a later run finds for each call what
became of it::

    begun      task version args [due]          the first event; due: when it begins
    step       seq name digest status from attempt (result | error traceback) [of]
    tried      seq name digest attempt from until error traceback      it is tried again at until
    pause      seq until
    wait       seq name [until]                 a wait for a signal begins
    received   seq [signal]                     and ends: by the signal of that ID, or its timeout
    signal     name value                       of ``send``
    child      seq name digest child [where]    a child is started: its ID, and that of its message
    ended      child status (result | error traceback)
    value      seq name result                  of now, uuid4 and random
    published  [seq] name value
    patched    name
    failing    seq error traceback [cause]      the function has failed, and its steps are undone
    retried    to                               calls from that seq on are forgotten
    done | failed error traceback [cause] | cancelled [error]    the last event

Values are in the format that the field ``format`` names, JSON without it. Times are Unix
milliseconds. The step that undoes another one has the prefix ``undo:``, and ``of`` is the seq of
the last call before ``on_failure``, and ``cause`` that of the step or child whose failure has left
the function. This module does no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kvstream.errors import InvalidArgument, show
from kvstream.jobs.arguments import pack, unpack
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.records import Entry

BEGUN, STEP, TRIED, PAUSE, WAIT, RECEIVED = "begun", "step", "tried", "pause", "wait", "received"
SIGNAL, CHILD, ENDED, VALUE, PATCHED = "signal", "child", "ended", "value", "patched"
PUBLISHED, FAILING, RETRIED = "published", "failing", "retried"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
ENDS = frozenset({DONE, FAILED, CANCELLED})
OF_OTHERS = frozenset({SIGNAL, ENDED})
"""Events that others add while a run executes the workflow."""
UNDO = "undo:"
"""The prefix of the name of a step that undoes another one."""
OPEN = "open"
"""The status of a call that has not ended."""
_CALLS = frozenset({STEP, TRIED, PAUSE, WAIT, CHILD, VALUE, PUBLISHED, FAILING})

Fields = dict[str, str | bytes]


class Event(NamedTuple):
    """One event: its kind, its time, and its other fields."""

    kind: str
    fields: Mapping[str, bytes]
    id: StreamID

    @classmethod
    def of(cls, entry: Entry[bytes]) -> Event:
        fields = {name.decode(): value for name, value in entry.fields.items()}
        return cls(fields.pop("event", b"").decode(), fields, entry.id)

    def text(self, name: str) -> str:
        return self.fields.get(name, b"").decode("utf-8", "backslashreplace")

    def number(self, name: str) -> int:
        value = self.fields.get(name, b"")
        return int(value) if value.isdigit() else 0

    def value(self, name: str) -> Any:
        """Return a packed value as plain data."""
        return unpack(self.fields[name], self.text("format") or "json")


def check_name(name: Any, of: str) -> str:
    """Return the name of a signal, step and so on; InvalidArgument if no event can have it."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"the name of {of} is a text, not {show(name)}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the name of {of} is not valid Unicode: {error}") from None
    return name


def packed_fields(name: str, packed: bytes, form: str) -> Fields:
    """Return the fields of an event that has a packed value."""
    return {name: packed} if form == "json" else {name: packed, "format": form}


def value_fields(name: str, plain: Any, form: str) -> Fields:
    """Return the fields of an event that has plain data; TypeError if the format cannot hold it."""
    return packed_fields(name, pack(plain, form), form)


@dataclass
class Call:
    """What the history says of one call of the function."""

    kind: str
    name: str
    digest: str = ""
    status: str = OPEN
    """OPEN, DONE or FAILED."""
    event: Event | None = None
    """The event that has its outcome."""
    tries: int = 0
    """How often a step has failed and is to be tried again."""
    until_ms: int | None = None
    """When it is tried again, a pause ends, or a wait is given up."""
    from_ms: int = 0
    ended_ms: int = 0
    child: str = ""
    where: str = ""
    """The ID or ticket of the child's message, if that is known."""
    of: int = 0

    @property
    def shown(self) -> str:
        """How the call stands in the code."""
        return {PAUSE: "pause", WAIT: f"wait_for({self.name!r})"}.get(self.kind, self.name)


@dataclass
class History:
    """The state of a workflow, built from its events."""

    begun: Event | None = None
    calls: dict[int, Call] = field(default_factory=dict)
    signals: dict[str, dict[StreamID, Event]] = field(default_factory=dict)
    """The signals that no wait has received, by their names, in order."""
    children: dict[str, Event] = field(default_factory=dict)
    """The ends of children by their IDs, in order."""
    patches: set[str] = field(default_factory=set)
    published: dict[str, Event] = field(default_factory=dict)
    """The last value of each name."""
    end: Event | None = None
    count: int = 0
    """Events so far."""
    progress: int = 0
    """Events of the workflow's own calls so far."""
    read_to: StreamID = MIN_ID
    """The last event that was read from the stream."""
    begun_ms: int = 0
    """When it began, or was last retried by hand."""
    ends_before_failing: int | None = None
    """Ends of children before the function has failed; None if it has not."""
    _taken: dict[int, Event] = field(default_factory=dict)
    """The signals that waits have received, by the seq of the wait."""

    @property
    def last_seq(self) -> int:
        return next(reversed(self.calls), 0)

    def read(self, entries: Iterable[Entry[bytes]]) -> History:
        """Take all events of a stream."""
        for entry in entries:
            self.take(Event.of(entry))
            self.read_to = entry.id
        return self

    def take_new(self, entries: Iterable[Entry[bytes]]) -> bool:
        """Take events of others that came since; return whether there are any.

        The others are those of this run, which has taken them already.
        """
        found = False
        for entry in entries:
            event = Event.of(entry)
            if event.kind in OF_OTHERS:
                self.take(event)
                found = True
            self.read_to = entry.id
        return found

    def take(self, event: Event) -> None:
        """Take one event."""
        self.count += 1
        kind, seq = event.kind, event.number("seq")
        self.progress += seq > 0
        if kind in _CALLS and seq:
            self._take_call(event, seq)
        if kind == BEGUN:
            self.begun, self.begun_ms = event, event.number("due") or event.id.ms
        elif kind == RECEIVED:
            self._receive(event, seq)
        elif kind == SIGNAL:
            self.signals.setdefault(event.text("name"), {})[event.id] = event
        elif kind == ENDED:
            self.children.setdefault(event.text("child"), event)
        elif kind == FAILING:
            self.ends_before_failing = len(self.children)
        elif kind == PATCHED:
            self.patches.add(event.text("name"))
        elif kind == PUBLISHED:
            self.published[event.text("name")] = event
        elif kind == RETRIED:
            self._forget(event.number("to"), event.id.ms)
        elif kind in ENDS:
            self.end = event

    def _take_call(self, event: Event, seq: int) -> None:
        kind = STEP if event.kind == TRIED else event.kind
        call = self.calls.get(seq)
        if call is None:
            call = self.calls[seq] = Call(kind, event.text("name") or kind, event.text("digest"))
            call.from_ms = event.number("from") or event.id.ms
        call.event, call.ended_ms = event, event.id.ms
        call.until_ms = event.number("until") if "until" in event.fields else None
        call.child, call.where = event.text("child"), event.text("where")
        call.of = event.number("of")
        if event.kind == TRIED:
            call.tries += 1
        elif kind == STEP:
            call.status = event.text("status")
        elif kind in (VALUE, PUBLISHED, FAILING):
            call.status = DONE

    def _receive(self, event: Event, seq: int) -> None:
        call = self.calls[seq]
        call.ended_ms = event.id.ms
        if "signal" not in event.fields:
            call.status = FAILED
            return
        taken = self.signals[call.name].pop(StreamID.parse(event.text("signal")))
        call.status, call.event, self._taken[seq] = DONE, taken, taken

    def _forget(self, to: int, now_ms: int) -> None:
        """Forget the calls from a seq on, and how the workflow ended."""
        self.calls = {seq: call for seq, call in self.calls.items() if seq < to}
        for seq in [seq for seq in self._taken if seq >= to]:
            signal = self._taken.pop(seq)
            waiting = {**self.signals[signal.text("name")], signal.id: signal}
            self.signals[signal.text("name")] = dict(sorted(waiting.items()))
        self.end, self.begun_ms = None, now_ms
        if not any(call.kind == FAILING for call in self.calls.values()):
            self.ends_before_failing = None

    # --- questions ------------------------------------------------------------------------------

    def next_signal(self, name: str) -> Event | None:
        """Return the first signal of a name that no wait has received."""
        return next(iter(self.signals.get(name, {}).values()), None)

    def open_children(self) -> list[Call]:
        """Return the calls of the children that have been started and not ended."""
        started = [call for call in self.calls.values() if call.kind == CHILD]
        return [call for call in started if call.child not in self.children]

    def copy(self) -> History:
        """Return a history that changes by itself."""
        return replace(
            self,
            calls={seq: replace(call) for seq, call in self.calls.items()},
            signals={name: dict(waiting) for name, waiting in self.signals.items()},
            children=dict(self.children),
            patches=set(self.patches),
            published=dict(self.published),
            _taken=dict(self._taken),
        )

    def retry_seq(self, from_step: str | None) -> int | None:
        """Return the seq from which a failed workflow goes on; None if no step has that name.

        By default it is that of the step or child whose failure has left the function, or of the
        first that was undone. Without one, the workflow goes on where its own code, or its last
        wait, has failed.
        """
        if from_step is not None:
            named = (seq for seq, call in self.calls.items() if call.name == from_step)
            return min(named, default=None)
        steps = [(seq, call) for seq, call in self.calls.items() if call.kind in (STEP, CHILD)]
        undone = [max(1, call.of) for _, call in steps if call.name.startswith(UNDO)]
        cause = 0 if self.end is None else self.end.number("cause")
        if undone or cause:
            return min([*undone, *([cause] if cause else [])])
        last = self.calls.get(self.last_seq)
        is_last = last is not None and (last.kind == FAILING or last.status == FAILED)
        return self.last_seq + (not is_last)

    def cause_of(self, error: BaseException | None) -> int:
        """Return the seq of the step or child whose failure is, or has led to, an error; or 0."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            event = getattr(error, "_event", None)
            if isinstance(event, Event) and event.kind == STEP:
                return event.number("seq")
            if isinstance(event, Event):
                child = event.text("child")
                return next((seq for seq, call in self.calls.items() if call.child == child), 0)
            error = error.__cause__ or error.__context__
        return 0

    def step_names(self) -> list[str]:
        """Return the names of steps and children, in order."""
        kinds = (STEP, CHILD)
        return [call.name for _, call in sorted(self.calls.items()) if call.kind in kinds]
