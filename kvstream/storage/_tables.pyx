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
from cpython.buffer cimport PyBUF_READ
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from kvstream.layout._msgpack cimport ID_BYTES, Bytes
from kvstream.layout._rows cimport ROW_HEAD, put_size, take_size
from kvstream.storage._blocks cimport (
    KEY_TAIL,
    LZ4,
    LZ4_MAX,
    MATCH_MIN,
    NOT_COMPRESSED,
    RESTART_ROWS,
    TRAILER,
    load32,
    load64,
    xxh64,
    zeros,
)
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

ctypedef unsigned char *Room

cdef enum:
    HASH_BITS = 13
    LAST_LITERALS = 5
    MATCH_MARGIN = 12
    DISTANCE_MAX = 65535
    SKIP_SHIFT = 6
    VARINT_MAX = 10

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


# --- rows as blocks -------------------------------------------------------------------------------


cdef struct Piece:
    Bytes at
    Py_ssize_t size


cdef class Builder:
    """Makes blocks of rows, each of which must be above all before it; for one thread at a time."""

    cdef readonly uint64_t rows
    cdef readonly uint64_t key_bytes
    cdef readonly uint64_t value_bytes
    cdef readonly uint64_t blocks
    cdef readonly uint64_t offset
    """Bytes of the file that were taken."""
    cdef Py_ssize_t block_bytes
    cdef Py_ssize_t in_block  # rows
    cdef Growing block
    cdef Growing restarts
    cdef Growing last  # key
    cdef Growing made
    cdef Growing index
    cdef Growing index_restarts
    cdef Growing pieces
    cdef uint32_t *seen

    def __cinit__(self, Py_ssize_t block_bytes):
        self.block_bytes = block_bytes
        self.seen = <uint32_t *>PyMem_RawMalloc((1 << HASH_BITS) * sizeof(uint32_t))
        if self.seen == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.block.start)
        PyMem_RawFree(self.restarts.start)
        PyMem_RawFree(self.last.start)
        PyMem_RawFree(self.made.start)
        PyMem_RawFree(self.index.start)
        PyMem_RawFree(self.index_restarts.start)
        PyMem_RawFree(self.pieces.start)
        PyMem_RawFree(self.seen)

    def put(self, bytes prefix not None, list packed not None):
        """Put packed rows (layout/packing.py), a list of strings of them, under a prefix.

        It works without the GIL: nobody may change the list meanwhile.
        ValueError where a row is not above the one before, or not whole: the table is spoiled then.
        """
        cdef Py_ssize_t count = PyList_GET_SIZE(packed), i
        cdef Bytes head = <Bytes>PyBytes_AS_STRING(prefix)
        cdef Py_ssize_t head_size = PyBytes_GET_SIZE(prefix)
        cdef Piece *pieces
        cdef object rows
        cdef int put = 1
        if not reserve(&self.pieces, count * sizeof(Piece)):
            raise MemoryError
        pieces = <Piece *>self.pieces.start
        for i in range(count):
            rows = <object>PyList_GET_ITEM(packed, i)
            if type(rows) is not bytes:
                raise ValueError("packed rows are bytes")
            pieces[i].at = <Bytes>PyBytes_AS_STRING(rows)
            pieces[i].size = PyBytes_GET_SIZE(rows)
        with nogil:
            for i in range(count):
                put = self.put_piece(head, head_size, pieces[i].at, pieces[i].size)
                if put <= 0:
                    break
        if put == 0:
            raise MemoryError
        if put < 0:
            raise ValueError("a row is not whole, or not above the one before it")

    cdef int put_piece(
        self, Bytes head, Py_ssize_t head_size, Bytes at, Py_ssize_t left
    ) noexcept nogil:
        cdef Py_ssize_t size
        cdef int put
        while left:
            if left < ROW_HEAD:
                return -1
            size = take_size(at + ID_BYTES)
            if left - ROW_HEAD < size:
                return -1
            put = self.put_row(head, head_size, at, at + ROW_HEAD, size)
            if put <= 0:
                return put
            at += ROW_HEAD + size
            left -= ROW_HEAD + size
        return 1

    cdef Py_ssize_t shared(self, Bytes prefix, Py_ssize_t size, Bytes eid) noexcept nogil:
        """Return how many bytes a key shares with the last one; -1 where it is not above that."""
        cdef Room old = self.last.start
        cdef Py_ssize_t most = min(self.last.used, size), shared = 0
        while shared < most and old[shared] == prefix[shared]:
            shared += 1
        if shared < most:
            return shared if old[shared] < prefix[shared] else -1
        if shared < size:
            return shared  # the last key opens this one's prefix
        most = min(self.last.used, size + ID_BYTES)
        while shared < most and old[shared] == eid[shared - size]:
            shared += 1
        if shared == most:
            return shared if self.last.used < size + ID_BYTES else -1
        return shared if old[shared] < eid[shared - size] else -1

    cdef int put_row(
        self, Bytes prefix, Py_ssize_t prefix_size, Bytes eid, Bytes value, Py_ssize_t size
    ) noexcept nogil:
        """Put a row; 0 where there is no memory, -1 where it is not above the one before."""
        cdef Py_ssize_t key = prefix_size + ID_BYTES, shared = 0
        cdef Room at
        if self.rows:
            shared = self.shared(prefix, prefix_size, eid)
            if shared < 0:
                return -1
        if size >= self.block_bytes and self.in_block and not self.end_block():
            return 0  # a large row has a block of its own: else its neighbours could not do without
        if not reserve(&self.last, key) or not reserve(&self.restarts, 4):
            return 0
        if not reserve(&self.block, 3 * VARINT_MAX + key + KEY_TAIL + size):
            return 0
        if self.in_block % RESTART_ROWS == 0:
            shared = 0
            put_size(self.restarts.start + self.restarts.used, self.block.used)
            self.restarts.used += 4
        memcpy(self.last.start, prefix, prefix_size)
        memcpy(self.last.start + prefix_size, eid, ID_BYTES)
        self.last.used = key
        at = put_varint(self.block.start + self.block.used, shared)
        at = put_varint(put_varint(at, key + KEY_TAIL - shared), size)
        memcpy(at, self.last.start + shared, key - shared)
        at += key - shared
        memset(at, 0, KEY_TAIL)
        at[0] = 1
        at += KEY_TAIL
        memcpy(at, value, size)
        self.block.used = at + size - self.block.start
        self.rows += 1
        self.in_block += 1
        self.key_bytes += key + KEY_TAIL
        self.value_bytes += size
        if self.block.used + self.restarts.used + 4 >= self.block_bytes:
            return self.end_block()
        return 1

    cdef bint end_block(self) noexcept nogil:
        """Compress the block that is being filled, and note it in the index."""
        cdef Py_ssize_t count = self.restarts.used // 4, before = self.made.used
        cdef Room at
        if not reserve(&self.block, self.restarts.used + 4):
            return False
        at = self.block.start + self.block.used
        memcpy(at, self.restarts.start, self.restarts.used)
        put_size(at + self.restarts.used, count)
        self.block.used += self.restarts.used + 4
        if not self.squeeze(self.block.start, self.block.used):
            return False
        self.block.used = self.restarts.used = self.in_block = 0
        self.blocks += 1
        return self.note(self.offset + before, self.made.used - before - TRAILER)

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

    cdef bint note(self, uint64_t offset, uint64_t length) noexcept nogil:
        """Add the block whose last key is the last one to the index."""
        cdef Py_ssize_t size = self.last.used
        cdef Room at, value
        if not reserve(&self.index_restarts, 4) or not reserve(&self.index, size + 5 * VARINT_MAX):
            return False
        put_size(self.index_restarts.start + self.index_restarts.used, self.index.used)
        self.index_restarts.used += 4
        at = put_varint(put_varint(self.index.start + self.index.used, 0), size)
        value = at
        at += 1 + size  # a handle takes less than 128 bytes: its length is one
        memcpy(value + 1, self.last.start, size)
        at = put_varint(put_varint(at, offset), length)
        value[0] = at - value - 1 - size
        self.index.used = at - self.index.start
        return True

    def end(self):
        """Have the last block made."""
        if self.in_block and not self.end_block():
            raise MemoryError

    def take(self):
        """Return the bytes of the file that were made since; they hold until the next ``put``."""
        cdef Py_ssize_t size = self.made.used
        self.made.used = 0
        self.offset += size
        if size == 0:
            return b""
        return PyMemoryView_FromMemory(<char *>self.made.start, size, PyBUF_READ)

    def index_block(self):
        """Return the bytes of the index, without a trailer."""
        index = PyBytes_FromStringAndSize(<const char *>self.index.start, self.index.used)
        restarts = PyBytes_FromStringAndSize(
            <const char *>self.index_restarts.start, self.index_restarts.used
        )
        return index + restarts + int(self.index_restarts.used // 4).to_bytes(4, "little")


# --- for whoever has rows as objects, and for tests ---------------------------------------------


def pack_rows(list ids not None, list values not None):
    """Do what ``pack_rows`` of layout/packing.py does; ValueError for what is no row."""
    cdef Py_ssize_t i, count = PyList_GET_SIZE(ids), size = 0
    cdef object eid, value, made
    cdef Room at
    if PyList_GET_SIZE(values) != count:
        raise ValueError("IDs and values differ in number")
    for i in range(count):
        eid, value = <object>PyList_GET_ITEM(ids, i), <object>PyList_GET_ITEM(values, i)
        if type(eid) is not bytes or type(value) is not bytes:
            raise ValueError("a row is not of bytes")
        if PyBytes_GET_SIZE(eid) != ID_BYTES:
            raise ValueError("an ID is not of 16 bytes")
        size += ROW_HEAD + PyBytes_GET_SIZE(value)
    made = PyBytes_FromStringAndSize(NULL, size)
    at = <Room>PyBytes_AS_STRING(made)
    for i in range(count):
        eid, value = <object>PyList_GET_ITEM(ids, i), <object>PyList_GET_ITEM(values, i)
        size = PyBytes_GET_SIZE(value)
        memcpy(at, PyBytes_AS_STRING(eid), ID_BYTES)
        put_size(at + ID_BYTES, size)
        memcpy(at + ROW_HEAD, PyBytes_AS_STRING(value), size)
        at += ROW_HEAD + size
    return made


def sum_of(bytes data not None):
    """Return the sum of a block with the byte of its compression, as RocksDB's XXH64 is cut."""
    return xxh64(<Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)) & 0xFFFFFFFF


def compress(bytes data not None):
    """Return an LZ4 block of the bytes."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Builder own = Builder(0)
    cdef Room end
    if not reserve(&own.made, lz4_room(size)):
        raise MemoryError
    end = lz4(<Bytes>PyBytes_AS_STRING(data), size, own.seen, own.made.start)
    return PyBytes_FromStringAndSize(<const char *>own.made.start, end - own.made.start)
