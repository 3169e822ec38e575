"""Random workflows with kills, signals and cancels at random moments, against what they must do.

The test mode runs them by its clock, on each kind of place; a kill ends the worker at one of its
commits. With KVSTREAM_CRASH_ROUNDS there are so many times more of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstream import Jobs
from kvstream.jobs import (
    current_job,
    gather,
    now,
    pause,
    step,
    wait_for,
)
from tests.crash.rounds import rounds
from tests.jobs.placed_testing import PlacedTesting
from tests.jobs.test_workflow_replays import LEASE_S, Mortal

OPS = ("step", "book", "pause", "wait", "child", "children", "flaky", "now")
PROGRAMS = st.lists(st.sampled_from(OPS), max_size=6)


class Flows(RuleBasedStateMachine):
    """Workflows that run a program of calls each, in a directory."""

    place = "directory"

    def __init__(self) -> None:
        super().__init__()
        self.jobs = Jobs("nowhere")
        self.did: list[tuple[str, int]] = []
        self.handles: dict[str, tuple[Any, list[str]]] = {}
        self.cancelled: set[str] = set()
        self._define()
        self._enter()

    def _enter(self) -> None:
        self.testing = self.jobs.test().__enter__()
        mortal = Mortal(self.testing)
        self._check: Callable[[], Sequence[object]] = self.jobs.store.check
        self._run_and_die: Callable[[int, bool], bool] = lambda commits, _: mortal.run(commits)

    def _define(self) -> None:
        jobs, did = self.jobs, self.did

        def note(name: str, at: int) -> int:
            did.append((name, at))
            return at

        def book(name: str, at: int) -> int:
            note(name, at)
            with current_job().transaction() as store:
                store.stream("booked").add({"of": f"{name} {at}"})
                current_job().result = at
            return at

        def flaky(name: str, at: int) -> int:
            note(name, at)
            if did.count((name, at)) % 2:
                raise ValueError("odd")
            return at

        @jobs.task(retries=3, backoff=0)
        def child(name: str, at: int) -> int:
            return note(name, at)

        @jobs.workflow
        def flow(name: str, program: list[str]) -> list[Any]:
            found: list[Any] = []
            for at, op in enumerate(program):
                if op == "step":
                    found.append(step(note, name, at))
                elif op == "book":
                    found.append(step(book, name, at))
                elif op == "flaky":
                    found.append(step.with_options(retries=50, backoff=2)(flaky, name, at))
                elif op == "pause":
                    found.append(pause(at))
                elif op == "wait":
                    found.append(wait_for("go"))
                elif op == "child":
                    found.append(child.run(name, at))
                elif op == "now":
                    found.append(now() <= now())
                else:
                    found += gather((child.start(name, at) for _ in range(3)), limit=2)
            return found

        self.flow = flow

    @rule(program=PROGRAMS)
    def begin(self, program: list[str]) -> None:
        name = f"flow:{len(self.handles)}"
        with self.testing.held():
            handle = self.flow.with_options(id=name).enqueue(name, program)
        self.handles[name] = handle, program

    @rule(commits=st.integers(0, 12), writes_last=st.booleans())
    def run_and_die(self, commits: int, writes_last: bool) -> None:
        """Run until the worker dies; ``writes_last``: after a write, of which it gets no reply."""
        self._run_and_die(commits, writes_last)

    @rule(seconds=st.sampled_from([0, 1, 3, LEASE_S]))
    def turn(self, seconds: int) -> None:
        self.testing.turn(seconds)

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        if self.handles:
            name = data.draw(st.sampled_from([*self.handles]))
            with self.testing.held():
                self.handles[name][0].send("go", "!")

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.handles and data.draw(st.integers(0, 3)) == 0:
            name = data.draw(st.sampled_from([*self.handles]))
            if self.handles[name][0].cancel():
                self.cancelled.add(name)

    @invariant()
    def none_has_failed(self) -> None:
        for name, (handle, _) in self.handles.items():
            status = handle.status
            assert (status == "cancelled") == (name in self.cancelled), (name, status)
            assert status != "failed", handle.error

    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            self.testing.__exit__()

    def _finish(self) -> None:
        alive = {name: each for name, each in self.handles.items() if name not in self.cancelled}
        for handle, program in alive.values():
            for _ in range(program.count("wait")):
                handle.send("go", "!")
        for _ in range(40):
            if all(handle.status == "done" for handle, _ in alive.values()):
                break
            self.testing.turn(LEASE_S)
        for name, (handle, program) in alive.items():
            assert handle.result() == expected(program), (name, program, handle.waits_for)
        booked = [entry.fields[b"of"] for entry in self.jobs.store.stream("booked").range()]
        assert len(booked) == len(set(booked))
        for name, (_, program) in alive.items():
            wanted = {f"{name} {at}".encode() for at, op in enumerate(program) if op == "book"}
            assert wanted == {each for each in booked if each.startswith(f"{name} ".encode())}
        self.testing.turn(10 * LEASE_S)
        stream = self.jobs.store.stream("jobs")
        assert (len(stream), stream.delayed_count()) == (0, 0)
        assert self._check() == []


class SharedFlows(Flows):
    """Workflows in a shared directory that this process owns."""

    place = "shared"

    def _enter(self) -> None:
        testing = PlacedTesting(self.jobs, self.place)
        self.testing = testing.__enter__()
        self._check, self._run_and_die = testing.check, testing.run_and_die


class ServedFlows(SharedFlows):
    """Workflows on a server."""

    place = "server"


def expected(program: list[str]) -> list[Any]:
    found: list[Any] = []
    special: dict[str, list[Any]] = {"pause": [None], "wait": ["!"], "now": [True]}
    for at, op in enumerate(program):
        found += [at] * 3 if op == "children" else special.get(op, [at])
    return found


def _settings(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples * rounds(1),
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )


TestFlows, TestSharedFlows = Flows.TestCase, SharedFlows.TestCase
TestServedFlows = ServedFlows.TestCase
TestFlows.settings = _settings(12)
TestSharedFlows.settings = TestServedFlows.settings = _settings(4)
