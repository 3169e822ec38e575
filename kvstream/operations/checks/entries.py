"""Check the message rows of one stream: which are live, and what its record counts."""

from dataclasses import dataclass, field
from itertools import islice

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES, ID_FIRST, successor
from kvstream.layout.values import decode_checked
from kvstream.meta.records import StreamMeta
from kvstream.operations.checks.nodes import NodeCheck, Values
from kvstream.operations.checks.survey import Survey
from kvstream.storage.batch import Family, Row
from kvstream.types.ids import MIN_ID, StreamID

_MESSAGES = Family.MESSAGES


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
    settle = survey.findings.settle
    stream.length = settle(place, "the length", stream.length, live.count)
    first = StreamID.unpack(live.ids[0]) if live.ids else MIN_ID
    stream.first = settle(place, "the first live ID", stream.first, first)
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
            self._reconsider()
        self._check_unswept()

    def _count_dead(self) -> _Rows:
        upper = self._upper if self.first is None else self._stream.prefix + self.first
        return self._count(self._stream.prefix, upper)

    def _count(self, lower: bytes, upper: bytes) -> _Rows:
        rows = _Rows()
        for chunk in self._survey.chunks(_MESSAGES, lower, upper):
            rows.add([key[-ID_BYTES:] for key, _ in chunk])
        return rows

    def _reconsider(self) -> None:
        """Move the bound if that makes both counts right: then the bound was wrong."""
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
            page = _well_formed(survey, stream, place, chunk)
            ids = [key[-ID_BYTES:] for key, _ in page]
            live.add(ids)
            if ids:
                nodes.take(ids, _decode(survey, place, page))
    nodes.finish()
    return live


def _well_formed(survey: Survey, stream: StreamMeta, place: str, chunk: list[Row]) -> list[Row]:
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
        survey.findings.fault(place, "an entry cannot be decoded", str(eid), mended=False)
        return [None]
