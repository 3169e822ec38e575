"""Which of several stores has a stream: the same for every writer and every reader, for ever.

A key's slot is Redis Cluster's: CRC16 of the key, or of what stands in its first braces, modulo
16384; the stores share the slots evenly, in the order in which they are named. So ``{user7}:in``
and ``{user7}:out`` are in one store, and a key moves only where stores are added.
"""

from binascii import crc_hqx

SLOTS = 16384


def slot_of(key: bytes) -> int:
    """Return the slot of a key, as CLUSTER KEYSLOT does."""
    start = key.find(b"{") + 1
    if start:
        end = key.find(b"}", start)
        if end > start:
            key = key[start:end]
    return crc_hqx(key, 0) % SLOTS


def store_of(key: bytes, stores: int) -> int:
    """Return the position of the store of a key among so many."""
    return slot_of(key) * stores // SLOTS
