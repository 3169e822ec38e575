# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of columns.py: row values from columns of strings, as Arrow lays them out.

The caller guarantees that ends fit their data. Input that is not plain gives None: then the Python
function does the work.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from kvstream.layout._msgpack cimport (
    ID_BYTES,
    UNIQUE,
    Bytes,
    map_head_size,
    pack_map_head,
    pack_string,
    packed_size,
)
from kvstream.layout._rows cimport ROW_HEAD, split_rows, take_size
from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    COLUMNS_MAX = 64  # the fields of a row are a mask of 64 bits
    PAIRS_MAX = 64


cdef struct Column:
    const int32_t *ends
    Bytes data
    Bytes valid  # one byte per row; NULL: all rows have a value


cdef class Held:
    """Keeps the buffers behind pointers alive."""

    cdef Py_buffer views[3 * COLUMNS_MAX]
    cdef Py_ssize_t count

    cdef const void *point(self, object buffer) except? NULL:
        if buffer is None:
            return NULL
        PyObject_GetBuffer(buffer, &self.views[self.count], PyBUF_SIMPLE)
        self.count += 1
        return self.views[self.count - 1].buf

    cdef int take(self, tuple given, Column *column) except -1:
        column.ends = <const int32_t *>self.point(given[0])
        column.data = <Bytes>self.point(given[1])
        column.valid = <Bytes>self.point(given[2])
        return 0

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            PyBuffer_Release(&self.views[i])


cdef bytes packed_name(bytes name):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(name)
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, packed_size(size))
    pack_string(<unsigned char *>PyBytes_AS_STRING(packed), PyBytes_AS_STRING(name), size)
    return packed


def pack_columns(tuple names not None, list columns not None, Py_ssize_t count, Py_ssize_t limit):
    """Return (row value, names) of each row, None for a row without fields; or None for all."""
    cdef Py_ssize_t width = len(names), i, j, fields, total, size
    cdef Column given[COLUMNS_MAX]
    cdef Bytes heads[COLUMNS_MAX]
    cdef Py_ssize_t head_sizes[COLUMNS_MAX]
    cdef Held held = Held()
    cdef list kept = [], packed = []
    cdef dict shapes = {}
    cdef uint64_t mask
    cdef unsigned char *to
    cdef bytes head, value
    if width == 0 or width > COLUMNS_MAX or len(set(names)) != width or len(columns) != width:
        return None
    for i in range(width):
        held.take(columns[i], &given[i])
        head = packed_name(names[i])
        kept.append(head)
        heads[i] = <Bytes>PyBytes_AS_STRING(head)
        head_sizes[i] = PyBytes_GET_SIZE(head)
    for i in range(count):
        mask = 0
        fields = total = 0
        for j in range(width):
            if given[j].valid == NULL or given[j].valid[i]:
                mask |= <uint64_t>1 << j
                fields += 1
                total += head_sizes[j] + packed_size(given[j].ends[i + 1] - given[j].ends[i])
        total += 1 + map_head_size(fields)
        if total > limit:
            return None
        if fields == 0:
            packed.append(None)
            continue
        value = PyBytes_FromStringAndSize(NULL, total)
        to = <unsigned char *>PyBytes_AS_STRING(value)
        to[0] = UNIQUE
        to = pack_map_head(to + 1, fields)
        for j in range(width):
            if mask >> j & 1:
                memcpy(to, heads[j], head_sizes[j])
                size = given[j].ends[i + 1] - given[j].ends[i]
                to = pack_string(to + head_sizes[j], given[j].data + given[j].ends[i], size)
        shape = shapes.get(mask)
        if shape is None:
            shape = shapes[mask] = tuple([names[j] for j in range(width) if mask >> j & 1])
        packed.append((value, shape))
    return packed


cdef bint same_names(Column *names, Py_ssize_t one, Py_ssize_t other, Py_ssize_t count) noexcept:
    cdef const int32_t *mine = names.ends + one
    cdef const int32_t *theirs = names.ends + other
    cdef Py_ssize_t i
    for i in range(1, count + 1):
        if mine[i] - mine[0] != theirs[i] - theirs[0]:
            return False
    return memcmp(names.data + mine[0], names.data + theirs[0], mine[count] - mine[0]) == 0


cdef tuple names_at(Column *names, Py_ssize_t first, Py_ssize_t count):
    cdef Py_ssize_t i
    return tuple([
        PyBytes_FromStringAndSize(
            <const char *>names.data + names.ends[i], names.ends[i + 1] - names.ends[i]
        )
        for i in range(first, first + count)
    ])


def pack_lists(rows not None, tuple names not None, tuple values not None, Py_ssize_t count,
               Py_ssize_t limit):
    """Return (row value, names) of each row, None for a row that is not plain; or None for all.

    ``rows`` are the ends of the rows in names and values, none of which is null.
    """
    cdef Held held = Held()
    cdef const int32_t *ends = <const int32_t *>held.point(rows)
    cdef Column name, value
    cdef Py_ssize_t i, j, first, fields, total, known = -1, known_fields = 0
    cdef tuple shape = None
    cdef list packed = []
    cdef unsigned char *to
    cdef bytes row
    held.take(names, &name)
    held.take(values, &value)
    if name.valid != NULL or value.valid != NULL:
        return None
    for i in range(count):
        first, fields = ends[i], ends[i + 1] - ends[i]
        if fields <= 0 or fields > PAIRS_MAX:
            packed.append(None)
            continue
        if known < 0 or fields != known_fields or not same_names(&name, known, first, fields):
            shape = names_at(&name, first, fields)
            known, known_fields = first, fields
            if len(set(shape)) != fields:
                known = -1
                packed.append(None)
                continue
        total = 1 + map_head_size(fields)
        for j in range(first, first + fields):
            total += packed_size(name.ends[j + 1] - name.ends[j])
            total += packed_size(value.ends[j + 1] - value.ends[j])
        if total > limit:
            packed.append(None)
            continue
        row = PyBytes_FromStringAndSize(NULL, total)
        to = <unsigned char *>PyBytes_AS_STRING(row)
        to[0] = UNIQUE
        to = pack_map_head(to + 1, fields)
        for j in range(first, first + fields):
            to = pack_string(to, name.data + name.ends[j], name.ends[j + 1] - name.ends[j])
            to = pack_string(to, value.data + value.ends[j], value.ends[j + 1] - value.ends[j])
        packed.append((row, shape))
    return packed


def unpack_rows(bytes rows not None):
    """Twin of ``unpack_in_python``."""
    cdef list ids = [], values = []
    if not split_rows(<Bytes>PyBytes_AS_STRING(rows), PyBytes_GET_SIZE(rows), ids, values):
        raise ValueError("packed rows end within a row")
    return ids, values


def put_rows(into, bytes prefix not None, bytes rows not None):
    """Do what ``put_in_python`` does; the rows before a cut one are set."""
    cdef Bytes at = <Bytes>PyBytes_AS_STRING(rows)
    cdef Py_ssize_t left = PyBytes_GET_SIZE(rows), head = PyBytes_GET_SIZE(prefix), size
    cdef bytes key
    cdef char *to
    while left:
        size = ROW_HEAD + take_size(at + ID_BYTES) if left >= ROW_HEAD else ROW_HEAD
        if left < size:
            raise ValueError("packed rows end within a row")
        key = PyBytes_FromStringAndSize(NULL, head + ID_BYTES)
        to = PyBytes_AS_STRING(key)
        memcpy(to, PyBytes_AS_STRING(prefix), head)
        memcpy(to + head, at, ID_BYTES)
        into[key] = PyBytes_FromStringAndSize(<const char *>at + ROW_HEAD, size - ROW_HEAD)
        at += size
        left -= size
