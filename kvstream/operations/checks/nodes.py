"""The node index of one stream, held against its live rows.

The rows are the truth: a node reaches from its first ID to the next node's. What the rows do not
tell, how many entries a node ever had and where its last one was, is taken from its record unless
the rows speak against it. Sizes are measured anew where no entry of the node is gone. Where a
node's record is lost its entries make nodes of their own, bounded by their number alone.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from kvstream.ids import MIN_ID, StreamID
from kvstream.layout.keys import ID_BYTES, tree_prefix
from kvstream.meta.measuring import set_names
from kvstream.meta.nodes import clear_open, open_node
from kvstream.meta.records import Node, StreamMeta
from kvstream.operations.checks.counted import Counted, Values
from kvstream.operations.checks.survey import DECODING_ERRORS, Survey
from kvstream.options import STREAM_NODE_MAX_ENTRIES
from kvstream.storage.batch import Family

_TREES = Family.TREES
_COMPARED = ("last", "appended", "live", "size", "names")


class NodeCheck:
    """Takes the live rows of a stream in order, and sets its node counters to what is true."""

    def __init__(self, survey: Survey, stream: StreamMeta, place: str) -> None:
        self._survey = survey
        self._findings = survey.findings
        self._stream = stream
        self._place = place
        self._entries_max = survey.limits.node_max_entries or STREAM_NODE_MAX_ENTRIES
        self._recorded: Iterator[Counted] = iter(())
        """The nodes on record that are still to come."""
        self._current: Counted | None = None
        self._following: Counted | None = None
        self._last: Counted | None = None
        """The last node with rows that is complete; held back, as only the last may be open."""
        self._nodes = 0
        self._head = MIN_ID

    # --- rows -----------------------------------------------------------------------------------

    def take(self, ids: list[bytes], values: Values) -> None:
        """Take the next rows; ``ids`` are packed."""
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
        """Compare what only the whole tells: the open node, and the counters of the stream."""
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
        settle, stream = self._findings.settle, self._stream
        stream.nodes = settle(self._place, "the number of nodes", stream.nodes, self._nodes)
        stream.head = settle(self._place, "the first node", stream.head, self._head)

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
        """Tell whether the record's open node may be right: no closed one lies after it."""
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
        """Return the node in which a live entry must be, or one that is on no record."""
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
        """Rows of nodes before the first live one wait for the sweep, within its reach."""
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
        if not counted.sound:  # to measure it would raise, with each append and deletion
            stream.open_bytes, stream.measured = counted.size_about, true.last

    def _differs(self, counted: Counted, true: Node) -> bool:
        """Note what is wrong with a node's record."""
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
