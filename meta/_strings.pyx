# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twin of the creation of a plain string under a name that has no key.

It does what ``new`` of operations/strings.py does, for a short value without expiry. For all else
it changes nothing and returns False: then the Python function does the work.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from kvstream.layout._ids cimport put_big_endian
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef enum:  # as in layout/keys.py, storage/batch.py and meta/strings.py
    METADATA = 1
    HEAD = 18  # bytes of a record before its value
    STRING_KIND = 2
    WHOLE_VERSION = 1
    WHOLE_BYTES_MAX = 16384

cdef bytes ALLOCATOR_KEY = b"A"
cdef bytes STREAM_TAG = b"S"
BOUNDS = {"whole_bytes_max": WHOLE_BYTES_MAX}  # which a test compares with the Python one


cdef inline bytes number_of(uint64_t number):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8)
    put_big_endian(<unsigned char *>PyBytes_AS_STRING(made), number)
    return made


cdef bytes scan_row(bytes name, uint64_t generation):
    """Return the row of ``scan_row`` of layout/keys.py for the database of a name."""
    cdef bytes row = PyBytes_FromStringAndSize(NULL, 11)
    cdef unsigned char *at = <unsigned char *>PyBytes_AS_STRING(row)
    at[0] = 78  # N
    memcpy(at + 1, PyBytes_AS_STRING(name), 2)
    put_big_endian(at + 3, generation)
    return row


cdef bytes head_of(uint64_t generation):
    """Return how the record of a whole string without expiry begins."""
    cdef bytes head = PyBytes_FromStringAndSize(NULL, HEAD)
    cdef unsigned char *at = <unsigned char *>PyBytes_AS_STRING(head)
    at[0], at[1] = STRING_KIND, WHOLE_VERSION
    put_big_endian(at + 2, 0)
    put_big_endian(at + 10, generation)
    return head


def create(txn, bytes name not None, bytes value not None, kind):
    """Create a string, of the class ``kind``, under a name that has no key; return whether it did."""
    cdef object catalog = txn.catalog, index = catalog.index, numbers = catalog.numbers
    cdef object databases = catalog.databases, unlinked = catalog.unlinked._known, count, string
    cdef dict strings = catalog.strings, puts
    cdef uint64_t generation = numbers._next
    cdef int db
    cdef bytes row, head
    if (
        generation == 0
        or PyBytes_GET_SIZE(name) < 2
        or PyBytes_GET_SIZE(value) > WHOLE_BYTES_MAX
        or PyBytes_GET_SIZE(value) > catalog.thresholds.string_bytes_cached
        or databases._stored is None
        or databases._stored
        or unlinked is None
        or unlinked
        or index.watches
        or txn.wanted_events
        or name in txn.awaited
        or len(strings) >= catalog.thresholds.strings_cached
    ):
        return False
    db = (<unsigned char>PyBytes_AS_STRING(name)[0] << 8) | <unsigned char>PyBytes_AS_STRING(name)[1]
    count = (<dict>index._counts).get(db)
    if count is None or generation < <uint64_t>(<dict>index._firsts).get(db, 0):
        return False
    numbers._next = numbers._first_free = generation + 1
    row, head = STREAM_TAG + name, head_of(generation)
    string = kind(name, row, generation, value)
    string._head = head
    puts = txn.batch.puts[METADATA]
    puts[ALLOCATOR_KEY] = number_of(generation + 1)
    puts[row] = head + value
    puts[scan_row(name, generation)] = name[2:]
    count += 1
    index._counts[db] = count
    puts[b"C" + name[:2]] = number_of(count)
    txn.frees = False
    strings[name] = string
    return True
