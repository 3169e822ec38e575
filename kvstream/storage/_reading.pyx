# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Blocks of RocksDB's tables, read by our own hands: summed, decompressed, cut into packed rows.

The grammar is in _tables.pyx. Only what is plain beyond doubt is read; for all else, damage included,
the answer is None, and RocksDB's own iterator has its say. Nothing is read beyond the bytes given.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from kvstream.layout._msgpack cimport ID_BYTES, Bytes
from kvstream.layout._rows cimport ROW_HEAD, put_size
from kvstream.storage._blocks cimport (
    KEY_TAIL,
    LZ4,
    LZ4_MAX,
    NOT_COMPRESSED,
    TRAILER,
    Room,
    expand,
    load32,
    take_varint,
    xxh64,
)
from libc.stdint cimport uint32_t
from libc.string cimport memcmp, memcpy

cdef enum:
    PLAIN_VALUE = 1
    XXH64 = 3
    LZ4_MOST = 255  # bytes that one compressed byte may stand for
    KEY_MAX = 1 << 17  # longer keys are left to RocksDB

cdef enum Said:
    GOES_ON
    ENDED
    NOT_PLAIN
    NO_MEMORY


# --- rows -----------------------------------------------------------------------------------------


cdef class Reader:
    """Reads the rows of ``prefix`` with ``lower <= id <= upper`` out of blocks, in their order."""

    cdef bytes prefix_bytes, lower_bytes, upper_bytes
    cdef Bytes prefix, lower, upper
    cdef Py_ssize_t prefix_size
    cdef Room key, plain, made
    cdef Py_ssize_t key_used, plain_room, made_room, made_used
    cdef unsigned char last[ID_BYTES]
    cdef bint has_last
    cdef readonly bint ended
    """Whether a row behind the last of the range was seen."""
    cdef readonly Py_ssize_t count
    """How many rows the last ``read`` returned."""

    def __cinit__(self, bytes prefix not None, bytes lower not None, bytes upper not None):
        if len(lower) != ID_BYTES or len(upper) != ID_BYTES or len(prefix) > KEY_MAX // 2:
            raise ValueError("bounds are IDs")
        self.prefix_bytes, self.lower_bytes, self.upper_bytes = prefix, lower, upper
        self.prefix = <Bytes>PyBytes_AS_STRING(prefix)
        self.lower = <Bytes>PyBytes_AS_STRING(lower)
        self.upper = <Bytes>PyBytes_AS_STRING(upper)
        self.prefix_size = PyBytes_GET_SIZE(prefix)
        if not grow(&self.key, NULL, KEY_MAX):
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.key)
        PyMem_Free(self.plain)
        PyMem_Free(self.made)

    def read(self, bytes chunk not None, list sizes not None, int sums):
        """Return the packed rows of blocks that follow each other; None where one is not plain.

        ``sizes`` are those of the blocks without their trailers, ``sums`` the kind of their sums.
        """
        cdef Bytes at = <Bytes>PyBytes_AS_STRING(chunk), end = at + PyBytes_GET_SIZE(chunk)
        cdef Py_ssize_t size
        cdef Said said = GOES_ON
        self.count = self.made_used = 0
        for size in sizes:
            if size < 0 or end - at - TRAILER < size or sums != XXH64:
                return None
            said = self.take_block(at, size)
            if said == NO_MEMORY:
                raise MemoryError
            if said == NOT_PLAIN:
                return None
            if said == ENDED:
                self.ended = True
                break
            at += size + TRAILER
        return PyBytes_FromStringAndSize(<const char *>self.made, self.made_used)

    cdef Said take_block(self, Bytes data, Py_ssize_t size) noexcept nogil:
        """Check a block, and take its rows."""
        cdef Bytes at = data
        cdef Py_ssize_t plain = 0
        if <uint32_t>xxh64(data, size + 1) != load32(data + size + 1):
            return NOT_PLAIN
        if data[size] == NOT_COMPRESSED:
            return self.take_rows(data, size)
        if data[size] != LZ4 or not take_varint(&at, data + size, &plain):
            return NOT_PLAIN
        if plain > LZ4_MAX or plain > LZ4_MOST * size:
            return NOT_PLAIN
        if not grow(&self.plain, &self.plain_room, plain):
            return NO_MEMORY
        if not expand(at, data + size, self.plain, plain):
            return NOT_PLAIN
        return self.take_rows(self.plain, plain)

    cdef Said take_rows(self, Bytes at, Py_ssize_t size) noexcept nogil:
        """Take the rows of a block that is decompressed."""
        cdef Bytes end
        cdef Py_ssize_t shared = 0, own = 0, length = 0, restarts
        cdef bint within = False  # whether the key begins with the prefix
        cdef Said said
        if size < 8:
            return NOT_PLAIN
        restarts = load32(at + size - 4)  # the highest bit says that there is a hash index
        if restarts > (size - 4) // 4:
            return NOT_PLAIN
        end = at + size - 4 - 4 * restarts
        self.key_used = 0
        while at < end:
            if not (
                take_varint(&at, end, &shared)
                and take_varint(&at, end, &own)
                and take_varint(&at, end, &length)
            ):
                return NOT_PLAIN
            if (
                shared > self.key_used
                or own > KEY_MAX - shared
                or shared + own < KEY_TAIL
                or own + length > end - at
            ):
                return NOT_PLAIN
            memcpy(self.key + shared, at, own)
            at += own
            self.key_used = shared + own
            if not within or shared < self.prefix_size:
                said = self.place()
                if said != GOES_ON:
                    return said
                within = self.is_within()
            if within:
                said = self.take_row(at, length)
                if said != GOES_ON:
                    return said
            at += length
        return GOES_ON

    cdef inline bint is_within(self) noexcept nogil:
        return (
            self.key_used >= self.prefix_size + KEY_TAIL
            and memcmp(self.key, self.prefix, self.prefix_size) == 0
        )

    cdef inline Said place(self) noexcept nogil:
        """Tell whether the key is above all that begin with the prefix."""
        cdef Py_ssize_t size = self.key_used - KEY_TAIL
        if memcmp(self.key, self.prefix, min(size, self.prefix_size)) > 0:
            return ENDED
        return GOES_ON

    cdef Said take_row(self, Bytes value, Py_ssize_t size) noexcept nogil:
        """Pack a row whose key begins with the prefix, if its ID is in the range."""
        cdef Bytes eid = self.key + self.prefix_size
        cdef Room to
        if self.key_used != self.prefix_size + ID_BYTES + KEY_TAIL:
            return NOT_PLAIN
        if memcmp(eid, self.lower, ID_BYTES) < 0:
            return GOES_ON
        if memcmp(eid, self.upper, ID_BYTES) > 0:
            return ENDED
        if eid[ID_BYTES] != PLAIN_VALUE:
            return NOT_PLAIN
        if self.has_last and memcmp(self.last, eid, ID_BYTES) >= 0:
            return NOT_PLAIN
        if not grow(&self.made, &self.made_room, self.made_used + ROW_HEAD + size):
            return NO_MEMORY
        self.has_last = True
        memcpy(self.last, eid, ID_BYTES)
        to = self.made + self.made_used
        memcpy(to, eid, ID_BYTES)
        put_size(to + ID_BYTES, <uint32_t>size)
        memcpy(to + ROW_HEAD, value, size)
        self.made_used += ROW_HEAD + size
        self.count += 1
        return GOES_ON


cdef inline bint grow(Room *room, Py_ssize_t *has, Py_ssize_t wanted) noexcept nogil:
    """Have room for so many bytes; False where there is no memory."""
    if has != NULL and has[0] >= wanted:
        return True
    return grow_to(room, has, wanted if has == NULL else max(2 * has[0], wanted))


cdef bint grow_to(Room *room, Py_ssize_t *has, Py_ssize_t wanted) noexcept with gil:
    cdef Room grown = <Room>PyMem_Realloc(room[0], wanted)
    if grown == NULL:
        return False
    room[0] = grown
    if has != NULL:
        has[0] = wanted
    return True


def plain(bytes block not None, int sums):
    """Return a block, given with its trailer, as it was before compression; None: it is not plain."""
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(block)
    cdef Bytes at = data
    cdef Py_ssize_t size = PyBytes_GET_SIZE(block) - TRAILER
    cdef Py_ssize_t room = 0
    cdef object made
    if size < 0 or sums != XXH64 or <uint32_t>xxh64(data, size + 1) != load32(data + size + 1):
        return None
    if data[size] == NOT_COMPRESSED:
        return block[:size]
    if data[size] != LZ4 or not take_varint(&at, data + size, &room):
        return None
    if room > LZ4_MAX or room > LZ4_MOST * size:
        return None
    made = PyBytes_FromStringAndSize(NULL, room)
    if not expand(at, data + size, <Room>PyBytes_AS_STRING(made), room):
        return None
    return made
