"""Complete answers from RocksDB's iterators: every row of a range, or an error.

``items()`` of ``rocksdict`` ends at a read error as it ends at the last row, so what it gives is
checked; ``iter()`` says which it was. The families are open handles and the bounds are
``ReadOptions`` with ``upper`` set, both given by ``database``.
RocksDB keeps a pointer to the bytes of ``upper``, not a copy: the functions here hold them for
as long as an iterator lives.

The committed rows of one moment, however much is written later, behind the face of all rows.

There is one iterator for each family that is wanted, and whatever is asked for is looked for by it:
to begin an iterator, and to see that it has ended well, takes several times as long as a row.
"""

import inspect
import time
import weakref
from collections.abc import Generator, Iterator
from typing import Any, TypeAlias, TypeVar

from kvstream.errors import StoreClosed
from kvstream.storage.batch import Family, Pages, Row, Rows, Seeks, pages_by
from kvstream.storage.write_guard import classified

PAGE_ROWS, PAGE_BYTES = 256, 64 << 10
"""A page of a snapshot ends with the row that reaches either: it is read in a tenth of a
millisecond."""
_REVOKE_PAUSE_S = 0.001
_NO_ROW = (b"", b"")

Walk: TypeAlias = Generator[Any, Any, None]
W = TypeVar("W", bound=Walk)


class _Revoked(BaseException):
    """Thrown into a walk to make it drop its iterator, which would keep RocksDB open."""


def walk(
    family: Any, bounds: Any, lower: bytes, upper: bytes, reverse: bool
) -> Generator[Row, None, None]:
    """Yield the rows of ``lower <= key < upper`` as they are when the first is asked for."""
    try:
        rows = family.iter(bounds)
        if reverse:
            rows.seek_to_last()
        else:
            rows.seek(lower)
        advance = rows.prev if reverse else rows.next
        while rows.valid():
            key: bytes = rows.key()
            if key < lower:
                return
            try:
                yield key, rows.value()
            except _Revoked:
                del rows, advance
                yield _NO_ROW  # to revoke(), which asked for it
                raise StoreClosed("the store is closed") from None
            if reverse and key == lower:
                return
            advance()
        rows.status()
    except Exception as error:
        raise classified(error) from None


def snapshot(
    family: Any, bounds: Any, lower: bytes, upper: bytes, reverse: bool
) -> Generator[list[Row], None, None]:
    """Yield an empty page, and then the rows of ``lower <= key < upper`` as they were by then."""
    try:
        rows = family.iter(bounds)
        if reverse:
            rows.seek_to_last()
        else:
            rows.seek(lower)
        advance = rows.prev if reverse else rows.next
        page: list[Row] = []
        while True:
            try:
                yield page
            except _Revoked:
                del rows, advance
                yield []  # to revoke(), which asked for it
                raise StoreClosed("the store is closed") from None
            if page:
                if reverse and page[-1][0] == lower:
                    return
                if rows.valid():
                    advance()
            page = _next_page(rows, lower, advance, reverse)
            if not page:
                rows.status()
                return
    except Exception as error:
        raise classified(error) from None


def _next_page(rows: Any, lower: bytes, advance: Any, reverse: bool) -> list[Row]:
    """Return the rows from where the iterator stands, and leave it at the last one of them."""
    page: list[Row] = []
    size = 0
    while rows.valid():
        key: bytes = rows.key()
        if key < lower:
            break
        value = rows.value()
        page.append((key, value))
        size += len(value)
        if len(page) == PAGE_ROWS or size >= PAGE_BYTES or (reverse and key == lower):
            break
        advance()
    return page


def begun(rows: W) -> W:
    """Return a walk behind its first, empty page: from now on it sees what there is now."""
    next(rows)
    return rows


def revoke(rows: Walk) -> None:
    """Take the iterator from a walk that is under way: it raises StoreClosed when it goes on."""
    while inspect.getgeneratorstate(rows) in (inspect.GEN_SUSPENDED, inspect.GEN_RUNNING):
        try:
            rows.throw(_Revoked())
        except ValueError:  # it is running in another thread
            time.sleep(_REVOKE_PAUSE_S)
        except _Revoked:
            return  # it stood at its end
        else:
            return


def walk_pages(family: Any, bounds: Any, lower: bytes, upper: bytes) -> Pages:
    """Yield an empty page, and then as many rows of ``lower <= key < upper`` as each send asks for.

    They are as they were when the first page was asked for; a page is short at the end alone.
    """
    try:
        rows = family.iter(bounds)
        rows.seek(lower)
        page: list[Row] = []
        begun = False  # behind the last row of a page none is looked for
        while True:
            try:
                count = yield page
            except _Revoked:
                del rows
                yield []  # to revoke(), which asked for it
                raise StoreClosed("the store is closed") from None
            page = []
            while len(page) < count:
                if begun and rows.valid():  # RocksDB aborts the process for next() at the end
                    rows.next()
                if not rows.valid():
                    rows.status()
                    break
                begun = True
                page.append((rows.key(), rows.value()))
    except Exception as error:
        raise classified(error) from None


def walk_seeks(family: Any) -> Seeks:
    """Yield the first rows of each range that is asked for, as they were by the first, empty page.

    A page may end sooner, for its bytes. Behind the last key of a range no row is looked for.
    """
    try:
        rows = family.iter()
        seek, valid, key_of, advance = rows.seek, rows.valid, rows.key, rows.next
        page: list[Row] = []
        while True:
            try:
                lower, last, limit = yield page
            except _Revoked:
                del rows, seek, valid, key_of, advance
                yield []  # to revoke(), which asked for it
                raise StoreClosed("the store is closed") from None
            page, size = [], 0
            seek(lower)
            while valid():
                key = key_of()
                if key > last:
                    break
                value = rows.value()
                page.append((key, value))
                size += len(value)
                if len(page) == limit or key == last or size >= PAGE_BYTES:
                    break
                advance()
            else:
                rows.status()
    except Exception as error:
        raise classified(error) from None


class Scans:
    """The walks of one database that somebody may still go on with."""

    def __init__(self) -> None:
        self._walks: set[weakref.ref[Walk]] = set()

    def noted(self, rows: W) -> W:
        """Return a walk, to be revoked if it is still there by then."""
        self._walks.add(weakref.ref(rows, self._walks.discard))
        return rows

    def live(self) -> list[Walk]:
        return [rows for reference in list(self._walks) if (rows := reference()) is not None]

    def revoke(self) -> None:
        for rows in self.live():
            revoke(rows)


def page(
    family: Any, bounds: Any, lower: bytes, upper: bytes, limit: int, reverse: bool
) -> list[Row]:
    """Return the first ``limit`` rows of ``lower <= key < upper``, in reverse the last ones.

    They are all of one moment. Behind the last one no row is looked for.
    """
    try:
        found: list[Row] = []
        rows = family.iter(bounds)
        if reverse:
            rows.seek_to_last()
        else:
            rows.seek(lower)
        advance = rows.prev if reverse else rows.next
        while limit > 0:
            if not rows.valid():
                rows.status()
                break
            key = rows.key()
            if key < lower:
                break
            found.append((key, rows.value()))
            if len(found) == limit or (reverse and key == lower):
                break
            advance()
        return found
    except Exception as error:
        raise classified(error) from None


_TOGETHER = 256
"""Rows that are read at once where all of a range are wanted."""


class Still:
    """The rows of some families as they are when this is made.

    They keep files of the store for as long as it is there. Once the store is closed, or opened
    anew, it raises StoreClosed.
    """

    def __init__(self, rows: Rows, families: tuple[Family, ...]) -> None:
        self._seeks = {int(family): rows.seeks(family) for family in families}

    def get(self, family: int, key: bytes) -> bytes | None:
        found = self._seeks[family].send((key, key, 1))
        return found[0][1] if found else None

    def get_many(self, family: int, keys: list[bytes]) -> list[bytes | None]:
        return [self.get(family, key) for key in keys]

    def page(
        self, family: int, lower: bytes, upper: bytes, limit: int, reverse: bool = False
    ) -> list[Row]:
        """Return the first ``limit`` rows of ``lower <= key < upper``; in reverse, the last."""
        if reverse:
            rows = self.page(family, lower, upper, 1 << 62)
            rows.reverse()
            return rows[:limit]
        found: list[Row] = []
        while len(found) < limit and lower < upper:
            some = self._seeks[family].send((lower, upper, limit - len(found)))
            if some and some[-1][0] == upper:
                some = some[:-1]
            if not some:
                break
            found += some
            lower = some[-1][0] + b"\0"
        return found

    def scan(self, family: int, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Row]:
        for page in self.snapshot(family, lower, upper, reverse):
            yield from page

    def snapshot(
        self, family: int, lower: bytes, upper: bytes, reverse: bool = False
    ) -> Iterator[list[Row]]:
        """Yield the rows page by page: in reverse, which few ask for, all are read before."""
        if reverse:
            yield self.page(family, lower, upper, 1 << 62, reverse)
            return
        while page := self.page(family, lower, upper, _TOGETHER):
            yield page
            lower = page[-1][0] + b"\0"

    def pages(self, family: int, lower: bytes, upper: bytes) -> Pages:
        return pages_by(self.page, family, lower, upper)

    def seeks(self, family: int) -> Seeks:
        return self._seeks[family]
