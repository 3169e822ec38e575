"""Elements of listpacks: sizes, reading with bounds checks, and writing into a buffer.

The grammar is in kvstream/rdb/nodes.py.
"""

from kvstream.layout._msgpack cimport Bytes, Cursor
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

ctypedef unsigned char *Room

cdef enum:
    ELEMENT_OVERHEAD = 10  # most bytes of an element besides its text


cdef struct Element:
    Bytes data  # NULL for an integer
    Py_ssize_t size
    int64_t number


# --- sizes --------------------------------------------------------------------------------------


cdef inline Py_ssize_t integer_size(int64_t value) noexcept nogil:
    if 0 <= value <= 127:
        return 2
    if -4096 <= value < 4096:
        return 3
    if -32768 <= value < 32768:
        return 4
    if -8388608 <= value < 8388608:
        return 5
    if -2147483648LL <= value < 2147483648LL:
        return 6
    return 10


cdef inline Py_ssize_t backlen_size(Py_ssize_t body) noexcept nogil:
    if body <= 127:
        return 1
    if body < 16383:
        return 2
    if body < 2097151:
        return 3
    return 4 if body < 268435455 else 5


cdef inline Py_ssize_t string_size(Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t body = length + (1 if length < 64 else 2 if length < 4096 else 5)
    return body + backlen_size(body)


cdef inline bint decimal(Bytes data, Py_ssize_t size, int64_t *number) noexcept nogil:
    """Tell whether a text is a canonical decimal of 64 bits, which is stored as an integer."""
    cdef Py_ssize_t i = 0
    cdef bint negative = False
    cdef uint64_t value = 0
    cdef uint64_t most = <uint64_t>1 << 63
    cdef unsigned char digit
    if size == 0 or size > 20:
        return False
    if data[0] == 45:  # minus
        negative = True
        i = 1
        if size == 1 or data[1] == 48:
            return False
    elif data[0] == 48 and size > 1:  # a leading zero
        return False
    if size - i > 19:
        return False
    while i < size:
        digit = data[i] - 48
        if digit > 9:
            return False
        value = value * 10 + digit
        i += 1
    if value > most or (value == most and not negative):
        return False
    number[0] = <int64_t>(0 - value) if negative else <int64_t>value
    return True


cdef inline Py_ssize_t element_size(Bytes data, Py_ssize_t size) noexcept nogil:
    """Return the bytes of an element; a canonical decimal of 64 bits is stored as an integer."""
    cdef int64_t number = 0
    return integer_size(number) if decimal(data, size, &number) else string_size(size)


# --- reading ------------------------------------------------------------------------------------


cdef inline uint64_t little_endian(Bytes at, int width) noexcept nogil:
    cdef uint64_t number = 0
    while width:
        width -= 1
        number = number << 8 | at[width]
    return number


cdef inline bint is_backlen(Bytes at, Py_ssize_t left, Py_ssize_t body) noexcept nogil:
    """Tell whether the backlen of a body of ``body`` bytes is here."""
    cdef Py_ssize_t size = backlen_size(body), i
    if left < size or at[0] != body >> 7 * (size - 1):
        return False
    for i in range(1, size):
        if at[i] != (body >> 7 * (size - 1 - i) & 127 | 128):
            return False
    return True


cdef inline bint take_element(Cursor *from_, Element *to) noexcept nogil:
    """Take an element; return False if there is no whole one."""
    cdef Bytes at = from_.at
    cdef Py_ssize_t left = from_.end - at, head = 1, body
    cdef unsigned char first
    cdef int width
    if left < 2:
        return False
    first = at[0]
    to.data = NULL
    if first < 0x80:
        to.number = first
        from_.at = at + 2
        return at[1] == 1
    if first < 0xC0:
        to.size = first & 0x3F
    elif first < 0xE0:
        to.number = (<int64_t>(first & 0x1F) << 8) | at[1]
        if to.number >= 4096:
            to.number -= 8192
        from_.at = at + 3
        return left >= 3 and at[2] == 2
    elif first < 0xF0:
        to.size = (<Py_ssize_t>(first & 0x0F) << 8) | at[1]
        head = 2
    elif first == 0xF0 and left >= 5:
        to.size = little_endian(at + 1, 4)
        head = 5
    elif 0xF1 <= first <= 0xF4:
        width = 8 if first == 0xF4 else first - 0xEF
        if left < width + 2 or at[width + 1] != width + 1:
            return False
        to.number = <int64_t>(little_endian(at + 1, width) << 64 - 8 * width) >> 64 - 8 * width
        from_.at = at + width + 2
        return True
    else:
        return False
    body = head + to.size
    if left <= body or not is_backlen(at + body, left - body, body):
        return False
    to.data = at + head
    from_.at = at + body + backlen_size(body)
    return True


cdef inline bint take_integer(Cursor *from_, int64_t *number) noexcept nogil:
    """Take an element that is an integer."""
    cdef Element element
    if not take_element(from_, &element) or element.data != NULL:
        return False
    number[0] = element.number
    return True


# --- writing ------------------------------------------------------------------------------------


cdef inline Room put_integer(Room at, int64_t number) noexcept nogil:
    cdef Py_ssize_t width = integer_size(number) - 2, i
    if width == 0:
        at[0] = number
        at[1] = 1
        return at + 2
    if width == 1:
        at[0] = 0xC0 | (number >> 8 & 0x1F)
        at[1] = number & 0xFF
        at[2] = 2
        return at + 3
    at[0] = 0xF4 if width == 8 else 0xEF + width
    for i in range(width):
        at[1 + i] = (<uint64_t>number >> 8 * i) & 0xFF
    at[1 + width] = width + 1
    return at + width + 2


cdef inline Room put_text(Room at, Bytes data, Py_ssize_t size) noexcept nogil:
    """Write a text, a canonical decimal as an integer; it needs up to ELEMENT_OVERHEAD more bytes."""
    cdef int64_t number = 0
    cdef Room start = at
    cdef Py_ssize_t body, width, i
    if decimal(data, size, &number):
        return put_integer(at, number)
    if size < 64:
        at[0] = 0x80 | size
        at += 1
    elif size < 4096:
        at[0] = 0xE0 | (size >> 8)
        at[1] = size & 0xFF
        at += 2
    else:
        at[0] = 0xF0
        for i in range(4):
            at[1 + i] = (size >> 8 * i) & 0xFF
        at += 5
    memcpy(at, data, size)
    at += size
    body = at - start
    width = backlen_size(body)
    at[0] = body >> 7 * (width - 1)
    for i in range(1, width):
        at[i] = (body >> 7 * (width - 1 - i) & 127) | 128
    return at + width
