# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Tables of RocksDB, written by our own hands: blocks of rows, compressed and summed without the GIL.

::

    table   := block*  index  properties  metaindex  footer
    block   := data compression(u8) sum(u32)          data of compression 4: size(varint) LZ4
    data    := entry* restart(u32)* restarts(u32)
    entry   := shared(varint) own(varint) length(varint) key value
    index   := a block: the last key of each block -> its handle := offset(varint) size(varint)
    footer  := sum type(u8) metaindex(handle) index(handle) zero* version(u32) magic(u64)

Keys in blocks of rows end with eight bytes more: sequence 0, and that the row is a plain value.
Numbers are little-endian. Nothing of this is read back here: RocksDB does.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from kvstream.layout._msgpack cimport ID_BYTES, Bytes
from kvstream.layout._rows cimport ROW_HEAD, put_size, take_size
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

ctypedef unsigned char *Room

cdef extern from *:
    """
    #include <string.h>
    static inline unsigned long long kvstream_u64(const void *at) {
        unsigned long long number;
        memcpy(&number, at, 8);
        return number;
    }
    static inline unsigned kvstream_u32(const void *at) {
        unsigned number;
        memcpy(&number, at, 4);
        return number;
    }
    static inline unsigned long long kvstream_rotate(unsigned long long number, int by) {
        return number << by | number >> (64 - by);
    }
    static inline int kvstream_zeros(unsigned long long number) {
        return __builtin_ctzll(number);
    }
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "written for little-endian machines: without it RocksDB's own writer does the work"
    #endif
    """
    uint64_t load64 "kvstream_u64"(const void *at) noexcept nogil
    uint32_t load32 "kvstream_u32"(const void *at) noexcept nogil
    uint64_t rotate "kvstream_rotate"(uint64_t number, int by) noexcept nogil
    int zeros "kvstream_zeros"(uint64_t number) noexcept nogil


cdef enum:
    TRAILER = 5  # the kind of compression, and the sum
    KEY_TAIL = 8
    RESTART_ROWS = 16
    NOT_COMPRESSED = 0
    LZ4 = 4
    HASH_BITS = 13
    MATCH_MIN = 4
    LAST_LITERALS = 5
    MATCH_MARGIN = 12
    DISTANCE_MAX = 65535
    SKIP_SHIFT = 6
    VARINT_MAX = 10
    LZ4_MAX = 0x7E000000

cdef uint64_t P1 = 0x9E3779B185EBCA87u
cdef uint64_t P2 = 0xC2B2AE3D27D4EB4Fu
cdef uint64_t P3 = 0x165667B19E3779F9u
cdef uint64_t P4 = 0x85EBCA77C2B2AE63u
cdef uint64_t P5 = 0x27D4EB2F165667C5u


# --- XXH64 ----------------------------------------------------------------------------------------


cdef inline uint64_t mixed(uint64_t lane, uint64_t given) noexcept nogil:
    return rotate(lane + given * P2, 31) * P1


cdef inline uint64_t merged(uint64_t sum_, uint64_t lane) noexcept nogil:
    return (sum_ ^ mixed(0, lane)) * P1 + P4


cdef uint64_t xxh64(Bytes at, Py_ssize_t size) noexcept nogil:
    cdef Bytes end = at + size
    cdef uint64_t one = P1 + P2, two = P2, three = 0, four = 0 - P1, sum_
    if size >= 32:
        while end - at >= 32:
            one = mixed(one, load64(at))
            two = mixed(two, load64(at + 8))
            three = mixed(three, load64(at + 16))
            four = mixed(four, load64(at + 24))
            at += 32
        sum_ = rotate(one, 1) + rotate(two, 7) + rotate(three, 12) + rotate(four, 18)
        sum_ = merged(merged(merged(merged(sum_, one), two), three), four)
    else:
        sum_ = P5
    sum_ += size
    while end - at >= 8:
        sum_ = rotate(sum_ ^ mixed(0, load64(at)), 27) * P1 + P4
        at += 8
    if end - at >= 4:
        sum_ = rotate(sum_ ^ <uint64_t>load32(at) * P1, 23) * P2 + P3
        at += 4
    while at < end:
        sum_ = rotate(sum_ ^ at[0] * P5, 11) * P1
        at += 1
    sum_ = (sum_ ^ sum_ >> 33) * P2
    sum_ = (sum_ ^ sum_ >> 29) * P3
    return sum_ ^ sum_ >> 32


# --- LZ4 ------------------------------------------------------------------------------------------


cdef inline Room put_more(Room to, Py_ssize_t length) noexcept nogil:
    while length >= 255:
        to[0] = 255
        to += 1
        length -= 255
    to[0] = length
    return to + 1


cdef inline Room put_literals(Room to, Bytes at, Py_ssize_t count, Py_ssize_t match) noexcept nogil:
    """Write the token of a sequence, and its literals; ``match`` is its length less the least."""
    to[0] = min(count, <Py_ssize_t>15) << 4 | min(match, <Py_ssize_t>15)
    to += 1
    if count >= 15:
        to = put_more(to, count - 15)
    memcpy(to, at, count)
    return to + count


cdef Room lz4(Bytes data, Py_ssize_t size, uint32_t *seen, Room to) noexcept nogil:
    """Write the bytes as an LZ4 block; there is room for ``lz4_room`` of them."""
    cdef Bytes at = data + 1, literal = data, stop = data + size - LAST_LITERALS, before
    cdef Bytes last = data + size - MATCH_MARGIN
    cdef uint32_t four, slot
    cdef uint64_t differs
    cdef Py_ssize_t length, tried = 1 << SKIP_SHIFT
    memset(seen, 0, (1 << HASH_BITS) * sizeof(uint32_t))
    while size > MATCH_MARGIN and at <= last:
        four = load32(at)
        slot = four * <uint32_t>2654435761u >> (32 - HASH_BITS)
        before = data + seen[slot]
        seen[slot] = at - data
        if load32(before) != four or at - before > DISTANCE_MAX:
            at += tried >> SKIP_SHIFT
            tried += 1
            continue
        tried = 1 << SKIP_SHIFT
        while at > literal and before > data and (at - 1)[0] == (before - 1)[0]:
            at -= 1
            before -= 1
        length = MATCH_MIN
        while stop - at - length >= 8:
            differs = load64(at + length) ^ load64(before + length)
            if differs:
                length += zeros(differs) >> 3
                break
            length += 8
        else:
            while at + length < stop and at[length] == before[length]:
                length += 1
        to = put_literals(to, literal, at - literal, length - MATCH_MIN)
        to[0] = (at - before) & 0xFF
        to[1] = (at - before) >> 8
        to += 2
        if length - MATCH_MIN >= 15:
            to = put_more(to, length - MATCH_MIN - 15)
        at += length
        literal = at
        if at <= last:
            seen[load32(at - 2) * <uint32_t>2654435761u >> (32 - HASH_BITS)] = at - 2 - data
    return put_literals(to, literal, data + size - literal, 0)


cdef inline Py_ssize_t lz4_room(Py_ssize_t size) noexcept nogil:
    return size + size // 255 + 16


# --- room -----------------------------------------------------------------------------------------


cdef struct Growing:
    Room start
    Py_ssize_t used
    Py_ssize_t room


cdef inline bint reserve(Growing *to, Py_ssize_t more) noexcept nogil:
    """Have room for so many bytes more; False where there is no memory."""
    cdef Room grown
    cdef Py_ssize_t room
    if to.room - to.used >= more:
        return True
    room = max(2 * to.room, to.used + more)
    grown = <Room>PyMem_RawRealloc(to.start, room)
    if grown == NULL:
        return False
    to.start = grown
    to.room = room
    return True


cdef inline Room put_varint(Room to, uint64_t number) noexcept nogil:
    while number >= 128:
        to[0] = number & 127 | 128
        to += 1
        number >>= 7
    to[0] = number
    return to + 1


cdef struct Block:
    Py_ssize_t end  # of its data
    Py_ssize_t key_end  # of its last key


# --- what is put ----------------------------------------------------------------------------------


cdef class Blocks:
    """Blocks that are filled, and wait to be compressed and written."""

    cdef Growing data
    cdef Growing keys  # the last key of each block
    cdef Growing ends  # Block structs

    def __dealloc__(self):
        PyMem_RawFree(self.data.start)
        PyMem_RawFree(self.keys.start)
        PyMem_RawFree(self.ends.start)

    @property
    def size(self):
        return self.data.used

    cdef bint end_block(self, Bytes key, Py_ssize_t size) noexcept nogil:
        cdef Block *block
        if not reserve(&self.keys, size) or not reserve(&self.ends, sizeof(Block)):
            return False
        memcpy(self.keys.start + self.keys.used, key, size)
        self.keys.used += size
        block = <Block *>(self.ends.start + self.ends.used)
        block.end = self.data.used
        block.key_end = self.keys.used
        self.ends.used += sizeof(Block)
        return True


cdef class Filler:
    """Fills blocks with rows, each of which must be above all before it."""

    cdef readonly uint64_t rows
    cdef readonly uint64_t key_bytes
    cdef readonly uint64_t value_bytes
    cdef readonly uint64_t data_blocks
    cdef Blocks blocks
    cdef Py_ssize_t block_bytes
    cdef Py_ssize_t start  # of the block that is being filled
    cdef Py_ssize_t in_block
    cdef Growing restarts
    cdef Growing last  # key

    def __init__(self, Py_ssize_t block_bytes):
        self.blocks = Blocks()
        self.block_bytes = block_bytes

    def __dealloc__(self):
        PyMem_RawFree(self.restarts.start)
        PyMem_RawFree(self.last.start)

    @property
    def waiting(self):
        """Bytes of the blocks that are to be written."""
        return self.blocks.data.used

    cdef bint end_block(self) noexcept nogil:
        cdef Py_ssize_t count = self.restarts.used // 4
        if not reserve(&self.blocks.data, self.restarts.used + 4):
            return False
        memcpy(self.blocks.data.start + self.blocks.data.used, self.restarts.start, 4 * count)
        self.blocks.data.used += 4 * count
        put_size(self.blocks.data.start + self.blocks.data.used, count)
        self.blocks.data.used += 4
        self.restarts.used = self.in_block = 0
        self.data_blocks += 1
        return self.blocks.end_block(self.last.start, self.last.used)

    cdef int put_row(
        self, Bytes prefix, Py_ssize_t prefix_size, Bytes eid, Bytes value, Py_ssize_t size
    ) noexcept nogil:
        """Put a row; 0 where there is no memory, -1 where it is not above the one before."""
        cdef Py_ssize_t key = prefix_size + ID_BYTES, shared = 0, most, order
        cdef Room at, old
        if not reserve(&self.last, key + KEY_TAIL):
            return 0
        old = self.last.start
        if self.rows:  # compare with the last key
            most = min(self.last.used, prefix_size)
            if most == prefix_size and memcmp(old, prefix, prefix_size) == 0:
                shared = prefix_size
                most = min(self.last.used, key)
                while shared < most and old[shared] == eid[shared - prefix_size]:
                    shared += 1
                if shared == key or (
                    shared < self.last.used and eid[shared - prefix_size] < old[shared]
                ):
                    return -1
            else:
                order = memcmp(old, prefix, most)
                if order > 0 or (order == 0 and self.last.used >= prefix_size):
                    return -1
                while shared < most and old[shared] == prefix[shared]:
                    shared += 1
        if self.in_block == 0:
            self.start = self.blocks.data.used
        if self.in_block % RESTART_ROWS == 0:
            shared = 0
            if not reserve(&self.restarts, 4):
                return 0
            put_size(self.restarts.start + self.restarts.used, self.blocks.data.used - self.start)
            self.restarts.used += 4
        if not reserve(&self.blocks.data, 3 * VARINT_MAX + key + KEY_TAIL + size):
            return 0
        memcpy(old, prefix, prefix_size)
        memcpy(old + prefix_size, eid, ID_BYTES)
        self.last.used = key
        at = put_varint(self.blocks.data.start + self.blocks.data.used, shared)
        at = put_varint(put_varint(at, key + KEY_TAIL - shared), size)
        memcpy(at, old + shared, key - shared)
        at += key - shared
        memset(at, 0, KEY_TAIL)
        at[0] = 1
        at += KEY_TAIL
        memcpy(at, value, size)
        self.blocks.data.used = at + size - self.blocks.data.start
        self.rows += 1
        self.in_block += 1
        self.key_bytes += key + KEY_TAIL
        self.value_bytes += size
        if self.blocks.data.used - self.start + self.restarts.used + 4 >= self.block_bytes:
            return self.end_block()
        return 1

    def put_packed(self, bytes prefix not None, bytes rows not None):
        """Put rows that lie in one string (layout/packing.py), under a prefix.

        ValueError where one is not above the one before, or not whole: the table is spoiled then.
        """
        cdef Bytes at = <Bytes>PyBytes_AS_STRING(rows), head = <Bytes>PyBytes_AS_STRING(prefix)
        cdef Py_ssize_t left = PyBytes_GET_SIZE(rows), head_size = PyBytes_GET_SIZE(prefix), size
        while left:
            if left < ROW_HEAD:
                raise ValueError("packed rows end within a row")
            size = take_size(at + ID_BYTES)
            if left - ROW_HEAD < size:
                raise ValueError("packed rows end within a row")
            self.judge(self.put_row(head, head_size, at, at + ROW_HEAD, size))
            at += ROW_HEAD + size
            left -= ROW_HEAD + size

    def put(self, bytes prefix not None, list ids not None, list values not None):
        """Put rows of IDs and values; ValueError as before, and where one is not bytes."""
        cdef Py_ssize_t i, count = PyList_GET_SIZE(ids)
        cdef Bytes head = <Bytes>PyBytes_AS_STRING(prefix)
        cdef object eid, value
        if PyList_GET_SIZE(values) != count:
            raise ValueError("IDs and values differ in number")
        for i in range(count):
            eid, value = <object>PyList_GET_ITEM(ids, i), <object>PyList_GET_ITEM(values, i)
            if type(eid) is not bytes or type(value) is not bytes:
                raise ValueError("a row is not of bytes")
            if PyBytes_GET_SIZE(eid) != ID_BYTES:
                raise ValueError("an ID is not of 16 bytes")
            self.judge(
                self.put_row(
                    head,
                    PyBytes_GET_SIZE(prefix),
                    <Bytes>PyBytes_AS_STRING(eid),
                    <Bytes>PyBytes_AS_STRING(value),
                    PyBytes_GET_SIZE(value),
                )
            )

    cdef inline int judge(self, int put) except -1:
        if put > 0:
            return 0
        if put == 0:
            raise MemoryError
        raise ValueError("a row is not above the one before it")

    def take(self, bint all_ = False):
        """Return the blocks that are filled; with ``all_`` also the one that is being filled.

        ``all_`` is for the end: a row after it would begin a block that shares nothing.
        """
        cdef Blocks taken = self.blocks, fresh = Blocks()
        cdef Py_ssize_t left
        if self.in_block and all_:
            if not self.end_block():
                raise MemoryError
        elif self.in_block:
            left = taken.data.used - self.start
            if not reserve(&fresh.data, left):
                raise MemoryError
            memcpy(fresh.data.start, taken.data.start + self.start, left)
            fresh.data.used = left
            taken.data.used = self.start
            self.start = 0
        self.blocks = fresh
        return taken


# --- what is written ------------------------------------------------------------------------------


cdef class Squeezer:
    """Compresses blocks and sums them up, in the order in which they are given; one at a time."""

    cdef readonly uint64_t offset
    """Bytes of the file so far."""
    cdef readonly uint64_t index_bytes
    cdef Growing made
    cdef Growing index
    cdef Growing restarts
    cdef uint32_t *seen

    def __cinit__(self):
        self.seen = <uint32_t *>PyMem_RawMalloc((1 << HASH_BITS) * sizeof(uint32_t))
        if self.seen == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.made.start)
        PyMem_RawFree(self.index.start)
        PyMem_RawFree(self.restarts.start)
        PyMem_RawFree(self.seen)

    cdef bint squeeze(self, Bytes data, Py_ssize_t size) noexcept nogil:
        """Add a block to what is made: compressed where that saves an eighth."""
        cdef Room start, at
        if not reserve(&self.made, lz4_room(size) + VARINT_MAX + TRAILER):
            return False
        start = at = self.made.start + self.made.used
        if size <= LZ4_MAX:
            at = lz4(data, size, self.seen, put_varint(at, size))
        if at == start or at - start >= size - size // 8:
            memcpy(start, data, size)
            at = start + size
            at[0] = NOT_COMPRESSED
        else:
            at[0] = LZ4
        put_size(at + 1, <uint32_t>xxh64(start, at + 1 - start))
        self.made.used = at + TRAILER - self.made.start
        return True

    cdef bint note(self, Bytes key, Py_ssize_t size, uint64_t offset, uint64_t length) noexcept nogil:
        """Add a block to the index."""
        cdef Room at, value
        if not reserve(&self.restarts, 4) or not reserve(&self.index, size + 5 * VARINT_MAX):
            return False
        put_size(self.restarts.start + self.restarts.used, self.index.used)
        self.restarts.used += 4
        at = put_varint(put_varint(self.index.start + self.index.used, 0), size)
        value = at
        at += 1 + size  # a handle takes less than 128 bytes: its length is one
        memcpy(value + 1, key, size)
        at = put_varint(put_varint(at, offset), length)
        value[0] = at - value - 1 - size
        self.index.used = at - self.index.start
        return True

    cdef bint squeeze_all(self, Blocks blocks) noexcept nogil:
        cdef Block *each = <Block *>blocks.ends.start
        cdef Py_ssize_t count = blocks.ends.used // sizeof(Block), i, start = 0, key = 0, before
        for i in range(count):
            before = self.made.used
            if not self.squeeze(blocks.data.start + start, each[i].end - start):
                return False
            if not self.note(
                blocks.keys.start + key,
                each[i].key_end - key,
                self.offset + before,
                self.made.used - before - TRAILER,
            ):
                return False
            start = each[i].end
            key = each[i].key_end
        return True

    def squeezed(self, Blocks blocks not None):
        """Return the bytes of blocks for the file."""
        cdef bint done
        self.made.used = 0
        with nogil:
            done = self.squeeze_all(blocks)
        if not done:
            raise MemoryError
        self.offset += self.made.used
        return PyBytes_FromStringAndSize(<const char *>self.made.start, self.made.used)

    def index_block(self):
        """Return the bytes of the index, without a trailer."""
        index = PyBytes_FromStringAndSize(<const char *>self.index.start, self.index.used)
        restarts = PyBytes_FromStringAndSize(
            <const char *>self.restarts.start, self.restarts.used
        )
        return index + restarts + int(self.restarts.used // 4).to_bytes(4, "little")


def sum_of(bytes data not None):
    """Return the sum of a block with the byte of its compression, as RocksDB's XXH64 is cut."""
    return xxh64(<Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)) & 0xFFFFFFFF


def compress(bytes data not None):
    """Return an LZ4 block of the bytes."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Squeezer own = Squeezer()
    cdef Room end
    if not reserve(&own.made, lz4_room(size)):
        raise MemoryError
    end = lz4(<Bytes>PyBytes_AS_STRING(data), size, own.seen, own.made.start)
    return PyBytes_FromStringAndSize(<const char *>own.made.start, end - own.made.start)
