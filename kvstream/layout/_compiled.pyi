from collections.abc import Sequence
from typing import Any, TypeVar

E = TypeVar("E")

def pack_fields(
    fields: dict[Any, Any], limit: int
) -> tuple[bytes, tuple[str, ...] | tuple[bytes, ...]] | None: ...
def pack_many(
    entries: list[object], limit: int
) -> list[tuple[bytes, tuple[str, ...] | tuple[bytes, ...]] | None]: ...
def pack_flat(flat: list[bytes], limit: int) -> tuple[bytes, tuple[bytes, ...]] | None: ...
def decode_page(values: object) -> list[dict[bytes, bytes]] | None: ...
def decode_rows(
    page: list[tuple[bytes, bytes]], prefix: int, entry: type[E], stream_id: type
) -> list[E] | None: ...
def entries_size(
    rows: list[tuple[bytes, bytes]],
    names: tuple[bytes, ...],
    first_ms: int,
    first_seq: int,
) -> int | None: ...
def fit(
    ids: list[bytes],
    values: list[bytes],
    start: int,
    stop: int,
    names: tuple[bytes, ...],
    first: bytes,
    node: tuple[int, int, int],
    limit: int,
) -> tuple[int, int] | None: ...
def data_size(value: bytes) -> int | None: ...
def fill(
    ids: Sequence[tuple[int, int]],
    entries: Sequence[tuple[bytes, tuple[str, ...] | tuple[bytes, ...]]],
    start: int,
    stop: int,
    names: tuple[str, ...] | tuple[bytes, ...],
    first: tuple[int, int],
    bounds: tuple[int, int, int, int, int],
    prefix: bytes,
    noted: list[Any],
    puts: dict[bytes, bytes | None],
) -> tuple[int, int]: ...
def parse_ids(words: list[bytes], stream_id: type[E]) -> list[E] | None: ...
def below(ids: bytes, eid: bytes) -> int: ...
def pack_ids(words: list[bytes]) -> list[bytes] | None: ...
def packed_ids(page: list[tuple[bytes, bytes]], prefix: int) -> list[bytes] | None: ...
def ids_from(stream_id: type[E], ms: int, seq: int, count: int) -> list[E]: ...
