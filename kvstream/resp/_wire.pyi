from typing import Any

from kvstream.commands.replies import ErrorReply
from kvstream.ids import StreamID
from kvstream.layout.values import Names
from kvstream.records import Entry

class Burst:
    client: Any
    key: bytes
    entries: list[tuple[bytes, Names]]
    sent: bytes | list[bytes]
    replies: bytes
    def __init__(
        self,
        client: object,
        key: bytes,
        entries: list[tuple[bytes, Names]],
        sent: bytes | list[bytes],
    ) -> None: ...
    def encoded(self) -> bytes: ...
    def fail(self, error: ErrorReply) -> None: ...

def take_appends(client: object, data: bytes, limit: int) -> Burst | None: ...
def gather(
    bursts: list[Any], waiting: dict[bytes, list[Any]], most: int
) -> tuple[int, list[Any], int]: ...
def entries_of(bursts: list[Any]) -> list[tuple[bytes, Names]]: ...
def answer(bursts: list[Any], ids: list[StreamID], now: float) -> None: ...
def encode_ids(ids: list[StreamID], start: int, stop: int) -> bytes: ...
def encode_alike(ids: list[bytes], head: bytes, tail: bytes) -> bytes | None: ...
def take_plain(
    data: bytes, at: int, requests: list[list[bytes]], args: list[bytes], left: int, bulk_max: int
) -> tuple[int, list[bytes], int]: ...
def encode_rows(
    page: list[tuple[bytes, bytes]], prefix: int, start: int, room: int
) -> tuple[bytes, int] | None: ...
def encode_entries(
    entries: list[Entry], start: int, room: int, protocol: int
) -> tuple[bytes, int] | None: ...
