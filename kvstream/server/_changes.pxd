"""Whether a transaction has changed anything, by its slots and those of its batch."""

from kvstream.layout._slots cimport get, is_of


cdef struct TxnSlots:
    Py_ssize_t type
    Py_ssize_t _members, _streams, batch, catalog, frees, missing, only_redelivered


cdef struct BatchSlots:
    Py_ssize_t type
    Py_ssize_t deferred, puts, ranges


cdef inline bint is_dirty(object txn, TxnSlots *txns, BatchSlots *batches) except -1:
    """Return ``Txn.dirty``."""
    cdef object batch
    cdef tuple puts
    if not is_of(txn, txns.type):
        return txn.dirty
    if get(txn, txns._streams) or get(txn, txns._members):
        return True
    batch = get(txn, txns.batch)
    if not is_of(batch, batches.type):
        return bool(batch)
    puts = get(batch, batches.puts)
    return bool(
        puts[0]
        or puts[1]
        or puts[2]
        or get(batch, batches.ranges)
        or get(batch, batches.deferred)
    )
