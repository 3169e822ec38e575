"""XADDs that come one after another, taken together.

A plain XADD (``XADD key * field value ...``) waits until something else comes, or one for another
stream, or the turn ends; then all that wait are appended at once. They get the IDs and
replies that they would get one by one. Where somebody waits for the stream, where a call is to be
told of or timed by itself, and where one of them is refused, they do run one by one.
"""

from functools import partial
from time import perf_counter

from kvstream.commands.table import find
from kvstream.engine import Engine
from kvstream.errors import RequestError
from kvstream.layout.values import encode_flat
from kvstream.meta.txn import Txn
from kvstream.operations.append import add_many
from kvstream.server.calls import Calls
from kvstream.server.client import Answers, Argv, Client
from kvstream.server.options import ServerOptions
from kvstream.server.outbox import Slot
from kvstream.turn import Turn

_XADD = find([b"xadd", b"key", b"*", b"field", b"value"])
_NAMES = (b"XADD", b"xadd")
_WORDS_MIN = 5
TIMED_US = 1000
"""Where slower calls than this are of interest, each is run, and timed, by itself."""


class Appends:
    """The appends of one turn that wait to be run together; all to one stream."""

    def __init__(self, engine: Engine, calls: Calls, options: ServerOptions) -> None:
        self._waiters = engine.waiters
        self._calls = calls
        self._options = options
        self._name = b""
        self._flats: list[list[bytes]] = []
        self.slots: list[Slot] = []
        """The replies to be."""

    def take(self, client: Client, argv: Argv) -> Slot | None:
        """Take a request if it can wait; its reply will stand in the slot that is returned."""
        words = len(argv)
        if words < _WORDS_MIN or not words & 1 or argv[2] != b"*" or argv[0] not in _NAMES:
            return None
        if client.queue is not None or client.answers is not Answers.ON:
            return None
        if not (client.authenticated and client.user.free) or self._calls.monitors:
            return None
        name = client.prefix + argv[1]
        if name in self._waiters or 0 <= self._options.slower_than_us < TIMED_US:
            return None
        if self.slots and name != self._name:
            return None
        self._name = name
        unit = partial(self._calls.answer, client, _XADD, argv)
        slot = Slot(client, None, unit, client.db)
        self.slots.append(slot)
        self._flats.append(argv[3:])
        return slot

    def flush(self, turn: Turn) -> None:
        """Run what waits."""
        slots, self.slots = self.slots, []
        flats, self._flats = self._flats, []
        turn.grows = True
        begun = perf_counter()
        try:
            replies = turn.run(_append, self._name, flats)
        except RequestError:  # nothing has been changed: each gets its own answer
            for slot in slots:
                assert slot.unit is not None
                slot.reply = turn.run(slot.unit)
            return
        for slot, reply in zip(slots, replies, strict=True):
            slot.reply = reply
        self._calls.appended(slots, perf_counter() - begun)

    def clear(self) -> None:
        """Forget what waits: the turn has failed."""
        self.slots, self._flats = [], []


def _append(txn: Txn, name: bytes, flats: list[list[bytes]]) -> list[bytes]:
    ids = add_many(txn, name, [encode_flat(flat) for flat in flats])
    return [b"%d-%d" % eid for eid in ids]
