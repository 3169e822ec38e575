from kvstream.meta.catalog import Allocator
from kvstream.meta.deleted_keys import Unlinked
from kvstream.meta.keyspace import Databases, KeyIndex
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Batch
from kvstream.types.thresholds import Thresholds

BOUNDS: dict[str, int]

def bind(
    txn: type[Txn],
    batch: type[Batch],
    thresholds: type[Thresholds],
    string: type[StringMeta],
    numbers: type[Allocator],
    databases: type[Databases],
    unlinked: type[Unlinked],
    index: type[KeyIndex],
) -> None: ...
def put_plain(txn: Txn, name: bytes, value: bytes) -> bool: ...
def add_plain(txn: Txn, name: bytes, number: int) -> int | None: ...
