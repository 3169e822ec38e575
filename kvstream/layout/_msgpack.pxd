"""Reading the msgpack strings of stored values, for the compiled modules; bounds are checked."""

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
