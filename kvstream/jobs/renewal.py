"""Renew the leases of a child whose job holds Python's lock, so that its other threads stand still.

The child of ``kvstream work`` has a socket to its parent. It sends its name as a consumer, then a
byte at each beat, in a thread that does nothing else. While the beats stay away and the process
lives, the parent renews the leases of that consumer. So the job runs once, however long it takes.

::

    child -> parent     consumer "\\n" "." "." ...
    parent -> child     nothing; its end means that the parent is gone

If the timeout of a job has passed, the parent kills the child and fails that job as late. The other
jobs of the child are tried again, each alone (see ``worker``): one of them may have kept the lock.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kvstream.errors import KVStreamError, LeaseLost
from kvstream.jobs.execution import end_child_with_timeout, job_of
from kvstream.jobs.job import TASK
from kvstream.jobs.job_log import logger_of
from kvstream.jobs.workers import registry
from kvstream.operations.queues.workers import BEAT_S
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.jobs.application import Jobs
    from kvstream.queue import Message

BEAT, NAME_END = b".", b"\n"
BEATS, SILENT_BEATS = 10, 3
"""Beats in a lease, and how many must be missed before the parent renews the leases."""
BEAT_S_MIN = 0.02
LATE_S_MIN = 1.0
"""A child that is silent for less is never killed: the machine may be busy."""
NOTE_S_MIN = 5.0
"""A child that is silent for less is not shown as silent, for the same reason."""
_READ_MAX = 1 << 16
_log = logger_of(__name__)


def beat_s(jobs: Jobs) -> float:
    """Return the seconds between two beats."""
    return max(BEAT_S_MIN, jobs.lease_s / BEATS)


# --- the child ----------------------------------------------------------------------------------


def fill_streams() -> None:
    """Open /dev/null in place of closed standard streams: no other file may get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class Control:
    """The child's end of its socket.

    A job may have closed it, with all descriptors of the process. Then those of the store are
    closed too, or belong to other files by now, so the process ends at once.
    """

    def __init__(self, descriptor: int, stop: Callable[[], None]) -> None:
        """``stop`` is called when the parent is gone."""
        os.set_inheritable(descriptor, False)  # for no program that a job starts
        self._socket = socket.socket(fileno=descriptor)
        self._number = os.fstat(descriptor).st_ino
        self._stop = stop

    def begin(self, consumer: str, every_s: float) -> None:
        """Send the name of the consumer, and beats from now on, in threads."""
        self._socket.sendall(consumer.encode() + NAME_END)
        for name, work in (("beats", lambda: self._beat(every_s)), ("parent", self._wait)):
            threading.Thread(target=work, name=f"kvstream-jobs-{name}", daemon=True).start()

    def _wait(self) -> None:
        with suppress(OSError):
            while self._socket.recv(1):
                pass
        self._stop()

    def _beat(self, every_s: float) -> None:
        pause = threading.Event()
        while self._is_open():
            fill_streams()  # a job may have closed them
            with suppress(OSError):  # the parent is busy and does not read, or is gone
                self._socket.send(BEAT, socket.MSG_DONTWAIT)
            pause.wait(every_s)
        _log.error("a job has closed the descriptors of its worker, which ends")
        os._exit(1)

    def _is_open(self) -> bool:
        """Return whether the descriptor is still that of the socket, and of no other file."""
        try:
            return os.fstat(self._socket.fileno()).st_ino == self._number
        except OSError:
            return False


# --- the parent ---------------------------------------------------------------------------------


class Beats:
    """The parent's end of the socket of a child."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._heard = b""
        self.note_due = 0.0
        """When the next beat is written to the registry in place of the child, if it is silent."""
        self._last = monotonic()
        self._lock = threading.Lock()
        """Two threads use the socket: one closes it."""

    def close(self) -> None:
        with self._lock:
            self._socket.close()

    def has_begun(self) -> bool:
        """Return whether the child has begun to work."""
        with self._lock, suppress(OSError):
            while received := self._socket.recv(_READ_MAX):
                self._last = monotonic()
                if NAME_END not in self._heard:
                    self._heard += received
        return NAME_END in self._heard

    def silent_s(self) -> float:
        """Return for how many seconds the child has sent nothing; 0 before its first beat."""
        return monotonic() - self._last if self.has_begun() else 0.0

    @property
    def consumer(self) -> bytes:
        """The name of the consumer, once the child has sent it."""
        return self._heard.partition(NAME_END)[0]


class Renewal:
    """Renews the leases of silent children."""

    def __init__(self, jobs: Jobs, queues: Sequence[str]) -> None:
        self._jobs = jobs
        self._queues = jobs.queues_to_work(queues)
        self.every_s = beat_s(jobs)

    def renew(self, beats: Beats, kill: Callable[[], None]) -> None:
        """Renew the leases of a child that is silent; ``kill`` it if one of its jobs is late."""
        silent_s = beats.silent_s()
        if silent_s < SILENT_BEATS * self.every_s:
            return
        try:
            if silent_s >= NOTE_S_MIN and monotonic() >= beats.note_due:
                beats.note_due = monotonic() + BEAT_S
                registry.note_silent(self._jobs, beats.consumer.decode())
            held = self._list_held(beats.consumer)
            for queue in {message.queue for message in held}:
                queue.extend(*[message for message in held if message.queue is queue])
            late_s = silent_s - SILENT_BEATS * self.every_s
            late = [message for message in held if self._is_late(message, late_s)]
            if late:
                _log.error("a job holds Python's lock beyond a timeout: killing its worker")
                kill()
                self._end(held, late, late_s)
        except KVStreamError as error:
            _log.warning("the leases of a worker that hangs are not renewed: %s", error)

    def give_back(self, beats: Beats) -> None:
        """Give back the jobs of a child that was killed as the workers stop, as not tried."""
        try:
            for message in self._list_held(beats.consumer):
                message.give_back()
        except KVStreamError as error:
            _log.warning("the jobs of a killed worker are not given back: %s", error)

    def forget(self, name: str) -> None:
        """Remove a worker that has died from the registry."""
        try:
            registry.remove(self._jobs, name)
        except KVStreamError as error:
            _log.warning("worker %s stays in the registry as lost: %s", name, error)

    def _list_held(self, consumer: bytes) -> list[Message]:
        """Return what a child has in work, with its tokens."""
        return [message for queue in self._queues for message in queue.messages_of(consumer)]

    def _is_late(self, message: Message, late_s: float) -> bool:
        """Return whether a child was silent for longer than the timeout of its job."""
        task = self._jobs.tasks.get(message.fields.get(TASK, b"").decode("utf-8", "replace"))
        timeout = None if task is None else task.timeout
        return timeout is not None and late_s >= max(timeout, LATE_S_MIN)

    def _end(self, held: Sequence[Message], late: Sequence[Message], late_s: float) -> None:
        """Fail the late jobs of a child that was killed, and let the others be tried again."""
        for message in held:
            if message not in late:
                with suppress(LeaseLost):
                    message.nack(0)
            elif (job := job_of(self._jobs, message)) is not None:
                end_child_with_timeout(self._jobs, job, late_s)
