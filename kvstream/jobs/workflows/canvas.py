"""Chains, groups and chords: workflows without a function, made of calls of tasks.

A canvas is plain data, the argument of a built-in workflow, ``kvstream.canvas``, which every worker
has. So it is stored, survives kills and is shown like any workflow: its calls are its children. ::

    call   := {"task": name, "args": {parameter: plain}, "into": parameter | null}
    node   := call | {"chain": [node]} | {"group": [node], "limit": n}
              | {"batch": [node], "limit": n, "on_success": call, "on_complete": call}
              | {"each": name, "chunks": [[{parameter: plain}]], "limit": n}

Results go on as plain data: what a task returns is what the next one gets as its first argument,
loaded by its type hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain as chained
from typing import TYPE_CHECKING, Any

from kvstream.engine.coerce import at_least_1
from kvstream.errors import InvalidArgument, StepFailed, show
from kvstream.jobs.arguments import unpack
from kvstream.jobs.history.child import Child, running_workflow
from kvstream.jobs.history.events import value_fields
from kvstream.jobs.history.links import arguments_of
from kvstream.jobs.job import AnyJobs, Job
from kvstream.jobs.task import Call, Task
from kvstream.jobs.workflows.handle import CANVAS, TOTAL, WorkflowHandle
from kvstream.jobs.workflows.workflow import EVENTS_MAX, WORKFLOW_TTL_S, Workflow
from kvstream.surface import Public

if TYPE_CHECKING:
    from kvstream.stream import Stream

CHUNK = "kvstream.chunk:"
"""The beginning of the name of a built-in task that calls another one many times."""


class Canvas(Public):
    """Calls of tasks that run one after the other, or side by side."""

    _internal = frozenset({"calls", "last_task", "limit", "nodes", "to_plain"})

    def __init__(self, nodes: Iterable[Call | Canvas]) -> None:
        self.nodes = tuple(nodes)
        if not self.nodes:
            raise InvalidArgument(f"{type(self).__name__}() needs at least one call")
        for node in self.nodes:
            if not isinstance(node, Call | Canvas):
                raise InvalidArgument(
                    f"{type(self).__name__}() is made of calls, as task.s(1), not {show(node)}"
                )
        if len({id(call.task.jobs) for call in self.calls()}) > 1:
            raise InvalidArgument(f"{type(self).__name__}() has tasks of two Jobs")

    def calls(self) -> Iterator[Call]:
        """Yield its calls, in order."""
        for node in self.nodes:
            if isinstance(node, Call):
                yield node
            else:
                yield from node.calls()

    def to_plain(self, is_first: bool) -> dict[str, Any]:
        """Return it as plain data; TypeError if arguments do not fit."""
        raise NotImplementedError

    def last_task(self) -> Any:
        """Return the task whose result is that of the canvas; None if it is a list."""
        return None

    def enqueue(self, *, id: str | None = None, **options: Any) -> WorkflowHandle[Any]:
        """Begin it, and return its handle; ``id``, ``delay``, ``at`` and ``priority`` as usual.

        Its queue is that of its first task.
        """
        first = next(self.calls()).task
        given = first.jobs.find_task(CANVAS).with_options(id=id, **options)
        handle = given.enqueue(self.to_plain(True), first.name)
        return WorkflowHandle(first.jobs, handle.id, self.last_task())


def _plain(node: Call | Canvas, is_first: bool) -> dict[str, Any]:
    if isinstance(node, Canvas):
        return node.to_plain(is_first)
    skips = not is_first and not node.is_immutable
    args = node.task.signature.dump_some(node.args, node.kwargs, int(skips))
    into = node.task.signature.names[0] if skips else None
    return {"task": node.task.name, "args": args, "into": into}


class chain(Canvas):
    """Calls one after the other: each gets the result of the one before as its first argument. ::

    chain(fetch.s(url), parse.s(), store.s("pages")).enqueue().result(60)
    """

    def __init__(self, *nodes: Call | Canvas) -> None:
        super().__init__(nodes)

    def to_plain(self, is_first: bool) -> dict[str, Any]:
        parts = [_plain(node, is_first and n == 0) for n, node in enumerate(self.nodes)]
        return {"chain": parts}

    def last_task(self) -> Any:
        last = self.nodes[-1]
        return last.task if isinstance(last, Call) else last.last_task()


class group(Canvas):
    """Calls side by side; the result is the list of theirs, in order. ::

    group([resize.s(p) for p in pictures], limit=10).enqueue()
    """

    def __init__(self, nodes: Iterable[Call | Canvas], *, limit: int | None = None) -> None:
        """``limit``: at most so many run at a time."""
        super().__init__(nodes)
        self.limit = None if limit is None else at_least_1(limit, "limit")

    def to_plain(self, is_first: bool) -> dict[str, Any]:
        return {"group": [_plain(node, is_first) for node in self.nodes], "limit": self.limit}


def chord(calls: group | Iterable[Call | Canvas], callback: Call) -> chain:
    """Return the chain of a group of ``calls`` and ``callback``, which gets their results. ::

    chord([count.s(page) for page in pages], total.s()).enqueue()
    """
    return chain(calls if isinstance(calls, group) else group(calls), callback)


class each(Canvas):
    """A call of a task for each of many items, ``chunk`` of them in one job; a list of results. ::

    each(resize, pictures, chunk=100).enqueue()
    """

    def __init__(
        self,
        task: Task[..., Any],
        items: Iterable[Any],
        *,
        chunk: int = 100,
        limit: int | None = None,
    ) -> None:
        """``limit``: at most so many jobs run at a time."""
        if not isinstance(task, Task):
            raise InvalidArgument(f"each() calls a task, not {show(task)}")
        super().__init__([task.s(item) for item in items])
        self._task, self._chunk = task, at_least_1(chunk, "chunk")
        self._limit = None if limit is None else at_least_1(limit, "limit")

    def to_plain(self, is_first: bool) -> dict[str, Any]:
        dumped = [call.task.signature.dump_some(call.args, {}, 0) for call in self.calls()]
        chunks = [dumped[at : at + self._chunk] for at in range(0, len(dumped), self._chunk)]
        return {"each": self._task.name, "chunks": chunks, "limit": self._limit}


class batch(Canvas):
    """Calls side by side that may fail; the result has their counts. ::

    batch([mail.s(to) for to in users], on_complete=report.s()).enqueue().counts()
    """

    def __init__(
        self,
        nodes: Iterable[Call | Canvas],
        *,
        on_success: Call | None = None,
        on_complete: Call | None = None,
        limit: int | None = None,
    ) -> None:
        """``on_success`` gets the list of results if none has failed.

        ``on_complete`` gets the counts once all have ended: ``{"total": 3, "done": 2, "failed":
        1}``. ``limit``: at most so many run at a time.
        """
        super().__init__(nodes)
        for call in (on_success, on_complete):
            if call is not None and not isinstance(call, Call):
                raise InvalidArgument(f"a callback is a call, as task.s(), not {show(call)}")
        self._on_success, self._on_complete = on_success, on_complete
        self._limit = None if limit is None else at_least_1(limit, "limit")

    def to_plain(self, is_first: bool) -> dict[str, Any]:
        callbacks = {"on_success": self._on_success, "on_complete": self._on_complete}
        plain = {name: call and _plain(call, False) for name, call in callbacks.items()}
        return {
            "batch": [_plain(node, is_first) for node in self.nodes],
            "limit": self._limit,
            **plain,
        }


# --- the built-in workflow ----------------------------------------------------------------------


class CanvasWorkflow(Workflow[..., Any]):
    """The workflow that runs a canvas, in the queue of its first task."""

    def stream_of(self, job: Job, priority: str | None) -> Stream[bytes]:
        first = unpack(job.packed, job.form)[1].get("first")
        return self.jobs.queue_of(self.jobs.tasks.get(first, self)).stream_for(priority)


def canvas_of(jobs: AnyJobs) -> CanvasWorkflow:
    """Return the built-in workflow of a Jobs."""

    def canvas(node: dict[str, Any], first: str, given: list[Any] | None = None) -> Any:
        return _run(workflow, node, given or ())

    workflow = CanvasWorkflow(
        jobs,
        canvas,
        name=CANVAS,
        queue="default",
        limit=None,
        version=1,
        accepts=(),
        max_events=EVENTS_MAX,
        priority=None,
        result_ttl=WORKFLOW_TTL_S,
    )
    return workflow


def chunk_of(jobs: AnyJobs, task: Task[..., Any]) -> Task[..., Any]:
    """Return the built-in task that calls another one for a chunk of items."""
    signature = task.signature

    def chunk(calls: list[Any]) -> list[Any]:
        found = (signature.load([[], call]) for call in calls)
        return [signature.dump_result(task.function(*args, **kwargs)) for args, kwargs in found]

    async def chunk_async(calls: list[Any]) -> list[Any]:
        found = (signature.load([[], call]) for call in calls)
        return [
            signature.dump_result(await task.function(*args, **kwargs)) for args, kwargs in found
        ]

    return Task(
        jobs,
        chunk_async if task.is_async else chunk,
        name=f"{CHUNK}{task.name}",
        queue=task.queue,
        retries=task.retries,
        backoff=task.backoff,
        timeout=None,
        dead_letter=task.dead_letter,
        unique=False,
        priority=task.default_priority,
        result_ttl=task.result_ttl,
    )


def _run(
    workflow: CanvasWorkflow,
    node: Mapping[str, Any],
    given: Sequence[Any],
    rest: Sequence[Mapping[str, Any]] = (),
) -> Any:
    """Run a node in the workflow that calls this; return its result as plain data.

    ``given`` has the result of the node before, or nothing; ``rest`` is what follows in a chain.
    """
    run = running_workflow("a canvas")
    if "chain" in node:
        parts = node["chain"]
        for at, part in enumerate(parts, 1):
            given = [_run(workflow, part, given, parts[at:])]
        return given[0]
    if "group" in node:
        children = (_start(workflow, run, part, given) for part in node["group"])
        return run.gather(children, node.get("limit"), False)
    if "batch" in node:
        return _run_batch(workflow, run, node, given)
    if "each" in node:
        task = workflow.jobs.find_task(f"{CHUNK}{node['each']}")
        if task is None:
            raise InvalidArgument(f"this worker has no task {node['each']}")
        jobs_of_chunks = (run.start_plain(task, {"calls": calls}) for calls in node["chunks"])
        return [*chained.from_iterable(run.gather(jobs_of_chunks, node.get("limit"), False))]
    return run.gather_one(_start(workflow, run, node, given, rest))


def _run_batch(
    workflow: CanvasWorkflow, run: Any, node: Mapping[str, Any], given: Sequence[Any]
) -> dict[str, int]:
    """Run calls that may fail, then the callbacks; return the counts."""
    run.publish(TOTAL, value_fields("value", len(node["batch"]), workflow.jobs.format))
    children = (_start(workflow, run, part, given) for part in node["batch"])
    results = run.gather(children, node.get("limit"), True)
    failed = sum(isinstance(each, StepFailed) for each in results)
    counts = {"total": len(results), "done": len(results) - failed, "failed": failed}
    if node["on_success"] is not None and not failed:
        run.gather_one(_start(workflow, run, node["on_success"], [results]))
    if node["on_complete"] is not None:
        run.gather_one(_start(workflow, run, node["on_complete"], [counts]))
    return counts


def _start(
    workflow: CanvasWorkflow,
    run: Any,
    node: Mapping[str, Any],
    given: Sequence[Any],
    rest: Sequence[Mapping[str, Any]] = (),
) -> Child[Any]:
    """Start a node of a group as a child: a job, or a canvas of its own."""
    if "task" not in node:
        args = (dict(node), _first_task(node), list(given))
        child: Child[Any] = run.start(workflow, {}, args, {})
        return child
    task = workflow.jobs.tasks.get(node["task"])
    if task is None:
        raise InvalidArgument(f"this worker has no task {node['task']}")
    child = run.start_plain(task, arguments_of(node, given), rest)
    return child


def _first_task(node: Mapping[str, Any]) -> str:
    while "task" not in node and "each" not in node:
        node = (node.get("chain") or node.get("batch") or node["group"])[0]
    return str(node.get("task") or node["each"])
