"""XADDs that come one after another, taken together.

A plain XADD (``XADD key [trim] * field value ...``) waits until something else comes or the turn
ends; then all that wait for one stream are appended at once, stream by stream. They get the IDs and
replies that they would get one by one: an entry of one stream changes nothing for another. Where
somebody waits for the stream, where a call is to be told of or timed by itself, and where one of
them is refused, they do run one by one.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter

from kvstream.commands.append import plain_trim
from kvstream.commands.table import find
from kvstream.engine.engine import Engine, Turn, TurnFailed
from kvstream.errors import InvalidArgument, RequestError
from kvstream.layout.keys import database_of, key_of
from kvstream.layout.values import encode_flat
from kvstream.operations.append import add_each, add_many
from kvstream.operations.trim import Trim, is_long
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Answers, Argv, Client
from kvstream.server.runtime.dispatch import Calls
from kvstream.server.runtime.reply_queue import Kept, Slot
from kvstream.server.runtime.xadd_requests import (
    Burst,
    Packed,
    PlainBurst,
    answer,
    entries_of,
    gather,
    requests_of,
)

_XADD = find([b"xadd", b"key", b"*", b"field", b"value"])
_NAMES = (b"XADD", b"xadd")
WORDS_MIN = 5
"""Words of the shortest XADD."""
_OPTIONS = (b"MAXLEN", b"MINID", b"maxlen", b"minid")
LARGE = 64 << 10
"""Of an entry with more bytes than this no more than the row is kept in memory."""
TIMED_US = 1000
"""Where slower calls than this are of interest, each is run, and timed, by itself."""


class Appends:
    """The appends of one turn that wait to be run together."""

    def __init__(
        self, engine: Engine, calls: Calls, options: ServerOptions, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._waiters = engine.waiters
        self._calls = calls
        self._options = options
        self._clock = clock
        self.waiting: dict[bytes, list[PlainBurst]] = {}
        """By the names of streams."""

    def take_bursts(
        self, bursts: list[PlainBurst], most: int
    ) -> tuple[list[PlainBurst], list[PlainBurst], int]:
        """Take the first of many bursts, of ``most`` entries or little more, out of the list.

        Returns those that wait now, those that cannot, and the number of entries of both. Behind
        one that cannot, no other of its client waits: it would come first.
        """
        stop, others, entries, trimming = gather(bursts, self.waiting, most)
        for name, waiting in list(self.waiting.items()):
            if not self._may_wait(name) or (name in trimming and self._is_long(name, waiting)):
                others += self.waiting.pop(name)
        if others:
            return *self._set_apart(bursts, stop, set(map(id, others))), entries
        taken = bursts[:stop]
        del bursts[:stop]
        return taken, others, entries

    def _set_apart(
        self, bursts: list[PlainBurst], stop: int, apart: set[int]
    ) -> tuple[list[PlainBurst], list[PlainBurst]]:
        """Take bursts out of the list: those that wait, and those that cannot, as they came.

        They are the first ``stop``, and all others of the clients of those that are ``apart``.
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

    def take(self, client: Client, argv: Argv) -> PlainBurst | None:
        """Take a request if it can wait; its reply will stand in what is returned."""
        if len(argv) < WORDS_MIN or argv[0] not in _NAMES:
            return None
        if client.queue is not None or client.answers is not Answers.ON:
            return None
        name = client.prefix + argv[1]
        if not (client.authenticated and client.user.free and self._may_wait(name)):
            return None
        found = _plain(argv, self._engine.catalog.limits.entry_max_bytes)
        if found is None:
            return None
        packed, trim = found
        sent: Argv | tuple[bytes, ...] = argv
        if len(packed[0]) > LARGE:  # what is packed says it all, should it be asked for again
            sent = tuple(argv[: argv.index(b"*", 2) + 1])
        burst = Burst(client, argv[1], [packed], sent, None if trim is None else [trim])
        burst.prefix = client.prefix
        waiting = self.waiting.get(name, [])
        if trim is not None and self._is_long(name, [burst], len(waiting)):
            return None
        self.waiting.setdefault(name, waiting).append(burst)
        return burst

    def _may_wait(self, name: bytes) -> bool:
        trackers = self._calls.trackers
        slower_than_us = self._options.slower_than_us
        return (
            not (self._calls.monitors or self._calls.paused or self._calls.crowded)
            and name not in self._waiters
            and not (trackers.clients and trackers.concerns(key_of(name)))
            and not 0 <= slower_than_us < TIMED_US
        )

    def _is_long(self, name: bytes, bursts: list[PlainBurst], before: int = 0) -> bool:
        """Tell whether the trims of bursts, behind ``before`` entries, may take long.

        They may where their stream is not in memory. The time is to be looked at behind each then.
        """
        catalog = self._engine.catalog
        stream = catalog.streams.get(name)
        if stream is None:
            return True
        entries = before + sum([len(burst.entries) for burst in bursts])
        trims = {id(trim): trim for burst in bursts for trim in burst.trims or () if trim}
        return any(is_long(catalog.limits, stream, trim, entries) for trim in trims.values())

    def flush(self, turn: Turn) -> None:
        """Run what waits."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, {}
        turn.grows = True
        for name, bursts in waiting.items():
            self._run(turn, name, bursts)

    def make_way(self, turn: Turn, client: Client, argv: Argv) -> None:
        """Run what waits before a request; where that fails the request is still to be run."""
        try:
            self.flush(turn)
        except TurnFailed:
            client.requests.appendleft(argv)
            raise

    def _run(self, turn: Turn, name: bytes, bursts: list[PlainBurst]) -> None:
        begun = perf_counter()
        entries, trims = entries_of(bursts)
        try:
            if trims is None:
                ids = turn.run(add_many, name, entries)
            else:
                ids = turn.run(add_each, name, entries, trims)
        except RequestError:  # nothing has been changed: each gets its own answer
            for burst in bursts:
                burst.replies = b"".join(_answered(turn, slot) for slot in self.apart(burst))
            return
        answer(bursts, ids, self._clock())
        self._calls.appended(name, len(entries), perf_counter() - begun, turn.txn)

    def apart(self, kept: Kept) -> list[Slot]:
        """Return a slot for each of the requests of a burst; a slot is alone already."""
        if isinstance(kept, Slot):
            return [kept]
        assert isinstance(kept, Burst)
        client, db = kept.client, database_of(kept.prefix or kept.client.prefix)
        return [
            Slot(client, None, partial(self._calls.answer, client, _XADD, argv), db, told=True)
            for argv in requests_of(kept)
        ]

    def clear(self) -> None:
        """Forget what waits: the turn has failed."""
        self.waiting = {}


def _plain(argv: Argv, most: int) -> tuple[Packed, Trim | None] | None:
    """Return the entry of an XADD, packed, and how it trims.

    None where it asks for more, or has more than ``most`` bytes.
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
