"""One stream of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from kvstream.engine.blocking_reads import explain_missing, plain_read, read_position
from kvstream.engine.coerce import (
    NUMBER_MAX,
    IDs,
    Name,
    Policy,
    Seconds,
    add_ids,
    budget_of,
    id_list,
    idempotency_of,
    name_bytes,
    optional,
    trim_of,
    wait_of,
    whole,
)
from kvstream.engine.decoding import Decoder
from kvstream.engine.interface import AnyEngine
from kvstream.engine.lease_renewal import Outages
from kvstream.engine.queue_arguments import (
    Duration,
    Moment,
    Rate,
    due_ms,
    one_of,
    refuse_beside_delay,
    retention_of,
    span_ms,
    unique_of,
)
from kvstream.engine.waiters import Interrupt
from kvstream.errors import (
    BusyGroup,
    IDTooSmall,
    InvalidArgument,
    KVStreamError,
    NoSuchKey,
    naming_stream,
    optional_package,
    quote,
    show,
)
from kvstream.group import Group
from kvstream.layout.keys import key_of
from kvstream.layout.values import (
    FieldPart,
    FieldsLike,
    encode_fields,
    encode_many,
    flat_bytes,
)
from kvstream.meta.policy import Retention
from kvstream.meta.txn import Txn
from kvstream.operations import append, delayed, delete, groups, info, trim
from kvstream.operations.groups import text
from kvstream.operations.queues import retention, schedules
from kvstream.operations.reads import counts, read
from kvstream.operations.reads.range import Range, scan
from kvstream.surface import Public
from kvstream.types.cron import refuse_no_text
from kvstream.types.ids import (
    BoundLike,
    IDLike,
    StreamID,
    Ticket,
    after_bound,
    parse_add_id,
    range_end,
    range_start,
)
from kvstream.types.options import FULL_COUNT, MISFIRES, Misfire, OnConflict, RefPolicy
from kvstream.types.records import (
    DelayedMessage,
    Entry,
    GroupInfo,
    Outcome,
    S,
    Schedule,
    StreamDetail,
    StreamInfo,
)

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from kvstream.arrow.batches import StreamRead

ArrowSchema: TypeAlias = "pa.Schema | Mapping[str, Any] | None"

_SCAN_PAGE = 1000

P = ParamSpec("P")
T = TypeVar("T")


class Stream(Public, Generic[S]):
    """A handle on the stream of a key, which need not exist yet.

    An ID is a StreamID, "ms-seq", "ms", (ms, seq), an int of milliseconds, a datetime or a date (in
    UTC without a zone). A bound of a range or trim may also be a timedelta (so long ago) or text:
    ISO 8601, "now-15m", "15 minutes ago". Each call is atomic; WrongType: the key is a string. ::

        orders = store.stream("orders")
        orders.add({"sku": "A1", "qty": "2"})
        for entry in orders.range("now-15m"):
            print(entry.id, entry.fields)
    """

    __slots__ = ("_decoder", "_engine", "_name")

    def __init__(self, engine: AnyEngine, name: bytes, decoder: Decoder[S]) -> None:
        self._engine = engine
        self._name = name
        self._decoder = decoder

    @property
    def key(self) -> S:
        """The name of the stream: bytes, or str with ``decode=True``."""
        return self._decoder.name(key_of(self._name), "the key")

    def __repr__(self) -> str:
        return f"<Stream {key_of(self._name)!r}>"

    # --- writing --------------------------------------------------------------------------------

    @overload
    def add(
        self,
        fields: FieldsLike,
        id: IDLike = ...,
        *,
        maxlen: int | None = ...,
        minid: BoundLike | None = ...,
        approximate: bool = ...,
        limit: int | None = ...,
        ref_policy: Policy | None = ...,
        idmp: tuple[FieldPart, FieldPart] | None = ...,
        idmpauto: FieldPart | None = ...,
        nomkstream: Literal[False] = ...,
    ) -> StreamID: ...

    @overload
    def add(
        self,
        fields: FieldsLike,
        id: IDLike = ...,
        *,
        maxlen: int | None = ...,
        minid: BoundLike | None = ...,
        approximate: bool = ...,
        limit: int | None = ...,
        ref_policy: Policy | None = ...,
        idmp: tuple[FieldPart, FieldPart] | None = ...,
        idmpauto: FieldPart | None = ...,
        nomkstream: bool,
    ) -> StreamID | None: ...

    @overload
    def add(
        self,
        fields: FieldsLike,
        *,
        delay: Duration | None = ...,
        at: Moment | None = ...,
        ttl: Duration | None = ...,
        unique: FieldPart | None = ...,
        window: Duration | Rate | None = ...,
        on_conflict: OnConflict = ...,
        max_wait: Duration | None = ...,
    ) -> StreamID | Ticket: ...

    def add(
        self,
        fields: FieldsLike,
        id: IDLike = "*",
        *,
        maxlen: int | None = None,
        minid: BoundLike | None = None,
        approximate: bool = False,
        limit: int | None = None,
        ref_policy: Policy | None = None,
        idmp: tuple[FieldPart, FieldPart] | None = None,
        idmpauto: FieldPart | None = None,
        nomkstream: bool = False,
        delay: Duration | None = None,
        at: Moment | None = None,
        ttl: Duration | None = None,
        unique: FieldPart | None = None,
        window: Duration | Rate | None = None,
        on_conflict: OnConflict = "skip",
        max_wait: Duration | None = None,
    ) -> StreamID | Ticket | None:
        """Append one entry and return its ID, as XADD does; adding and trimming are one commit.

        ``fields`` is a mapping, or (field, value) pairs if a field repeats. ``id`` is ``"*"``, an
        ID above the last one (else IDTooSmall is raised), or ``"ms-*"``. ``maxlen`` or ``minid``
        trims, with ``approximate`` whole nodes only. ``idmp`` is (producer, idempotent ID);
        ``idmpauto`` is a producer whose idempotent IDs are computed from the fields. A repeated one
        adds nothing and returns the ID of the first, for 100 seconds and the last 100 of each
        producer: see ``configure``. With ``nomkstream`` the result is None if there is no stream.

        With ``delay`` (seconds or a timedelta) or ``at`` (a datetime or Unix seconds) the entry is
        appended then, and its ticket is returned. ``ttl`` deletes it so long after. ``unique`` is
        an ID that the message holds for ``window``, by default until it is done; ``(10, 60)`` are
        ten messages in 60 seconds. Another one with that ID is left out ("skip"), takes its place
        if no group has got it ("replace"), takes the place of a delayed one ("debounce", until
        ``max_wait`` after the first), is added if a group has got the first ("after"), or is
        delayed to the next window ("throttle"). For one that is left out the holder is returned.
        """
        value, names = encode_fields(fields)
        # Python runs a chain of ``is`` in twice as many steps as these tests for None.
        if (
            (delay is not None or at is not None or ttl is not None)
            or (unique is not None or window is not None)
            or (on_conflict != "skip" or max_wait is not None)
        ):
            refuse_beside_delay(
                id=None if id == "*" else id,
                **{"maxlen": maxlen, "minid": minid, "limit": limit},
                **{"idmp": idmp, "idmpauto": idmpauto, "nomkstream": nomkstream or None},
            )
            rule = unique_of(unique, window, on_conflict, max_wait)
            at_ms, ttl_ms = due_ms(delay, at, self._engine.clock), span_ms(ttl or 0, "ttl")
            return self._engine.run(delayed.add, self._name, value, names, at_ms, ttl_ms, rule)
        trimming = None
        if maxlen is not None or minid is not None or limit is not None or ref_policy is not None:
            trimming = trim_of(maxlen, minid, approximate, limit, ref_policy, self._now)
        once = None
        if idmp is not None or idmpauto is not None:
            once = idempotency_of(fields, idmp, idmpauto)
        eid = None if id == "*" else parse_add_id(id)
        try:
            return self._engine.run(
                append.add, self._name, value, names, eid, trimming, nomkstream, once
            )
        except IDTooSmall as error:
            raise naming_stream(error, key_of(self._name), self._last_id()) from None

    @overload
    def add_many(
        self,
        entries: Iterable[FieldsLike],
        *,
        ids: Iterable[IDLike] | None = ...,
        maxlen: int | None = ...,
        minid: BoundLike | None = ...,
        approximate: bool = ...,
        limit: int | None = ...,
    ) -> list[StreamID]: ...

    @overload
    def add_many(
        self,
        entries: Iterable[FieldsLike],
        *,
        delay: Duration | None = ...,
        at: Moment | None = ...,
        ttl: Duration | None = ...,
    ) -> list[StreamID | Ticket]: ...

    def add_many(
        self,
        entries: Iterable[FieldsLike],
        *,
        ids: Iterable[IDLike] | None = None,
        maxlen: int | None = None,
        minid: BoundLike | None = None,
        approximate: bool = False,
        limit: int | None = None,
        delay: Duration | None = None,
        at: Moment | None = None,
        ttl: Duration | None = None,
    ) -> list[StreamID] | list[StreamID | Ticket]:
        """Append entries in one atomic commit and return their IDs; trim once, after the last.

        ``ids`` has the ``id`` of ``add`` for each entry, by default "*": if one is not above the
        one before it, IDTooSmall is raised and nothing is added; on a server the others are, and
        the error says which.
        ``delay``, ``at`` and ``ttl`` are those of ``add``, for all entries.
        """
        trimming = trim_of(maxlen, minid, approximate, limit, None, self._now)
        encoded = encode_many(entries)
        wanted = None if ids is None else add_ids(ids, len(encoded))
        if not encoded:
            return []
        if not (delay is at is ttl is None):
            refuse_beside_delay(ids=wanted, maxlen=maxlen, minid=minid)
            at_ms, ttl_ms = due_ms(delay, at, self._engine.clock), span_ms(ttl or 0, "ttl")
            return self._engine.run(delayed.add_many, self._name, encoded, at_ms, ttl_ms)
        if wanted is None:
            return self._engine.run(append.add_many, self._name, encoded, trimming)
        try:
            return self._engine.run(append.add_under, self._name, wanted, encoded, trimming)
        except IDTooSmall as error:
            raise naming_stream(error, key_of(self._name), self._last_id()) from None

    def _last_id(self) -> StreamID | str:
        """Return the last ID of the stream, for errors; a word if it cannot be read."""
        try:
            return self._engine.run(read.resolve, self._name, read.Position.LAST)
        except KVStreamError:
            return "unknown"

    # --- delayed messages -----------------------------------------------------------------------

    def delayed(
        self, start: Ticket | str | None = None, count: int = 100
    ) -> list[DelayedMessage[S]]:
        """Return messages that are not due yet, from a ticket on, the soonest due first.

        At most ``count``, 5000, or fewer if they are large.
        """
        first = None if start is None else Ticket.parse(start)
        messages = self._engine.run(delayed.list_messages, self._name, first, whole(count, "count"))
        return [self._decoder.delayed_message(self._name, each) for each in messages]

    def delayed_count(self) -> int:
        """Return the number of messages that are not due yet."""
        return self._engine.run(delayed.length, self._name)

    def cancel(self, *tickets: Ticket | StreamID | str) -> int:
        """Delete messages that are not due yet; return how many. IDs of entries are left out."""
        wanted = [Ticket.parse(each) for each in tickets if not isinstance(each, StreamID)]
        return self._engine.run(delayed.cancel, self._name, wanted)

    def move(
        self, ticket: Ticket | str, *, delay: Duration | None = None, at: Moment | None = None
    ) -> Ticket | None:
        """Make a delayed message due at another time; return its new ticket, None if it is due."""
        at_ms = due_ms(delay, at, self._engine.clock)
        if at_ms is None:
            raise InvalidArgument("give delay or at: when the message is to be due")
        return self._engine.run(delayed.move, self._name, Ticket.parse(ticket), at_ms)

    # --- schedules ------------------------------------------------------------------------------

    def schedule(
        self,
        name: Name,
        cron: str,
        fields: FieldsLike,
        *,
        tz: str = "",
        misfire: Misfire = "once",
        most: int = 1,
    ) -> None:
        """Add a message with these fields at the times of a cron expression, each time once.

        ``cron`` has five fields, or six with seconds first, or is ``@every 10s``, ``@hourly``,
        ``@daily`` and so on. ``tz`` is a time zone such as ``"Europe/Berlin"``, by default UTC.
        ``misfire`` says what becomes of times that pass while no process has the store open:
        "skip" leaves them out, "once" adds one message for all, "all" adds the latest ``most``.
        Messages have the fields ``cron:name`` and ``cron:at``, too. A schedule of the same name is
        replaced; one of the same expression and zone keeps its next time. ::

            stream.schedule("nightly", "0 3 * * *", {"task": "clean"}, tz="Europe/Berlin")
        """
        rule = schedules.Misfire(one_of(misfire, MISFIRES, "misfire").upper())
        refuse_no_text(cron, tz)
        self._engine.run(
            schedules.set_schedule,
            self._name,
            name_bytes(name, "the schedule"),
            str(cron),
            [*flat_bytes(fields)],
            str(tz),
            rule,
            whole(most, "most"),
        )

    def schedules(self) -> list[Schedule[S]]:
        """Return the schedules by name."""
        stored = self._engine.run(schedules.schedules, self._name)
        return [self._decoder.schedule(self._name, each) for each in stored]

    def run_schedule(self, name: Name) -> StreamID:
        """Add the message of the schedule ``name`` now; its next time stays. Raises NoSuchKey."""
        schedule = name_bytes(name, "the schedule")
        return self._engine.run(schedules.run_schedule, self._name, schedule)

    def delete_schedule(self, name: Name) -> bool:
        """Delete the schedule ``name``; return whether it existed."""
        schedule = name_bytes(name, "the schedule")
        return self._engine.run(schedules.delete_schedule, self._name, schedule)

    # --- retention ------------------------------------------------------------------------------

    def set_retention(
        self,
        *,
        max_age: Duration | None = None,
        max_length: int | None = None,
        max_bytes: int | None = None,
        acked: bool = False,
        latest: Name | None = None,
        force: bool = False,
    ) -> None:
        """Set which entries are removed in the background, in place of earlier rules.

        An entry is removed if one rule says so: it is older than ``max_age``, before the last
        ``max_length`` or ``max_bytes`` (by whole nodes), ``acked`` by every group, or not the
        ``latest`` one with its value of that field. No entry is removed that a group has pending or
        has not read, unless ``force``. A stream is created if there is none.
        """
        rules = retention_of(max_age, max_length, max_bytes, acked, latest, force)
        self._engine.run(retention.set_rules, self._name, rules)

    def retention(self) -> Retention | None:
        """Return the rules by which entries are removed; None if there are none."""
        return self._engine.run(retention.rules_of, self._name)

    def drop_retention(self) -> bool:
        """Remove the rules by which entries are removed; return whether there were any."""
        return self._engine.run(retention.drop_rules, self._name)

    # --- removing -------------------------------------------------------------------------------

    def trim(
        self,
        *,
        maxlen: int | None = None,
        minid: BoundLike | None = None,
        approximate: bool = False,
        limit: int | None = None,
        ref_policy: Policy | None = None,
    ) -> int:
        """Remove the oldest entries, as XTRIM does; return how many."""
        trimming = trim_of(maxlen, minid, approximate, limit, ref_policy, self._now)
        if trimming is None:
            raise InvalidArgument("a trim needs maxlen or minid")
        return self._engine.run(trim.trim, self._name, trimming)

    def delete(self, *ids: IDs) -> int:
        """Delete entries, as XDEL does; return how many existed."""
        return self._engine.run(delete.delete, self._name, id_list(ids))

    def delete_entries(self, *ids: IDs, ref_policy: Policy = RefPolicy.KEEPREF) -> list[Outcome]:
        """Delete entries, as XDELEX does; return the outcome of each ID."""
        policy = RefPolicy(ref_policy)
        return self._engine.run(delete.delete_with_policy, self._name, id_list(ids), policy)

    def set_id(
        self,
        last_id: IDLike,
        *,
        entries_added: int | None = None,
        max_deleted_id: IDLike | None = None,
    ) -> None:
        """Set ``last_id``, ``entries_added`` and ``max_deleted_id`` if given, as XSETID does."""
        deleted = None if max_deleted_id is None else StreamID.parse(max_deleted_id)
        last = StreamID.parse(last_id)
        added = optional(entries_added, "entries_added")
        try:
            self._run_existing(append.set_id, last, added, deleted)
        except InvalidArgument as error:
            end = f"the last ID of stream {quote(key_of(self._name))} is {self._last_id()}"
            raise error.with_detail(f"{last}: {end}") from None

    def configure(
        self, *, idmp_duration: int | None = None, idmp_maxsize: int | None = None
    ) -> None:
        """Set how long (seconds) and how many idempotent IDs are kept, as XCFGSET does."""
        duration = optional(idmp_duration, "idmp_duration")
        maxsize = optional(idmp_maxsize, "idmp_maxsize")
        self._run_existing(append.configure, duration, maxsize)

    # --- reading --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._engine.run(counts.length, self._name)

    def __bool__(self) -> bool:
        return True

    def range(
        self, start: BoundLike = "-", end: BoundLike = "+", count: int | None = None
    ) -> list[Entry[S]]:
        """Return the entries from ``start`` to ``end``, as XRANGE does; ``"(id"`` excludes one. ::

        stream.range(start=timedelta(minutes=15))  # or "now-15m"
        """
        return self._decode(self._scan(*self._bounds(start, end), count))

    def revrange(
        self, end: BoundLike = "+", start: BoundLike = "-", count: int | None = None
    ) -> list[Entry[S]]:
        """Return the entries from ``end`` back to ``start``, as XREVRANGE does."""
        return self._decode(self._scan(*self._bounds(start, end), count, reverse=True))

    def _bounds(self, start: BoundLike, end: BoundLike) -> tuple[StreamID, StreamID]:
        return range_start(start, self._now), range_end(end, self._now)

    def _now(self) -> int:
        return self._engine.clock.now_ms()

    def _scan(
        self, start: StreamID, end: StreamID, count: int | None, reverse: bool = False
    ) -> list[Entry]:
        if count is not None and (type(count) is not int or count > NUMBER_MAX):
            count = whole(count, "count")
        page = self._engine.run(scan, Range(self._name, start, end, count, reverse))
        return page.entries() if page else []

    def _decode(self, found: list[Entry]) -> list[Entry[S]]:
        return self._decoder.entries(self._name, found)

    def get(self, id: IDLike) -> Entry[S] | None:
        """Return the entry whose ID is ``id``, or None."""
        eid = StreamID.parse(id)
        entries = self._decode(self._scan(eid, eid, 1))
        return entries[0] if entries else None

    def count(self, start: BoundLike = "-", end: BoundLike = "+") -> int:
        """Return the exact number of entries from ``start`` to ``end``; 0 if there is no stream.

        Bounds are those of ``range``. Nodes are counted, some microseconds for each thousand
        entries; Redis and Valkey do not count, so all entries of the range are read. ::

            stream.count("now-1h")
        """
        return self._engine.run(counts.count, self._name, *self._bounds(start, end))

    def count_after(self, id: BoundLike) -> int:
        """Return the exact number of entries after ``id``, an ID or a time, as ``count`` does."""
        return self._engine.run(info.count_after, self._name, after_bound(id, self._now))

    def scan(
        self, start: BoundLike = "-", end: BoundLike = "+", *, page: int = _SCAN_PAGE
    ) -> Iterator[Entry[S]]:
        """Yield the entries from ``start`` to ``end``, read in pages of ``page`` entries.

        Each page is consistent. Entries added or deleted between two pages may be missed. On a
        server, pages of large entries are shorter.
        """
        page = whole(page, "page")
        if page < 1:
            raise InvalidArgument(f"a page must be at least 1 entry, not {page}")
        return self._pages(*self._bounds(start, end), page)

    def _pages(self, following: StreamID, last: StreamID, page: int) -> Iterator[Entry[S]]:
        entries: list[Entry] = []
        while True:
            size = self._engine.page_size(entries, page)
            entries = self._scan(following, last, size)
            yield from self._decode(entries)
            if len(entries) < size or entries[-1].id >= last:
                return
            following = entries[-1].id.next()

    def __iter__(self) -> Iterator[Entry[S]]:
        return self.scan()

    def read(
        self,
        after: BoundLike = "$",
        count: int | None = None,
        block: Seconds | None = None,
        *,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> list[Entry[S]]:
        """Return the entries after an ID, or from a time on, as XREAD does; [] if there are none.

        ``"$"`` is the last ID at the time of the call, ``"+"`` returns the last entry. Waits at
        most ``block`` seconds: 0 is for ever, None not at all. ``max_size`` is in bytes of a reply.
        """
        reply = plain_read(
            self._engine,
            [(self._name, after)],
            count,
            block,
            lambda: budget_of(max_count, max_size),
        )
        return self._decode(reply[0][1]) if reply else []

    def tail(self, after: BoundLike = "$", *, poll: Seconds = 1.0) -> Iterator[Entry[S]]:
        """Yield the entries after an ID or from a time on, and new ones as they come, for ever.

        ``"$"`` is the last ID at the time of this call. ``poll`` is the longest single wait in
        seconds.
        """
        wait_of(poll, "poll")
        position = self._engine.run(read.resolve, self._name, read_position(after, self._now))
        return self._following(position, poll)

    def _following(self, position: StreamID, poll: Seconds) -> Iterator[Entry[S]]:
        outages = Outages(self._engine)
        while True:
            read = partial(self.read, position, count=_SCAN_PAGE, block=poll)
            for entry in outages.outlast(read) or ():
                yield entry
                position = entry.id

    def _run_existing(
        self,
        operation: Callable[Concatenate[Txn, bytes, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation on a stream that must exist; its error suggests the name meant."""
        try:
            return self._engine.run(operation, self._name, *args, **kwargs)
        except NoSuchKey as error:
            raise error.with_detail(explain_missing(self._engine, self._name)) from None

    def info(self) -> StreamInfo[S]:
        """Return the counters of XINFO STREAM. Raises NoSuchKey if there is no stream."""
        details = self._run_existing(info.stream_info)
        return self._decoder.stream_info(self._name, details)

    def info_full(self, count: int = FULL_COUNT) -> StreamDetail[S]:
        """Return XINFO STREAM FULL with ``count`` entries and pending entries; 0 means all."""
        details = self._run_existing(info.stream_detail, whole(count, "count"))
        return self._decoder.stream_detail(self._name, details)

    # --- tables ---------------------------------------------------------------------------------

    def to_arrow(
        self,
        start: BoundLike = "-",
        end: BoundLike = "+",
        *,
        schema: ArrowSchema = None,
        meta_prefix: str = "",
    ) -> pa.Table:
        """Return the entries of a range, up to the last ID at the call, as a pyarrow.Table.

        The columns are those of ``schema``, a pyarrow.Schema or a mapping of names to types, such
        as ``{"id": "string", "qty": "int64"}``. ``id``, ``timestamp``, ``stream`` and ``fields``
        (a map) are of the entry, others the last value of that field, null without one. A value
        that does not fit its type raises a DataError, which names entry and field. Without a schema
        the columns are ``id``, ``timestamp`` and all fields, as text, or binary if a value is not
        UTF-8. ``meta_prefix`` goes before the reserved names, if entries have such fields. Raises
        NoSuchKey if there is no stream. ::

            stream.to_arrow("now-1d", schema={"id": "string", "sku": "string", "qty": "int64"})
        """
        return self._table_read(start, end, schema, meta_prefix).table()

    def iter_batches(
        self,
        start: BoundLike = "-",
        end: BoundLike = "+",
        *,
        schema: ArrowSchema = None,
        meta_prefix: str = "",
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``to_arrow`` in batches of at most 8192 entries, about 4 MB.

        Each batch is consistent. Without a schema the range is read twice: first for its fields.
        """
        return self._table_read(start, end, schema, meta_prefix).batches()

    def to_pandas(
        self,
        start: BoundLike = "-",
        end: BoundLike = "+",
        *,
        schema: ArrowSchema = None,
        meta_prefix: str = "",
    ) -> pd.DataFrame:
        """Return the rows of ``to_arrow`` as a pandas.DataFrame."""
        optional_package("pandas")
        return self.to_arrow(start, end, schema=schema, meta_prefix=meta_prefix).to_pandas()

    def to_polars(
        self,
        start: BoundLike = "-",
        end: BoundLike = "+",
        *,
        schema: ArrowSchema = None,
        meta_prefix: str = "",
    ) -> pl.DataFrame:
        """Return the rows of ``to_arrow`` as a polars.DataFrame."""
        polars = optional_package("polars")
        table = self.to_arrow(start, end, schema=schema, meta_prefix=meta_prefix)
        return cast("pl.DataFrame", polars.from_arrow(table))

    def _table_read(
        self, start: BoundLike, end: BoundLike, schema: ArrowSchema, prefix: str
    ) -> StreamRead:
        optional_package("pyarrow", extra="arrow")
        from kvstream.arrow.batches import StreamRead

        def last() -> StreamID:
            return self._run_existing(info.stream_info).last_generated_id

        bounds = self._bounds(start, end)
        return StreamRead(self._engine, self._name, bounds, schema, prefix, last)

    # --- groups ---------------------------------------------------------------------------------

    def create_group(
        self,
        name: Name,
        start: IDLike = "$",
        *,
        mkstream: bool = True,
        entries_read: int | None = None,
        exist_ok: bool = False,
    ) -> Group[S]:
        """Create the group ``name``, which reads the entries after ``start``; "$" is the last ID.

        Creates an empty stream too, unless ``mkstream`` is false. If the group exists, it is
        returned unchanged with ``exist_ok``; otherwise BusyGroup is raised. ::

            workers = store.stream("jobs").create_group("workers", start="0", exist_ok=True)
        """
        group = name_bytes(name, "the group")
        after = None if start in ("$", b"$") else StreamID.parse(start)
        read = optional(entries_read, "entries_read")
        try:
            self._engine.run(groups.create_group, self._name, group, after, mkstream, read)
        except BusyGroup:
            if not exist_ok:
                which = (
                    f"group {show(text(group))} of stream {show(text(key_of(self._name)))}; "
                    "exist_ok=True returns it as it is"
                )
                raise BusyGroup(detail=which) from None
        return Group(self._engine, self._name, group, self._decoder)

    def group(self, name: Name) -> Group[S]:
        """Return a handle on the group ``name``; whether it exists is not checked."""
        return Group(self._engine, self._name, name_bytes(name, "the group"), self._decoder)

    def groups(self) -> list[GroupInfo[S]]:
        """Return XINFO GROUPS. Raises NoSuchKey if there is no stream."""
        infos = self._run_existing(info.group_infos)
        return [self._decoder.group_info(each) for each in infos]


def read_until(
    stream: Stream[S], after: StreamID, wait_s: float, interrupt: Interrupt
) -> list[Entry[S]]:
    """Read the entries after an ID as ``Stream.read`` does; ``interrupt`` ends the wait."""
    wanted = [(stream._name, after)]
    reply = plain_read(stream._engine, wanted, None, wait_s, lambda: None, interrupt)
    return stream._decode(reply[0][1]) if reply else []
