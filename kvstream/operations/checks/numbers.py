"""A set of allocated numbers: a bit for each, in pages, as most of them lie close together."""

PAGE_BITS = 1 << 15
"""Numbers of one page, which takes four kilobytes."""


class Numbers:
    """Numbers of 64 bits; a million close together take 128 kilobytes."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self.greatest = 0

    def add(self, number: int) -> None:
        at, bit = divmod(number, PAGE_BITS)
        page = self._pages.setdefault(at, bytearray(PAGE_BITS // 8))
        page[bit // 8] |= 1 << (bit % 8)
        self.greatest = max(self.greatest, number)

    def __contains__(self, number: int) -> bool:
        at, bit = divmod(number, PAGE_BITS)
        page = self._pages.get(at)
        return page is not None and bool(page[bit // 8] & (1 << (bit % 8)))
