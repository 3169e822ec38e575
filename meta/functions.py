"""Keep the libraries of functions: their text, as FUNCTION LOAD got it.

::

    function row := "U" library name -> version(u8=1) text

The libraries belong to no database: FLUSHALL leaves them. What a library's text means is known
to those who run it; here and in ``check`` it is bytes. Stores without functions have no such row,
so the layout is the same.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kvstream.errors import Corruption
from kvstream.layout.keys import FUNCTION_TAG, function_row, successor
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

_METADATA = Family.METADATA
_VERSION = b"\x01"

Libraries = Mapping[bytes, bytes]
"""The texts of libraries by name. It is never changed: a change makes a new one."""


def libraries(txn: Txn) -> Libraries:
    """Return all libraries; raise Corruption if one cannot be read."""
    texts = txn.catalog.libraries
    if texts is None:
        rows = txn.batch.scan(_METADATA, FUNCTION_TAG, successor(FUNCTION_TAG))
        texts = MappingProxyType({row[1:]: decode_function(row, value) for row, value in rows})
        txn.catalog.libraries = texts
    return texts


def decode_function(row: bytes, value: bytes) -> bytes:
    """Return the text of a library; raise Corruption for a damaged row."""
    if len(row) == len(FUNCTION_TAG) or value[:1] != _VERSION:
        raise Corruption(f"the function library {row[1:41]!r} cannot be decoded")
    return value[1:]


def put_library(txn: Txn, name: bytes, text: bytes) -> None:
    """Write a library, in place of one of its name."""
    before = libraries(txn)
    txn.batch.put(_METADATA, function_row(name), _VERSION + text)
    txn.catalog.libraries = MappingProxyType({**before, name: text})


def delete_library(txn: Txn, name: bytes) -> bool:
    """Delete a library; return False if there is none."""
    before = libraries(txn)
    if name not in before:
        return False
    txn.frees = True
    txn.batch.delete(_METADATA, function_row(name))
    rest = {each: text for each, text in before.items() if each != name}
    txn.catalog.libraries = MappingProxyType(rest)
    return True


def flush_libraries(txn: Txn) -> None:
    """Delete all libraries."""
    for name in libraries(txn):
        delete_library(txn, name)
