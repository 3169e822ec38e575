"""XADD bursts: plain XADDs to one key (``XADD key [trim] * field value ...``) from one client.

If all received bytes of a client are such requests, compiled code parses them and packs their
entries at once. Without that code, and for all else, requests are parsed one by one and run by the
command table; a plain XADD among them becomes a burst of one.
"""

from itertools import chain
from typing import TYPE_CHECKING

from kvstream.commands.append import plain_trim
from kvstream.commands.replies import RESP2, ErrorReply
from kvstream.layout.values import Names, decode_fields
from kvstream.operations.trim import Trim
from kvstream.resp import twins
from kvstream.resp.replies import encode
from kvstream.resp.requests import Request, RequestReader
from kvstream.server.runtime.client import Client
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
