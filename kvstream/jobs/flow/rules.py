"""The rules of flow of a task: which of its jobs run, when, and in which workers.

The rules of delivery (``rate``, ``max_in_flight``, ``max_per_key``, ``fair``) are those of the
task's queue, and the store keeps them. ``debounce`` and ``throttle`` are unique IDs of its messages
(operations/unique.py), so an enqueue that is left out, moved or replaced is one commit. ``expires``
and ``run_if`` are checked by a worker when a try is to begin (unrun.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypedDict

from kvstream.engine.queue_arguments import one_of, rate_of
from kvstream.errors import InvalidArgument, show
from kvstream.jobs.job import Job, to_seconds

Span = float | timedelta
OverLimit = Literal["delay", "skip"]
OF_QUEUE = frozenset({"rate", "max_in_flight", "max_per_key", "fair"})
"""Rules that a queue keeps. Its priorities would each have them, so it has none."""
OF_ENQUEUE = frozenset({"debounce", "max_wait", "throttle", "over_limit", "expires"})
"""Rules that are options of ``enqueue``, too."""


class FlowRules(TypedDict, total=False):
    """The rules of flow of a task, in ``Jobs.task``. Spans are seconds or timedeltas."""

    rate: tuple[int, Span] | None
    """``(100, 60)``: at most 100 runs begin in 60 seconds, in all workers."""
    max_in_flight: int | None
    """At most so many run at a time, in all workers."""
    max_per_key: int | None
    """At most so many of one ``key`` run at a time, in all workers; 1 by default."""
    fair: bool
    """Keys take turns, however many jobs each has."""
    debounce: Span | None
    """A job waits for so long, and a later one of its key takes its place and waits anew."""
    max_wait: Span | None
    """How long after the first of such jobs the last one runs at the latest."""
    throttle: tuple[int, Span] | None
    """``(10, 60)``: at most 10 jobs of a key are admitted in 60 seconds."""
    over_limit: OverLimit
    """What becomes of more: ``"delay"`` (to the next window; the default) or ``"skip"``."""
    expires: Span | None
    """A job that has waited for longer is not run; it ends as ``expired``."""
    run_if: Callable[..., Any] | str | None
    """A function of the arguments: True runs the job, False skips it, a timedelta puts it off."""
    pool: str | None
    """The jobs are for the workers that name this pool alone."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for rules of ``enqueue`` that cannot hold."""
    if options.get("debounce") is not None:
        if options.get("throttle") is not None:
            raise InvalidArgument("a job is debounced or throttled, not both")
        if to_seconds(options["debounce"], "debounce") <= 0:
            raise InvalidArgument("debounce must be above 0")
    elif options.get("max_wait") is not None:
        raise InvalidArgument("max_wait goes with debounce")
    if options.get("throttle") is not None:
        count, ms = rate_of(options["throttle"])
        if not count or not ms:
            raise InvalidArgument("throttle is a count and seconds, both above 0: (10, 60)")
    if options.get("over_limit") is not None:
        one_of(options["over_limit"], ("delay", "skip"), "over_limit")
        if options.get("throttle") is None:
            raise InvalidArgument("over_limit goes with throttle")
    for name in ("expires", "max_wait"):
        if options.get(name) is not None:
            to_seconds(options[name], name)


def refuse_for_cron(flow: Flow, unique: bool | str, name: str) -> None:
    """Raise InvalidArgument for rules of an enqueue: the store adds the messages of a schedule."""
    for rule in ("debounce", "throttle"):
        if rule in flow.defaults:
            raise InvalidArgument(
                f"{rule} does not go with cron, whose times are fixed: give it where {name} is "
                f"enqueued, with_options({rule}=...)"
            )
    if unique:
        raise InvalidArgument(
            f"unique does not go with cron: give {name} max_in_flight=1, so that one runs at a "
            "time, and expires=, so that one that has waited for so long is left out"
        )


class Flow:
    """The rules of one task."""

    def __init__(self, rules: Mapping[str, Any]) -> None:
        unknown = rules.keys() - FlowRules.__annotations__.keys()
        if unknown:
            raise TypeError(f"a task has no option {show(min(unknown))}")
        given = {name: value for name, value in rules.items() if value is not None}
        self.pool = given.get("pool")
        """The queue that only workers of this pool serve; None: any worker does."""
        if self.pool is not None and not (isinstance(self.pool, str) and self.pool):
            raise InvalidArgument(f"pool is the name of a queue, not {show(self.pool)}")
        self.limits = {name: given[name] for name in OF_QUEUE & given.keys()}
        self.defaults = {name: given[name] for name in OF_ENQUEUE & given.keys()}
        check_options(self.defaults)
        self._run_if: Any = given.get("run_if")
        if not (self._run_if is None or callable(self._run_if) or isinstance(self._run_if, str)):
            raise InvalidArgument(f"run_if is a function or its name, not {show(self._run_if)}")

    def expires_s(self, options: Mapping[str, Any]) -> float | None:
        """Return for how long a job may wait after it is due; None: for ever."""
        expires = options.get("expires", self.defaults.get("expires"))
        return None if expires is None else to_seconds(expires, "expires")

    def admits(self, job: Job) -> Any:
        """Ask ``run_if`` whether a job may run: True, False, or a delay; perhaps an awaitable."""
        if self._run_if is None:
            return True
        condition = self._run_if
        if isinstance(condition, str):
            function = inspect.unwrap(job.task.function)
            condition = getattr(function, "__globals__", {}).get(condition)
            if not callable(condition):
                raise InvalidArgument(
                    f"run_if of {job.task_name} is no function of its module: {self._run_if}"
                )
        return condition(*job.args, **job.kwargs)


NO_RULES = Flow({})


class OfMessage(NamedTuple):
    """What the rules of flow make of a job's message: its unique ID, and options of a put."""

    unique: str | None
    options: dict[str, Any]


def put_options(
    flow: Flow, options: Mapping[str, Any], task: str, key: str | None, unique: str | None
) -> OfMessage:
    """Return the unique ID of a job's message and its options, by the rules and the options.

    Without a unique ID of its own, the jobs of a task and key are debounced together.
    """
    rules = {**flow.defaults, **options}
    plain = {name: value for name, value in options.items() if name not in OF_ENQUEUE}
    debounce, throttle = rules.get("debounce"), rules.get("throttle")
    if debounce is None and throttle is None:
        return OfMessage(unique, plain)
    check_options(rules)
    taken = {"delay", "at", "window", "on_conflict"} if debounce else {"window", "on_conflict"}
    for name in taken & plain.keys():
        if plain[name] is not None:
            raise InvalidArgument(f"{name} does not go with debounce and throttle")
    name = f"{task}:{key or ''}"
    if debounce is not None:
        rule = {"delay": debounce, "on_conflict": "debounce", "max_wait": rules.get("max_wait")}
        return OfMessage(unique or f"debounce:{name}", {**plain, **rule})
    if unique is not None:
        raise InvalidArgument("throttle does not go with unique: give it a key")
    how = "skip" if rules.get("over_limit") == "skip" else "throttle"
    return OfMessage(f"throttle:{name}", {**plain, "window": throttle, "on_conflict": how})


def kept_for(options: Mapping[str, Any]) -> Any:
    """Return for how long a unique name is kept whose job may have ended: the time of a window."""
    window = options.get("window")
    if options.get("on_conflict") == "throttle":  # no job is left out
        return None
    return window[1] if isinstance(window, tuple | list) else window


# --- pools --------------------------------------------------------------------------------------


def queues_of_pools(tasks: Iterable[Any], names: Sequence[str]) -> list[str]:
    """Return the queues that a worker serves: of the names of queues and pools, if it has some.

    Without names it serves the queues of no pool.
    """
    pools: dict[str | None, list[str]] = {}
    pool_of: dict[str, str | None] = {}
    for task in tasks:
        if pool_of.setdefault(task.queue, task.flow.pool) != task.flow.pool:
            raise InvalidArgument(
                f"{task.name} and another task give the queue {task.queue} two pools: give it "
                "another queue="
            )
        pools.setdefault(task.flow.pool, []).append(task.queue)
    if isinstance(names, str):
        raise InvalidArgument(f"queues are a list of names, not {show(names)}")
    wanted = [queue for name in names for queue in pools.get(name, [name])]
    if not names and None not in pools:
        known = ", ".join(str(pool) for pool in pools)
        raise InvalidArgument(f"all tasks are of pools: name one with --pool, of {known}")
    return list(dict.fromkeys(wanted if names else pools[None]))
