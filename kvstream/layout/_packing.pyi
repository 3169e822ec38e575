from typing import Any

Packed = tuple[bytes, tuple[bytes, ...]]

def pack_columns(
    names: tuple[bytes, ...], columns: list[Any], count: int, limit: int
) -> list[Packed | None] | None: ...
def pack_lists(
    rows: Any, names: Any, values: Any, count: int, limit: int
) -> list[Packed | None] | None: ...
def unpack_rows(rows: bytes) -> tuple[list[bytes], list[bytes]]: ...
