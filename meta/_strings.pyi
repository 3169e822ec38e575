from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn

BOUNDS: dict[str, int]

def create(txn: Txn, name: bytes, value: bytes, kind: type[StringMeta]) -> bool: ...
