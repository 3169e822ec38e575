# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Blocks of rows that somebody else has made, looked at row by row without the GIL.

Nothing that stands in them is believed: sums, framing, compression, the order of keys, the streams
and nodes that the rows belong to, and the framing of each entry. The grammar is in _tables.pyx; a
block that is not as that writer makes them is refused, though RocksDB may read it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from kvstream.layout._msgpack cimport ID_BYTES, Bytes, Cursor, take_count, take_string
from kvstream.storage._blocks cimport (
    KEY_TAIL,
    LZ4,
    LZ4_MAX,
    NOT_COMPRESSED,
    RESTART_ROWS,
    TRAILER,
    expand,
    load32,
    load64,
    take_varint,
    xxh64,
)
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

ctypedef unsigned char *Room

cdef enum:
    NODE_BYTES = 2 * ID_BYTES + 8  # first(id) last(id) live(u64)
    LZ4_MOST = 255  # bytes that one compressed byte may stand for
    PLAIN_TAIL = 1  # what the last eight bytes of a key say: a plain value, sequence 0

cdef enum Found:
    NO_MEMORY = 0
    GOOD = 1
    BAD_BLOCK = 2
    BAD_ROW = 3


cdef struct Stream:
    Bytes prefix
    Py_ssize_t prefix_size
    Bytes nodes
    Py_ssize_t count


cdef struct Block:
    Bytes at
    Py_ssize_t size
    Bytes last  # key
    Py_ssize_t last_size


cdef struct Look:
    Stream *streams
    Py_ssize_t count
    Py_ssize_t stream
    Py_ssize_t node
    uint64_t in_node  # rows of the node that were seen
    Room key  # the last one
    Py_ssize_t key_size
    Py_ssize_t key_room
    Room plain
    Py_ssize_t plain_room
    uint64_t rows
    uint64_t key_bytes
    uint64_t value_bytes
    bint odd  # there was a value that is not framed as most are


# --- blocks ---------------------------------------------------------------------------------------


cdef Found opened(Look *look, Block *block, Bytes *at, Py_ssize_t *size) noexcept nogil:
    """Find the plain bytes of a block whose sum and compression are right."""
    cdef Bytes data = block.at, end = block.at + block.size
    cdef Room grown
    if load32(end + 1) != <uint32_t>xxh64(data, block.size + 1):
        return BAD_BLOCK
    if end[0] == NOT_COMPRESSED:
        at[0] = data
        size[0] = block.size
        return GOOD
    if end[0] != LZ4 or not take_varint(&data, end, size):
        return BAD_BLOCK
    if size[0] > LZ4_MAX or size[0] > LZ4_MOST * block.size:
        return BAD_BLOCK
    if look.plain_room < size[0]:
        grown = <Room>PyMem_RawRealloc(look.plain, size[0])
        if grown == NULL:
            return NO_MEMORY
        look.plain = grown
        look.plain_room = size[0]
    at[0] = look.plain
    return GOOD if expand(data, end, look.plain, size[0]) else BAD_BLOCK


cdef Found look_into(Look *look, Block *block) noexcept nogil:
    """Look at the rows of a block, and at what leads to them."""
    cdef Bytes start = NULL, at, end, restarts
    cdef Py_ssize_t size = 0, shared = 0, own = 0, length = 0
    cdef uint64_t count = 0, leads
    cdef Found found = opened(look, block, &start, &size)
    if found != GOOD:
        return found
    if size < 4:
        return BAD_BLOCK
    leads = load32(start + size - 4)
    if leads >= <uint64_t>size // 4:
        return BAD_BLOCK
    at = start
    end = restarts = start + size - 4 * (leads + 1)
    while at < end:
        if count % RESTART_ROWS == 0:
            if count // RESTART_ROWS >= leads:
                return BAD_BLOCK
            if load32(restarts + count // RESTART_ROWS * 4) != <uint64_t>(at - start):
                return BAD_BLOCK
        if not take_varint(&at, end, &shared) or not take_varint(&at, end, &own):
            return BAD_BLOCK
        if not take_varint(&at, end, &length) or end - at < own or end - at - own < length:
            return BAD_BLOCK
        if count % RESTART_ROWS == 0 and shared:
            return BAD_BLOCK
        found = look_at(look, at, shared, own, at + own, length)
        if found != GOOD:
            return found
        at += own + length
        count += 1
    if count == 0 or leads != (count + RESTART_ROWS - 1) // RESTART_ROWS:
        return BAD_BLOCK
    if look.key_size != block.last_size or memcmp(look.key, block.last, look.key_size) != 0:
        return BAD_BLOCK
    return GOOD


# --- rows -----------------------------------------------------------------------------------------


cdef Found look_at(
    Look *look, Bytes rest, Py_ssize_t shared, Py_ssize_t own, Bytes value, Py_ssize_t length
) noexcept nogil:
    """Look at a row, whose key is ``rest`` behind what it shares with the last one."""
    cdef Stream *stream
    cdef Bytes node, eid
    cdef Py_ssize_t size = shared + own - KEY_TAIL, most
    cdef int order
    if own < KEY_TAIL or shared > look.key_size or size > look.key_room:
        return BAD_ROW
    if load64(rest + own - KEY_TAIL) != PLAIN_TAIL:
        return BAD_ROW
    most = min(look.key_size, size) - shared
    order = memcmp(look.key + shared, rest, most) if most > 0 else 0
    if look.rows and (order > 0 or (order == 0 and look.key_size >= size)):
        return BAD_ROW
    memcpy(look.key + shared, rest, own - KEY_TAIL)
    look.key_size = size
    if look.node == look.streams[look.stream].count:
        look.stream += 1
        look.node = 0
    if look.stream == look.count:
        return BAD_ROW
    stream = &look.streams[look.stream]
    if size != stream.prefix_size + ID_BYTES or memcmp(look.key, stream.prefix, size - ID_BYTES) != 0:
        return BAD_ROW
    eid = look.key + size - ID_BYTES
    node = stream.nodes + look.node * NODE_BYTES
    if look.in_node == 0 and memcmp(eid, node, ID_BYTES) != 0:
        return BAD_ROW
    look.in_node += 1
    if look.in_node == load64(node + 2 * ID_BYTES):
        if memcmp(eid, node + ID_BYTES, ID_BYTES) != 0:
            return BAD_ROW
        look.node += 1
        look.in_node = 0
    look.rows += 1
    look.key_bytes += size + KEY_TAIL
    look.value_bytes += length
    look.odd |= not is_entry(value, length)
    return GOOD


cdef bint is_entry(Bytes at, Py_ssize_t size) noexcept nogil:
    """Tell whether a value is a mark, and then names and values alone."""
    cdef Cursor cursor
    cdef Bytes data = NULL
    cdef Py_ssize_t count, length = 0
    cursor.at, cursor.end = at, at + size
    count = 2 * take_count(&cursor)
    if count <= 0:
        return False
    while count:
        if not take_string(&cursor, &data, &length):
            return False
        count -= 1
    return cursor.at == cursor.end


# --- for Python -----------------------------------------------------------------------------------


cdef class Proof:
    """Looks at a table from its first block to its last; for one thread."""

    cdef Look look
    cdef Block *wanted
    cdef list streams

    def __cinit__(self, list streams not None):
        """``streams`` are those whose rows must be there, in this order: prefix and nodes.

        A node is first ID, last ID and how many rows it has (u64, little-endian), one at least.
        """
        cdef Py_ssize_t i
        cdef bytes prefix, nodes
        self.streams = list(streams)
        self.look.count = len(self.streams)
        self.look.streams = <Stream *>PyMem_RawMalloc((self.look.count + 1) * sizeof(Stream))
        if self.look.streams == NULL:
            raise MemoryError
        for i in range(self.look.count):
            prefix, nodes = self.streams[i]
            if not nodes or PyBytes_GET_SIZE(nodes) % NODE_BYTES:
                raise ValueError("a stream has no nodes")
            self.look.streams[i].prefix = <Bytes>PyBytes_AS_STRING(prefix)
            self.look.streams[i].prefix_size = PyBytes_GET_SIZE(prefix)
            self.look.streams[i].nodes = <Bytes>PyBytes_AS_STRING(nodes)
            self.look.streams[i].count = PyBytes_GET_SIZE(nodes) // NODE_BYTES
            self.look.key_room = max(self.look.key_room, PyBytes_GET_SIZE(prefix) + ID_BYTES)
        self.look.key = <Room>PyMem_RawMalloc(self.look.key_room + 1)
        if self.look.key == NULL or self.look.count == 0:
            raise MemoryError if self.look.count else ValueError("a table has no streams")

    def __dealloc__(self):
        PyMem_RawFree(self.look.streams)
        PyMem_RawFree(self.look.key)
        PyMem_RawFree(self.look.plain)
        PyMem_RawFree(self.wanted)

    def take(self, bytes data not None, list blocks not None):
        """Look at the next blocks: place in ``data``, size and last key of each.

        ValueError says what is not as it must be; nothing may be taken after that.
        """
        cdef Found found = GOOD
        cdef Py_ssize_t i, count = len(blocks)
        self.want(<Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), blocks)
        with nogil:
            for i in range(count):
                found = look_into(&self.look, &self.wanted[i])
                if found != GOOD:
                    break
        if found == NO_MEMORY:
            raise MemoryError
        if found == BAD_BLOCK:
            raise ValueError("a block is not as it was written")
        if found == BAD_ROW:
            raise ValueError("its rows are not those that it is said to have")

    cdef int want(self, Bytes data, Py_ssize_t size, list blocks) except -1:
        cdef Py_ssize_t i, at, length, count = len(blocks)
        cdef bytes last
        cdef Block *grown = <Block *>PyMem_RawRealloc(self.wanted, (count + 1) * sizeof(Block))
        if grown == NULL:
            raise MemoryError
        self.wanted = grown
        for i in range(count):
            at, length, last = blocks[i]
            if not 0 <= length <= size - TRAILER or not 0 <= at <= size - TRAILER - length:
                raise ValueError("a block lies beyond the end")
            grown[i].at = data + at
            grown[i].size = length
            grown[i].last = <Bytes>PyBytes_AS_STRING(last)
            grown[i].last_size = PyBytes_GET_SIZE(last)
        return 0

    def end(self):
        """Return how many rows there are, and the bytes of their keys and of their values.

        ValueError where nodes lack some; None where an entry is of a form that Python must look at.
        """
        cdef bint last = self.look.stream == self.look.count - 1
        if not last or self.look.node < self.look.streams[self.look.stream].count:
            raise ValueError("its rows are not those that it is said to have")
        if self.look.odd:
            return None
        return self.look.rows, self.look.key_bytes, self.look.value_bytes
