"""Entries that consumers give back (XNACK), and their redelivery, on servers of every version.

XREADGROUP returns them only with CLAIM, which makes it slower. So a client looks for them once
every ``LOOK_S``, when a read finds nothing else, after its own nack, and after a look that found
some.

Redis before 8.8 and Valkey have no XNACK. There an entry is given back by XCLAIM to a consumer
``kvstream-nacked``, as if delivered 51 years ago. A look claims the entries of this consumer.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kvstream.engine.blocking_reads import GroupRead
from kvstream.errors import RequestError, ServerUnavailable
from kvstream.layout.keys import database_of, key_of
from kvstream.meta.pel import COUNT_MAX
from kvstream.operations import ack, claim, readgroup
from kvstream.operations.ack import Nack
from kvstream.operations.reads.read import Reply
from kvstream.remote.call import Call, Effect, Words
from kvstream.remote.connection import Connection
from kvstream.remote.operations import call_of
from kvstream.remote.replies import NOBODY, pending_entry_of
from kvstream.types.clock import monotonic
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID
from kvstream.types.options import NackMode
from kvstream.types.records import HistoryEntry, PendingEntry

LOOK_S = 0.1
"""Seconds between two looks for entries that others have given back."""
LOOK_BEFORE_8_8_S = 1.0
"""The same before Redis 8.8, where a look is a command of its own and interrupts a blocked read."""
_GROUPS_MAX = 10_000
_PAGE = 1000
"""Entries of one look before Redis 8.8; they are sorted by their age."""
_AGE_MS = readgroup.GIVEN_BACK_MS + 365 * 86_400_000
"""The idle time of entries that are given back by XCLAIM: longer than that of any others."""

Run = Callable[..., Any]
"""Runs an operation of the library."""


class GivenBack:
    """Looks for entries that were given back to the groups of one server."""

    def __init__(self, run: Run, call: Callable[[Call], Any]) -> None:
        self._run, self._call = run, call
        self._due: dict[tuple[bytes, bytes], float] = {}
        """When to look next, by stream and group."""
        self._has_xnack: bool | None = None
        self._last_ms = 0
        """The delivery time of the entries that were last given back by XCLAIM."""

    def has_xnack(self, connection: Connection) -> bool:
        """Return whether the server has XNACK, and so a CLAIM that is woken by it."""
        if self._has_xnack is None:
            try:
                self._has_xnack = connection.ask("COMMAND", "INFO", "XNACK") != [None]
            except RequestError:  # not every user may send COMMAND
                self._has_xnack = True
        return self._has_xnack

    # --- reading --------------------------------------------------------------------------------

    def due_in(self, attempt: GroupRead) -> float:
        """Return the seconds until a read is to look."""
        dues = [self._due.get((name, attempt.group), 0.0) for name, _ in attempt.wanted]
        return min(dues) - monotonic()

    def look(
        self, attempt: GroupRead, connection: Connection, rest: float | None, waits: bool
    ) -> Reply | None:
        """Read entries that were given back, then new ones; wait for at most ``rest`` seconds.

        Return None if some were found but none can be returned, as their entries are deleted.
        """
        has_xnack = self.has_xnack(connection)
        due = monotonic() + (LOOK_S if has_xnack else LOOK_BEFORE_8_8_S)
        found = False
        reply: Reply = []
        if not has_xnack:
            reply, found = self._claim(attempt)
            if reply and len(attempt.wanted) == 1:
                with suppress(ServerUnavailable):  # no new ones then: the others are delivered
                    reply = self._fill_up(attempt, *reply[0])
            rest = LOOK_BEFORE_8_8_S if rest is None else min(rest, LOOK_BEFORE_8_8_S)
        if not found:
            block = connection.block_words(rest) if waits else ()
            claim_ms = readgroup.GIVEN_BACK_MS if has_xnack else None
            reply = self._call(call_of(GroupRead, attempt, block, claim_ms))
            if has_xnack:
                reply, found = readgroup.as_library_read(reply)
        if found:
            due = 0.0
        if len(self._due) > _GROUPS_MAX:
            self._due.clear()
        self._due.update(((name, attempt.group), due) for name, _ in attempt.wanted)
        return reply if reply or not found else None

    def _claim(self, attempt: GroupRead) -> tuple[Reply, bool]:
        """Claim the entries that were given back; return them, and whether any were found."""
        reply: Reply = []
        any_found = False
        for name, _ in attempt.wanted:
            try:
                live, found = self._claim_stream(attempt, name)
            except ServerUnavailable:
                if not reply:
                    raise
                break  # the entries before are this consumer's now
            any_found = any_found or found
            if live:
                reply.append((name, live))
        return reply, any_found

    def _claim_stream(self, attempt: GroupRead, name: bytes) -> tuple[list[HistoryEntry], bool]:
        """Claim those of one stream; return them, and whether any were found."""
        rows = self._read_unowned(name, attempt.group, attempt.count)
        tried = [eid for eid, deliveries in rows.items() if deliveries != COUNT_MAX]
        take = partial(self._run, claim.claim, name, attempt.group, attempt.consumer)
        # The idle time keeps two readers from claiming the same entry.
        found = take(readgroup.GIVEN_BACK_MS, tried)
        if len(tried) < len(rows):  # one more delivery would make their count negative
            with suppress(ServerUnavailable):
                take(
                    readgroup.GIVEN_BACK_MS, [eid for eid in rows if eid not in tried], justid=True
                )
        return [entry._replace(deliveries=rows[entry.id]) for entry in found], bool(rows)

    def _fill_up(self, attempt: GroupRead, name: bytes, claimed: Iterable[HistoryEntry]) -> Reply:
        """Return the claimed entries of the only stream, and new ones up to the count."""
        entries = list(claimed)
        count = None if attempt.count is None else attempt.count - len(entries)
        if count != 0:
            for _, new in self._call(call_of(GroupRead, replace(attempt, count=count))):
                entries += new
        return [(name, entries)]

    def _read_unowned(self, name: bytes, group: bytes, count: int | None) -> dict[StreamID, int]:
        """Read the entries that were given back, oldest first, with their delivery counts."""
        asked = call_of(
            claim.pending_range,
            name,
            group,
            MIN_ID,
            MAX_ID,
            _PAGE if count is None else max(count, _PAGE),
            NOBODY,
        )
        rows = self._call(replace(asked, result=lambda replies: replies[0]))
        rows.sort(key=lambda row: row[2], reverse=True)
        return {row.id: row.deliveries for row in map(pending_entry_of, rows[:count])}

    # --- giving back ----------------------------------------------------------------------------

    def nack(
        self, connection: Connection, name: bytes, group: bytes, ids: Sequence[StreamID], nack: Nack
    ) -> int:
        """Give entries back, and return how many."""
        self._due[name, group] = 0.0
        if not ids or self.has_xnack(connection):
            call = call_of(ack.negative_acknowledge, name, group, ids, nack)
        else:
            call = self._nack_by_claim(name, group, ids, nack)
        given: int = self._call(call)
        return given

    def _nack_by_claim(
        self, name: bytes, group: bytes, ids: Sequence[StreamID], nack: Nack
    ) -> Call:
        """Return the call that gives entries back by XCLAIM."""
        counts: dict[StreamID, int | None] = dict.fromkeys(ids, nack.retrycount)
        if nack.retrycount is None and nack.mode is NackMode.FATAL:
            counts = dict.fromkeys(ids, COUNT_MAX)
        elif nack.retrycount is None and nack.mode is NackMode.SILENT:
            for eid in ids:
                rows: Iterable[PendingEntry] = self._run(
                    claim.pending_range, name, group, eid, eid, 1
                )
                counts.update((row.id, max(0, row.deliveries - 1)) for row in rows)
        self._last_ms = time_ms = max(self._last_ms + 1, time.time_ns() // 1_000_000 - _AGE_MS)
        sent: dict[int | None, list[str]] = {}
        for eid in ids:
            sent.setdefault(counts[eid], []).append(str(eid))
        options: Words = ("FORCE", "JUSTID") if nack.force else ("JUSTID",)
        words: list[Words] = []
        for count, some in sent.items():
            retries: Words = () if count is None else ("RETRYCOUNT", count)
            start: Words = ("XCLAIM", key_of(name), group, NOBODY, 0)
            words.append((*start, *some, "TIME", time_ms, *retries, *options))
        return Call(
            database_of(name),
            (key_of(name),),
            words,
            lambda replies: sum(map(len, replies)),
            Effect.WRITE,
        )
