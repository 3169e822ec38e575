from kvstream.records import Entry

def take_plain(
    data: bytes, at: int, requests: list[list[bytes]], args: list[bytes], left: int, bulk_max: int
) -> tuple[int, list[bytes], int]: ...
def encode_rows(
    page: list[tuple[bytes, bytes]], prefix: int, start: int, room: int
) -> tuple[bytes, int] | None: ...
def encode_entries(
    entries: list[Entry], start: int, room: int, protocol: int
) -> tuple[bytes, int] | None: ...
