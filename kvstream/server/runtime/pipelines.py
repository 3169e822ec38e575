"""Pipelines: the plain requests of one client in one turn run one after another, without detours.

Most requests name a command of keys and come from a client in no special state. They need one
lookup by the word as it was sent, the handler, and a reply; what is recorded of a call is recorded
once for all equal commands in a row, of all clients. Any other request, and any unusual state of
the client or the server, takes the executor's general way from that request on, and so does a
handler's answer that is no reply yet.

If the turn fails, each request of a pipeline runs again in a turn of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from kvstream.commands.command import (
    FIRST,
    SECOND,
    Answer,
    Blocked,
    Command,
    Container,
    Later,
    Stepwise,
    spellings,
)
from kvstream.commands.replies import ErrorReply, Paged, Reply
from kvstream.commands.reply_pages import memory_of
from kvstream.engine.engine import Turn
from kvstream.errors import KVStreamError, RequestError
from kvstream.meta.txn import Txn
from kvstream.resp.replies import encode, encode_all
from kvstream.server.runtime.client import Argv, Client, PendingReplies
from kvstream.server.runtime.dispatch import ANSWERS_IF_CHANGED, Dispatcher
from kvstream.server.runtime.reply_queue import Slot

WATCHES = frozenset({"kvstream.guard", "watch"})
"""What prepares an EXEC: it must not run again in another turn."""
_EXCLUDED = WATCHES | {"restore", "xadd"}
"""RESTORE sets the last use of its key, and XADDs are batched."""
_WITHOUT_KEYS = frozenset({"echo", "ping"})
_PUBLISHING = frozenset({"publish", "spublish"})
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
    has_keys: bool
    key_at: int
    """The place of its only key; 0: it may have several, or none."""
    counts: bool
    """Its keys count as hits or misses."""
    uses: bool
    """It uses its key, for OBJECT IDLETIME."""


class Pipeline:
    """The plain requests of a client in one turn, and their replies in order."""

    __slots__ = ("client", "db", "protocol", "replies", "requests")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.db, self.protocol = client.db, client.protocol
        self.requests: list[Argv] = []
        self.replies: list[Reply] = []

    def encoded(self) -> bytes:
        """Return the encoded replies."""
        try:
            return encode_all(self.replies, self.protocol)
        except KVStreamError:  # damaged rows are found when they are encoded
            return b"".join(map(self._encoded, self.replies))

    def _encoded(self, reply: Reply) -> bytes:
        try:
            return encode(reply, self.protocol)
        except KVStreamError as error:
            return encode(ErrorReply.of(error), self.protocol)

    def fail(self, error: ErrorReply) -> None:
        """Replace the replies that depend on the store by the error of the fsync."""
        for at, argv in enumerate(self.requests):
            depends = argv[0].decode().lower() not in _WITHOUT_KEYS
            if depends and not isinstance(self.replies[at], ErrorReply):
                self.replies[at] = error

    def memory(self) -> int:
        """Return the bytes that the replies take while they wait."""
        return sum(map(memory_of, self.replies))


class Pipelines:
    """Runs the plain requests of clients."""

    def __init__(
        self, dispatcher: Dispatcher, commands: Mapping[bytes, Command | Container]
    ) -> None:
        self._dispatcher = dispatcher
        rows = [row for row in commands.values() if isinstance(row, Command)]
        self._by_word: dict[bytes, Plain | dict[bytes, Plain]] = {**self._by_words(rows)}
        """A container's word has a table of its subcommands."""
        for container in commands.values():
            if isinstance(container, Container):
                by_word = self._by_words(container.subcommands.values())
                if by_word:
                    self._by_word |= dict.fromkeys(spellings(container.name), by_word)
        named = {word for name in _PUBLISHING for word in spellings(name)}
        self._unchecked = {word: row for word, row in self._by_word.items() if word not in named}
        """The commands of a user that is not allowed every channel."""
        self._last: Plain | None = None
        """The command of the calls that are still to be recorded."""
        self._times: list[float] = []
        """The seconds that each of them took."""
        self._idle = 0
        """How many of them changed nothing."""
        self._changed = False
        """A call of the turn has changed something."""
        self._hits = self._misses = 0
        """Keys that calls of any command have found or missed, also to be recorded."""
        self._names: list[bytes] = []
        """The keys that they used."""

    def _by_words(self, rows: Iterable[Command]) -> dict[bytes, Plain]:
        plain = [self._plain(row) for row in rows if _is_plain(row)]
        return {
            word: each
            for each in plain
            for word in spellings(each.name.partition("|")[2] or each.name)
        }

    def _plain(self, row: Command) -> Plain:
        """Return what the short way has to know of a command."""
        uses, counts = False, 0
        if row.keys is not None:
            uses, counts, _ = self._dispatcher.lookups.of(row)
        key_at = 1 if row.keys == FIRST else 2 if row.keys == SECOND else 0
        return Plain(
            *(row, row.name, row.run, row.arity, row.grows, row.writes),
            *(row.name in ANSWERS_IF_CHANGED, row.keys is not None, key_at, counts > 0, uses),
        )

    def _find(self, argv: Argv, all_channels: bool = True) -> Plain | None:
        """Return the command of a request that is plain."""
        by_word = self._by_word if all_channels else self._unchecked
        plain = by_word.get(argv[0]) if argv else None  # a Requeued is empty
        if type(plain) is dict:
            plain = plain.get(argv[1]) if len(argv) > 1 else None
        return plain  # type: ignore[return-value]

    def has_next(self, client: Client) -> bool:
        """Return whether the client's next request is plain."""
        return self._find(client.requests[0], client.user.all_channels) is not None

    def run(
        self, turn: Turn, client: Client, most: int, until: float, slots: list[PendingReplies]
    ) -> tuple[int, Slot | None]:
        """Run the next plain requests of a plain client, and add their replies to ``slots``.

        Returns how many ran, and the slot of the last one if its answer is no reply yet.
        """
        pipeline = Pipeline(client)
        slots.append(pipeline)
        dispatcher, txn, last = self._dispatcher, turn.txn, self._last
        by_word = self._by_word if client.user.all_channels else self._unchecked
        clock, noted_s, times, names = (
            dispatcher.clock,
            dispatcher.noted_s,
            self._times,
            self._names,
        )
        requests, prefix = client.requests, client.prefix
        argvs, replies = pipeline.requests, pipeline.replies
        held: Slot | None = None
        ended = began = clock()
        while requests and len(argvs) < most:
            argv = requests[0]
            plain = by_word.get(argv[0]) if argv else None  # a Requeued is empty
            if type(plain) is not Plain:
                plain = self._find(argv, client.user.all_channels)
            if plain is None or (len(argv) != plain.arity and not 0 < -plain.arity <= len(argv)):
                break
            if plain is not last:
                self._record_calls()
                self._last = last = plain
            argvs.append(requests.popleft())
            turn.grows |= plain.grows
            try:
                reply = plain.run(txn, client, argv)
            except RequestError as error:
                reply = ErrorReply.of(error)
                dispatcher.statistics.failed(plain.name, error.code)
            except BaseException as error:
                turn.fail(error)
            ended = clock()
            kind = type(reply)
            if kind in _HELD:
                held = self._slot_of_last(pipeline, plain, reply, ended - began, txn)
                break
            replies.append(reply)  # type: ignore[arg-type]
            times.append(ended - began)
            if plain.key_at:
                name = prefix + argv[plain.key_at]
                if plain.uses:
                    names.append(name)
                self._hits += plain.counts and name not in txn.missing
                self._misses += plain.counts and name in txn.missing
            elif plain.has_keys:
                self._note_keys(client, plain, argv, txn)
            txn.missing.clear()
            if plain.writes:
                self._changed = self._changed or txn.dirty
                shows_none = txn.only_redelivered or (plain.shows_change and not reply)
                self._idle += (shows_none or not self._changed) and kind is not ErrorReply
                txn.only_redelivered = False
            if ended - began >= noted_s:
                dispatcher.note_slow(client, plain.command, argv, ended - began)
            if txn.signals:
                turn.serve()
            if ended >= until:
                break
            began = ended
        dispatcher.ended = ended
        if last is not None and replies:
            client.last_command = last.name
            client.commands_run += len(replies)
        elif not argvs:
            slots.pop()
        return len(argvs) + (held is not None), held

    def _note_keys(self, client: Client, found: Plain, argv: Argv, txn: Txn) -> None:
        """Note the keys of a call that may have several."""
        assert found.command.keys is not None
        keys = found.command.keys.of(argv)
        if len(keys) > 1:
            self._dispatcher.lookups.record_use(client, found.command, argv, txn)
            return
        for key in keys:
            name = client.prefix + key
            if found.uses:
                self._names.append(name)
            if found.counts:
                is_miss = name in txn.missing
                self._hits += not is_miss
                self._misses += is_miss

    def record(self, txn: Txn) -> None:
        """Record the calls since the last time."""
        self._changed = False
        if self._last is not None:
            self._record_calls()
            self._last = None
        if self._names or self._hits or self._misses:
            self._dispatcher.lookups.use(self._names, self._hits, self._misses, txn.now_ms)
            self._hits = self._misses = 0
            self._names.clear()

    def _record_calls(self) -> None:
        if self._times:
            assert self._last is not None
            self._dispatcher.statistics.ran_each(self._last.name, self._times, self._idle)
            self._times.clear()
            self._idle = 0

    def forget(self) -> None:
        """Forget calls that are still to be recorded: their turn has failed."""
        self._last, self._changed = None, False
        self._idle = self._hits = self._misses = 0
        self._times.clear()
        self._names.clear()

    def _slot_of_last(
        self, pipeline: Pipeline, found: Plain, answer: Answer, spent: float, txn: Txn
    ) -> Slot:
        """Take the last request out of a pipeline, and return its slot."""
        client, argv = pipeline.client, pipeline.requests.pop()
        client.last_command = found.name
        client.commands_run += 1
        self._dispatcher.record(client, found.command, argv, txn, answer, spent)
        return self._slot(pipeline, found.command, argv, answer)

    def slots_of(self, pipeline: Pipeline) -> list[Slot]:
        """Return a slot for each request of a pipeline, to run it again."""
        rows = [(self._find(argv), argv) for argv in pipeline.requests]
        return [self._slot(pipeline, row.command, argv, None) for row, argv in rows if row]

    def _slot(self, pipeline: Pipeline, command: Command, argv: Argv, answer: Answer) -> Slot:
        unit = partial(self._dispatcher.answer, pipeline.client, command, argv)
        kind = command.depends, True, not command.writes
        return Slot(pipeline.client, answer, unit, pipeline.db, pipeline.protocol, *kind)


def _is_plain(row: Command) -> bool:
    if row.is_admin or row.is_immediate or row.name in _EXCLUDED:
        return False
    return row.keys is not None or row.name in _WITHOUT_KEYS or row.name in _PUBLISHING
