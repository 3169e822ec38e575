"""What the server's compiled code takes from that of the wire protocol."""

from libc.stdint cimport int64_t

cpdef tuple take_plain(
    bytes data, Py_ssize_t at, list requests, list args, int64_t left, int64_t bulk_max
)
cpdef bytes encode_ids(list ids, Py_ssize_t start, Py_ssize_t stop)
cdef bytes encode_plain(list replies, int protocol)
