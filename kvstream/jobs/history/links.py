"""The links of a chain: the commit that ends a call of a chain also puts the next one.

A run of the canvas starts a child and waits for it. Without more, the end of each child would wake
the canvas, whose run would start the next child: three commits and a delivery for each link. So a
child of a chain has the calls that follow it in its message, in the field ``then``::

    then := the seq of the child, and the next calls, as the canvas has them, of AHEAD_BYTES at most

The commit that ends the child with a result adds what that run would: the end of the child, the
event ``child`` with the next seq, and the message of the next child. The canvas waits on, now for
that one. Its next run replays these events as its own, so it checks names and arguments.

The state of the canvas decides (``State.child``): it must wait for this child and no other. So a
canvas that was cancelled, that has failed or that another child has taken further is not gone on
with, and a child that is delivered twice ends once. All else leads to a run of the canvas: a child
that fails, a task that this worker does not have, a group or chord in the chain, a message that a
server may refuse, and calls beyond AHEAD_BYTES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstream.jobs.arguments import pack, unpack
from kvstream.jobs.history.events import CHILD, Fields
from kvstream.types.ids import StreamID, Ticket

if TYPE_CHECKING:
    from kvstream.jobs.history.log import State, WorkflowLog
    from kvstream.jobs.job import AnyJobs, Job

PlainCall = Mapping[str, Any]
"""A call of a task in a canvas: its name, arguments, and the parameter that gets a result."""
AHEAD_BYTES = 4096
"""Most bytes of the calls in a message: each link carries what follows it."""
LARGE_MESSAGE = 900_000
"""Bytes of arguments above which a server may refuse the message (stream-entry-max-bytes)."""


class Link(NamedTuple):
    """The next child of a chain, to be put by the commit that ends the one before."""

    job: Job
    fields: Fields
    """Those of the event that says that it was started."""


def arguments_of(call: PlainCall, given: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; ``given`` has the result before it, or nothing."""
    into = call.get("into")
    return dict(call["args"]) if into is None or not given else {into: given[0], **call["args"]}


def pack_rest(seq: int, rest: Sequence[PlainCall], form: str) -> bytes:
    """Return the field ``then`` of the child ``seq``; empty if a run of the canvas goes on."""
    calls: list[PlainCall] = []
    size = 0
    for call in rest:
        size += len(pack(call, form)) if "task" in call else AHEAD_BYTES
        if size >= AHEAD_BYTES:
            break
        calls.append(call)
    return pack([seq, calls], form) if calls else b""


def prepare_link(jobs: AnyJobs, job: Job) -> None:
    """Make the next child of a chain, since a child of it has returned its result.

    It calls middleware, so it belongs to the run of the child, and to no commit. If it fails, the
    run of the canvas does so again, and says why.
    """
    try:
        seq, calls = unpack(job.then, job.form)
        call, rest = calls[0], calls[1:]
        task = jobs.tasks[call["task"]]
        packed_result = pack(job.task.signature.dump_result(job.result), jobs.format)
        packed = task.pack_plain(arguments_of(call, [unpack(packed_result, jobs.format)]))
        if jobs.store.own_engine is None and len(packed) > LARGE_MESSAGE:
            return
        following = task.new_packed_job(packed, {})
        task.check_child({})
        following.parent = job.parent
        following.then = pack([seq + 1, rest], jobs.format) if rest else b""
        digest = task.digest_of(packed)
    except Exception:  # a message of any program, code of middleware, a task of other workers
        return
    fields: Fields = {"seq": str(seq + 1), "name": task.name, "digest": digest}
    job.link = Link(following, {**fields, "child": following.id})


def go_on(log: WorkflowLog, state: State, link: Link) -> None:
    """Put the next child, for which the canvas waits from now on, in the open transaction."""
    where = link.job.task.put_child(link.job, {})
    place = {"where": str(where)} if isinstance(where, StreamID | Ticket) else {}
    log.add(CHILD, **link.fields, **place)
    state.child = link.job.id
    log.write(state)
