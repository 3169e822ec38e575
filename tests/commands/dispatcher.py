"""Run commands on an open store in this process, and show replies as plain values."""

from collections.abc import Callable, Sequence
from typing import Any

from kvstream.commands.args import Argv
from kvstream.commands.command import Answer, Blocked, Command, Later, Session, Stepwise
from kvstream.commands.replies import (
    OK,
    RESP2,
    RESP3,
    Alike,
    Attributed,
    BigNumber,
    Boolean,
    Bulk,
    Double,
    EncodedEntries,
    Entries,
    ErrorReply,
    Gradual,
    Map,
    NullArray,
    Paged,
    Push,
    Pushes,
    Reply,
    Rows,
    SetReply,
    Shared,
    Simple,
    StoredEntry,
    Streams,
    Verbatim,
)
from kvstream.commands.reply_pages import READERS
from kvstream.commands.table import find
from kvstream.engine.engine import Engine
from kvstream.errors import KVStreamError
from kvstream.meta.txn import Txn
from kvstream.server.settings import STREAM_SETTINGS
from kvstream.types.ids import StreamID
from kvstream.types.records import AnyEntry

_MS = 1000


class Dispatcher:
    """Runs the requests of one client on an open store, in its own process."""

    def __init__(self, engine: Engine, db: int = 0) -> None:
        self.engine = engine
        self.session = Session(engine.options.databases)
        self.session.select(db)

    def execute(self, argv: Argv) -> Reply:
        """Run one command and wait if it blocks; an error becomes an ErrorReply.

        Inside ``engine.transaction()`` the command is part of that commit, and nothing waits.
        """
        try:
            if argv[0].upper() == b"CONFIG":
                return self._config(argv)
            command = find(argv)
            reply = self.engine.run(self._answer, command, argv)
            assert not isinstance(reply, Later | Stepwise)  # the session takes no pages
            return self._wait(reply) if isinstance(reply, Blocked) else reply
        except KVStreamError as error:
            return ErrorReply.of(error)

    def _answer(self, txn: Txn, command: Command, argv: Argv) -> Answer:
        answer: Any = command.run(txn, self.session, argv)
        if type(answer) in READERS:
            answer = READERS[type(answer)](txn, self.session, answer)
        return answer  # type: ignore[no-any-return]

    def _config(self, argv: Argv) -> Reply:
        """Answer CONFIG GET with names, and CONFIG SET, of the settings of streams, as a server."""
        limits = self.engine.catalog.limits
        if argv[1].upper() == b"GET":
            shown = {name: getattr(limits, STREAM_SETTINGS[name][0]) for name in argv[2:]}
            return Map([(name, str(value).encode()) for name, value in shown.items()])
        for name, raw in zip(argv[2::2], argv[3::2], strict=True):
            attribute, parse = STREAM_SETTINGS[name]
            setattr(limits, attribute, parse(raw))
        return OK

    def _wait(self, wait: Blocked) -> Reply:
        timeout_s = None if wait.timeout_ms is None else wait.timeout_ms / _MS
        found: Any = self.engine.wait_for(wait.names, wait.attempt, timeout_s, wait.retry_at)
        reply: Reply = wait.expired if found is None else found
        return reply


def flatten(reply: Reply, protocol: int = RESP2) -> Any:
    """Return a reply as plain Python values, as a client without decoding shows it.

    Both nulls are None, simple strings are bytes, errors stay ErrorReply; maps are flat lists in
    RESP2 and dicts in RESP3. Sets are lists: their items may be maps.
    """
    if isinstance(reply, bytes | int | ErrorReply) or reply is None:
        return reply
    if isinstance(reply, Sequence) and not isinstance(reply, Rows | EncodedEntries):
        return [flatten(item, protocol) for item in reply]
    return _FLAT[type(reply)](reply, protocol)


def _flat_map(reply: Map, protocol: int) -> Any:
    pairs = [(flatten(name, protocol), flatten(value, protocol)) for name, value in reply.pairs]
    return dict(pairs) if protocol == RESP3 else [part for pair in pairs for part in pair]


def _flat_streams(reply: Streams, protocol: int) -> Any:
    streams = reply.streams
    if isinstance(streams, Gradual):
        streams = [pair for step in streams.steps if isinstance(step, list) for pair in step]
    read = [(key, _flat_entries(entries, protocol)) for key, entries in streams]
    return dict(read) if protocol == RESP3 else [list(pair) for pair in read]


def _flat_entries(entries: Sequence[AnyEntry] | Gradual, protocol: int) -> list[Any]:
    if isinstance(entries, Gradual):
        return _flat_gradual(entries, protocol)
    return [_flat_entry(entry) for entry in entries]


def _flat_gradual(reply: Gradual, protocol: int) -> list[Any]:
    pieces: list[Any] = [step for step in reply.steps if not isinstance(step, int | None)]
    return [item for piece in pieces for item in flatten(piece, protocol)]


def _flat_alike(reply: Alike, protocol: int) -> list[Any]:
    rest = [flatten(each, protocol) for each in reply.rest]
    return [[bytes(StreamID.unpack(eid)), *rest] for eid in reply.ids]


def _flat_entry(entry: AnyEntry) -> list[Any]:
    fields = None if entry.fields is None else list(entry.flat)
    claimed = [] if entry.idle_ms is None else [entry.idle_ms, entry.deliveries]
    return [bytes(entry.id), fields, *claimed]


_FLAT: dict[type, Callable[[Any, int], Any]] = {
    Simple: lambda reply, _: reply.text.encode("utf-8", "surrogateescape"),
    NullArray: lambda _reply, _: None,
    Map: _flat_map,
    Entries: lambda reply, protocol: _flat_entries(reply.entries, protocol),
    Rows: _flat_entries,
    StoredEntry: lambda reply, _: _flat_entry(reply.rows[0]),
    EncodedEntries: _flat_entries,
    Alike: _flat_alike,
    Gradual: _flat_gradual,
    Bulk: lambda reply, _: b"".join(reply.pieces),
    Paged: lambda reply, protocol: flatten(reply.reply, protocol),
    Shared: lambda reply, protocol: flatten(reply.reply, protocol),
    Streams: _flat_streams,
    Double: lambda reply, protocol: reply.number if protocol == RESP3 else reply.text,
    BigNumber: lambda reply, _: reply.digits.encode(),
    Attributed: lambda reply, protocol: flatten(reply.reply, protocol),
    Boolean: lambda reply, protocol: reply.truth if protocol == RESP3 else int(reply.truth),
    Verbatim: lambda reply, _: reply.data,
    SetReply: lambda reply, protocol: flatten(reply.items, protocol),
    Push: lambda reply, protocol: flatten(reply.items, protocol),
    Pushes: lambda reply, protocol: flatten(reply.pushes, protocol),
}
