from collections.abc import Callable, Sequence
from typing import Any

from kvstream.types.ids import StreamID

BOUNDS: dict[str, int]

def bind(
    txn: type,
    batch: type,
    limits: type,
    thresholds: type,
    stream: type,
    node: type,
    group: type,
    consumer: type,
    activity: type,
    readahead: type,
    tree: type,
    rows: type,
    keys: type,
    encode_of_run: object,
) -> None: ...
def bind_replies(rows: type, streams: type) -> None: ...
def read_words(run_type: type, txn: Any, prefix: bytes, argv: Sequence[bytes]) -> Any: ...
def acknowledge_words(run_type: type, txn: Any, prefix: bytes, argv: Sequence[bytes]) -> int: ...
def delete_words(
    measure: Callable[[Any, Any], None], txn: Any, prefix: bytes, argv: Sequence[bytes]
) -> int: ...
def append(
    txn: Any, name: bytes, value: bytes, names: tuple[str, ...] | tuple[bytes, ...]
) -> StreamID | None: ...
def read_new(
    run_type: type,
    txn: Any,
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
    count: int,
    given_back: bool = ...,
) -> tuple[list[tuple[bytes, bytes]], int] | None: ...
def lease(
    run_type: type,
    txn: Any,
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
    count: int,
    lease_ms: int,
) -> tuple[list[tuple[bytes, bytes]], int] | None: ...
def give(
    run_type: type, txn: Any, stream: Any, group: Any, consumer: Any, ids: list[bytes]
) -> bool: ...
def acknowledge(run_type: type, txn: Any, name: bytes, group_name: bytes, eid: bytes) -> int: ...
def delete(measure: Callable[[Any, Any], None], txn: Any, name: bytes, packed: bytes) -> int: ...
def discard(
    run_type: type,
    txn: Any,
    group: Any,
    eid: bytes,
    owner: bytes | None = ...,
    deliveries: int | None = ...,
) -> int: ...
def settle(
    run_type: type,
    txn: Any,
    name: bytes,
    group_name: bytes,
    owner: bytes,
    eid: StreamID,
    deliveries: int,
) -> int: ...
def reset(txn: Any, now_ms: int, read_only: bool) -> bool: ...
def finish(txn: Any) -> Any: ...
def put_changed(tree: Any, batch: Any) -> bool: ...
def encode_group(group: Any) -> bytes | None: ...
