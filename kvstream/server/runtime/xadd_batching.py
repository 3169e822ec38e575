"""XADD batching: the plain XADDs of a turn are appended together, stream by stream.

A plain XADD (``XADD key [trim] * field value ...``) waits for the next other command or the end of
the turn. It gets the ID and reply that it would get on its own. XADDs run one by one if calls are
monitored, tracked or timed, and if one of them is refused. Clients that are blocked on the stream
are served after each entry, until none is left.

If all received bytes of a client are plain XADDs to one key, they are a batch: compiled code parses
them and packs their entries at once. Without that code, and for all else, requests are parsed one
by one; a plain XADD among them is a batch of one that joins others, or runs with the rest of the
pipeline if it would be alone.

Without batching ``XADD, -P 16`` takes 4.2 times the processor time and ``XADD, -P 1`` 2.4 times.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from kvstream.commands.append import plain_trim
from kvstream.commands.replies import RESP2, ErrorReply
from kvstream.commands.table import find
from kvstream.engine.engine import Engine
from kvstream.engine.turns import Turn, TurnFailed
from kvstream.errors import InvalidArgument, RequestError
from kvstream.layout.keys import database_of, key_of
from kvstream.layout.values import Names, decode_fields, encode_flat
from kvstream.operations.append import add_each, add_many
from kvstream.operations.trim import Trim, is_long
from kvstream.resp.replies import encode
from kvstream.resp.requests import Request, RequestReader
from kvstream.server.compiled import twins
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Argv, Client
from kvstream.server.runtime.dispatch import Dispatcher
from kvstream.server.runtime.reply_queue import PendingReply
from kvstream.types.clock import perf_counter
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.options import ENTRY_BYTES_MAX
from kvstream.types.records import Entry

Packed = tuple[bytes, Names]
Trims = list[Trim | None]


class PythonXaddBatch:
    """XADDs of one client, their packed entries, and their replies."""

    __slots__ = ("client", "entries", "key", "prefix", "replies", "sent", "trims")

    def __init__(
        self,
        client: Client,
        key: bytes,
        entries: list[Packed],
        sent: bytes | Request | tuple[bytes, ...],
        trims: Trims | None = None,
    ) -> None:
        self.client = client
        self.key = key
        self.entries = entries
        self.sent = sent
        """The bytes of all requests; or the words of one, in a tuple those before the fields."""
        self.trims = trims
        """The trim of each request; None: there is none at all."""
        self.replies = b""
        self.prefix = b""
        """The packed number of the client's database when the batch was taken."""

    def encode(self) -> bytes:
        """Return the encoded replies."""
        return self.replies

    def memory(self) -> int:
        """Return the bytes that the replies and the entries take while they wait."""
        return len(self.replies) + sum(len(row) for row, _ in self.entries)

    def depends_on_store(self) -> bool:
        """Return true: entries were added."""
        return True

    def fail(self, error: ErrorReply) -> None:
        """Answer every request with an error."""
        self.replies = error.encoded(self.client.protocol) * len(self.entries)


XaddBatch = PythonXaddBatch
if not TYPE_CHECKING and twins is not None:
    XaddBatch = twins.XaddBatch


def requests_of(batch: XaddBatch) -> list[Request]:
    """Return the requests of a batch one by one."""
    if isinstance(batch.sent, list):
        return [batch.sent]
    if isinstance(batch.sent, tuple):
        [(row, _)] = batch.entries
        return [[*batch.sent, *Entry(MIN_ID, decode_fields(row)).flat]]
    reader = RequestReader(bulk_max=ENTRY_BYTES_MAX)
    reader.feed(batch.sent)
    requests: list[Request] = []
    while taken := reader.take():
        requests += taken
    return requests


def gather_in_python(
    batches: list[XaddBatch], waiting: dict[bytes, list[XaddBatch]], most: int
) -> tuple[int, list[XaddBatch], int, set[bytes]]:
    """Group batches by stream into ``waiting``, until there are ``most`` entries.

    Returns the number of batches looked at, those whose requests must run one by one, the number of
    entries, and the names of the streams with trims.
    """
    at = entries = 0
    others, trimming = [], set()
    while at < len(batches) and entries < most:
        batch = batches[at]
        at += 1
        entries += len(batch.entries)
        client = batch.client
        if client.on_short_path:
            batch.prefix = client.prefix
            name = batch.prefix + batch.key
            waiting.setdefault(name, []).append(batch)
            if batch.trims is not None:
                trimming.add(name)
        else:
            others.append(batch)
    return at, others, entries, trimming


def entries_in_python(batches: list[XaddBatch]) -> tuple[list[Packed], Trims | None]:
    """Return the entries of batches in order, and the trim of each; None: there is none at all."""
    entries = [entry for batch in batches for entry in batch.entries]
    if all(batch.trims is None for batch in batches):
        return entries, None
    trims = [batch.trims or [None] * len(batch.entries) for batch in batches]
    return entries, list(chain.from_iterable(trims))


def answer_in_python(batches: list[XaddBatch], ids: list[StreamID]) -> None:
    """Answer batches with the IDs of their entries."""
    at = 0
    for batch in batches:
        stop = at + len(batch.entries)
        batch.replies = b"".join([encode(b"%d-%d" % eid, RESP2) for eid in ids[at:stop]])
        client = batch.client
        client.last_command = "xadd"
        client.commands_run += stop - at
        at = stop


gather, entries_of, answer = gather_in_python, entries_in_python, answer_in_python
if twins is not None:
    gather, entries_of, answer = twins.gather, twins.entries_of, twins.answer


_XADD = find([b"xadd", b"key", b"*", b"field", b"value"])
_NAMES = (b"XADD", b"xadd")
WORDS_MIN = 5
"""Words of the shortest XADD."""
_OPTIONS = (b"MAXLEN", b"MINID", b"maxlen", b"minid")
LARGE = 64 << 10
"""Bytes: of a larger entry only the packed row is kept, not the request."""


class BatchedXadds:
    """The batched XADDs of one turn."""

    def __init__(
        self,
        engine: Engine,
        dispatcher: Dispatcher,
        options: ServerOptions,
    ) -> None:
        self._engine = engine
        self._waiters = engine.waiters
        self._dispatcher = dispatcher
        self._options = options
        self.waiting: dict[bytes, list[XaddBatch]] = {}
        """Batches by stream name."""

    def take_batches(
        self, batches: list[XaddBatch], most: int
    ) -> tuple[list[XaddBatch], list[XaddBatch], int]:
        """Remove batches of about ``most`` entries from the head of the list.

        Returns those that are batched, those that cannot be, and the number of batched entries. If
        a batch cannot be batched, no later batch of its client is, so that they stay in order.
        """
        stop, others, entries, trimming = gather(batches, self.waiting, most)
        for name, waiting in list(self.waiting.items()):
            if not self._may_wait(name) or (name in trimming and self._is_long(name, waiting)):
                others += self.waiting.pop(name)
        if others:
            taken, others = self._split_off(batches, stop, set(map(id, others)))
            return taken, others, sum([len(batch.entries) for batch in taken])
        taken = batches[:stop]
        del batches[:stop]
        return taken, others, entries

    def _split_off(
        self, batches: list[XaddBatch], stop: int, apart: set[int]
    ) -> tuple[list[XaddBatch], list[XaddBatch]]:
        """Remove the first ``stop`` batches from the list; split off those that are ``apart``.

        All batches of a client after one that is apart are split off too.
        """
        clients: set[Client] = set()
        taken, others, left = [], [], []
        for at, batch in enumerate(batches):
            if batch.client in clients or id(batch) in apart:
                clients.add(batch.client)
                others.append(batch)
            elif at < stop:
                taken.append(batch)
            else:
                left.append(batch)
        batches[:] = left
        apart = set(map(id, others))
        for name, waiting in list(self.waiting.items()):
            waiting[:] = [batch for batch in waiting if id(batch) not in apart]
            if not waiting:
                del self.waiting[name]
        return taken, others

    def may_take(self, requests: Sequence[Argv], ran: int) -> bool:
        """Return whether the XADD at the head of a client's requests is batched if it is plain.

        It is if others wait, if an XADD follows it, or if it is the client's only request in this
        turn, in which ``ran`` others have run. Alone, as a batch of one, it would take twice the
        time that ``Pipelines`` takes.
        """
        argv = requests[0]
        if len(argv) < WORDS_MIN or (argv[2] != b"*" and argv[2] not in _OPTIONS):
            return False
        if len(requests) == 1:
            return not ran
        following = requests[1]
        return bool(self.waiting) or (len(following) > 0 and following[0] in _NAMES)

    def take(self, client: Client, argv: Argv) -> XaddBatch | None:
        """Batch a request of at least WORDS_MIN words if it is a plain XADD; return its batch."""
        if argv[0] not in _NAMES or not client.is_plain:
            return None
        name = client.prefix + argv[1]
        if not self._may_wait(name):
            return None
        plain = _plain(argv, self._engine.catalog.limits.entry_max_bytes)
        if plain is None:
            return None
        packed, trim = plain
        sent: Argv | tuple[bytes, ...] = argv
        if len(packed[0]) > LARGE:  # the request can be made again from the packed row
            sent = tuple(argv[: argv.index(b"*", 2) + 1])
        batch = XaddBatch(client, argv[1], [packed], sent, None if trim is None else [trim])
        batch.prefix = client.prefix
        waiting = self.waiting.get(name, [])
        if trim is not None and self._is_long(name, [batch], len(waiting)):
            return None
        self.waiting.setdefault(name, waiting).append(batch)
        return batch

    def _may_wait(self, name: bytes) -> bool:
        """Return whether XADDs to a stream may be batched."""
        dispatcher, trackers = self._dispatcher, self._dispatcher.trackers
        return dispatcher.batches_xadds and not (
            trackers.clients and trackers.is_tracked(key_of(name))
        )

    def _is_long(self, name: bytes, batches: list[XaddBatch], before: int = 0) -> bool:
        """Return whether the trims of batches, after ``before`` entries, may take long.

        They may if the stream is not in memory. Such requests run one by one.
        """
        catalog = self._engine.catalog
        stream = catalog.streams.get(name)
        if stream is None:
            return True
        entries = before + sum([len(batch.entries) for batch in batches])
        trims = {id(trim): trim for batch in batches for trim in batch.trims or () if trim}
        return any(is_long(catalog.limits, stream, trim, entries) for trim in trims.values())

    def flush(self, turn: Turn) -> None:
        """Append the batched entries; there is at least one."""
        waiting, self.waiting = self.waiting, {}
        turn.grows = True
        begun = perf_counter()
        names: list[bytes] = []
        count = 0
        for name, batches in waiting.items():
            entries, trims = entries_of(batches)
            try:
                ids = self._append(turn, name, entries, trims)
            except RequestError:  # nothing has been changed: each request gets its own reply
                for batch in batches:
                    batch.replies = b"".join(
                        _run_alone(turn, pending) for pending in self.replies_of(batch)
                    )
                continue
            answer(batches, ids)
            names.append(name)
            count += len(ids)
        if count:
            seconds = perf_counter() - begun
            self._dispatcher.recorder.record_xadds(names, count, seconds, turn.txn)

    def make_way(self, turn: Turn, client: Client, argv: Argv) -> None:
        """Flush before a request; if that fails, put the request back."""
        try:
            self.flush(turn)
        except TurnFailed:
            client.requests.appendleft(argv)
            raise

    def _append(
        self, turn: Turn, name: bytes, entries: list[Packed], trims: Trims | None
    ) -> list[StreamID]:
        """Append entries, one by one while a client is blocked on the stream; return their IDs."""
        ids: list[StreamID] = []
        while (at := len(ids)) < len(entries):
            stop = at + 1 if name in self._waiters.queues else len(entries)
            try:
                if trims is None:
                    ids += turn.run(add_many, name, entries[at:stop])
                else:
                    ids += turn.run(add_each, name, entries[at:stop], trims[at:stop])
            except RequestError as error:
                if ids:
                    turn.fail(error)  # each request runs again
                raise
            if turn.txn.signals:
                turn.serve()
        return ids

    def replies_of(self, batch: XaddBatch) -> list[PendingReply]:
        """Return a pending reply for each request of a batch."""
        client, db = batch.client, database_of(batch.prefix or batch.client.prefix)
        units = (
            partial(self._dispatcher.answer, client, _XADD, argv) for argv in requests_of(batch)
        )
        return [PendingReply(client, None, unit, db, is_sent=True) for unit in units]

    def clear(self) -> None:
        """Forget the batch: the turn has failed."""
        self.waiting = {}


def _plain(argv: Argv, most: int) -> tuple[Packed, Trim | None] | None:
    """Return the packed entry and the trim of a plain XADD.

    None if it has other options, or more than ``most`` bytes.
    """
    trim = None
    try:
        at = argv.index(b"*", 2)
        if at > 2:
            trim = plain_trim(argv[2:at]) if argv[2] in _OPTIONS else None
            if trim is None:
                return None
        return encode_flat(argv[at + 1 :], most), trim
    except (InvalidArgument, ValueError):  # or there is no *
        return None


def _run_alone(turn: Turn, pending: PendingReply) -> bytes:
    assert pending.unit is not None
    pending.reply = turn.run(pending.unit)
    return pending.encode()
