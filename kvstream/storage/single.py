"""Commits of a single row: written without a batch of RocksDB's, for half the price.

That is what an XADD and an XACK mostly come to. Each column family's handle carries the options of
all its writes, so that a row on its own goes into the log as one in a batch does.
"""

from typing import Any

from kvstream.options import MEGABYTE
from kvstream.storage.batch import Batch

LARGE_WRITE = 1 * MEGABYTE
"""Writes of more bytes than this are held against the free space one by one."""


def write_alone(families: list[Any], batch: Batch) -> bool:
    """Write a batch that is one message put or one tree row deleted; tell whether it was one."""
    messages, metadata, trees = batch.puts
    if metadata or batch.ranges or len(messages) + len(trees) != 1:
        return False
    ((key, value),) = (messages or trees).items()
    if trees and value is None:
        del families[2][key]
    elif messages and value is not None and len(value) <= LARGE_WRITE:
        families[0][key] = value
    else:
        return False
    return True
