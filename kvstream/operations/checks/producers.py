"""Check the idempotent producers of one stream: three kinds of rows that must agree.

The iid rows are the truth: only they hold the entry's ID. Each has one order row, and a producer's
row has the bounds of its orders.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from struct import Struct
from typing import NamedTuple

from kvstream.layout.keys import COUNTED_MAX, U64, tree_prefix
from kvstream.meta.idempotency import ORDERS_MAX
from kvstream.meta.records import StreamMeta
from kvstream.operations.checks.survey import Survey
from kvstream.storage.batch import Family, Row

_TREES = Family.TREES
_LENGTH = Struct(">I")
_BOUNDS = Struct(">QQ")
_IID = Struct(">16sQQ")
_PRODUCER_TAG, _IID_TAG, _ORDER_TAG = b"P", b"I", b"O"


def check_producers(survey: Survey, stream: StreamMeta, place: str) -> None:
    """Check a stream's remembered idempotent IDs, and set its counts of them."""
    pids = iids = 0
    if stream.idmp_tree:
        survey.claim_tree(place, stream.idmp_tree)
        check = _ProducersCheck(survey, stream, place)
        check.run()
        pids, iids = check.pids, check.iids
    correct = survey.findings.correct
    stream.pids = correct(place, "the number of producers", stream.pids, pids)
    stream.iids = correct(place, "the number of idempotent IDs", stream.iids, iids)


class _Remembered(NamedTuple):
    """One idempotent ID."""

    suffix: bytes
    entry: bytes
    stamp_ms: int
    order: int

    def encode(self) -> bytes:
        return _IID.pack(self.entry, self.stamp_ms, self.order)

    def order_row(self, start: int) -> bytes:
        """Return the value of its order row; the idempotent ID is the suffix from ``start`` on."""
        return U64.pack(self.stamp_ms) + self.suffix[start:]


class _ProducersCheck:
    def __init__(self, survey: Survey, stream: StreamMeta, place: str) -> None:
        self._survey = survey
        self._findings = survey.findings
        self._tree = stream.idmp_tree
        self._place = place
        self.pids = 0
        self.iids = 0

    def run(self) -> None:
        for suffix, _ in self._survey.tree(self._tree):
            if _pid(suffix) is None:
                self._drop(suffix, "a row that is no producer's")
        for pid, rows in groupby(self._rows_of(_IID_TAG), key=_pid_of):
            self._check_producer(pid, rows)
        for suffix, _ in self._rows_of(_ORDER_TAG):
            if not self._has_iids(_pid_of((suffix, b""))):
                self._drop(suffix, "an order row of no idempotent ID")
        for suffix, _ in self._rows_of(_PRODUCER_TAG):
            if not self._has_iids(suffix[1:]):
                self._drop(suffix, "a producer without idempotent IDs")

    def _rows_of(self, start: bytes) -> Iterator[Row]:
        """Yield the well-formed rows whose suffixes begin with ``start``."""
        for suffix, value in self._survey.tree(self._tree, start):
            if not suffix.startswith(start):
                return
            if _pid(suffix) is not None:
                yield suffix, value

    def _has_iids(self, pid: bytes) -> bool:
        rows = self._rows_of(_IID_TAG + _pack_pid(pid))
        return any(len(value) == _IID.size for _, value in rows)

    def _check_producer(self, pid: bytes, rows: Iterable[Row]) -> None:
        expected = self._orders(pid, rows)
        if not expected:
            return
        self.pids += 1
        self.iids += len(expected)
        self._check_bounds(pid, min(expected), max(expected) + 1)
        start = _ORDER_TAG + _pack_pid(pid)
        for suffix, value in self._rows_of(start):
            true = expected.pop(U64.unpack_from(suffix, len(start))[0], None)
            if true is None:
                self._drop(suffix, "an order row of no idempotent ID")
            elif true != value:
                self._put(suffix, true, "an order row is wrong")
        for order, true in expected.items():
            self._put(start + U64.pack(order), true, "an order row is missing")

    def _orders(self, pid: bytes, rows: Iterable[Row]) -> dict[int, bytes]:
        """Return the order rows that a producer's idempotent IDs require."""
        start = len(_IID_TAG + _pack_pid(pid))
        orders: dict[int, bytes] = {}
        moving: list[tuple[_Remembered, str]] = []
        decoded = sorted(self._decode(rows), key=lambda iid: iid.order)
        for iid in decoded:
            if iid.order in orders:
                moving.append((iid, "two idempotent IDs have one order"))
            elif iid.order >= min(decoded[0].order, COUNTED_MAX - 2 * ORDERS_MAX) + ORDERS_MAX:
                moving.append((iid, "an idempotent ID has an impossible order"))
            else:
                orders[iid.order] = iid.order_row(start)
        for iid, kind in moving:
            moved = iid._replace(order=max(orders, default=0) + 1)
            orders[moved.order] = moved.order_row(start)
            self._put(moved.suffix, moved.encode(), kind)
        return orders

    def _decode(self, rows: Iterable[Row]) -> Iterator["_Remembered"]:
        for suffix, value in rows:
            if len(value) == _IID.size:
                yield _Remembered(suffix, *_IID.unpack(value))
            else:
                kind = "an idempotent ID cannot be decoded"
                self._findings.fault(self._place, kind, suffix.hex(), repaired=False)

    def _check_bounds(self, pid: bytes, oldest: int, following: int) -> None:
        suffix = _PRODUCER_TAG + pid
        value = self._survey.rows.get(_TREES, tree_prefix(self._tree) + suffix)
        if value is None:
            self._put(suffix, _BOUNDS.pack(oldest, following), "a producer has no row")
        elif len(value) != _BOUNDS.size or not _reaches(value, oldest, following):
            self._put(suffix, _BOUNDS.pack(oldest, following), "a producer's bounds are wrong")

    def _put(self, suffix: bytes, value: bytes, kind: str) -> None:
        self._findings.fault(self._place, kind, suffix.hex())
        self._findings.put(_TREES, tree_prefix(self._tree) + suffix, value)

    def _drop(self, suffix: bytes, kind: str) -> None:
        self._findings.fault(self._place, kind, suffix.hex())
        self._findings.delete(_TREES, tree_prefix(self._tree) + suffix)


def _pack_pid(pid: bytes) -> bytes:
    return _LENGTH.pack(len(pid)) + pid


def _pid(suffix: bytes) -> bytes | None:
    """Return the producer of a row; None for a row of unknown form."""
    tag, rest = suffix[:1], suffix[1:]
    if tag == _PRODUCER_TAG:
        return rest
    if tag not in (_IID_TAG, _ORDER_TAG) or len(rest) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
    extra = len(rest) - end
    if extra < 0 or (tag == _ORDER_TAG and extra != U64.size):
        return None
    return rest[_LENGTH.size : end]


def _pid_of(row: Row) -> bytes:
    pid = _pid(row[0])
    assert pid is not None
    return pid


def _reaches(bounds: bytes, oldest: int, following: int) -> bool:
    """Return whether a producer's bounds include these orders; lower ones may be forgotten."""
    low, high = _BOUNDS.unpack(bounds)
    return bool(low <= oldest and following == high)
