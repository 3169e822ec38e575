"""Stored rows: their msgpack strings, read with bounds checks and written into measured buffers.

The grammar is in values.py.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

ctypedef const unsigned char *Bytes

cdef enum:
    UNIQUE = 1
    REPEATED = 2
    ID_BYTES = 16


cdef struct Cursor:
    Bytes at
    Bytes end


cdef inline bint take_string(Cursor *from_, Bytes *data, Py_ssize_t *size) noexcept nogil:
    """Take one msgpack string; return False if there is no whole one."""
    cdef Py_ssize_t left = from_.end - from_.at
    cdef Bytes at = from_.at
    cdef unsigned char head
    if left < 1:
        return False
    head = at[0]
    if (head & 0xE0) == 0xA0:
        size[0] = head & 0x1F
        at += 1
    elif head == 0xD9 and left >= 2:
        size[0] = at[1]
        at += 2
    elif head == 0xDA and left >= 3:
        size[0] = (<Py_ssize_t>at[1] << 8) | at[2]
        at += 3
    elif head == 0xDB and left >= 5:
        size[0] = (
            (<Py_ssize_t>at[1] << 24) | (<Py_ssize_t>at[2] << 16) | (<Py_ssize_t>at[3] << 8) | at[4]
        )
        at += 5
    else:
        return False
    if from_.end - at < size[0]:
        return False
    data[0] = at
    from_.at = at + size[0]
    return True


cdef inline Py_ssize_t packed_size(Py_ssize_t size) noexcept nogil:
    """Return the bytes of a packed string."""
    return size + (1 if size < 32 else 3 if size < 65536 else 5)


cdef inline unsigned char *pack_string(
    unsigned char *at, const void *data, Py_ssize_t size
) noexcept nogil:
    if size < 32:
        at[0] = 0xA0 | size
        at += 1
    elif size < 65536:
        at[0] = 0xDA
        at[1] = size >> 8
        at[2] = size & 0xFF
        at += 3
    else:
        at[0] = 0xDB
        at[1] = (size >> 24) & 0xFF
        at[2] = (size >> 16) & 0xFF
        at[3] = (size >> 8) & 0xFF
        at[4] = size & 0xFF
        at += 5
    memcpy(at, data, size)
    return at + size


cdef inline Py_ssize_t map_head_size(Py_ssize_t count) noexcept nogil:
    return 1 if count < 16 else 3 if count < 65536 else 5


cdef inline unsigned char *pack_map_head(unsigned char *at, Py_ssize_t count) noexcept nogil:
    if count < 16:
        at[0] = 0x80 | count
        return at + 1
    if count >= 65536:
        at[0] = 0xDF
        at[1] = (count >> 24) & 0xFF
        at[2] = (count >> 16) & 0xFF
        at[3] = (count >> 8) & 0xFF
        at[4] = count & 0xFF
        return at + 5
    at[0] = 0xDE
    at[1] = count >> 8
    at[2] = count & 0xFF
    return at + 3


cdef inline Py_ssize_t take_count(Cursor *from_) noexcept nogil:
    """Take the mark and the head of a row value; return the number of its pairs, or -1.

    The number is never above what the bytes can hold, so it is safe to allocate by it.
    """
    cdef Py_ssize_t left = from_.end - from_.at
    cdef Bytes at = from_.at
    cdef unsigned char head, few, kind
    cdef Py_ssize_t count
    if left < 2:
        return -1
    if at[0] == UNIQUE:
        few, kind = 0x80, 0xDE
    elif at[0] == REPEATED:
        few, kind = 0x90, 0xDC
    else:
        return -1
    head = at[1]
    if (head & 0xF0) == few:
        from_.at += 2
        count = head & 0x0F
    elif head == kind and left >= 4:
        from_.at += 4
        count = (<Py_ssize_t>at[2] << 8) | at[3]
    elif head == kind + 1 and left >= 6:
        from_.at += 6
        count = (<Py_ssize_t>at[2] << 24) | (<Py_ssize_t>at[3] << 16) | (<Py_ssize_t>at[4] << 8) | at[5]
        if count > left:
            return -1
    else:
        return -1
    if at[0] == UNIQUE:
        return count
    return -1 if count & 1 else count >> 1


cdef inline uint64_t big_endian(Bytes at) noexcept nogil:
    cdef uint64_t number = 0
    cdef int i
    for i in range(8):
        number = (number << 8) | at[i]
    return number


cdef inline bint is_sound(bytes value) noexcept:
    """Tell whether a row value has exactly the strings that its head announces."""
    cdef Cursor cursor
    cdef Bytes data = NULL
    cdef Py_ssize_t size = 0, count, i
    cursor.at = <Bytes>PyBytes_AS_STRING(value)
    cursor.end = cursor.at + PyBytes_GET_SIZE(value)
    count = take_count(&cursor)
    if count <= 0:
        return False
    for i in range(2 * count):
        if not take_string(&cursor, &data, &size):
            return False
    return cursor.at == cursor.end


cdef inline bint take_row(
    list page, Py_ssize_t at, Py_ssize_t prefix, PyObject **key, PyObject **value
) noexcept:
    """Parse a row of a page: a key with an ID after ``prefix`` bytes, and a value, both bytes.

    Returns False for anything else. The page must have the row, and stay alive.
    """
    cdef object row = <object>PyList_GET_ITEM(page, at)
    if type(row) is not tuple or PyTuple_GET_SIZE(row) != 2:
        return False
    key[0] = PyTuple_GET_ITEM(row, 0)
    value[0] = PyTuple_GET_ITEM(row, 1)
    if type(<object>key[0]) is not bytes or type(<object>value[0]) is not bytes:
        return False
    return PyBytes_GET_SIZE(<object>key[0]) == prefix + ID_BYTES
