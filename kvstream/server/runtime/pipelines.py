"""Pipelines: the plain requests of one client in one turn run one after another, without detours.

Most requests name a command of keys and come from a client in no special state. They need one
lookup by the word as it was sent, the handler, and a reply; what is recorded of a call is recorded
once for all equal commands in a row. Any other request, and any unusual state of the client or the
server, takes the executor's general way from that request on, and so does a handler's answer that
is no reply yet.

If the turn fails, each request of a pipeline runs again in a turn of its own.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from kvstream.commands.command import Answer, Blocked, Command, Container, Later, Stepwise
from kvstream.commands.replies import ErrorReply, Paged, Reply
from kvstream.commands.reply_pages import memory_of
from kvstream.engine.engine import Turn
from kvstream.errors import KVStreamError, RequestError
from kvstream.meta.txn import Txn
from kvstream.resp.replies import encode
from kvstream.server.runtime.client import Answers, Argv, Client
from kvstream.server.runtime.dispatch import ANSWERS_IF_CHANGED, Calls
from kvstream.server.runtime.reply_queue import Kept, Slot

_EXCLUDED = frozenset({"watch", "xadd"})
"""WATCH must not run again in another turn; XADDs are batched."""
_WITHOUT_KEYS = frozenset({"echo", "ping"})
_HELD = frozenset({Blocked, Later, Stepwise, Paged})
"""Types of answers that are no reply yet, or are written page by page."""


class Plain(NamedTuple):
    """What a pipeline has to know of a command."""

    command: Command
    name: str
    run: Callable[..., Answer]
    arity: int
    grows: bool
    writes: bool
    shows_change: bool
    """It replies 0 or null if it has changed nothing."""
    counts: bool
    """Its key counts as a hit or miss."""
    uses: bool
    """It uses its key, for OBJECT IDLETIME."""
    has_keys: bool
    one_key: bool
    """Its first argument is its only key, or it has none."""


class Pipeline:
    """The plain requests of a client in one turn, and their replies in order."""

    __slots__ = ("client", "commands", "db", "protocol", "replies", "requests")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.db, self.protocol = client.db, client.protocol
        self.commands: list[Command] = []
        self.requests: list[Argv] = []
        self.replies: list[Reply] = []

    def encoded(self) -> bytes:
        """Return the encoded replies."""
        protocol, replies = self.protocol, self.replies
        try:
            if len(replies) == 1:
                return encode(replies[0], protocol)
            return b"".join([encode(reply, protocol) for reply in replies])
        except KVStreamError:  # damaged rows are found when they are encoded
            return b"".join(map(self._encoded, replies))

    def _encoded(self, reply: Reply) -> bytes:
        try:
            return encode(reply, self.protocol)
        except KVStreamError as error:
            return encode(ErrorReply.of(error), self.protocol)

    def fail(self, error: ErrorReply) -> None:
        """Replace the replies that depend on the store by the error of the fsync."""
        for at, command in enumerate(self.commands):
            if command.tells and not isinstance(self.replies[at], ErrorReply):
                self.replies[at] = error

    def memory(self) -> int:
        """Return the bytes that the replies take while they wait."""
        return sum(map(memory_of, self.replies))

    def apart(self, calls: Calls) -> list[Slot]:
        """Return a slot for each request, to run it again."""
        pairs = zip(self.commands, self.requests, strict=True)
        return [self.slot(calls, command, argv, None) for command, argv in pairs]

    def slot(self, calls: Calls, command: Command, argv: Argv, answer: Answer) -> Slot:
        """Return the slot of one request."""
        unit = partial(calls.answer, self.client, command, argv)
        kind = command.tells, True, not command.writes
        return Slot(self.client, answer, unit, self.db, self.protocol, *kind)


class Pipelines:
    """Runs the plain requests of clients."""

    def __init__(self, calls: Calls, commands: Mapping[bytes, Command | Container]) -> None:
        self._calls = calls
        rows = [row for row in commands.values() if isinstance(row, Command)]
        plain = [self._plain(row) for row in rows if _is_plain(row)]
        self._by_word = {
            word: each
            for each in plain
            for word in (each.name.encode(), each.name.upper().encode())
        }

    def _plain(self, row: Command) -> Plain:
        uses, counts, one_key = False, 0, True
        if row.keys is not None:
            uses, counts, one_key = self._calls.lookups.of(row)
        return Plain(
            *(row, row.name, row.run, row.arity, row.grows, row.writes),
            *(row.name in ANSWERS_IF_CHANGED, counts > 0, uses, row.keys is not None, one_key),
        )

    def has_next(self, client: Client) -> bool:
        """Return whether the client's next request is plain, and its state not special."""
        argv = client.requests[0]
        return (
            bool(argv)  # Again has no words
            and argv[0] in self._by_word
            and client.authenticated
            and client.user.free
            and client.queue is None
            and client.answers is Answers.ON
            and not client.no_touch
        )

    def run(
        self, turn: Turn, client: Client, most: int, until: float, slots: list[Kept]
    ) -> tuple[int, Slot | None]:
        """Run the next plain requests of a client, and add their replies to ``slots``.

        Returns how many ran: 0 if the next one is not plain, or the client is in a special state.
        If the answer of the last one is no reply yet, its slot is returned too.
        """
        if not self.has_next(client):
            return 0, None
        pipeline = Pipeline(client)
        try:
            return self._run(turn, pipeline, most, until)
        finally:
            if pipeline.requests:
                slots.append(pipeline)

    def _run(
        self, turn: Turn, pipeline: Pipeline, most: int, until: float
    ) -> tuple[int, Slot | None]:
        client, calls, txn, by_word = pipeline.client, self._calls, turn.txn, self._by_word
        requests, clock, note = client.requests, calls.clock, calls.lookups.note
        commands, argvs, replies = pipeline.commands, pipeline.requests, pipeline.replies
        names: list[bytes] = []
        times: list[float] = []
        last: Plain | None = None
        hits = idle = count = 0
        held: Slot | None = None
        changed, began = False, clock()
        while requests and count < most:
            argv = requests[0]
            found = by_word.get(argv[0]) if argv else None  # Again has no words
            if found is None or (len(argv) != found.arity and not 0 < -found.arity <= len(argv)):
                break
            if found is not last:
                if last is not None:
                    calls.statistics.ran_each(last.name, times, idle)
                    times, idle = [], 0
                last = found
            requests.popleft()
            commands.append(found.command)
            argvs.append(argv)
            if found.grows:
                turn.grows = True
            try:
                reply = found.run(txn, client, argv)
            except RequestError as error:
                reply = ErrorReply.of(error)
                calls.statistics.failed(found.name, error.code)
            except BaseException as error:
                turn.fail(error)
            count += 1
            ended = clock()
            spent, kind = ended - began, type(reply)
            if kind in _HELD:
                held = self._held(pipeline, reply, spent, txn)
                break
            replies.append(reply)  # type: ignore[arg-type]
            times.append(spent)
            if not found.one_key or (txn.missing and found.has_keys):
                note(client, found.command, argv, txn)
            else:
                hits += found.counts
                if found.uses:
                    names.append(client.prefix + argv[1])
            if found.writes:
                changed = changed or txn.dirty
                shows_none = found.shows_change and not reply
                if kind is not ErrorReply and (not changed or txn.noted or shows_none):
                    idle += 1
                txn.noted = False
            if spent >= calls.noted_s:
                calls.note_slow(client, found.command, argv, spent)
            if txn.signals:
                turn.serve()
            if ended >= until:
                break
            began = ended
        if last is not None:
            calls.ended = ended
            client.last_command = last.name
            client.commands_run += len(replies)
            if times:
                calls.statistics.ran_each(last.name, times, idle)
            if hits or names:
                calls.lookups.use(names, hits, txn.now_ms)
        return count, held

    def _held(self, pipeline: Pipeline, answer: Answer, spent: float, txn: Txn) -> Slot:
        """Take the last request out of a pipeline, and return its slot."""
        command, argv = pipeline.commands.pop(), pipeline.requests.pop()
        pipeline.client.commands_run += 1
        self._calls.record(pipeline.client, command, argv, txn, answer, spent)
        return pipeline.slot(self._calls, command, argv, answer)


def _is_plain(row: Command) -> bool:
    if row.is_admin or row.is_immediate or row.name in _EXCLUDED:
        return False
    return row.keys is not None or row.name in _WITHOUT_KEYS
