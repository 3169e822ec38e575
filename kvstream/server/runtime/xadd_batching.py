"""XADD batching: the plain XADDs of a turn are appended together, stream by stream.

A plain XADD (``XADD key [trim] * field value ...``) waits for the next other command or the end of
the turn. It gets the ID and reply that it would get on its own. XADDs run one by one if calls are
monitored, tracked or timed, and if one of them is refused. Clients that are blocked on the stream
are served after each entry, until none is left.

If all received bytes of a client are plain XADDs to one key, they are a burst: compiled code parses
them and packs their entries at once. Without that code, and for all else, requests are parsed one
by one; a plain XADD among them becomes a burst of one.

Without batching ``XADD, -P 16`` takes 4.2 times the processor time and ``XADD, -P 1`` 2.4 times.
"""

from collections.abc import Callable
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
from kvstream.resp import twins
from kvstream.resp.replies import encode
from kvstream.resp.requests import Request, RequestReader
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Argv, Client, ReplyMode
from kvstream.server.runtime.dispatch import Dispatcher
from kvstream.server.runtime.reply_queue import Slot
from kvstream.types.clock import perf_counter
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.options import ENTRY_BYTES_MAX
from kvstream.types.records import Entry

BURST_BYTES_MAX = 1 << 20
"""A burst runs as a whole, and no turn may be long. Its entries are below the smallest value of
stream-entry-max-bytes, which is the same."""

Packed = tuple[bytes, Names]
Trims = list[Trim | None]


class PythonBurst:
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
        """The packed number of the client's database when the burst was taken."""

    def encoded(self) -> bytes:
        """Return the encoded replies."""
        return self.replies

    def memory(self) -> int:
        """Return the bytes that the replies and the entries take while they wait."""
        return len(self.replies) + sum(len(row) for row, _ in self.entries)

    def fail(self, error: ErrorReply) -> None:
        """Answer every request with an error."""
        self.replies = b"-%b\r\n" % error.line * len(self.entries)


Burst = PythonBurst
if not TYPE_CHECKING and twins is not None:
    Burst = twins.Burst


def burst_of(client: Client, data: bytes) -> Burst | None:
    """Return a burst if received bytes are whole plain XADDs to one key and nothing else."""
    if twins is None or len(data) > BURST_BYTES_MAX:
        return None
    burst: PythonBurst | None = twins.take_burst(client, data, ENTRY_BYTES_MAX, plain_trim)
    return burst


def requests_of(burst: Burst) -> list[Request]:
    """Return the requests of a burst one by one."""
    if isinstance(burst.sent, list):
        return [burst.sent]
    if isinstance(burst.sent, tuple):
        [(row, _)] = burst.entries
        return [[*burst.sent, *Entry(MIN_ID, decode_fields(row)).flat]]
    reader = RequestReader(bulk_max=BURST_BYTES_MAX)
    reader.feed(burst.sent)
    requests: list[Request] = []
    while taken := reader.take():
        requests += taken
    return requests


def gather_in_python(
    bursts: list[Burst], waiting: dict[bytes, list[Burst]], most: int
) -> tuple[int, list[Burst], int, set[bytes]]:
    """Group bursts by stream into ``waiting``, until there are ``most`` entries.

    Returns the number of bursts looked at, those whose requests must run one by one, the number of
    entries, and the names of the streams with trims.
    """
    at = entries = 0
    others, trimming = [], set()
    while at < len(bursts) and entries < most:
        burst = bursts[at]
        at += 1
        entries += len(burst.entries)
        client = burst.client
        if client.direct and client.user.free:
            burst.prefix = client.prefix
            name = burst.prefix + burst.key
            waiting.setdefault(name, []).append(burst)
            if burst.trims is not None:
                trimming.add(name)
        else:
            others.append(burst)
    return at, others, entries, trimming


def entries_in_python(bursts: list[Burst]) -> tuple[list[Packed], Trims | None]:
    """Return the entries of bursts in order, and the trim of each; None: there is none at all."""
    entries = [entry for burst in bursts for entry in burst.entries]
    if all(burst.trims is None for burst in bursts):
        return entries, None
    trims = [burst.trims or [None] * len(burst.entries) for burst in bursts]
    return entries, list(chain.from_iterable(trims))


def answer_in_python(bursts: list[Burst], ids: list[StreamID], now: float) -> None:
    """Answer bursts with the IDs of their entries."""
    at = 0
    for burst in bursts:
        stop = at + len(burst.entries)
        burst.replies = b"".join([encode(b"%d-%d" % eid, RESP2) for eid in ids[at:stop]])
        client = burst.client
        client.last_command = "xadd"
        client.last_used = now
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
TIMED_S = 0.001
"""If the slow log has a lower threshold, each XADD runs and is timed on its own."""


class BatchedXadds:
    """The batched XADDs of one turn."""

    def __init__(
        self,
        engine: Engine,
        dispatcher: Dispatcher,
        options: ServerOptions,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._waiters = engine.waiters
        self._dispatcher = dispatcher
        self._options = options
        self._clock = clock
        self.waiting: dict[bytes, list[Burst]] = {}
        """Bursts by stream name."""

    def take_bursts(self, bursts: list[Burst], most: int) -> tuple[list[Burst], list[Burst], int]:
        """Remove bursts of about ``most`` entries from the head of the list.

        Returns those that are batched, those that cannot be, and their number of entries. If a
        burst cannot be batched, no later burst of its client is, so that they stay in order.
        """
        stop, others, entries, trimming = gather(bursts, self.waiting, most)
        for name, waiting in list(self.waiting.items()):
            if not self._may_wait(name) or (name in trimming and self._is_long(name, waiting)):
                others += self.waiting.pop(name)
        if others:
            return *self._split_off(bursts, stop, set(map(id, others))), entries
        taken = bursts[:stop]
        del bursts[:stop]
        return taken, others, entries

    def _split_off(
        self, bursts: list[Burst], stop: int, apart: set[int]
    ) -> tuple[list[Burst], list[Burst]]:
        """Remove the first ``stop`` bursts from the list; split off those that are ``apart``.

        All bursts of a client after one that is apart are split off too.
        """
        clients: set[Client] = set()
        taken, others, left = [], [], []
        for at, burst in enumerate(bursts):
            if burst.client in clients or id(burst) in apart:
                clients.add(burst.client)
                others.append(burst)
            elif at < stop:
                taken.append(burst)
            else:
                left.append(burst)
        bursts[:] = left
        apart = set(map(id, others))
        for name, waiting in list(self.waiting.items()):
            waiting[:] = [burst for burst in waiting if id(burst) not in apart]
            if not waiting:
                del self.waiting[name]
        return taken, others

    def take(self, client: Client, argv: Argv) -> Burst | None:
        """Batch a request of at least WORDS_MIN words if it is a plain XADD; return its burst."""
        if argv[0] not in _NAMES:
            return None
        if client.queue is not None or client.reply_mode is not ReplyMode.ON:
            return None
        name = client.prefix + argv[1]
        if not (client.authenticated and client.user.free and self._may_wait(name)):
            return None
        plain = _plain(argv, self._engine.catalog.limits.entry_max_bytes)
        if plain is None:
            return None
        packed, trim = plain
        sent: Argv | tuple[bytes, ...] = argv
        if len(packed[0]) > LARGE:  # the request can be made again from the packed row
            sent = tuple(argv[: argv.index(b"*", 2) + 1])
        burst = Burst(client, argv[1], [packed], sent, None if trim is None else [trim])
        burst.prefix = client.prefix
        waiting = self.waiting.get(name, [])
        if trim is not None and self._is_long(name, [burst], len(waiting)):
            return None
        self.waiting.setdefault(name, waiting).append(burst)
        return burst

    def _may_wait(self, name: bytes) -> bool:
        trackers = self._dispatcher.trackers
        slower_than_us = self._options.slower_than_us
        return (
            not (self._dispatcher.monitors or self._dispatcher.paused or self._dispatcher.crowded)
            and not self._dispatcher.counts_hot_keys
            and not self._dispatcher.notifications.of_calls
            and not (trackers.clients and trackers.is_tracked(key_of(name)))
            and not 0 <= slower_than_us < TIMED_S * 1e6
        )

    def _is_long(self, name: bytes, bursts: list[Burst], before: int = 0) -> bool:
        """Return whether the trims of bursts, after ``before`` entries, may take long.

        They may if the stream is not in memory. Such requests run one by one.
        """
        catalog = self._engine.catalog
        stream = catalog.streams.get(name)
        if stream is None:
            return True
        entries = before + sum([len(burst.entries) for burst in bursts])
        trims = {id(trim): trim for burst in bursts for trim in burst.trims or () if trim}
        return any(is_long(catalog.limits, stream, trim, entries) for trim in trims.values())

    def flush(self, turn: Turn) -> None:
        """Append the batched entries; there is at least one."""
        waiting, self.waiting = self.waiting, {}
        turn.grows = True
        begun, now = perf_counter(), self._clock()
        names: list[bytes] = []
        count = 0
        for name, bursts in waiting.items():
            entries, trims = entries_of(bursts)
            try:
                ids = self._append(turn, name, entries, trims)
            except RequestError:  # nothing has been changed: each request gets its own reply
                for burst in bursts:
                    burst.replies = b"".join(_answered(turn, slot) for slot in self.slots_of(burst))
                continue
            answer(bursts, ids, now)
            names.append(name)
            count += len(ids)
        if count:
            self._dispatcher.appended(names, count, perf_counter() - begun, turn.txn)

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

    def slots_of(self, burst: Burst) -> list[Slot]:
        """Return a slot for each request of a burst."""
        client, db = burst.client, database_of(burst.prefix or burst.client.prefix)
        units = (
            partial(self._dispatcher.answer, client, _XADD, argv) for argv in requests_of(burst)
        )
        return [Slot(client, None, unit, db, is_sent=True) for unit in units]

    def clear(self) -> None:
        """Forget the batch: the turn has failed."""
        self.waiting = {}


def may_be_batched(argv: Argv) -> bool:
    """Return whether an XADD may be a plain one; False if it has an ID or other options."""
    return len(argv) > 2 and (argv[2] == b"*" or argv[2] in _OPTIONS)


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


def _answered(turn: Turn, slot: Slot) -> bytes:
    assert slot.unit is not None
    slot.reply = turn.run(slot.unit)
    return slot.encoded()
