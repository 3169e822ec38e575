from collections.abc import Callable

_Zstd = Callable[[bytes, int], bytes | None]

class Reader:
    ended: bool
    count: int
    def __init__(
        self, prefix: bytes, lower: bytes, upper: bytes, zstd: _Zstd | None = None
    ) -> None: ...
    def read(
        self, chunk: bytes, sizes: list[int], kind: int, context: int = 0, offset: int = 0
    ) -> bytes | None: ...

def plain(
    block: bytes, kind: int, context: int = 0, offset: int = 0, zstd: _Zstd | None = None
) -> bytes | None: ...
def blocks(index: bytes, by_deltas: bool) -> list[tuple[bytes, int, int]] | None: ...
