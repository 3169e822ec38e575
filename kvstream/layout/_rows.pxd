"""Packed rows: many rows in one string; columns.py has the grammar."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from kvstream.layout._msgpack cimport ID_BYTES, Bytes
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

cdef enum:
    ROW_HEAD = 20  # an ID, and the length of the value


cdef inline void put_size(unsigned char *at, uint32_t size) noexcept nogil:
    at[0] = size & 0xFF
    at[1] = size >> 8 & 0xFF
    at[2] = size >> 16 & 0xFF
    at[3] = size >> 24


cdef inline Py_ssize_t take_size(Bytes at) noexcept nogil:
    return (
        <Py_ssize_t>at[0] | <Py_ssize_t>at[1] << 8 | <Py_ssize_t>at[2] << 16 | <Py_ssize_t>at[3] << 24
    )


cdef inline bint split_rows(Bytes at, Py_ssize_t left, list ids, list values):
    """Append IDs and values to lists; return False if the last row is cut."""
    cdef Py_ssize_t size
    while left:
        if left < ROW_HEAD:
            return False
        size = take_size(at + ID_BYTES)
        if left - ROW_HEAD < size:
            return False
        ids.append(PyBytes_FromStringAndSize(<const char *>at, ID_BYTES))
        values.append(PyBytes_FromStringAndSize(<const char *>at + ROW_HEAD, size))
        at += ROW_HEAD + size
        left -= ROW_HEAD + size
    return True
