"""Actions on dead letters: redrive, delete, and the end of a redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstream.console.actions.plan import Plan, ids_of, name_in, still_there
from kvstream.console.actions.rules import rate_in, span_text
from kvstream.console.command_lines import Part
from kvstream.console.failures import LETTERS, TASK, kind_of, letters_of
from kvstream.console.reading import read_slice
from kvstream.console.values import raw_of
from kvstream.errors import InvalidArgument
from kvstream.operations.queues.redrive import STEP_LETTERS, State
from kvstream.operations.queues.redrive import move as redrive_letters
from kvstream.queue import Queue
from kvstream.types.formatting import duration, number, plural, printable
from kvstream.types.ids import StreamID, range_end, range_start

if TYPE_CHECKING:
    from kvstream.console.view import View

FILTERED = 500
"""The newest dead letters of a time that one action looks at, and changes."""
TRIED_MAX, TRIED_BYTES = 10_000, 40_000_000
"""Dead letters of a stream, and about how many bytes of them, that a dry run of all reads for a
preview."""
SAMPLE = 5
"""The newest letters, which tell how large the others are."""


class _Choice(NamedTuple):
    """Dead letters that an action is for."""

    ids: list[StreamID] | None
    """The letters; None: all that are there, or all of ``task``."""
    task: bytes = b""
    """The task of which letters are moved, if ``ids`` is None; empty: any."""
    keep: dict[str, str] | None = None
    """What makes the action have the letters of the preview, while more arrive."""
    has_more: bool = False
    """Whether older letters were not looked at."""


def _chosen(view: View, stream: bytes) -> _Choice:
    """Return the chosen letters: by ID, by the kind of error, by time, by task, or all.

    Letters of a kind or of a time are searched from ``upto`` or ``until`` back.
    """
    kind, task = view.name("kind"), raw_of(view.asked("task").strip())
    if view.value(TASK, task) != task:
        raise InvalidArgument("the tasks are hidden, so letters are not chosen by them")
    since, until = view.asked("since").strip(), view.asked("until").strip() or view.asked("upto")
    if not (kind or since or until):
        return _Choice(None, task) if view.asked("all") else _Choice(ids_of(view))
    first = range_start(since or "-", lambda: view.now_ms)
    bound = str(range_end(until, lambda: view.now_ms)) if until else ""
    found, has_more = read_slice(view.store.stream(stream), bound, LETTERS if kind else FILTERED)
    letters = [each for each in letters_of(found) if each.id >= first]
    ids = [
        each.id
        for each in letters
        if kind in (b"", kind_of(each)) and task in (b"", each.fields.get(TASK))
    ]
    times = {"since": str(first)} if since else {}
    times |= {"until": str(found[0].id)} if found else {}
    return _Choice(ids, task, times, has_more and not kind and found[-1].id > first)


class _Preview(NamedTuple):
    """What a redrive would move."""

    moved: int
    where: str = ""
    skipped: int = 0
    is_known: bool = True


def _preview(queue: Queue, chosen: _Choice, length: int) -> _Preview:
    """Make a dry run; of all letters only up to a bound, and else ``length`` is the most."""
    if chosen.ids is None and not _may_be_tried(queue, length):
        return _Preview(length, is_known=False)
    if chosen.ids == [] or not length:
        return _Preview(0)
    where = (TASK, chosen.task) if chosen.ids is None and chosen.task else None
    dry = queue.redrive(*(chosen.ids or ()), where=where, dry_run=True)
    to = ", ".join(f"{count:,} to {printable(name)}" for name, count in dry.streams.items())
    return _Preview(dry.moved, to, dry.skipped)


def _may_be_tried(queue: Queue, length: int) -> bool:
    """Return whether a dry run of all letters is bounded."""
    if length > TRIED_MAX:
        return False
    newest = queue.dead_stream().revrange(count=SAMPLE)
    size = sum(len(part) for each in newest for part in each.flat)
    return length * size <= TRIED_BYTES * max(1, len(newest))


def redrive(view: View) -> Plan:
    """Plan to move dead letters back, at a rate if one is given; a dry run says what it does."""
    stream = name_in(view, "stream")
    chosen, queue = _chosen(view, stream), Queue(view.store, stream, dead_letter=stream)
    length, asked = len(view.store.stream(stream)), view.asked("rate").strip()
    rate, seen = _rate(asked) if asked else None, _preview(queue, chosen, length)
    return Plan(
        action="redrive",
        title="Redrive dead letters",
        text=_text(chosen, seen, length) + (_pace(rate, seen.moved) if rate else ""),
        target=stream,
        command=view.command("dead redrive", stream, *_options(chosen, asked)),
        run=lambda _: _redrive(queue, stream, chosen, rate),
        back=view.url("dead", stream),
        count=seen.moved,
        goes_on=chosen.ids is None or rate is not None,
        keep=chosen.keep or {},
        facts={
            "ids": "all" if chosen.ids is None else [str(each) for each in chosen.ids[:20]],
            **({"task": printable(chosen.task)} if chosen.task else {}),
            **({"rate": asked} if asked else {}),
            **({} if seen.is_known else {"count": "at most"}),
        },
    )


def _text(chosen: _Choice, seen: _Preview, length: int) -> str:
    """Return the sentences of the preview."""
    to = f" ({seen.where})" if seen.where else " to the streams that they come from"
    letters = plural(seen.moved, "dead letter")
    if not seen.is_known:
        of = f" of the task {printable(chosen.task)}" if chosen.task else ""
        letters = f"up to {letters}{of}, too many to be tried out here,"
    text = f"This moves {letters} back{to}. Each gets a new ID and starts with no deliveries."
    if seen.skipped:
        text += f" {plural(seen.skipped, 'entry')} would stay: they name no stream to go to."
    if chosen.has_more:
        text += f" There are older ones: these are among the newest {FILTERED}."
    return text + (f" There are {number(length)} in all." if chosen.task or chosen.keep else "")


def _rate(asked: str) -> tuple[int, int]:
    """Return a rate; InvalidArgument if one step of a redrive cannot move so many."""
    count, ms = rate_in(asked)
    if count > STEP_LETTERS:
        same = f"{STEP_LETTERS}/{span_text(max(1, ms * STEP_LETTERS // count))}"
        raise InvalidArgument(
            f"a redrive at a rate moves at most {STEP_LETTERS} letters at a time, not {count:,}: "
            f"write {same}, which is as fast"
        )
    return count, ms


def _pace(rate: tuple[int, int], count: int) -> str:
    """Return how long a redrive takes at a rate."""
    most, ms = rate
    lasts = duration(max(0, -(-count // most) - 1) * ms)
    return (
        f" At most {number(most)} in {duration(ms)}, the first ones at once: in all it takes "
        f"{lasts}. In a directory it goes on while a program has it open."
    )


def _options(chosen: _Choice, rate: str) -> list[Part]:
    """Return the letters, and the rate, as the command takes them."""
    options: list[Part] = [("--rate", rate.encode())] if rate else []
    if chosen.ids is not None:
        return [*options, *chosen.ids]
    return [*options, ("--where", TASK + b"=" + chosen.task) if chosen.task else "--all"]


def _redrive(queue: Queue, stream: bytes, chosen: _Choice, rate: tuple[int, int] | None) -> None:
    """Move letters in the commit of the audit: chosen ones all, of many the first step."""
    status = queue.redrive_status()
    if status is not None and status.state == State.RUNNING:
        raise InvalidArgument("a redrive of these dead letters runs: wait for it, or stop it")
    where = (TASK, chosen.task) if chosen.ids is None and chosen.task else None
    queue.store.run(redrive_letters, stream, chosen.ids, where=where, rate=rate)


def cancel_redrive(view: View) -> Plan:
    """Plan to stop the redrive that runs."""
    stream = name_in(view, "stream")
    queue = Queue(view.store, stream, dead_letter=stream)
    status = queue.redrive_status()
    is_running = status is not None and status.state == State.RUNNING
    return Plan(
        action="cancel-redrive",
        title="Stop the redrive",
        text="What was moved stays moved." if is_running else "No redrive runs.",
        target=stream,
        command=view.command("dead cancel", stream),
        run=lambda _: queue.cancel_redrive(),
        back=view.url("dead", stream),
        count=int(is_running),
    )


def delete_letters(view: View) -> Plan:
    """Plan to delete dead letters for good."""
    stream = name_in(view, "stream")
    found = view.store.stream(stream)
    chosen = still_there(found, _chosen(view, stream).ids or [])
    return Plan(
        action="delete-letters",
        title="Delete dead letters",
        text=f"This deletes {plural(len(chosen), 'dead letter')} for good.",
        target=stream,
        command=view.command("del", stream, *chosen),
        run=lambda _: found.delete(*chosen),
        back=view.url("dead", stream),
        count=len(chosen),
        typed=stream,
        facts={"ids": [str(each) for each in chosen[:20]]},
    )
