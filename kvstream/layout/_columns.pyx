# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of columns.py: pages of entries as buffers. The grammar of rows is in values.py.

Each handles plain input and returns None for all other input, damage included: then the Python
function does the work. Nothing is read beyond the bytes given.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from kvstream.layout._msgpack cimport (
    ID_BYTES,
    REPEATED,
    Bytes,
    Cursor,
    take_count,
    take_row,
    take_string,
)
from kvstream.layout._rows cimport ROW_HEAD, take_size
from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcmp, memcpy


cdef enum:
    FIELDS_NEAR = 32  # up to so many names are compared pairwise
    STEP = 32  # bytes that are copied at once

cdef Py_ssize_t BYTES_MAX = 2147483647  # the reach of 32-bit offsets


cdef struct Sizes:
    Py_ssize_t fields
    Py_ssize_t names
    Py_ssize_t values


cdef struct Room:
    int32_t *name_ends
    int32_t *value_ends
    char *names
    char *names_end
    char *values
    char *values_end
    Py_ssize_t field
    int32_t name_at
    int32_t value_at


cdef inline void copy(char *to, char *to_end, Bytes data, Py_ssize_t size, Bytes end) noexcept nogil:
    """Copy a string; a short one by a copy of STEP bytes, if that stays within the buffers."""
    if size <= STEP and to_end - to >= STEP and end - data >= STEP:
        memcpy(to, data, STEP)
    else:
        memcpy(to, data, size)


cdef inline void put(
    Room *room, Bytes name, Py_ssize_t size, Bytes value, Py_ssize_t length, Bytes end
) noexcept nogil:
    """Add a field; ``end`` is the end of the bytes around it, NULL if unknown."""
    copy(room.names + room.name_at, room.names_end, name, size, end)
    copy(room.values + room.value_at, room.values_end, value, length, end)
    room.name_at += <int32_t>size
    room.value_at += <int32_t>length
    room.field += 1
    room.name_ends[room.field] = room.name_at
    room.value_ends[room.field] = room.value_at


cdef inline bint put_value(Room *to, Bytes at, Bytes end, Bytes whole) noexcept nogil:
    """Add the fields of a measured value; tell whether names may repeat.

    ``whole`` is the end of the bytes around the value.
    """
    cdef Room room = to[0]  # a local copy: writes to the buffers cannot alias it
    cdef Cursor cursor
    cdef Bytes name = NULL, data = NULL
    cdef Py_ssize_t size = 0, length = 0, i
    cursor.at, cursor.end = at, end
    for i in range(take_count(&cursor)):
        take_string(&cursor, &name, &size)
        take_string(&cursor, &data, &length)
        put(&room, name, size, data, length, whole)
    to[0] = room
    return at[0] == REPEATED


cdef class Buffers:
    """The buffers of a page that is being filled."""

    cdef bytes ids, ends, name_ends, names, value_ends, values
    cdef Room room

    def __cinit__(self, Py_ssize_t count, Py_ssize_t fields, Py_ssize_t names, Py_ssize_t values):
        self.ids = PyBytes_FromStringAndSize(NULL, count * ID_BYTES)
        self.ends = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
        self.name_ends = PyBytes_FromStringAndSize(NULL, (fields + 1) * 4)
        self.value_ends = PyBytes_FromStringAndSize(NULL, (fields + 1) * 4)
        self.names = PyBytes_FromStringAndSize(NULL, names)
        self.values = PyBytes_FromStringAndSize(NULL, values)
        self.room.name_ends = <int32_t *>PyBytes_AS_STRING(self.name_ends)
        self.room.value_ends = <int32_t *>PyBytes_AS_STRING(self.value_ends)
        self.room.names = PyBytes_AS_STRING(self.names)
        self.room.names_end = self.room.names + names
        self.room.values = PyBytes_AS_STRING(self.values)
        self.room.values_end = self.room.values + values
        self.room.field = 0
        self.room.name_at = self.room.value_at = 0
        self.room.name_ends[0] = self.room.value_ends[0] = 0

    cdef tuple done(self, list repeated):
        return (
            self.ids, self.ends, self.name_ends, self.names, self.value_ends, self.values, repeated
        )


cdef inline bint measure_row(bytes value, Sizes *sizes) noexcept:
    """Add the sizes of a row value; return False for damage."""
    return measure(<Bytes>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), sizes)


cdef bint measure(Bytes at, Py_ssize_t length, Sizes *sizes) noexcept nogil:
    """Add the sizes of a row value of ``size`` bytes; return False for damage."""
    cdef Cursor cursor
    cdef Bytes data = NULL
    cdef Py_ssize_t size = 0, count, i
    cursor.at = at
    cursor.end = at + length
    count = take_count(&cursor)
    if count <= 0:
        return False
    for i in range(count):
        if not take_string(&cursor, &data, &size):
            return False
        sizes.names += size
        if not take_string(&cursor, &data, &size):
            return False
        sizes.values += size
    sizes.fields += count
    return cursor.at == cursor.end


def of_rows(list page not None, Py_ssize_t prefix):
    """Twin of ``rows_in_python`` of columns.py."""
    cdef Py_ssize_t i, count = PyList_GET_SIZE(page)
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    cdef Sizes sizes
    cdef Bytes at, stop
    cdef list repeated = []
    sizes.fields = sizes.names = sizes.values = 0
    for i in range(count):
        if not take_row(page, i, prefix, &key, &value) or not measure_row(<bytes>value, &sizes):
            return None
    if max(sizes.fields, sizes.names, sizes.values) >= BYTES_MAX:
        return None
    cdef Buffers to = Buffers(count, sizes.fields, sizes.names, sizes.values)
    cdef char *ids = PyBytes_AS_STRING(to.ids)
    cdef int32_t *ends = <int32_t *>PyBytes_AS_STRING(to.ends)
    ends[0] = 0
    for i in range(count):
        take_row(page, i, prefix, &key, &value)
        memcpy(ids + i * ID_BYTES, PyBytes_AS_STRING(<object>key) + prefix, ID_BYTES)
        at = <Bytes>PyBytes_AS_STRING(<object>value)
        stop = at + PyBytes_GET_SIZE(<object>value)
        if put_value(&to.room, at, stop, stop):
            repeated.append(i)
        ends[i + 1] = <int32_t>to.room.field
    return to.done(repeated)


def of_packed(bytes rows not None):
    """Do what ``packed_in_python`` of columns.py does, with the same argument; else None."""
    cdef Bytes start = <Bytes>PyBytes_AS_STRING(rows)
    cdef Bytes end = start + PyBytes_GET_SIZE(rows), at = start
    cdef Py_ssize_t i = 0, count = 0, size
    cdef Sizes sizes
    cdef list repeated = []
    sizes.fields = sizes.names = sizes.values = 0
    while at < end:
        if end - at < ROW_HEAD:
            return None
        size = take_size(at + ID_BYTES)
        if end - at - ROW_HEAD < size or not measure(at + ROW_HEAD, size, &sizes):
            return None
        at += ROW_HEAD + size
        count += 1
    if max(sizes.fields, sizes.names, sizes.values) >= BYTES_MAX:
        return None
    cdef Buffers to = Buffers(count, sizes.fields, sizes.names, sizes.values)
    cdef char *ids = PyBytes_AS_STRING(to.ids)
    cdef int32_t *ends = <int32_t *>PyBytes_AS_STRING(to.ends)
    ends[0] = 0
    at = start
    while at < end:
        memcpy(ids + i * ID_BYTES, at, ID_BYTES)
        size = take_size(at + ID_BYTES)
        at += ROW_HEAD
        if put_value(&to.room, at, at + size, end):
            repeated.append(i)
        at += size
        i += 1
        ends[i] = <int32_t>to.room.field
    return to.done(repeated)


cdef inline Bytes take_u64(Bytes at, Bytes end, char *packed) noexcept nogil:
    """Take a number of at most 19 digits, as 8 bytes; return NULL if there is none."""
    cdef Bytes start = at
    cdef uint64_t number = 0
    cdef int i
    while at < end and 48 <= at[0] <= 57:
        number = number * 10 + (at[0] - 48)
        at += 1
    if not 0 < at - start < 20:
        return NULL
    for i in range(7, -1, -1):
        packed[i] = <char>(number & 0xFF)
        number >>= 8
    return at


cdef bint take_id(object text, char *packed):
    """Take ``ms-seq``; return False for anything else, and for a number of twenty digits."""
    cdef Bytes at, end
    if type(text) is not bytes:
        return False
    at = <Bytes>PyBytes_AS_STRING(text)
    end = at + PyBytes_GET_SIZE(text)
    at = take_u64(at, end, packed)
    if at == NULL or at == end or at[0] != 45:  # a hyphen
        return False
    return take_u64(at + 1, end, packed + 8) == end


cdef bint measure_reply(object entry, Sizes *sizes):
    """Add the sizes of an entry of a reply; return False if it is not plain."""
    cdef Py_ssize_t i, count
    cdef object part, flat
    if type(entry) is not list or PyList_GET_SIZE(entry) != 2:
        return False
    flat = <object>PyList_GET_ITEM(entry, 1)
    if type(flat) is not list:
        return False
    count = PyList_GET_SIZE(flat)
    if count == 0 or count & 1:
        return False
    for i in range(count):
        part = <object>PyList_GET_ITEM(flat, i)
        if type(part) is not bytes:
            return False
        if i & 1:
            sizes.values += PyBytes_GET_SIZE(part)
        else:
            sizes.names += PyBytes_GET_SIZE(part)
    sizes.fields += count >> 1
    return True


cdef bint repeats(list flat):
    """Tell whether a field name repeats."""
    cdef Py_ssize_t i, j, count = PyList_GET_SIZE(flat)
    cdef object name, other
    if count > 2 * FIELDS_NEAR:
        return 2 * len(set(flat[::2])) != count
    for i in range(2, count, 2):
        name = <object>PyList_GET_ITEM(flat, i)
        for j in range(0, i, 2):
            other = <object>PyList_GET_ITEM(flat, j)
            if PyBytes_GET_SIZE(name) == PyBytes_GET_SIZE(other) and (
                memcmp(PyBytes_AS_STRING(name), PyBytes_AS_STRING(other), PyBytes_GET_SIZE(name))
                == 0
            ):
                return True
    return False


def of_replies(list reply not None):
    """Twin of ``replies_in_python`` of columns.py."""
    cdef Py_ssize_t i, j, count = PyList_GET_SIZE(reply)
    cdef Sizes sizes
    cdef list flat, repeated = []
    cdef object entry, name, value
    sizes.fields = sizes.names = sizes.values = 0
    for i in range(count):
        if not measure_reply(<object>PyList_GET_ITEM(reply, i), &sizes):
            return None
    if max(sizes.fields, sizes.names, sizes.values) >= BYTES_MAX:
        return None
    cdef Buffers to = Buffers(count, sizes.fields, sizes.names, sizes.values)
    cdef char *ids = PyBytes_AS_STRING(to.ids)
    cdef int32_t *ends = <int32_t *>PyBytes_AS_STRING(to.ends)
    ends[0] = 0
    for i in range(count):
        entry = <object>PyList_GET_ITEM(reply, i)
        if not take_id(<object>PyList_GET_ITEM(entry, 0), ids + i * ID_BYTES):
            return None
        flat = <list>PyList_GET_ITEM(entry, 1)
        if repeats(flat):
            repeated.append(i)
        for j in range(0, PyList_GET_SIZE(flat), 2):
            name = <object>PyList_GET_ITEM(flat, j)
            value = <object>PyList_GET_ITEM(flat, j + 1)
            put(
                &to.room,
                <Bytes>PyBytes_AS_STRING(name),
                PyBytes_GET_SIZE(name),
                <Bytes>PyBytes_AS_STRING(value),
                PyBytes_GET_SIZE(value),
                NULL,
            )
        ends[i + 1] = <int32_t>to.room.field
    return to.done(repeated)
