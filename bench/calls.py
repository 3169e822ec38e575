"""Calls of Python functions and allocations on hot paths: ``python -m bench calls``.

A count does not depend on the machine's load, so it shows what a change costs before a stopwatch
can. The counts are those of the compiled twins. ``calls.json`` has the expected ones; a path that
needs more than SLACK above them fails. Server rows count the bytes of a request until those of its
reply, without a socket; a cycle is a pipeline of XADD and XREADGROUP by turns, then one of XACK.
"""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

import click

from bench.commands import RELEASE, THREE_CALLS, sha1_of
from bench.machine.allocations import AllocationCounter, CompilerMissing
from bench.processes import framed
from kvstream import Message, Queue, Store, StreamID
from kvstream.engine.engine import Engine
from kvstream.jobs import Job, Jobs
from kvstream.jobs.execution import finish, job_of
from kvstream.jobs.results import SHARED_STREAMS
from kvstream.queue import take
from kvstream.resp.requests import RequestReader
from kvstream.server.commands import TABLE
from kvstream.server.compiled import twins
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import Executor
from kvstream.server.runtime.loop import NoLoop
from kvstream.types.clock import ManualClock
from kvstream.types.options import StoreOptions

SLACK = 0.15
"""The share above the expected numbers that is no failure: to extract a function must not fail."""
EXPECTED = Path(__file__).with_name("calls.json")
REPEATS = 5
WARM_UPS = 3
PIPELINED = 16
REQUESTS = {
    "PING": "PING",
    "GET": "GET k",
    "SET": "SET k v",
    "INCR": "INCR n",
    "XADD": "XADD added * f v",
    "XLEN": "XLEN s",
    "XRANGE": "XRANGE s - + COUNT 1",
    "XREAD": "XREAD COUNT 1 STREAMS s 1",
    "XREADGROUP": "XREADGROUP GROUP g c COUNT 1 STREAMS s >",
    "XACK": "XACK s g {}-1",
    "XDEL": "XDEL deleted {}-1",
    "XPENDING": "XPENDING s g",
    "XINFO STREAM": "XINFO STREAM s",
    "XINFO GROUPS": "XINFO GROUPS s",
    "EVALSHA, a release": f"EVALSHA {sha1_of(RELEASE)} 1 k other",
    "EVALSHA, three calls": f"EVALSHA {sha1_of(THREE_CALLS)} 2 k n v",
    "MULTI of 10 INCR": "; ".join(("MULTI", *[f"INCR c{{0}}:{at}" for at in range(10)], "EXEC")),
}
"""The words of requests; ``{}`` is a number that rises by one."""
ENTRIES = 4 * (WARM_UPS + REPEATS) * (1 + PIPELINED)
"""As many as all requests of one row need, twice: calls and allocations are counted apart."""


class Calls(NamedTuple):
    """The calls of Python functions of kvstream, and how many modules have these functions."""

    calls: int
    modules: int


class Cost(NamedTuple):
    """What one call costs."""

    calls: int
    modules: int
    allocations: int
    """Requests to Python's allocators."""
    kept: int = 0
    """Blocks that stay allocated. Not gated: what lists and dicts had left decides over a few."""


EXPECTED_FIELDS = Cost._fields[:3]
NO_COST = Cost(0, 0, 0)
Counts = dict[str, Cost]
Step = tuple[str, Callable[[], Any], Callable[[Any], object]]
"""A row's name, what prepares one call, and the call itself, which gets what that returned."""


def count_calls(function: Callable[[], object]) -> Calls:
    """Call a function; return what it and its callees have called in this thread."""
    calls, modules = 0, set[str]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("kvstream."):
            calls += 1
            modules.add(module)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return Calls(calls, len(modules))


def measure(folder: Path) -> Counts:
    """Return the smallest counts of several calls of each step, a millisecond apart.

    Of the blocks that a call has kept the median is returned: some calls free what others kept.
    """
    clock = ManualClock()
    allocations = AllocationCounter(folder)
    counts: Counts = {}
    for steps in (_requests, _library, _jobs):
        for name, prepare, call in steps(folder / steps.__name__, clock):

            def prepared(
                prepare: Callable[[], Any] = prepare, call: Callable[[Any], object] = call
            ) -> Callable[[], object]:
                clock.advance(1)
                argument = prepare()
                clock.advance(1)
                return partial(call, argument)

            calls, allocated = [], []
            for _ in range(WARM_UPS + REPEATS):
                calls.append(count_calls(prepared()))
                allocated.append(allocations.count(prepared()))
            made, kept = zip(*allocated[WARM_UPS:], strict=True)
            counts[name] = Cost(*min(calls[WARM_UPS:]), min(made), int(median(kept)))
    return counts


class _Transport:
    """The transport of a client that reads its replies at once."""

    def __init__(self, replies: deque[bytes]) -> None:
        self.send = replies.append

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def pending_output(self) -> int:
        return 0

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class _Timed(NoLoop):
    """Runs an executor on a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def clock(self) -> float:
        return self._clock.now_ms() / 1000


def _requests(folder: Path, clock: ManualClock) -> Iterator[Step]:
    """Yield requests of one client, alone and in pipelines."""
    engine = Engine(folder, StoreOptions(), clock)
    executor = Executor(engine, TABLE, ServerOptions(), _Timed(clock))
    replies: deque[bytes] = deque(maxlen=1)
    client = Client(executor, 1, RequestReader(), _Transport(replies), 0.0)
    client.pages = True
    executor.add(client)
    numbers = count(1)

    def encode(words: str, size: int = 1) -> bytes:
        requests = (words.format(next(numbers)) for _ in range(size))
        return b"".join(framed(*each.split()) for unit in requests for each in unit.split("; "))

    def run(requests: bytes) -> None:
        """Parse what has arrived at once, and run it."""
        executor.receive(client, requests)
        while executor.run():
            pass

    for number in range(1, ENTRIES + 1):
        run(encode(f"XADD s {number}-1 f v") + encode(f"XADD deleted {number}-1 f v"))
    run(encode("SET k v") + encode("XGROUP CREATE s g 0") + encode("XGROUP CREATE q g 0 MKSTREAM"))
    for script in (RELEASE, THREE_CALLS):
        run(framed("SCRIPT", "LOAD", script))
    run(encode(f"XREADGROUP GROUP g c COUNT {ENTRIES // 2} STREAMS s >"))
    for name, words in REQUESTS.items():
        numbers = count(1)
        yield name, partial(encode, words), run
        yield f"{name}, -P {PIPELINED}", partial(encode, words, PIPELINED), run

    def encode_cycle(size: int) -> tuple[bytes, bytes]:
        """Encode XADD and XREADGROUP by turns, and the XACKs of what they add and read."""
        now_ms = clock.now_ms() + 1  # when they run
        acks = [framed("XACK", "q", "g", f"{now_ms}-{number}") for number in range(size)]
        read = "XREADGROUP GROUP g c COUNT 1 STREAMS q >"
        return (encode("XADD q * f v") + encode(read)) * size, b"".join(acks)

    def cycle(requests: tuple[bytes, bytes]) -> None:
        for each in requests:
            run(each)

    yield "cycle", partial(encode_cycle, 1), cycle
    yield f"cycle, -P {PIPELINED}", partial(encode_cycle, PIPELINED), cycle
    replies.clear()
    run(encode("XPENDING q g"))
    assert [*replies] == [b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"], "a cycle has acknowledged nothing"
    engine.close()


def _library(folder: Path, clock: ManualClock) -> Iterator[Step]:
    """Yield the calls of a program that adds and reads, has a group, and has a queue."""
    with Store.open(folder, clock=clock) as store:
        stream = store.stream("s")
        first = stream.add({"f": "v"})
        group = stream.create_group("g", "0")
        consumer = group.consumer("c")
        fields = {"f": "v"}
        yield "Stream.add", _nothing, lambda _: stream.add(fields)
        yield "Stream.get", _nothing, lambda _: stream.get(first)
        yield "Stream.range", _nothing, lambda _: stream.range(count=10)
        yield "Consumer.read", partial(stream.add, fields), lambda _: consumer.read()

        def read() -> StreamID:
            stream.add(fields)
            return consumer.read()[-1].id

        yield "Group.ack", read, group.ack
        queue = Queue(store, "q", lease=60)
        yield "Queue.put", _nothing, lambda _: queue.put(fields)
        yield "Queue.get", partial(queue.put, fields), lambda _: queue.get()
        yield "Message.ack", lambda: queue.get()[0], Message.ack
        queue.purge()
        yield "Queue.get of an empty queue", _nothing, lambda _: queue.get()


def _jobs(folder: Path, clock: ManualClock) -> Iterator[Step]:
    """Yield the calls of a program with jobs, in the test mode, which runs them in this thread."""
    jobs = Jobs(folder)
    task = jobs.task(_job)
    with jobs.test() as testing:
        _make_result_streams(jobs)

        def enqueue(_: object = None) -> None:
            with testing.held():
                task.enqueue()

        yield "Jobs: enqueue", testing.run, enqueue
        yield "Jobs: take, run and finish", enqueue, lambda _: testing.run()
        yield "Jobs: look for a job, none is there", testing.run, lambda _: testing.run()

        def take_job() -> Job | None:
            (message,) = take(jobs.queues())
            return job_of(jobs, message)

        def begin() -> Job | None:
            enqueue()
            return take_job()

        yield "Jobs: take", enqueue, lambda _: take_job()
        yield "Jobs: finish", begin, lambda job: finish(jobs, [job])


def _make_result_streams(jobs: Jobs) -> None:
    """Make the streams that results share, as after some thousands of jobs."""
    for key in {jobs.results.shared_key(str(number)) for number in range(16 * SHARED_STREAMS)}:
        jobs.store.stream(key).add({"id": "", "status": "done"})
        jobs.results.note_shared(key)
    jobs.results.set_rules()


def _job() -> None:
    """Run as a job."""


def _nothing() -> None:
    """Prepare nothing."""


def excesses(counts: Counts, expected: Counts) -> list[str]:
    """Return a line for each figure that is more than SLACK above the expected one, or unknown."""
    found = []
    for name, cost in counts.items():
        known = expected.get(name, NO_COST)
        for what, value, limit in zip(EXPECTED_FIELDS, cost, known, strict=False):
            if value > limit * (1 + SLACK):
                found.append(f"{name}: {value} {what}, expected {limit}")
    return found


def read_expected(file: Path = EXPECTED) -> Counts:
    """Return the expected counts."""
    return {name: Cost(*each) for name, each in json.loads(file.read_text()).items()}


@click.command()
@click.option("--write", is_flag=True, help="Write the counts as the expected ones.")
@click.option(
    "--file", default=EXPECTED, type=click.Path(path_type=Path), help="The expected counts."
)
def calls(write: bool, file: Path) -> None:
    """Count calls and allocations on hot paths; fail if there are many more than before."""
    if twins is None:
        raise click.ClickException("the counts need the compiled twins: set up with a C compiler")
    with TemporaryDirectory(prefix="kvstream-calls-") as folder:
        try:
            counts = measure(Path(folder))
        except CompilerMissing as missing:
            raise click.ClickException(str(missing)) from None
    if write:
        lines = [f"  {json.dumps(name)}: {list(each[:-1])}" for name, each in counts.items()]
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    expected = read_expected(file)
    heads = "".join(f" {what:>12} expected" for what in EXPECTED_FIELDS)
    click.echo(f"{'':36}{heads}  blocks kept")
    for name, cost in counts.items():
        both = zip(cost[:-1], expected.get(name, NO_COST)[:-1], strict=True)
        shown = "".join(f" {found:12} {known:8}" for found, known in both)
        click.echo(f"{name:36}{shown} {cost.kept:12}")
    if too_many := excesses(counts, expected):
        raise click.ClickException("\n".join(["more than expected:", *too_many]))
