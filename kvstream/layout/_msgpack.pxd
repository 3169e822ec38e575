"""The msgpack strings of stored values, for the compiled modules: reading, with bounds checked, and
writing into room that was measured.
"""

from libc.string cimport memcpy

ctypedef const unsigned char *Bytes


cdef struct Cursor:
    Bytes at
    Bytes end


cdef inline bint take_string(Cursor *from_, Bytes *data, Py_ssize_t *size) noexcept nogil:
    """Take one msgpack string; False where something else, or too little, stands there."""
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
    """Return the bytes of a string of so many bytes."""
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
    return 1 if count < 16 else 3


cdef inline unsigned char *pack_map_head(unsigned char *at, Py_ssize_t count) noexcept nogil:
    if count < 16:
        at[0] = 0x80 | count
        return at + 1
    at[0] = 0xDE
    at[1] = count >> 8
    at[2] = count & 0xFF
    return at + 3
