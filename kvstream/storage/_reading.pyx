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
    P1,
    P2,
    P3,
    P4,
    P5,
    big64,
    expand,
    load32,
    load64,
    take_varint,
    xxh64,
)
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    static inline unsigned long long kvstream_folded(unsigned long long a, unsigned long long b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (unsigned long long)product ^ (unsigned long long)(product >> 64);
    }
    """
    uint64_t folded "kvstream_folded"(uint64_t a, uint64_t b) noexcept nogil

cdef enum:
    PLAIN_VALUE = 1
    XXH64 = 3
    XXH3 = 4
    STRIPE = 64
    STRIPES = 16  # after which what is summed up is scrambled
    XXH3_LEAST = 17  # shorter blocks, which hold no row, are left to RocksDB
    LZ4_MOST = 255  # bytes that one compressed byte may stand for
    ZSTD = 7
    ZSTD_MOST = 1 << 15
    KEY_MAX = 1 << 17  # longer keys are left to RocksDB

cdef struct Number:  # an ID
    uint64_t ms
    uint64_t seq


cdef enum Said:
    GOES_ON
    ENDED
    NOT_PLAIN
    NO_MEMORY


# --- sums -----------------------------------------------------------------------------------------

cdef bytes _SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578"
    "825ad07dccff7221b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea3"
    "71644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931"
    "c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
cdef Bytes SECRET = <Bytes>PyBytes_AS_STRING(_SECRET)


cdef inline uint64_t key64(Py_ssize_t at) noexcept nogil:
    return load64(SECRET + at)


cdef inline uint64_t avalanche(uint64_t sum_) noexcept nogil:
    sum_ = (sum_ ^ sum_ >> 37) * <uint64_t>0x165667919E3779F9u
    return sum_ ^ sum_ >> 32


cdef inline uint64_t mixed16(Bytes at, Py_ssize_t key) noexcept nogil:
    return folded(load64(at) ^ key64(key), load64(at + 8) ^ key64(key + 8))


cdef inline void take_stripe(uint64_t *lanes, Bytes at, Py_ssize_t key) noexcept nogil:
    cdef int i
    cdef uint64_t given, keyed
    for i in range(8):
        given = load64(at + 8 * i)
        keyed = given ^ key64(key + 8 * i)
        lanes[i ^ 1] += given
        lanes[i] += (keyed & 0xFFFFFFFFu) * (keyed >> 32)


cdef uint64_t xxh3_short(Bytes at, Py_ssize_t size) noexcept nogil:
    """Sum up 17 to 240 bytes."""
    cdef uint64_t sum_ = size * P1
    cdef Py_ssize_t i
    if size <= 128:
        for i in range((size - 1) // 32, -1, -1):
            sum_ += mixed16(at + 16 * i, 32 * i)
            sum_ += mixed16(at + size - 16 * (i + 1), 32 * i + 16)
        return avalanche(sum_)
    for i in range(8):
        sum_ += mixed16(at + 16 * i, 16 * i)
    sum_ = avalanche(sum_)
    for i in range(8, size // 16):
        sum_ += mixed16(at + 16 * i, 16 * (i - 8) + 3)
    return avalanche(sum_ + mixed16(at + size - 16, 136 - 17))


cdef uint64_t xxh3(Bytes at, Py_ssize_t size) noexcept nogil:
    """Sum up 17 bytes and more, as XXH3 does with its own secret and seed 0."""
    cdef uint64_t lanes[8]
    cdef uint64_t sum_
    cdef Py_ssize_t left = size - 1, stripe = 0
    cdef Bytes start = at
    cdef int i
    if size <= 240:
        return xxh3_short(at, size)
    lanes[0], lanes[1], lanes[2], lanes[3] = 0xC2B2AE3Du, P1, P2, P3
    lanes[4], lanes[5], lanes[6], lanes[7] = P4, 0x85EBCA77u, P5, 0x9E3779B1u
    while left >= STRIPE:
        take_stripe(lanes, at, 8 * stripe)
        at += STRIPE
        left -= STRIPE
        stripe += 1
        if stripe == STRIPES:
            stripe = 0
            for i in range(8):
                lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ key64(128 + 8 * i)) * 0x9E3779B1u
    take_stripe(lanes, start + size - STRIPE, 192 - STRIPE - 7)
    sum_ = size * P1
    for i in range(4):
        sum_ += folded(lanes[2 * i] ^ key64(11 + 16 * i), lanes[2 * i + 1] ^ key64(19 + 16 * i))
    return avalanche(sum_)


cdef struct Sums:
    int kind
    uint32_t context  # what sums are told apart by where they stand; 0: they are not


cdef bint is_sound(Bytes data, Py_ssize_t size, uint64_t offset, Sums sums) noexcept nogil:
    """Tell whether the sum of a block, which stands at an offset of its table, is right."""
    cdef uint32_t sum_
    if sums.kind == XXH64:
        sum_ = <uint32_t>xxh64(data, size + 1)
    elif sums.kind == XXH3 and size >= XXH3_LEAST:
        sum_ = <uint32_t>xxh3(data, size) ^ data[size] * <uint32_t>0x6B9083D9u
    else:
        return False
    if sums.context:
        sum_ += sums.context ^ (<uint32_t>offset + <uint32_t>(offset >> 32))
    return sum_ == load32(data + size + 1)


# --- rows -----------------------------------------------------------------------------------------


cdef class Reader:
    """Reads the rows of ``prefix`` with ``lower <= id <= upper`` out of blocks, in their order."""

    cdef bytes prefix_bytes
    cdef object zstd
    cdef Bytes prefix
    cdef Number lower, upper, last
    cdef Py_ssize_t prefix_size
    cdef Room key, plain, made
    cdef Py_ssize_t key_used, plain_room, made_room, made_used
    cdef bint has_last
    cdef readonly bint ended
    """Whether a row behind the last of the range was seen."""
    cdef readonly Py_ssize_t count
    """How many rows the last ``read`` returned."""

    def __cinit__(
        self, bytes prefix not None, bytes lower not None, bytes upper not None, zstd=None
    ):
        """``zstd`` returns what bytes hold of a size that is given; None where they do not."""
        if len(lower) != ID_BYTES or len(upper) != ID_BYTES or len(prefix) > KEY_MAX // 2:
            raise ValueError("bounds are IDs")
        self.prefix_bytes, self.zstd = prefix, zstd
        self.prefix = <Bytes>PyBytes_AS_STRING(prefix)
        self.lower = number_of(<Bytes>PyBytes_AS_STRING(lower))
        self.upper = number_of(<Bytes>PyBytes_AS_STRING(upper))
        self.prefix_size = PyBytes_GET_SIZE(prefix)
        if not grow(&self.key, NULL, KEY_MAX):
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.key)
        PyMem_Free(self.plain)
        PyMem_Free(self.made)

    def read(
        self,
        bytes chunk not None,
        list sizes not None,
        int kind,
        uint32_t context = 0,
        uint64_t offset = 0,
    ):
        """Return the packed rows of blocks that follow each other; None where one is not plain.

        ``sizes`` are those of the blocks without their trailers, ``kind`` and ``context`` those of
        their sums; the first one stands at ``offset``.
        """
        cdef Bytes at = <Bytes>PyBytes_AS_STRING(chunk), end = at + PyBytes_GET_SIZE(chunk)
        cdef Py_ssize_t size
        cdef Said said = GOES_ON
        cdef Sums sums
        sums.kind, sums.context = kind, context
        self.count = self.made_used = 0
        for size in sizes:
            if size < 0 or end - at - TRAILER < size or not is_sound(at, size, offset, sums):
                return None
            if at[size] == ZSTD:
                said = self.take_zstd(at, size)
            else:
                said = self.take_block(at, size)
            if said == NO_MEMORY:
                raise MemoryError
            if said == NOT_PLAIN:
                return None
            if said == ENDED:
                self.ended = True
                break
            at += size + TRAILER
            offset += size + TRAILER
        return PyBytes_FromStringAndSize(<const char *>self.made, self.made_used)

    cdef Said take_zstd(self, Bytes data, Py_ssize_t size) except *:
        """Do what take_block() does where Python has to decompress it."""
        cdef bytes made = expanded(self.zstd, data, size)
        if made is None:
            return NOT_PLAIN
        return self.take_rows(<Bytes>PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made))

    cdef Said take_block(self, Bytes data, Py_ssize_t size) noexcept nogil:
        """Take the rows of a block whose sum is right."""
        cdef Bytes at = data
        cdef Py_ssize_t plain = 0
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
            if end - at >= 3 and at[0] | at[1] | at[2] < 128:  # three numbers of one byte
                shared, own, length = at[0], at[1], at[2]
                at += 3
            elif not (
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
        cdef Number number
        cdef Room to
        if self.key_used != self.prefix_size + ID_BYTES + KEY_TAIL:
            return NOT_PLAIN
        number = number_of(eid)
        if is_above(&self.lower, &number):
            return GOES_ON
        if is_above(&number, &self.upper):
            return ENDED
        if eid[ID_BYTES] != PLAIN_VALUE:
            return NOT_PLAIN
        if self.has_last and not is_above(&number, &self.last):
            return NOT_PLAIN
        if not grow(&self.made, &self.made_room, self.made_used + ROW_HEAD + size):
            return NO_MEMORY
        self.has_last, self.last = True, number
        to = self.made + self.made_used
        memcpy(to, eid, ID_BYTES)
        put_size(to + ID_BYTES, <uint32_t>size)
        memcpy(to + ROW_HEAD, value, size)
        self.made_used += ROW_HEAD + size
        self.count += 1
        return GOES_ON


cdef inline Number number_of(Bytes eid) noexcept nogil:
    cdef Number number
    number.ms, number.seq = big64(eid), big64(eid + 8)
    return number


cdef inline bint is_above(const Number *one, const Number *other) noexcept nogil:
    return one.ms > other.ms or (one.ms == other.ms and one.seq > other.seq)


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


cdef bytes expanded(object zstd, Bytes data, Py_ssize_t size):
    """Return what a block holds that ZSTD has compressed; None: it is not plain."""
    cdef Bytes at = data
    cdef Py_ssize_t room = 0
    cdef object made
    if zstd is None or not take_varint(&at, data + size, &room):
        return None
    if room > LZ4_MAX or room > ZSTD_MOST * size:
        return None
    made = zstd(PyBytes_FromStringAndSize(<const char *>at, data + size - at), room)
    return made if type(made) is bytes and PyBytes_GET_SIZE(made) == room else None


def plain(bytes block not None, int kind, uint32_t context=0, uint64_t offset=0, zstd=None):
    """Return a block, given with its trailer, as it was before compression; None: it is not plain."""
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(block)
    cdef Bytes at = data
    cdef Py_ssize_t size = PyBytes_GET_SIZE(block) - TRAILER
    cdef Py_ssize_t room = 0
    cdef object made
    cdef Sums sums
    sums.kind, sums.context = kind, context
    if size < 0 or not is_sound(data, size, offset, sums):
        return None
    if data[size] == NOT_COMPRESSED:
        return block[:size]
    if data[size] == ZSTD:
        return expanded(zstd, data, size)
    if data[size] != LZ4 or not take_varint(&at, data + size, &room):
        return None
    if room > LZ4_MAX or room > LZ4_MOST * size:
        return None
    made = PyBytes_FromStringAndSize(NULL, room)
    if not expand(at, data + size, <Room>PyBytes_AS_STRING(made), room):
        return None
    return made


# --- indexes --------------------------------------------------------------------------------------


def blocks(bytes index not None, bint by_deltas):
    """Return last key, offset and size of each block that an index tells of; None: it is not plain.

    ``by_deltas``: most of them are told by what is other than of the one before.
    """
    cdef Bytes at = <Bytes>PyBytes_AS_STRING(index), end
    cdef Py_ssize_t offset = 0, size = 0, shared = 0, own = 0, length = 0, restarts
    cdef Py_ssize_t left = PyBytes_GET_SIZE(index)
    cdef bytes key = b""
    cdef list found = []
    if left < 4:
        return None
    restarts = load32(at + left - 4)
    if restarts > (left - 4) // 4:
        return None
    end = at + left - 4 - 4 * restarts
    while at < end:
        if not (take_varint(&at, end, &shared) and take_varint(&at, end, &own)):
            return None
        if not by_deltas and not take_varint(&at, end, &length):
            return None
        if own > end - at or shared > PyBytes_GET_SIZE(key):
            return None
        key = key[:shared] + PyBytes_FromStringAndSize(<const char *>at, own)
        at += own
        if by_deltas and shared:
            offset += size + TRAILER
            if not take_varint(&at, end, &length):
                return None
            size += length >> 1 ^ -(length & 1)
        elif not (take_varint(&at, end, &offset) and take_varint(&at, end, &size)):
            return None
        if size < 0:
            return None
        found.append((key, offset, size))
    return found
