"""Check the message rows of one stream, its node index, and what its record counts.

The rows are the truth: a node reaches from its first ID to the next node's. How many entries a node
ever had, and its last ID, are taken from its record unless rows contradict it. The size is
computed again if no entry of the node is gone. Entries whose node has lost its record form new
nodes of a limited number of entries.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from struct import Struct

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES, ID_FIRST, ID_LAST, successor, tree_prefix
from kvstream.layout.listpack import (
    elements_size,
    entry_size,
    fields_size,
    node_size,
)
from kvstream.layout.values import decode_checked
from kvstream.meta.nodes import clear_open, deltas_size, open_node, set_names
from kvstream.meta.records import Node, StreamMeta
from kvstream.operations.checks.survey import DECODING_ERRORS, Survey
from kvstream.storage.batch import Family, Row
from kvstream.types.ids import MIN_ID, UNPACKED, StreamID
from kvstream.types.options import STREAM_NODE_MAX_ENTRIES
from kvstream.types.records import EntryFields, Fields, flat_of

_MESSAGES = Family.MESSAGES
_ID = Struct(">QQ")
_ABOVE_ALL = ID_LAST + b"\0"

Values = list[Fields | None]
"""The fields of a page of rows; None for rows that cannot be decoded."""


class Counted:
    """A node's record, and the count of its rows. IDs are packed."""

    def __init__(self, first: bytes, recorded: Node | None, measured: bytes = ID_LAST) -> None:
        self.first = first
        self.recorded = recorded
        """None: the node's row is missing or cannot be decoded."""
        self.live = 0
        self._measured = measured
        """The last ID that the node's size includes."""
        self._first_row = self._last_row = first
        self._names: tuple[bytes, ...] = ()
        self._size = self._size_beyond = 0
        self.sound = True
        """Whether every row so far could be decoded."""

    def take(self, ids: list[bytes], values: Values) -> None:
        """Count more rows of the node."""
        if not ids:
            return
        if self.live == 0:
            self._start(ids[0], values[0])
        self.live += len(ids)
        self._last_row = ids[-1]
        self.sound = self.sound and None not in values
        within = bisect_right(ids, self._measured)
        self._size += self._measure(ids[:within], values[:within])
        self._size_beyond += self._measure(ids[within:], values[within:])

    def _start(self, first_row: bytes, fields: Fields | None) -> None:
        self._first_row = first_row
        if fields is not None and (self.recorded is None or first_row == self.first):
            self._names = flat_of(fields)[::2]
        elif self.recorded is not None:
            self._names = self.recorded.names
        names_size = elements_size(self._names)[0] if self._names else 0
        self._size = node_size(names_size, len(self._names))

    def _measure(self, ids: list[bytes], values: Values) -> int:
        """Return the listpack bytes of entries of this node that can be decoded."""
        names = self._names
        size = deltas_size(UNPACKED(self.first), _ID.iter_unpack(b"".join(ids)))
        own: list[bytes] = []
        for fields in values:
            if type(fields) is EntryFields and tuple(fields) == names:
                own += fields.values()
            elif fields is not None:
                size += fields_size(names, flat_of(fields))
        if own:
            size += elements_size(own)[0] + len(own) // len(names) * entry_size(len(names))
        return size

    @property
    def size_about(self) -> int:
        """The size of all decoded rows."""
        return self._size + self._size_beyond

    def true(self, bound: bytes | None) -> Node:
        """Return the node as it must be; ``bound``: the first ID of the next one."""
        recorded = self.recorded
        last, size = self._last_row, self._size
        if recorded is not None and last <= recorded.last.packed < (bound or _ABOVE_ALL):
            last = recorded.last.packed
        gone = {self.first, last} - {self._first_row, self._last_row}
        appended = self.live + len(gone)
        if recorded is not None:
            appended = max(recorded.appended, appended)
            if appended != self.live or not self.sound:
                size = recorded.size
        ends = StreamID.unpack(self.first), StreamID.unpack(last)
        return Node(*ends, appended, self.live, size, self._names, is_open=False)


_TREES = Family.TREES
_COMPARED = ("last", "appended", "live", "size", "names")


class NodeCheck:
    """Reads the live rows of a stream in order, and corrects its node counters."""

    def __init__(self, survey: Survey, stream: StreamMeta, place: str) -> None:
        self._survey = survey
        self._findings = survey.findings
        self._stream = stream
        self._place = place
        self._entries_max = survey.limits.node_max_entries or STREAM_NODE_MAX_ENTRIES
        self._recorded: Iterator[Counted] = iter(())
        """Nodes on disk that are not reached yet."""
        self._current: Counted | None = None
        self._following: Counted | None = None
        self._last: Counted | None = None
        """The last complete node with rows, held back since only the last one may be open."""
        self._nodes = 0
        self._head = MIN_ID

    # --- rows -----------------------------------------------------------------------------------

    def take(self, ids: list[bytes], values: Values) -> None:
        """Count more rows; ``ids`` are packed."""
        current = self._current or self._first_node(ids[0])
        at = 0
        while at < len(ids):
            end = len(ids)
            if self._following is not None:
                end = bisect_left(ids, self._following.first, at)
            if current.recorded is None:
                end = min(end, at + self._entries_max - current.live)
            current.take(ids[at:end], values[at:end])
            at = end
            if at < len(ids):
                self._complete(current)
                current = self._next_node(ids[at])
        self._current = current

    def finish(self) -> None:
        """Check the open node and the counters of the stream, at the end."""
        if self._current is not None:
            remaining = [] if self._following is None else [self._following]
            for counted in chain([self._current], remaining, self._recorded):
                self._complete(counted)
        if self._last is not None:
            self._compare_open(self._last)
        elif self._stream.open_first != MIN_ID or self._stream.open_appended:
            self._findings.fault(self._place, "the open node is none", "no entry is live")
            clear_open(self._stream)
        self._check_dead()
        correct, stream = self._findings.correct, self._stream
        stream.nodes = correct(self._place, "the number of nodes", stream.nodes, self._nodes)
        stream.head = correct(self._place, "the first node", stream.head, self._head)

    # --- nodes on record ------------------------------------------------------------------------

    def _first_node(self, first_live: bytes) -> Counted:
        has_open = self._has_open()
        start = self._floor(first_live)
        if has_open and self._stream.open_first.packed <= first_live:
            start = self._stream.open_first.packed
        self._recorded = self._from(start, has_open)
        self._following = next(self._recorded, None)
        return self._next_node(first_live)

    def _floor(self, first_live: bytes) -> bytes:
        """Return the first ID of the closed node that should hold the first live entry."""
        prefix = tree_prefix(self._stream.nodes_tree)
        rows = self._survey.rows.scan(_TREES, prefix, prefix + first_live + b"\0", reverse=True)
        suffixes = (key[len(prefix) :] for key, _ in rows)
        return next((suffix for suffix in suffixes if len(suffix) == ID_BYTES), first_live)

    def _has_open(self) -> bool:
        """Return whether the record's open node may be right: no closed one lies after it."""
        stream = self._stream
        if stream.open_first == MIN_ID:
            return False
        after = self._survey.tree(stream.nodes_tree, stream.open_first.packed + b"\0")
        return not any(len(suffix) == ID_BYTES for suffix, _ in after)

    def _from(self, start: bytes, has_open: bool) -> Iterator[Counted]:
        stream = self._stream
        opened = stream.open_first.packed if has_open else None
        for suffix, value in self._survey.tree(stream.nodes_tree, start):
            if len(suffix) != ID_BYTES:
                self._drop(suffix, "a row that is no node")
            elif suffix == opened:
                self._drop(suffix, "the open node has a row")
            else:
                yield Counted(suffix, self._decode(suffix, value))
        if opened is not None:
            yield Counted(opened, open_node(stream), stream.measured.packed)

    def _decode(self, suffix: bytes, value: bytes) -> Node | None:
        try:
            return Node.decode(StreamID.unpack(suffix), value)
        except DECODING_ERRORS:
            self._findings.fault(self._place, "a node cannot be decoded", _id(suffix))
            return None

    def _next_node(self, eid: bytes) -> Counted:
        """Return the node that must hold a live entry, or a new one if none is on disk."""
        following = self._following
        if following is not None and following.first <= eid:
            self._following = next(self._recorded, None)
            return following
        self._findings.fault(self._place, "entries are in no node", f"from {_id(eid)}")
        return Counted(eid, None)

    def _drop(self, suffix: bytes, kind: str) -> None:
        shown = _id(suffix) if len(suffix) == ID_BYTES else suffix.hex()
        self._findings.fault(self._place, kind, shown)
        self._findings.delete(_TREES, tree_prefix(self._stream.nodes_tree) + suffix)

    def _check_dead(self) -> None:
        """Check that rows of nodes before the first live one are within reach of the sweep."""
        stream = self._stream
        head = None if self._last is None else self._head.packed
        for suffix, _ in self._survey.tree(stream.nodes_tree):
            if head is not None and suffix >= head:
                return
            if len(suffix) != ID_BYTES:
                self._drop(suffix, "a row that is no node")
            elif suffix < stream.swept.packed:
                self._findings.fault(self._place, "a node was not swept", _id(suffix))
                stream.swept = MIN_ID

    # --- comparing ------------------------------------------------------------------------------

    def _complete(self, counted: Counted) -> None:
        if counted.live == 0:
            if counted.recorded is None or not counted.recorded.is_open:
                self._drop(counted.first, "a node has no entries")
            return
        if self._last is None:
            self._head = StreamID.unpack(counted.first)
        else:
            self._compare_closed(self._last, counted.first)
        self._nodes += 1
        self._last = counted

    def _compare_closed(self, counted: Counted, bound: bytes) -> None:
        true = counted.true(bound)
        if self._differs(counted, true):
            key = tree_prefix(self._stream.nodes_tree) + counted.first
            self._findings.put(_TREES, key, true.encode())

    def _compare_open(self, counted: Counted) -> None:
        true, stream = counted.true(None), self._stream
        was_open = counted.recorded is not None and counted.recorded.is_open
        if not was_open:
            self._findings.fault(self._place, "the last node is not the open one", str(true.first))
            key = tree_prefix(stream.nodes_tree) + counted.first
            self._findings.delete(_TREES, key)
            stream.measured = true.last
        elif self._differs(counted, true):
            stream.measured = min(stream.measured, true.last)
        elif stream.measured > stream.open_last:
            self._findings.fault(self._place, "the open node is measured too far")
            stream.measured = stream.open_last
        stream.open_first, stream.open_last = true.first, true.last
        stream.open_appended, stream.open_live = true.appended, true.live
        stream.open_bytes = true.size
        set_names(stream, true.names, true.names)
        if not counted.sound:  # measuring it would raise, with each append and deletion
            stream.open_bytes, stream.measured = counted.size_about, true.last

    def _differs(self, counted: Counted, true: Node) -> bool:
        """Report what is wrong with a node's record."""
        recorded = counted.recorded
        if recorded is None:
            return True
        wrong = [what for what in _COMPARED if getattr(recorded, what) != getattr(true, what)]
        for what in wrong:
            detail = f"{true.first}: {getattr(recorded, what)}, but {getattr(true, what)}"
            self._findings.fault(self._place, f"a node's {what} is wrong", detail)
        return bool(wrong)


def _id(packed: bytes) -> str:
    return str(StreamID.unpack(packed))


@dataclass(slots=True)
class _Rows:
    """How many rows there are, and their bounds."""

    count: int = 0
    ids: list[bytes] = field(default_factory=list)
    """The first and the last ID, packed."""

    def add(self, ids: list[bytes]) -> None:
        if ids:
            self.count += len(ids)
            self.ids = [(self.ids or ids)[0], ids[-1]]


def check_entries(survey: Survey, stream: StreamMeta, place: str) -> None:
    """Recount a stream's entries and nodes; set the fields of ``stream`` to their true values."""
    border = _Border(survey, stream, place)
    border.check()
    live = _check_live(survey, stream, place, border.first)
    correct = survey.findings.correct
    stream.length = correct(place, "the length", stream.length, live.count)
    first = StreamID.unpack(live.ids[0]) if live.ids else MIN_ID
    stream.first = correct(place, "the first live ID", stream.first, first)
    _check_last(survey, stream, place, (live.ids or border.dead.ids or [ID_FIRST])[-1])
    if stream.entries_added < stream.length:
        detail = f"{stream.entries_added}, of which {stream.length} are live"
        survey.findings.fault(place, "the number of entries added is too small", detail)
        stream.entries_added = stream.length


def _check_last(survey: Survey, stream: StreamMeta, place: str, packed: bytes) -> None:
    """Check that the last ID lies above all others."""
    greatest = StreamID.unpack(packed)
    if greatest > stream.last:
        detail = f"{greatest} above {stream.last}"
        survey.findings.fault(place, "a row lies above the last ID", detail)
        stream.last = greatest
    if stream.max_deleted > stream.last:
        detail = f"{stream.max_deleted} above {stream.last}"
        survey.findings.fault(place, "the greatest deleted ID lies above the last", detail)
        stream.last = stream.max_deleted


class _Border:
    """The bound between trimmed rows and live ones."""

    def __init__(self, survey: Survey, stream: StreamMeta, place: str) -> None:
        self._survey = survey
        self._stream = stream
        self._place = place
        self._upper = successor(stream.prefix)
        self.dead = _Rows()
        self.first: bytes | None = None
        """The packed ID from which on rows are live; None: no row is."""

    def check(self) -> None:
        stream = self._stream
        emptied = stream.length == 0 and stream.first == MIN_ID
        self.first = None if emptied else stream.first.packed
        self.dead = self._count_dead()
        if self.dead.count != stream.unswept and not emptied:
            self._move_bound()
        self._check_unswept()

    def _count_dead(self) -> _Rows:
        upper = self._upper if self.first is None else self._stream.prefix + self.first
        return self._count(self._stream.prefix, upper)

    def _count(self, lower: bytes, upper: bytes) -> _Rows:
        rows = _Rows()
        for chunk in self._survey.chunks(_MESSAGES, lower, upper):
            rows.add([key[-ID_BYTES:] for key, _ in chunk])
        return rows

    def _move_bound(self) -> None:
        """Move the bound if the counts of trimmed and of live rows are right with another one."""
        stream, prefix = self._stream, self._stream.prefix
        if self._count(prefix, self._upper).count != stream.length + stream.unswept:
            return
        if stream.length == 0:
            self.first = None
        else:
            rows = self._survey.rows.scan(_MESSAGES, prefix, self._upper)
            key, _ = next(islice(rows, stream.unswept, None))
            self.first = key[-ID_BYTES:]
        self.dead = self._count_dead()

    def _check_unswept(self) -> None:
        """Check that every dead row lies within the next sweep, and is counted."""
        stream, findings = self._stream, self._survey.findings
        if self.dead.count > stream.unswept:
            detail = f"{stream.unswept}, but {self.dead.count} dead rows"
            findings.fault(self._place, "too few entries wait for the sweep", detail)
            stream.unswept = self.dead.count
        beyond = stream.nodes and stream.swept > stream.head
        missed = self.dead.ids and self.dead.ids[0] < stream.swept.packed
        if beyond or missed:
            findings.fault(self._place, "the bound of the sweep is too high", str(stream.swept))
            stream.swept = MIN_ID


# --- live rows ----------------------------------------------------------------------------------


def _check_live(survey: Survey, stream: StreamMeta, place: str, first: bytes | None) -> _Rows:
    """Count and decode the live rows, and compare the nodes with them."""
    live = _Rows()
    nodes = NodeCheck(survey, stream, place)
    if first is not None:
        lower, upper = stream.prefix + first, successor(stream.prefix)
        for chunk in survey.chunks(_MESSAGES, lower, upper):
            page = _drop_malformed(survey, stream, place, chunk)
            ids = [key[-ID_BYTES:] for key, _ in page]
            live.add(ids)
            if ids:
                nodes.take(ids, _decode(survey, place, page))
    nodes.finish()
    return live


def _drop_malformed(survey: Survey, stream: StreamMeta, place: str, chunk: list[Row]) -> list[Row]:
    """Report and delete rows that are no entries; return the others."""
    size = len(stream.prefix) + ID_BYTES
    if all(len(key) == size for key, _ in chunk):
        return chunk
    for key, _ in chunk:
        if len(key) != size:
            survey.findings.fault(place, "a row that is no entry", key[-ID_BYTES:].hex())
            survey.findings.delete(_MESSAGES, key)
    return [row for row in chunk if len(row[0]) == size]


def _decode(survey: Survey, place: str, page: list[Row]) -> Values:
    """Return the fields of each row, None if they cannot be decoded."""
    try:
        return list(decode_checked([value for _, value in page]))
    except Corruption:
        if len(page) > 1:
            return [fields for row in page for fields in _decode(survey, place, [row])]
        eid = StreamID.unpack(page[0][0][-ID_BYTES:])
        survey.findings.fault(place, "an entry cannot be decoded", str(eid), repaired=False)
        return [None]
