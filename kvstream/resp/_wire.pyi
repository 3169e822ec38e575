from collections.abc import Callable
from typing import Any

from kvstream.layout.values import Names

def take_appends(
    data: bytes, limit: int, read_trim: Callable[[tuple[bytes, ...]], Any]
) -> tuple[bytes, list[tuple[bytes, Names]], list[Any] | None] | None: ...
def encode_alike(ids: list[bytes], head: bytes, tail: bytes) -> bytes | None: ...
def take_plain(
    data: bytes, at: int, requests: list[list[bytes]], args: list[bytes], left: int, bulk_max: int
) -> tuple[int, list[bytes], int]: ...
def encode_rows(
    page: list[tuple[bytes, bytes]], prefix: int, start: int, room: int
) -> tuple[bytes, int] | None: ...
def write_rows(
    page: list[tuple[bytes, bytes]], prefix: int, most: int
) -> tuple[bytes, bytes, bytes] | None: ...
def encode_entries(
    entries: list[Any], start: int, room: int, protocol: int
) -> tuple[bytes, int] | None: ...
