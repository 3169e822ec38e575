# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of SET and INCR of plain strings.

They do what ``put`` and ``add`` of operations/strings.py do for a short string that never expires,
or for a name that has no key. For all else they change nothing and say so: then the Python function
does the work.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM
from kvstream.layout._ids cimport put_big_endian
from kvstream.layout._msgpack cimport Bytes, big_endian
from kvstream.layout._slots cimport bounded, find_slots, get, is_of, part, put
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    NOT_PLAIN, ABSENT, PRESENT  # what is known of a name

cdef enum:  # the members of ``Txn._keys``
    INDEX_AT, NUMBERS_AT, DATABASES_AT, UNLINKED_AT

cdef enum:  # as in layout/keys.py, storage/batch.py, meta/strings.py and meta/records.py
    METADATA = 1
    HEAD = 18  # bytes of a record before its value
    STRING_KIND = 2
    WHOLE_VERSION = 1
    WHOLE_BYTES_MAX = 16384
    DIGITS_MAX = 18  # such a number and another one have a sum of 64 bits

cdef uint64_t COUNTED_MAX = 0xFFFFFFFF00000000
cdef int64_t NUMBER_MAX = 1 << 61
cdef bytes ALLOCATOR_KEY = b"A"
BOUNDS = {  # which a test compares with those of the Python functions
    "whole_bytes_max": WHOLE_BYTES_MAX,
    "counted_max": COUNTED_MAX,
}


# --- the slots of Python's classes -------------------------------------------------------------------

cdef struct TxnSlots:
    Py_ssize_t type
    Py_ssize_t _keys, _known, _strings, awaited, batch, frees, missing, thresholds, wanted_events

cdef struct BatchSlots:
    Py_ssize_t type
    Py_ssize_t _rows, puts, ranges

cdef struct ThresholdsSlots:
    Py_ssize_t type
    Py_ssize_t string_bytes_cached, string_bytes_max, strings_cached

cdef struct StringSlots:
    Py_ssize_t type
    Py_ssize_t _head, expire_at, generation, in_parts, pieces, row, value

cdef struct NumbersSlots:
    Py_ssize_t type
    Py_ssize_t _first_free, _next

cdef struct DatabasesSlots:
    Py_ssize_t type
    Py_ssize_t _stored, _stored_heads

cdef struct UnlinkedSlots:
    Py_ssize_t type
    Py_ssize_t _known

cdef struct IndexSlots:
    Py_ssize_t type
    Py_ssize_t _counts, _firsts, watches

cdef TxnSlots TXN
cdef BatchSlots BATCH
cdef ThresholdsSlots THRESHOLDS
cdef StringSlots STRING
cdef NumbersSlots NUMBERS
cdef DatabasesSlots DATABASES
cdef UnlinkedSlots UNLINKED
cdef IndexSlots INDEX


def bind(
    type txn, type batch, type thresholds, type string, type numbers, type databases, type unlinked,
    type index,
):
    """Find the slots of the classes. What is of other classes, or comes before, is not plain."""
    global TXN, BATCH, THRESHOLDS, STRING, NUMBERS, DATABASES, UNLINKED, INDEX
    TXN, BATCH = find_slots(txn, TXN), find_slots(batch, BATCH)
    THRESHOLDS, STRING = find_slots(thresholds, THRESHOLDS), find_slots(string, STRING)
    NUMBERS, DATABASES = find_slots(numbers, NUMBERS), find_slots(databases, DATABASES)
    UNLINKED, INDEX = find_slots(unlinked, UNLINKED), find_slots(index, INDEX)


# --- rows -------------------------------------------------------------------------------------------


cdef inline bytes number_of(uint64_t number):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8)
    put_big_endian(<unsigned char *>PyBytes_AS_STRING(made), number)
    return made


cdef bytes scan_row(bytes record_row, uint64_t generation):
    """Return the row of ``scan_row`` of layout/keys.py for a key whose record's row is given."""
    cdef bytes row = PyBytes_FromStringAndSize(NULL, 11)
    cdef unsigned char *at = <unsigned char *>PyBytes_AS_STRING(row)
    at[0] = 78  # N
    memcpy(at + 1, PyBytes_AS_STRING(record_row) + 1, 2)
    put_big_endian(at + 3, generation)
    return row


cdef bytes count_row(bytes record_row):
    """Return the row of ``key_count_row`` of layout/keys.py."""
    cdef bytes row = PyBytes_FromStringAndSize(NULL, 3)
    PyBytes_AS_STRING(row)[0] = 67  # C
    memcpy(PyBytes_AS_STRING(row) + 1, PyBytes_AS_STRING(record_row) + 1, 2)
    return row


cdef bytes head_of(uint64_t generation):
    """Return how the record of a whole string without expiry begins."""
    cdef bytes head = PyBytes_FromStringAndSize(NULL, HEAD)
    cdef unsigned char *at = <unsigned char *>PyBytes_AS_STRING(head)
    at[0], at[1] = STRING_KIND, WHOLE_VERSION
    put_big_endian(at + 2, 0)
    put_big_endian(at + 10, generation)
    return head


cdef bint is_whole(bytes record) noexcept:
    """Return whether a record is that of a whole string without expiry, and is not damaged."""
    cdef Bytes at = <Bytes>PyBytes_AS_STRING(record)
    if PyBytes_GET_SIZE(record) < HEAD or at[0] != STRING_KIND or at[1] != WHOLE_VERSION:
        return False
    return not big_endian(at + 2) and 0 < big_endian(at + 10) < COUNTED_MAX


# --- keys -------------------------------------------------------------------------------------------


cdef inline object of_keys(txn, int at, Py_ssize_t kind):
    """Return one of the parts of the catalog that a transaction has at hand."""
    found = <object>PyTuple_GET_ITEM(get(txn, TXN._keys), at)
    if not is_of(found, kind):
        raise TypeError(f"a part of the catalog is a {type(found).__name__}")
    return found


cdef inline dict puts_of(txn):
    """Return the changed rows of metadata."""
    return <dict>(<tuple>get(part(txn, TXN.batch, BATCH.type), BATCH.puts))[METADATA]


cdef bint may_be_plain(txn, Py_ssize_t size) except -1:
    """Return whether a transaction may set a string of some bytes: nobody watches its keys."""
    if not is_of(txn, TXN.type) or get(txn, TXN.wanted_events):
        return False
    thresholds = part(txn, TXN.thresholds, THRESHOLDS.type)
    return (
        size <= WHOLE_BYTES_MAX
        and size <= bounded(get(thresholds, THRESHOLDS.string_bytes_cached))
        and size <= bounded(get(thresholds, THRESHOLDS.string_bytes_max))
        and not get(of_keys(txn, INDEX_AT, INDEX.type), INDEX.watches)
    )


cdef int find(txn, bytes name, PyObject **string) except -1:
    """Find what is in memory of a plain string: its record, or a ``StringMeta``; read it first."""
    cdef dict known = get(txn, TXN._strings)
    string[0] = PyDict_GetItemWithError(known, name)
    if string[0] is NULL:
        return load(txn, known, name, string)
    each = <object>string[0]
    if type(each) is bytes:
        return PRESENT
    if (
        not is_of(each, STRING.type)
        or get(each, STRING.expire_at)
        or get(each, STRING.pieces) is not None
    ):
        return NOT_PLAIN
    return PRESENT


cdef bytes row_of(txn, bytes name):
    """Return the row of a name's record; None if the numbers of databases are still to be read."""
    cdef object databases = of_keys(txn, DATABASES_AT, DATABASES.type), stored = None
    cdef dict heads
    cdef bytes row
    if get(databases, DATABASES._stored) is None or PyBytes_GET_SIZE(name) < 2:
        return None
    heads = get(databases, DATABASES._stored_heads)
    if heads:
        stored = heads.get(name[:2])
    row = PyBytes_FromStringAndSize(NULL, 1 + PyBytes_GET_SIZE(name))
    at = PyBytes_AS_STRING(row)
    at[0] = 83  # S
    memcpy(at + 1, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    if stored is not None:
        memcpy(at + 1, PyBytes_AS_STRING(<bytes?>stored), 2)
    return row


cdef int load(txn, dict known, bytes name, PyObject **string) except -1:
    """Read the record of a name, and keep it in memory."""
    cdef object batch = part(txn, TXN.batch, BATCH.type), gone
    cdef object thresholds = part(txn, TXN.thresholds, THRESHOLDS.type)
    cdef bytes row, record
    gone = get(of_keys(txn, UNLINKED_AT, UNLINKED.type), UNLINKED._known)
    if (
        gone is None
        or gone
        or get(batch, BATCH.ranges)
        or len(known) >= bounded(get(thresholds, THRESHOLDS.strings_cached))
        or name in <dict>get(txn, TXN._known)
    ):
        return NOT_PLAIN
    row = row_of(txn, name)
    if row is None or row in puts_of(txn):
        return NOT_PLAIN
    record = get(batch, BATCH._rows).get(METADATA, row)
    if record is None:
        (<set>get(txn, TXN.missing)).add(name)
        return ABSENT
    if not is_whole(record) or PyBytes_GET_SIZE(record) - HEAD > bounded(
        get(thresholds, THRESHOLDS.string_bytes_cached)
    ):
        return NOT_PLAIN
    known[name] = record
    string[0] = <PyObject *>record
    return PRESENT


cdef bytes joined(const char *head, bytes value):
    """Return the record of a value."""
    cdef bytes record = PyBytes_FromStringAndSize(NULL, HEAD + PyBytes_GET_SIZE(value))
    memcpy(PyBytes_AS_STRING(record), head, HEAD)
    memcpy(PyBytes_AS_STRING(record) + HEAD, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return record


cdef int rewrite(txn, bytes name, string, bytes value) except -1:
    """Give a plain string another value."""
    cdef bytes head, record
    if type(string) is bytes:
        record = joined(PyBytes_AS_STRING(string), value)
        (<dict>get(txn, TXN._strings))[name] = record
        puts_of(txn)[row_of(txn, name)] = record
        return 0
    head = get(string, STRING._head)
    if not head:
        head = head_of(get(string, STRING.generation))
        put(string, STRING._head, head)
    put(string, STRING.in_parts, False)
    put(string, STRING.value, value)
    puts_of(txn)[get(string, STRING.row)] = head + value
    return 0


cdef bint create(txn, bytes name, bytes value) except -1:
    """Create a string under a name that has no key; return whether it did."""
    cdef object index = of_keys(txn, INDEX_AT, INDEX.type)
    cdef object numbers = of_keys(txn, NUMBERS_AT, NUMBERS.type), count, first, following
    cdef dict puts = puts_of(txn), counts = get(index, INDEX._counts)
    cdef uint64_t generation = get(numbers, NUMBERS._next), counted
    cdef int db
    cdef bytes record, row = row_of(txn, name)
    if generation == 0 or name in get(txn, TXN.awaited):
        return False
    db = (<Bytes>PyBytes_AS_STRING(row))[1] << 8 | (<Bytes>PyBytes_AS_STRING(row))[2]
    count, first = counts.get(db), (<dict>get(index, INDEX._firsts)).get(db)
    if count is None or (first is not None and generation < <uint64_t>first):
        return False
    count += 1
    counts[db], counted = count, count
    following = generation + 1
    put(numbers, NUMBERS._next, following)
    put(numbers, NUMBERS._first_free, following)
    record = joined(PyBytes_AS_STRING(head_of(generation)), value)
    puts[ALLOCATOR_KEY] = number_of(generation + 1)
    puts[row] = record
    puts[scan_row(row, generation)] = name[2:]
    puts[count_row(row)] = number_of(counted)
    put(txn, TXN.frees, False)
    (<dict>get(txn, TXN._strings))[name] = record
    return True


# --- SET and INCR -----------------------------------------------------------------------------------


def put_plain(txn, bytes name not None, bytes value not None):
    """Do ``put`` of operations/strings.py without an expiry; return False if that is not plain."""
    cdef PyObject *string = NULL
    cdef int found
    if not may_be_plain(txn, PyBytes_GET_SIZE(value)):
        return False
    found = find(txn, name, &string)
    if found == PRESENT:
        rewrite(txn, name, <object>string, value)
        return True
    return found == ABSENT and create(txn, name, value)


def add_plain(txn, bytes name not None, number):
    """Do ``add`` of operations/strings.py; return None if that is not plain."""
    cdef PyObject *string = NULL
    cdef int found
    cdef int64_t total = 0, by = bounded(number)
    if not -NUMBER_MAX <= by <= NUMBER_MAX or not may_be_plain(txn, DIGITS_MAX + 2):
        return None
    found = find(txn, name, &string)
    if found == NOT_PLAIN:
        return None
    if found == PRESENT and not take_integer(<object>string, &total):
        return None
    total += by
    if found == PRESENT:
        rewrite(txn, name, <object>string, b"%d" % total)
    elif not create(txn, name, b"%d" % total):
        return None
    return total


cdef bint take_integer(string, int64_t *number) except -1:
    """Take a canonical decimal of at most DIGITS_MAX digits; return whether a string is one."""
    cdef bytes whole = string if type(string) is bytes else get(string, STRING.value)
    cdef Py_ssize_t skipped = HEAD if type(string) is bytes else 0
    cdef Bytes at = <Bytes>PyBytes_AS_STRING(whole) + skipped
    cdef Py_ssize_t size = PyBytes_GET_SIZE(whole) - skipped, i
    cdef bint negative = size > 1 and at[0] == 45  # -
    cdef int64_t found = 0
    if negative:
        at, size = at + 1, size - 1
    if not 0 < size <= DIGITS_MAX or (at[0] == 48 and (size > 1 or negative)):  # 0
        return False
    for i in range(size):
        if not 48 <= at[i] <= 57:
            return False
        found = 10 * found + (at[i] - 48)
    number[0] = -found if negative else found
    return True
