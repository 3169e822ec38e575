"""The types of stream objects. Each has all that those before it have, and something more."""

from enum import IntEnum


class Kind(IntEnum):
    """The byte that says how a stream is written; compares with what a feature came with."""

    LISTPACKS = 15
    """Redis 5.0: entries, groups, consumers, pending entries."""
    COUNTERS = 19
    """Redis 7.0: first ID, highest deleted ID, entries added, entries read."""
    ACTIVE_TIMES = 21
    """Redis 7.2 and Valkey: when a consumer was last given anything."""
    IDEMPOTENCY = 26
    """Redis 8.6: idempotent producers."""
    NACKED = 27
    """Redis 8.8: entries given back, which belong to nobody."""


STREAM_KINDS = frozenset(Kind)
