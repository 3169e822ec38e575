"""The committed rows of one moment, however much is written later, behind the face of all rows.

There is one iterator for each family that is wanted, and whatever is asked for is looked for by it:
to begin an iterator, and to see that it has ended well, takes several times as long as a row.
"""

from collections.abc import Iterator

from kvstream.storage.batch import Family, Pages, Row, Rows, Seeks, pages_by

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
