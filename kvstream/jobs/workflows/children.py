"""The children of a run: started in one commit each, and waited for in the order of their ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvstream.errors import InvalidArgument, RequestError, show
from kvstream.jobs.history.child import Child, step_failed
from kvstream.jobs.history.events import CHILD, DONE, Event
from kvstream.jobs.history.links import PlainCall, pack_rest
from kvstream.jobs.job import Job
from kvstream.jobs.workflows.replay import Replay
from kvstream.types.ids import StreamID, Ticket


class Children(Replay):
    """The children of one run."""

    def start(self, task: Any, options: Any, args: Any, kwargs: Any) -> Child[Any]:
        """Start a job as a child; return it."""
        return self._start(task, task.pack_call(args, kwargs), options)

    def start_plain(
        self, task: Any, named: dict[str, Any], rest: Sequence[PlainCall] = ()
    ) -> Child[Any]:
        """Start a job with plain arguments as a child whose result stays plain data.

        ``rest``: what follows it in a chain.
        """
        return self._start(task, task.pack_plain(named), {}, rest)

    def _start(
        self, task: Any, packed: bytes, options: Any, rest: Sequence[PlainCall] | None = None
    ) -> Child[Any]:
        is_plain = rest is not None
        digest = task.digest_of(packed)
        call = self.call(CHILD, task.name, digest)
        if call is not None:
            return Child(self, task, call.child, is_plain=is_plain)
        try:
            job: Job = task.new_packed_job(packed, options)
        except Exception:  # a middleware has refused it
            self.seq -= 1
            raise
        job.parent = self.log.id
        job.then = pack_rest(self.seq, rest or (), self.log.jobs.format)
        is_deferred = self.log.store.own_engine is not None
        if is_deferred:
            task.check_child(options)
        else:
            self.flush()
        fields = {"seq": str(self.seq), "name": task.name, "digest": digest}
        self.note(CHILD, **fields, child=job.id)
        self._put_later(task, job, options)
        if not is_deferred:  # a server may refuse it
            self._put_now()
        return Child(self, task, job.id, is_plain=is_plain)

    def _put_later(self, task: Any, job: Job, options: Any) -> None:
        """Put a child by the next commit: that of a step or wait. So many cost one commit."""
        _, values = self.unwritten[-1]
        call = self.history.calls[self.seq]

        def put() -> None:
            where = task.put_child(job, options)
            if isinstance(where, StreamID | Ticket):
                values["where"] = call.where = str(where)

        self.puts.append(put)

    def _put_now(self) -> None:
        try:
            self.flush()
        except RequestError:  # the child was not started
            self.unwritten.clear()
            self.puts.clear()
            del self.history.calls[self.seq]
            self.seq -= 1
            raise

    def gather_one(self, child: Child[Any]) -> Any:
        """Wait for one child, and return its result."""
        return self.gather([child], None, False)[0]

    def gather(self, children: Iterable[Child[Any]], limit: int | None, collect: bool) -> list[Any]:
        """Wait for children, of which at most ``limit`` run at a time; return results in order.

        Their ends are taken in the order of the history, so that each run starts them in one order.
        """
        coming, started, open_ids = iter(children), list[Child[Any]](), set[str]()
        ends, seen, more = self._ends(), set[str](), True
        while True:
            while more and (limit is None or len(open_ids) < limit):
                child = next(coming, None)
                more = child is not None
                if child is not None:
                    started.append(_check_child(child))
                    open_ids.update({child.id} - seen)
            if not open_ids:
                break
            if len(seen) == len(ends):
                left = 1 if more else len(open_ids)
                only = next(iter(open_ids)) if len(open_ids) == 1 else ""
                self.wait(f"{len(open_ids)} children", left=left, raises=not collect, child=only)
                ends = self._ends()
                continue
            child_id, end = ends[len(seen)]
            seen.add(child_id)
            if child_id in open_ids:
                open_ids.discard(child_id)
                if not collect and end.text("status") != DONE:
                    name = next(child.name for child in started if child.id == child_id)
                    raise step_failed(name, end)
        return [self._result_of(child, collect) for child in started]

    def _ends(self) -> list[tuple[str, Event]]:
        """Return the ends of all children so far, in the order of the history."""
        ends = list(self.history.children.items())
        return ends if self.undoing else ends[: self.history.ends_before_failing]

    def _result_of(self, child: Child[Any], collect: bool) -> Any:
        end = self.history.children[child.id]
        if end.text("status") == DONE:
            return child.load(end.value("result"))
        failed = step_failed(child.name, end)
        if collect:
            return failed
        raise failed

    def first_completed(self, children: list[Child[Any]]) -> Child[Any]:
        """Wait for the first of some children to end; return it."""
        by_id = {_check_child(child).id: child for child in children}
        while True:
            for child_id, _ in self._ends():
                if child_id in by_id:
                    return by_id[child_id]
            self.wait(f"the first of {len(by_id)} children", left=1)


def _check_child(child: Any) -> Child[Any]:
    if not isinstance(child, Child):
        raise InvalidArgument(f"{show(child)} is no child: start tasks with task.start()")
    return child
