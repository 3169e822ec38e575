"""Pipelines: the plain requests of one client in one turn run one after another, without detours.

Most requests name a command of keys and come from a client in no special state. They need one
lookup by the word as it was sent, the handler, and a reply; ``CallRecorder`` records equal commands
in a row, of all clients, together. The executor's general path takes over at the first request that
is not plain, in any unusual state of the client or the server, and if a handler's answer is no
reply yet.

If the turn fails, each request of a pipeline runs again in a turn of its own.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kvstream.commands.command import (
    Answer,
    Command,
    Container,
    spellings,
)
from kvstream.commands.replies import ErrorReply, Reply
from kvstream.commands.reply_pages import READERS, memory_of
from kvstream.engine.turns import Turn, TurnFailed
from kvstream.errors import KVStreamError, RequestError
from kvstream.meta.txn import Txn
from kvstream.resp.replies import encode, encode_all
from kvstream.server.compiled import twins
from kvstream.server.runtime.client import Argv, Client, PendingReplies
from kvstream.server.runtime.dispatch import Dispatcher
from kvstream.server.runtime.plain_commands import WITHOUT_KEYS, by_words, publishes
from kvstream.server.runtime.reply_queue import HOLDING, PendingReply
from kvstream.server.runtime.xadd_batching import BatchedXadds

CLIENT_REQUESTS: Final = 32
"""The most requests of one client that run in a row while others wait."""


class _UnlessBatched(NamedTuple):
    """A command whose requests are plain unless they are batched."""

    command: Command


class PythonAnswered:
    """The requests that a pipeline has run, and their replies in order."""

    __slots__ = ("client", "db", "protocol", "replies", "requests")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.db, self.protocol = client.db, client.protocol
        self.requests: list[Argv] = []
        self.replies: list[Reply] = []


Answered = PythonAnswered
if not TYPE_CHECKING and twins is not None:
    Answered = twins.Answered

_INDEPENDENT = WITHOUT_KEYS | {"publish", "spublish"}
"""Commands whose replies are the same whatever becomes of the turn."""


class Pipeline(Answered):
    """The plain requests of a client in one turn."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Return the encoded replies."""
        try:
            return encode_all(self.replies, self.protocol)
        except KVStreamError:  # damaged rows are found when they are encoded
            return b"".join(map(self._encode_one, self.replies))

    def _encode_one(self, reply: Reply) -> bytes:
        try:
            return encode(reply, self.protocol)
        except KVStreamError as error:
            return encode(ErrorReply.of(error), self.protocol)

    def fail(self, error: ErrorReply) -> None:
        """Replace the replies that depend on the store by the error of the fsync."""
        for at, argv in enumerate(self.requests):
            if _depends(argv) and not isinstance(self.replies[at], ErrorReply):
                self.replies[at] = error

    def depends_on_store(self) -> bool:
        """Return whether a reply depends on the keys of the store."""
        return any(map(_depends, self.requests))

    def memory(self) -> int:
        """Return the bytes that the replies take while they wait."""
        return sum(map(memory_of, self.replies))


def _depends(argv: Sequence[bytes]) -> bool:
    return argv[0].decode().lower() not in _INDEPENDENT


class Pipelines:
    """The commands of plain requests, and what runs and records them."""

    # What the compiled twins of the loops need of this floor.
    pipeline_type, command_type, failure = Pipeline, Command, TurnFailed
    batched_type = _UnlessBatched
    readers, held_types, client_requests = dict(READERS), HOLDING, CLIENT_REQUESTS

    def __init__(
        self,
        dispatcher: Dispatcher,
        xadds: BatchedXadds,
        commands: Mapping[bytes, Command | Container],
    ) -> None:
        self.dispatcher, self.recorder, self.xadds = dispatcher, dispatcher.recorder, xadds
        self.prepared: object = None
        """What the compiled loops keep between turns."""
        rows = [row for row in commands.values() if isinstance(row, Command)]
        self.by_word: dict[bytes, Command | _UnlessBatched | dict[bytes, Command]]
        """A container's word has a table of its subcommands."""
        self.by_word = {**by_words(rows)}
        for word in spellings("xadd"):
            xadd = self.by_word.get(word)
            if isinstance(xadd, Command):
                self.by_word[word] = _UnlessBatched(xadd)
        for container in commands.values():
            if isinstance(container, Container):
                by_word = by_words(container.subcommands.values())
                if by_word:
                    self.by_word |= dict.fromkeys(spellings(container.name), by_word)
        publishing = {word for row in rows if publishes(row) for word in spellings(row.name)}
        self.unchecked = {
            word: plain for word, plain in self.by_word.items() if word not in publishing
        }
        """``by_word`` without publishing commands, for users who may not use every channel."""

    def _find(self, argv: Argv, all_channels: bool = True) -> Command | _UnlessBatched | None:
        """Return the command of a request, or None if the request is not plain."""
        by_word = self.by_word if all_channels else self.unchecked
        plain = by_word.get(argv[0]) if argv else None  # a Requeued is empty
        if isinstance(plain, dict):
            return plain.get(argv[1]) if len(argv) > 1 else None
        return plain

    def find_next(self, client: Client, ran: int = 0) -> Command | None:
        """Return the command of a client's next request, None if it is not plain or is batched.

        ``ran`` requests of the client have run in this turn.
        """
        plain = self._find(client.requests[0], client.user.all_channels)
        if isinstance(plain, _UnlessBatched):
            return None if self.xadds.may_take(client.requests, ran) else plain.command
        return plain

    def has_next(self, client: Client) -> bool:
        """Return whether the client's next request is plain."""
        return self.find_next(client) is not None

    def detach_last(
        self, pipeline: Pipeline, command: Command, answer: Answer, spent: float, txn: Txn
    ) -> PendingReply:
        """Take the last request out of a pipeline, and return its pending reply."""
        client, argv = pipeline.client, pipeline.requests.pop()
        client.last_command = command.name
        client.commands_run += 1
        self.recorder.record(client, command, argv, txn, answer, spent)
        return self._reply_to(pipeline, command, argv, answer)

    def replies_of(self, pipeline: Pipeline) -> list[PendingReply]:
        """Return a pending reply for each request of a pipeline, to run it again."""
        found = [(self._find(argv), argv) for argv in pipeline.requests]
        rows = [
            (row.command if isinstance(row, _UnlessBatched) else row, argv) for row, argv in found
        ]
        return [self._reply_to(pipeline, row, argv, None) for row, argv in rows if row]

    def _reply_to(
        self, pipeline: Pipeline, command: Command, argv: Argv, answer: Answer
    ) -> PendingReply:
        unit = partial(self.dispatcher.answer, pipeline.client, command, argv)
        kind = command.depends, True, not command.writes
        return PendingReply(pipeline.client, answer, unit, pipeline.db, pipeline.protocol, *kind)


def run_in_python(
    pipelines: Pipelines,
    turn: Turn,
    client: Client,
    most: int,
    until: float,
    pending: list[PendingReplies],
) -> tuple[int, PendingReply | None]:
    """Run the next plain requests of a plain client, and add their replies to ``pending``.

    Returns how many ran, and the pending reply of the last one if its answer is no reply yet.
    """
    pending.append(pipeline := Pipeline(client))
    recorder, txn, last = pipelines.recorder, turn.txn, pipelines.recorder.command
    by_word = pipelines.by_word if client.user.all_channels else pipelines.unchecked
    clock, noted_s, missing = pipelines.dispatcher.clock, recorder.noted_s, txn.missing
    times, requests = recorder.times, client.requests
    argvs, replies = pipeline.requests, pipeline.replies
    unanswered: PendingReply | None = None
    ended = began = clock()
    while requests and len(argvs) < most:
        plain = by_word.get(argv[0]) if (argv := requests[0]) else None  # a Requeued is empty
        if type(plain) is not Command:
            plain = pipelines.find_next(client, len(argvs))
        if plain is None or (len(argv) != plain.arity and not 0 < -plain.arity <= len(argv)):
            break
        if plain is not last:
            if times:
                recorder.record_times()
            recorder.command = last = plain  # None when a turn begins
            turn.grows |= plain.grows
        argvs.append(requests.popleft())
        try:
            reply: Answer = plain.run(txn, client, argv)  # type: ignore[assignment]
            if (kind := type(reply)) in READERS:
                reply = READERS[kind](txn, client, reply)
        except RequestError as error:
            reply = ErrorReply.of(error)
            recorder.statistics.count_failure(plain.name, error.code)
        except BaseException as error:
            turn.fail(error)
        ended, kind = clock(), type(reply)
        if kind in HOLDING:
            unanswered = pipelines.detach_last(pipeline, plain, reply, ended - began, txn)
            break
        replies.append(reply)  # type: ignore[arg-type]
        times.append(ended - began)
        if plain.keys is not None:
            recorder.collect_keys(client, plain, argv, txn)
        missing.clear()
        if plain.writes:
            recorder.collect_change(plain, reply, txn)
        if ended - began >= noted_s:
            recorder.note_slow(client, plain, argv, ended - began)
        if txn.signals:
            turn.serve()
        if ended >= until:
            break
        began = ended
    pipelines.dispatcher.ended = ended
    if last is not None and replies:
        client.last_command = last.name
        client.commands_run += len(replies)
    elif not argvs:
        pending.pop()
    return len(argvs) + (unanswered is not None), unanswered


def record_in_python(pipelines: Pipelines, txn: Txn) -> None:
    """Record the calls of a turn that were collected."""
    pipelines.recorder.record_collected(txn)


def run_ready_in_python(
    pipelines: Pipelines,
    turn: Turn,
    ready: dict[Client, None],
    most: int,
    until: float,
    pending: list[PendingReplies],
) -> tuple[int, Client | None, PendingReply | None]:
    """Run the plain requests of ready clients, some of each at a time, until one is not plain.

    Returns how many ran, the client whose next request is not plain or must wait, and the pending
    reply of its last request if its answer is no reply yet.
    """
    ran = 0
    while ready and ran < most and pipelines.dispatcher.ended < until:
        client = next(iter(ready))
        del ready[client]
        if not client.on_short_path:
            return ran, client, None
        try:
            if pipelines.xadds.waiting and client.requests and pipelines.has_next(client):
                pipelines.xadds.flush(turn)
            room = min(most - ran, CLIENT_REQUESTS)
            count, unanswered = run_in_python(pipelines, turn, client, room, until, pending)
        except TurnFailed:
            ready[client] = None  # for the requests that have not run
            raise
        ran += count
        if unanswered is None and count >= CLIENT_REQUESTS and client.requests:
            ready[client] = None
        elif unanswered is not None or client.requests:
            return ran, client, unanswered
    return ran, None, None


run, run_ready, record_collected = run_in_python, run_ready_in_python, record_in_python
if twins is not None:
    run, run_ready = twins.run_pipeline, twins.run_ready
    record_collected = twins.record_collected
