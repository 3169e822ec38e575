"""Commits of a single row: written without a batch of RocksDB's, for half the price.

That is what an XADD, a SET and an XACK mostly come to. Each column family's handle carries the
options of all its writes, so that a row on its own goes into the log as one in a batch does.
"""

from typing import Any

from kvstream.options import MEGABYTE
from kvstream.storage.batch import Batch

LARGE_WRITE = 1 * MEGABYTE
"""Writes of more bytes than this are held against the free space one by one."""


def write_alone(families: list[Any], batch: Batch) -> int:
    """Write a batch that is one row put or deleted, and not a large one.

    Returns the bytes of the row; 0 where it is no such batch, and nothing was written.
    """
    messages, metadata, trees = batch.puts
    if len(messages) + len(metadata) + len(trees) != 1 or batch.ranges:
        return 0
    ((key, value),) = (messages or metadata or trees).items()
    family = families[0 if messages else 1 if metadata else 2]
    if value is None:
        del family[key]
        return len(key)
    if len(value) <= LARGE_WRITE:
        family[key] = value
        return len(key) + len(value)
    return 0
