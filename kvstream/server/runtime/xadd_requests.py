"""Bursts: plain XADDs (``XADD key [trim] * field value ...``) to one key that a client has sent.

Where all that a client has sent is such requests, the bytes are read and the entries packed as they
are stored in one go, by compiled code. Without that code, and for all else, requests are taken
apart and go by the table; a plain XADD among them is a burst of one.
"""

from itertools import chain
from typing import TYPE_CHECKING, Any

from kvstream.commands.append import plain_trim
from kvstream.commands.replies import ErrorReply
from kvstream.layout.values import Names, decode_fields
from kvstream.operations.trim import Trim
from kvstream.resp.compiled import twins
from kvstream.resp.replies import encode
from kvstream.resp.requests import Request, RequestReader
from kvstream.server.runtime.client import Client
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.options import ENTRY_BYTES_MAX
from kvstream.types.records import Entry

BURST_BYTES_MAX = 1 << 20
"""A burst's requests are run together, and no turn may be long. No entry of one is too large: the
least that stream-entry-max-bytes may be is as much."""

Packed = tuple[bytes, Names]
Trims = list[Trim | None]


class PlainBurst:
    """XADDs of one client, what is stored for them, and the replies to them all."""

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
        """The bytes of all requests; or the words of one, in a tuple those before its fields."""
        self.trims = trims
        """How each trims; None: none does."""
        self.replies = b""
        self.prefix = b""
        """The number of the client's database, packed, when the burst was taken."""

    def encoded(self) -> bytes:
        """Return the replies in bytes."""
        return self.replies

    def fail(self, error: ErrorReply) -> None:
        """Tell of an error instead."""
        self.replies = b"-%b\r\n" % error.line * len(self.entries)


Burst = PlainBurst
if not TYPE_CHECKING and twins is not None:
    Burst = twins.Burst
    twins.know_trims(plain_trim)


def burst_of(client: Client, data: bytes) -> PlainBurst | None:
    """Return what a client has sent if it is plain XADDs to one key and nothing else."""
    if twins is None or len(data) > BURST_BYTES_MAX:
        return None
    found: Any = twins.take_appends(client, data, ENTRY_BYTES_MAX)
    return found  # type: ignore[no-any-return]


def requests_of(burst: PlainBurst) -> list[Request]:
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
    bursts: list[PlainBurst], waiting: dict[bytes, list[PlainBurst]], most: int
) -> tuple[int, list[PlainBurst], int, set[bytes]]:
    """Share bursts out by the names of their streams, until there are ``most`` entries.

    Returns where it stopped, the bursts of clients that must be looked at one by one, how many
    entries there were, and the names of the streams that some of them trim.
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


def entries_in_python(bursts: list[PlainBurst]) -> tuple[list[Packed], Trims | None]:
    """Return the entries of bursts, one behind the other, and how each trims; None: none does."""
    entries = [entry for burst in bursts for entry in burst.entries]
    if all(burst.trims is None for burst in bursts):
        return entries, None
    trims = [burst.trims or [None] * len(burst.entries) for burst in bursts]
    return entries, list(chain.from_iterable(trims))


def answer_in_python(bursts: list[PlainBurst], ids: list[StreamID], now: float) -> None:
    """Have bursts tell of the IDs that their entries got, and their clients be seen ``now``."""
    at = 0
    for burst in bursts:
        stop = at + len(burst.entries)
        burst.replies = b"".join([encode(b"%d-%d" % eid, 2) for eid in ids[at:stop]])
        client = burst.client
        client.last_command = "xadd"
        client.last_used = now
        client.commands_run += stop - at
        at = stop


gather: Any = gather_in_python if twins is None else twins.gather
entries_of: Any = entries_in_python if twins is None else twins.entries_of
answer: Any = answer_in_python if twins is None else twins.answer
