# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of log.py, which has the grammar.

It takes what is plain and leaves all else, damage included, to the Python functions. Nothing is
read beyond the bytes given.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t

ctypedef const unsigned char *Bytes

cdef extern from *:
    """
    /* Tuples of a subclass of tuple that has no __new__ of its own. */
    static inline PyObject *kvstream_tuple(PyObject *type, PyObject *arguments) {
        return PyTuple_Type.tp_new((PyTypeObject *)type, arguments, NULL);
    }
    """
    object new_tuple "kvstream_tuple"(object type, tuple arguments)

cdef extern from *:
    """
    /* The processor's own instruction, where it has one: a fifth of the time of tables. */
    #if defined(__x86_64__) && defined(__GNUC__)
    __attribute__((target("sse4.2")))
    static uint32_t kvstream_crc(uint32_t crc, const unsigned char *at, Py_ssize_t size) {
        uint64_t wide = crc, next;
        for (; size >= 8; at += 8, size -= 8) {
            memcpy(&next, at, 8);
            wide = __builtin_ia32_crc32di(wide, next);
        }
        for (crc = (uint32_t)wide; size > 0; at++, size--)
            crc = __builtin_ia32_crc32qi(crc, *at);
        return crc;
    }
    static int kvstream_has_crc(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    #else
    static uint32_t kvstream_crc(uint32_t crc, const unsigned char *at, Py_ssize_t size) {
        (void)at, (void)size;
        return crc;
    }
    static int kvstream_has_crc(void) { return 0; }
    #endif
    """
    uint32_t crc_of_processor "kvstream_crc"(uint32_t crc, Bytes at, Py_ssize_t size) nogil
    bint processor_has_crc "kvstream_has_crc"() nogil

cdef enum:
    BLOCK = 32768
    HEAD_BYTES = 7
    BATCH_BYTES = 12
    WHOLE = 1
    FIRST = 2
    MIDDLE = 3
    LAST = 4
    MORE = 0
    OVER = 1
    UNSOUND = 2
    DELETE = 0
    PUT = 1
    DELETE_RANGE = 15
    VARINT_BYTES = 5


cdef uint32_t SUMS[8][256]  # the CRC of a byte with 0 to 7 zero bytes behind it


cdef void fill_sums() noexcept:
    cdef uint32_t crc
    cdef int byte, i
    for byte in range(256):
        crc = byte
        for i in range(8):
            crc = crc >> 1 ^ (<uint32_t>0x82F63B78u if crc & 1 else 0)
        SUMS[0][byte] = crc
    for i in range(1, 8):
        for byte in range(256):
            SUMS[i][byte] = SUMS[0][SUMS[i - 1][byte] & 0xFF] ^ SUMS[i - 1][byte] >> 8


fill_sums()

cdef bint HAS_CRC = processor_has_crc()


cdef inline uint32_t little32(Bytes at) noexcept nogil:
    return at[0] | at[1] << 8 | at[2] << 16 | <uint32_t>at[3] << 24


cdef inline uint64_t little64(Bytes at) noexcept nogil:
    return little32(at) | <uint64_t>little32(at + 4) << 32


cdef uint32_t sum_of(Bytes at, Py_ssize_t size) noexcept nogil:
    cdef uint32_t crc = 0xFFFFFFFFu
    if HAS_CRC:
        return crc_of_processor(crc, at, size) ^ 0xFFFFFFFFu
    return sum_by_tables(crc, at, size) ^ 0xFFFFFFFFu


cdef uint32_t sum_by_tables(uint32_t crc, Bytes at, Py_ssize_t size) noexcept nogil:
    while size >= 8:  # eight table lookups that do not depend on each other
        crc ^= little32(at)
        crc = (
            SUMS[7][crc & 0xFF]
            ^ SUMS[6][crc >> 8 & 0xFF]
            ^ SUMS[5][crc >> 16 & 0xFF]
            ^ SUMS[4][crc >> 24]
            ^ SUMS[3][at[4]]
            ^ SUMS[2][at[5]]
            ^ SUMS[1][at[6]]
            ^ SUMS[0][at[7]]
        )
        at += 8
        size -= 8
    while size > 0:
        crc = SUMS[0][(crc ^ at[0]) & 0xFF] ^ crc >> 8
        at += 1
        size -= 1
    return crc


def crc32c(bytes data not None):
    """Return the CRC-32C of some bytes."""
    return sum_of(<Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def crc32c_by_tables(bytes data not None):
    """Do what ``crc32c`` does on a processor without an instruction for it."""
    cdef uint32_t crc = sum_by_tables(
        0xFFFFFFFFu, <Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
    )
    return crc ^ 0xFFFFFFFFu


def take_whole(
    bytes buffer not None, Py_ssize_t start, uint64_t at, uint64_t least, record, list taken not None
):
    """Append the records from ``start`` on that are one fragment each; return where they end.

    ``at`` is the offset of the buffer in the file, ``least`` the least number of the first record.
    """
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(buffer)
    cdef Py_ssize_t length, end
    cdef uint32_t crc, count
    cdef uint64_t sequence
    cdef Bytes head
    while start >= 0 and size - start >= HEAD_BYTES + BATCH_BYTES:
        head = data + start
        length = head[4] | head[5] << 8
        end = start + HEAD_BYTES + length
        if head[6] != WHOLE or length < BATCH_BYTES or end > size:
            break
        if <uint64_t>(HEAD_BYTES + length) > BLOCK - (at + <uint64_t>start) % BLOCK:
            break
        crc = sum_of(head + HEAD_BYTES - 1, length + 1)
        if (crc >> 15 | crc << 17) + <uint32_t>0xA282EAD8u != little32(head):
            break
        sequence = little64(head + HEAD_BYTES)
        count = little32(head + HEAD_BYTES + 8)
        if sequence < least or sequence > <uint64_t>1 << 62:
            break
        least = sequence + count
        payload = PyBytes_FromStringAndSize(<const char *>head + HEAD_BYTES, length)
        taken.append(new_tuple(record, ((sequence, count, payload, at + <uint64_t>end),)))
        start = end
    return start


def find_end(
    bytes data not None, Py_ssize_t start, uint64_t at, int64_t last, int64_t until
):
    """Do what ``find_end`` in log.py does."""
    cdef Bytes found = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t whole = start
    cdef int state
    with nogil:
        state = pass_records(found, size, &whole, at, &last, until)
    return whole, last, state


cdef int pass_records(
    Bytes data, Py_ssize_t size, Py_ssize_t *whole, uint64_t at, int64_t *last, int64_t until
) noexcept nogil:
    cdef Py_ssize_t position = whole[0], left, length, end, i
    cdef unsigned char first[BATCH_BYTES]
    cdef int kind, taken = 0
    cdef bint is_inside = False
    cdef uint32_t crc, count
    cdef uint64_t sequence
    cdef int64_t reached
    while True:
        left = BLOCK - (at + <uint64_t>position) % BLOCK
        if left < HEAD_BYTES:
            for i in range(position, min(position + left, size)):
                if data[i] != 0:
                    return UNSOUND
            if position + left > size:
                return MORE
            position += left
            continue
        if size - position < HEAD_BYTES:
            return MORE
        length = data[position + 4] | data[position + 5] << 8
        kind = data[position + 6]
        end = position + HEAD_BYTES + length
        if kind < WHOLE or kind > LAST or HEAD_BYTES + length > left:
            return UNSOUND
        if end > size:
            return MORE
        crc = sum_of(data + position + HEAD_BYTES - 1, length + 1)
        if (crc >> 15 | crc << 17) + <uint32_t>0xA282EAD8u != little32(data + position):
            return UNSOUND
        if (kind == WHOLE or kind == FIRST) == is_inside:
            return UNSOUND
        if not is_inside:
            taken = 0
        for i in range(min(length, BATCH_BYTES - taken)):
            first[taken] = data[position + HEAD_BYTES + i]
            taken += 1
        position = end
        is_inside = kind == FIRST or kind == MIDDLE
        if is_inside:
            continue
        sequence = little64(first)
        count = little32(first + 8)
        if taken < BATCH_BYTES or sequence > <uint64_t>1 << 62:
            return UNSOUND
        reached = <int64_t>sequence + <int64_t>count - 1
        if reached > until:
            return OVER
        if count and last[0] >= 0 and <int64_t>sequence != last[0] + 1:
            return UNSOUND
        whole[0] = end
        last[0] = reached


cdef struct Cursor:
    Bytes at
    Bytes end


cdef inline bint take_number(Cursor *cursor, uint64_t *number) noexcept nogil:
    """Take a varint; return whether there is one."""
    cdef int shift
    cdef unsigned char byte
    number[0] = 0
    for shift in range(VARINT_BYTES):
        if cursor.at == cursor.end:
            return False
        byte = cursor.at[0]
        cursor.at += 1
        number[0] |= <uint64_t>(byte & 127) << 7 * shift
        if byte < 128:
            return True
    return False


cdef inline object take_part(Cursor *cursor):
    """Return the bytes behind their length; None if they are not all there."""
    cdef uint64_t size
    if not take_number(cursor, &size) or size > <uint64_t>(cursor.end - cursor.at):
        return None
    cursor.at += size
    return PyBytes_FromStringAndSize(<const char *>cursor.at - size, <Py_ssize_t>size)


def rows(bytes data not None):
    """Return the rows of a payload; None if it is not plain."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Cursor cursor
    cdef uint64_t family
    cdef unsigned char tag
    cdef list found = []
    if size < BATCH_BYTES:
        return None
    cursor.at = <Bytes>PyBytes_AS_STRING(data) + BATCH_BYTES
    cursor.end = cursor.at + (size - BATCH_BYTES)
    while cursor.at < cursor.end:
        tag = cursor.at[0]
        cursor.at += 1
        family = 0
        if tag == 4 or tag == 5 or tag == 14:
            if not take_number(&cursor, &family):
                return None
            tag = DELETE if tag == 4 else PUT if tag == 5 else DELETE_RANGE
        elif tag != DELETE and tag != PUT and tag != DELETE_RANGE:
            return None
        key = take_part(&cursor)
        if key is None:
            return None
        value = None
        if tag != DELETE:
            value = take_part(&cursor)
            if value is None:
                return None
        found.append((family, tag, key, value))
    if <uint64_t>len(found) != little32(<Bytes>PyBytes_AS_STRING(data) + 8):
        return None
    return found
