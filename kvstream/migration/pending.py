"""What is pending in a group of a server, by pages of XPENDING, with exact times.

XPENDING tells how long ago an entry was delivered, and not when. All of one reply is counted from
one moment; an entry whose time is known exactly, from XINFO STREAM FULL or from the page before,
tells what moment that was. Where none is known the server's TIME is taken, a few milliseconds off.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kvstream.ids import StreamID
from kvstream.images import PackedID, PendingImage
from kvstream.migration.nodes import packed_id
from kvstream.remote.connection import Connection, Words

PAGE = 10_000
"""Pending entries of one reply."""
PLAUSIBLE_MS = 60_000
"""How far the moment of a page may lie from the server's TIME: beyond, the entry that told it has
been delivered again meanwhile."""
NOBODY_MS = -1
"""The idle time of an entry that XNACK gave back."""

RawPending = list[Any]
"""One row of XPENDING: ID, consumer, idle time, deliveries."""


def page_words(key: bytes, group: bytes, start: bytes) -> Words:
    """Return the command for the pending entries from an ID on."""
    return ("XPENDING", key, group, start, "+", PAGE)


class PendingPages:
    """The pending entries of one group."""

    def __init__(
        self, connection: Connection, key: bytes, group: bytes, known: Mapping[PackedID, int]
    ) -> None:
        """``known``: exact times of delivery of some of them."""
        self.inexact = False
        """Whether a time had to be calculated from the server's clock."""
        self._connection = connection
        self._key = key
        self._group = group
        self._known = dict(known)

    def images(self, page: list[RawPending], now_ms: int) -> Iterator[PendingImage]:
        """Yield all of them, given the first page and the server's time of it."""
        yield from self._images(page, now_ms)
        while len(page) == PAGE:
            last = page[-1]
            words = page_words(self._key, self._group, last[0])
            page, time = self._connection.ask_all([words, ("TIME",)])
            for reply in (page, time):
                if isinstance(reply, Exception):
                    raise reply
            now_ms = unix_ms(time)
            above = page[1:] if page and page[0][0] == last[0] else page
            yield from self._images(page, now_ms, above)

    def _images(
        self, page: list[RawPending], clock_ms: int, new: list[RawPending] | None = None
    ) -> Iterator[PendingImage]:
        now_ms = self._moment(page, clock_ms)
        for text, owner, idle_ms, deliveries in page if new is None else new:
            eid = packed_id(text)
            if idle_ms == NOBODY_MS and not owner:
                yield PendingImage(eid, None, 0, deliveries)
                continue
            time_ms = self._known.get(eid, now_ms - idle_ms)
            yield PendingImage(eid, owner, time_ms, deliveries)
        if page:
            text, _, idle_ms, _ = page[-1]
            self._known = {packed_id(text): now_ms - idle_ms} if idle_ms > 0 else {}

    def _moment(self, page: list[RawPending], clock_ms: int) -> int:
        """Return the server's time from which a page counts."""
        for text, _, idle_ms, _ in page:
            time_ms: int | None = self._known.get(packed_id(text))
            # A delivery that lies in the future counts as idle 0, and tells nothing.
            if time_ms is None or idle_ms <= 0:
                continue
            if abs(time_ms + idle_ms - clock_ms) < PLAUSIBLE_MS:
                return time_ms + int(idle_ms)
        self.inexact = self.inexact or any(idle_ms != NOBODY_MS for _, _, idle_ms, _ in page)
        return clock_ms


def unix_ms(time: list[bytes]) -> int:
    """Return the milliseconds of TIME's reply."""
    seconds, microseconds = map(int, time)
    return seconds * 1000 + microseconds // 1000


def id_text(eid: PackedID) -> bytes:
    """Return an ID as commands have it."""
    return bytes(StreamID.unpack(eid))
