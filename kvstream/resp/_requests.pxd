"""How the numbers and arguments of a request are taken from its bytes."""

from kvstream.layout._msgpack cimport Bytes
from libc.stdint cimport int64_t


cdef struct Part:
    Bytes at
    Py_ssize_t size


cdef inline int64_t take_number(Bytes data, Py_ssize_t *at, Py_ssize_t size) noexcept nogil:
    """Take a number in canonical digits, CR and the byte behind it; -1 for all else."""
    cdef Py_ssize_t start = at[0], here = at[0]
    cdef int64_t number = 0
    cdef unsigned char digit
    while here < size:
        digit = data[here] - 48
        if digit > 9:
            break
        number = number * 10 + digit
        here += 1
        if here - start > 10:
            return -1
    if here == start or here + 1 >= size or data[here] != 13:
        return -1
    if data[start] == 48 and here - start > 1:
        return -1
    at[0] = here + 2
    return number


cdef inline Py_ssize_t take_bulk(Bytes data, Py_ssize_t at, Py_ssize_t size, Part *to) noexcept nogil:
    """Take one argument; return what follows it, or -1."""
    cdef int64_t length
    if at >= size or data[at] != 36:  # $
        return -1
    at += 1
    length = take_number(data, &at, size)
    if length < 0 or size - at < length + 2:
        return -1
    to.at = data + at
    to.size = length
    return at + length + 2
