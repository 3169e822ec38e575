# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of primitives.py, lzf.py, nodes.py and streams.py, which have the grammars.

Each handles plain input and returns None for all other input, damage included: then the Python
function does the work. Nothing is read beyond the bytes given.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from kvstream.layout._listpack cimport (
    ELEMENT_OVERHEAD,
    Element,
    Room,
    element_size,
    integer_size,
    little_endian,
    put_integer,
    put_text,
    take_element,
    take_integer,
)
from kvstream.layout._msgpack cimport (
    ID_BYTES,
    REPEATED,
    UNIQUE,
    Bytes,
    Cursor,
    big_endian,
    map_head_size,
    pack_map_head,
    pack_string,
    packed_size,
    take_count,
    take_string,
)
from kvstream.layout._rows cimport ROW_HEAD, put_size, split_rows
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Eight bytes in little-endian order, on every machine. */
    static inline uint64_t kvstream_little(const unsigned char *at) {
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        uint64_t number;
        memcpy(&number, at, 8);
        return number;
    #else
        uint64_t number = 0;
        for (int i = 7; i >= 0; i--) number = number << 8 | at[i];
        return number;
    #endif
    }
    /* Eight bytes at a time, up to seven more than asked for; overlaps repeat at 8 and beyond. */
    static inline void kvstream_copy(unsigned char *to, const unsigned char *from, Py_ssize_t size) {
        do {
            uint64_t eight;
            memcpy(&eight, from, 8);
            memcpy(to, &eight, 8);
            to += 8; from += 8; size -= 8;
        } while (size > 0);
    }
    """
    uint64_t load64 "kvstream_little"(Bytes at) noexcept nogil
    void copy_more "kvstream_copy"(Room to, Bytes from_, Py_ssize_t size) noexcept nogil


cdef int64_t NOT_MEASURED = -(<int64_t>1 << 62)

cdef enum:
    HEADER_BYTES = 6
    FRAME_BYTES = 7
    TERMINATOR = 0xFF
    PENDING_BYTES = 24  # a pending entry without its delivery count
    UNCOUNTED = 65535  # the header's count of so many elements or more
    DELETED = 1
    SAME_FIELDS = 2
    FLAGS = 3
    COUNT_MAX = 65535  # pairs of a msgpack map16
    PAIRS_NEAR = 32  # up to so many names are compared pairwise
    DIGITS_MAX = 20  # digits of 64 bits, with the sign
    TABLE_BITS = 14
    TABLE_SIZE = 16384
    DISTANCE_MAX = 8192
    LITERAL_MAX = 32
    COPY_MAX = 264
    COPY_SLACK = 8
    LZF = 0xC3
    NODE_NEAR = 16777216  # larger nodes are read one by one


# --- the checksum ---------------------------------------------------------------------------------


cdef uint64_t SUMS[8][256]  # the CRC of a byte with 0 to 7 zero bytes behind it


cdef void fill_sums() noexcept:
    cdef uint64_t crc
    cdef int byte, i
    for byte in range(256):
        crc = byte
        for i in range(8):
            crc = crc >> 1 ^ (<uint64_t>0x95AC9329AC4BC9B5u if crc & 1 else 0)
        SUMS[0][byte] = crc
    for i in range(1, 8):
        for byte in range(256):
            SUMS[i][byte] = SUMS[0][SUMS[i - 1][byte] & 0xFF] ^ SUMS[i - 1][byte] >> 8


fill_sums()


cdef uint64_t add_to_crc(uint64_t crc, Bytes at, Py_ssize_t size) noexcept nogil:
    while size >= 8:  # eight table lookups that do not depend on each other
        crc ^= load64(at)
        crc = (
            SUMS[7][crc & 0xFF]
            ^ SUMS[6][crc >> 8 & 0xFF]
            ^ SUMS[5][crc >> 16 & 0xFF]
            ^ SUMS[4][crc >> 24 & 0xFF]
            ^ SUMS[3][crc >> 32 & 0xFF]
            ^ SUMS[2][crc >> 40 & 0xFF]
            ^ SUMS[1][crc >> 48 & 0xFF]
            ^ SUMS[0][crc >> 56]
        )
        at += 8
        size -= 8
    while size:
        crc = SUMS[0][(crc ^ at[0]) & 0xFF] ^ crc >> 8
        at += 1
        size -= 1
    return crc


def crc64(const unsigned char[::1] data, uint64_t crc=0):
    """Twin of ``crc64_in_python`` of primitives.py."""
    cdef Py_ssize_t size = data.shape[0]
    if size == 0:
        return crc
    with nogil:
        crc = add_to_crc(crc, &data[0], size)
    return crc


# --- LZF ----------------------------------------------------------------------------------------


cdef bint expand(Bytes at, Bytes end, Room to, Room stop) noexcept nogil:
    """Decompress into a buffer; return False unless the output fills it exactly."""
    cdef Room start = to
    cdef Py_ssize_t control, length, distance
    while at < end:
        control = at[0]
        at += 1
        if control < LITERAL_MAX:
            length = control + 1
            if end - at < length or stop - to < length:
                return False
            if end - at >= length + COPY_SLACK and stop - to >= length + COPY_SLACK:
                copy_more(to, at, length)
            else:
                memcpy(to, at, length)
            at += length
            to += length
            continue
        length = (control >> 5) + 2
        if length == 9:
            if at == end:
                return False
            length += at[0]
            at += 1
        if at == end:
            return False
        distance = ((control & 31) << 8 | at[0]) + 1
        at += 1
        if distance > to - start or stop - to < length:
            return False
        if distance >= COPY_SLACK and stop - to >= length + COPY_SLACK:
            copy_more(to, to - distance, length)
            to += length
        elif distance >= length:
            memcpy(to, to - distance, length)
            to += length
        else:
            while length:
                to[0] = (to - distance)[0]
                to += 1
                length -= 1
    return to == stop


def decompress(bytes data not None, Py_ssize_t size):
    """Twin of ``decompress_in_python`` of lzf.py; None for damage."""
    cdef Bytes at = <Bytes>PyBytes_AS_STRING(data)
    cdef Room to
    if size <= 0:
        return None
    made = PyBytes_FromStringAndSize(NULL, size)
    to = <Room>PyBytes_AS_STRING(made)
    return made if expand(at, at + PyBytes_GET_SIZE(data), to, to + size) else None


cdef inline Room put_literals(Room to, Bytes at, Bytes end) noexcept nogil:
    cdef Py_ssize_t length
    while at < end:
        length = min(end - at, <Py_ssize_t>LITERAL_MAX)
        to[0] = length - 1
        memcpy(to + 1, at, length)
        to += length + 1
        at += length
    return to


cdef inline Room put_copy(Room to, Py_ssize_t offset, Py_ssize_t length) noexcept nogil:
    if length < 7:
        to[0] = length << 5 | offset >> 8
        to += 1
    else:
        to[0] = 7 << 5 | offset >> 8
        to[1] = length - 7
        to += 2
    to[0] = offset & 0xFF
    return to + 1


cdef Room squeeze(Bytes data, Py_ssize_t size, Py_ssize_t *seen, Room to) noexcept nogil:
    """Compress; ``seen`` is a hash table of the offsets of three bytes."""
    cdef Py_ssize_t at = 0, literal = 0, before, length, most
    cdef uint32_t three, slot
    while at + 3 <= size:
        three = <uint32_t>data[at] << 16 | <uint32_t>data[at + 1] << 8 | data[at + 2]
        slot = three * <uint32_t>2654435761u >> 32 - TABLE_BITS
        before = seen[slot]
        seen[slot] = at
        if (
            before < 0
            or at - before > DISTANCE_MAX
            or data[before] != data[at]
            or data[before + 1] != data[at + 1]
            or data[before + 2] != data[at + 2]
        ):
            at += 1
            continue
        length = 3
        most = min(<Py_ssize_t>COPY_MAX, size - at)
        while length < most and data[before + length] == data[at + length]:
            length += 1
        to = put_literals(to, data + literal, data + at)
        to = put_copy(to, at - before - 1, length - 2)
        at += length
        literal = at
    return put_literals(to, data + literal, data + size)


def compress(bytes data not None):
    """Twin of ``compress_in_python`` of lzf.py."""
    cdef Py_ssize_t seen[TABLE_SIZE]
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), room = size + size // LITERAL_MAX + 1
    cdef Room start = <Room>PyMem_Malloc(room)
    if start == NULL:
        raise MemoryError
    memset(seen, 0xFF, sizeof(seen))
    try:
        end = squeeze(<Bytes>PyBytes_AS_STRING(data), size, seen, start)
        return PyBytes_FromStringAndSize(<char *>start, end - start)
    finally:
        PyMem_Free(start)


# --- room that grows -------------------------------------------------------------------------------


cdef struct Growing:
    Room start
    Py_ssize_t used
    Py_ssize_t room
    int64_t elements


cdef int reserve(Growing *to, Py_ssize_t more) except -1:
    """Grow to hold ``more`` further bytes."""
    cdef Room grown
    cdef Py_ssize_t room
    if to.room - to.used >= more:
        return 0
    room = max(2 * to.room, to.used + more)
    grown = <Room>PyMem_Realloc(to.start, room)
    if grown == NULL:
        raise MemoryError
    to.start = grown
    to.room = room
    return 0


# --- elements as stored values --------------------------------------------------------------------


cdef struct Scratch:
    Element *at
    Py_ssize_t room


cdef inline int take_elements(Cursor *from_, Scratch *to, Py_ssize_t count) except -1:
    """Take ``count`` elements; return 0 if there are fewer."""
    cdef Py_ssize_t i
    cdef Element *grown
    if count > (from_.end - from_.at) // 2:
        return 0
    if count > to.room:
        grown = <Element *>PyMem_Realloc(to.at, count * sizeof(Element))
        if grown == NULL:
            raise MemoryError
        to.at = grown
        to.room = count
    for i in range(count):
        if not take_element(from_, &to.at[i]):
            return 0
    return 1


cdef inline Py_ssize_t digits_of(int64_t number) noexcept nogil:
    cdef uint64_t left = <uint64_t>number if number >= 0 else 0 - <uint64_t>number
    cdef Py_ssize_t size = 1 if number >= 0 else 2
    while left >= 10000:
        left //= 10000
        size += 4
    return size + (left >= 10) + (left >= 100) + (left >= 1000)


cdef inline Py_ssize_t text_size(const Element *element) noexcept nogil:
    return digits_of(element.number) if element.data == NULL else element.size


cdef inline Bytes text_of(const Element *element, unsigned char *room) noexcept nogil:
    """Return the string of an element; an integer is formatted into ``room`` of DIGITS_MAX bytes."""
    cdef uint64_t left
    cdef Py_ssize_t at
    if element.data != NULL:
        return element.data
    at = digits_of(element.number)
    left = element.number
    if element.number < 0:
        left = 0 - left
        room[0] = 45
    while True:
        at -= 1
        room[at] = 48 + left % 10
        left //= 10
        if left == 0:
            return room


cdef inline object make_text(const Element *element):
    cdef unsigned char room[DIGITS_MAX]
    cdef Bytes text = text_of(element, room)
    return PyBytes_FromStringAndSize(<const char *>text, text_size(element))


cdef inline bint is_same(const Element *one, const Element *other) noexcept nogil:
    cdef unsigned char room[DIGITS_MAX]
    cdef unsigned char other_room[DIGITS_MAX]
    cdef Py_ssize_t size
    if one.data == NULL and other.data == NULL:
        return one.number == other.number
    size = text_size(one)
    if size != text_size(other):
        return False
    return memcmp(text_of(one, room), text_of(other, other_room), size) == 0


cdef bint is_distinct(const Element *names, Py_ssize_t count, Py_ssize_t step):
    """Tell whether names, ``step`` elements apart, are all different."""
    cdef Py_ssize_t i, j
    if count > PAIRS_NEAR:
        return len({make_text(&names[i * step]) for i in range(count)}) == count
    for i in range(1, count):
        for j in range(i):
            if is_same(&names[i * step], &names[j * step]):
                return False
    return True


cdef inline Room pack_element(Room to, const Element *element) noexcept nogil:
    cdef unsigned char room[DIGITS_MAX]
    return pack_string(to, text_of(element, room), text_size(element))


cdef inline Room pack_head(Room to, bint distinct, Py_ssize_t count) noexcept nogil:
    """Write the head of a stored value with ``count`` fields."""
    if distinct:
        to[0] = UNIQUE
        return pack_map_head(to + 1, count)
    to[0] = REPEATED
    if count < 8:
        to[1] = 0x90 | 2 * count
        return to + 2
    to[1] = 0xDC
    to[2] = 2 * count >> 8
    to[3] = 2 * count & 0xFF
    return to + 4


cdef inline Py_ssize_t head_size(bint distinct, Py_ssize_t count) noexcept nogil:
    return 1 + (map_head_size(count) if distinct else 1 if count < 8 else 3)


# --- a node's listpack as IDs and stored values ---------------------------------------------------


cdef struct Master:
    uint64_t ms
    uint64_t seq
    int64_t living
    int64_t deleted
    int64_t count  # of its fields


cdef inline bint take_master(Bytes data, Py_ssize_t size, Cursor *from_, Master *to) noexcept nogil:
    if size < FRAME_BYTES or little_endian(data, 4) != <uint64_t>size:
        return False
    if data[size - 1] != TERMINATOR:
        return False
    from_.at = data + HEADER_BYTES
    from_.end = data + size - 1
    if not (
        take_integer(from_, &to.living)
        and take_integer(from_, &to.deleted)
        and take_integer(from_, &to.count)
    ):
        return False
    return 0 <= to.living <= size and 0 <= to.deleted <= size and 0 <= to.count <= COUNT_MAX


cdef struct Entry:
    bint dead
    bint same
    uint64_t ms
    uint64_t seq
    Py_ssize_t count  # of its fields


cdef inline int take_entry(
    Cursor *from_, Scratch *scratch, const Master *master, Entry *to, int64_t *elements
) except -1:
    """Take an entry, its elements into the scratch; return 0 if it is not plain."""
    cdef int64_t flags = 0, ms = 0, seq = 0, count = master.count, declared = 0
    cdef Py_ssize_t parts
    if not (
        take_integer(from_, &flags) and take_integer(from_, &ms) and take_integer(from_, &seq)
    ):
        return 0
    if flags & ~FLAGS:
        return 0
    to.dead = (flags & DELETED) != 0
    to.same = (flags & SAME_FIELDS) != 0
    if not to.same and not take_integer(from_, &count):
        return 0
    if count <= 0 or count > COUNT_MAX // 2:
        return 0
    parts = count if to.same else 2 * count
    if not take_elements(from_, scratch, parts) or not take_integer(from_, &declared):
        return 0
    if declared != parts + (3 if to.same else 4):
        return 0
    elements[0] += declared + 1
    to.ms = master.ms + <uint64_t>ms
    to.seq = master.seq + <uint64_t>seq
    to.count = count
    return 1


cdef inline void put_id(Room at, uint64_t ms, uint64_t seq) noexcept nogil:
    cdef int i
    for i in range(7, -1, -1):
        at[i] = ms & 0xFF
        at[8 + i] = seq & 0xFF
        ms >>= 8
        seq >>= 8


cdef inline object make_id(uint64_t ms, uint64_t seq):
    cdef object made = PyBytes_FromStringAndSize(NULL, ID_BYTES)
    put_id(<Room>PyBytes_AS_STRING(made), ms, seq)
    return made


cdef inline Py_ssize_t measured(const Element *element) noexcept nogil:
    """Return the bytes that an element takes as Redis encodes it."""
    if element.data == NULL:
        return integer_size(element.number)
    return element_size(element.data, element.size)


cdef class Names:
    """The field names of a node, in the forms in which its entries need them.

    They are kept from node to node, since most have those of the one before.
    """

    cdef tuple names
    cdef bint distinct
    cdef Growing raw  # elements of a listpack
    cdef Growing packed  # strings of msgpack
    cdef Scratch elements  # in ``raw``
    cdef Py_ssize_t *ends  # of the strings
    cdef Py_ssize_t count
    cdef Py_ssize_t measure  # bytes of a node with these names, less its counters

    def __cinit__(self):
        self.names = ()
        self.distinct = True

    def __dealloc__(self):
        PyMem_Free(self.raw.start)
        PyMem_Free(self.packed.start)
        PyMem_Free(self.elements.at)
        PyMem_Free(self.ends)

    cdef int take(self, Cursor *from_, Py_ssize_t count, Scratch *scratch) except -1:
        """Take ``count`` names; return 0 if there are fewer."""
        cdef Bytes start = from_.at
        cdef Py_ssize_t i, size
        cdef Cursor own
        cdef Room at
        cdef list texts
        size = self.raw.used
        if (
            count == self.count
            and count > 0
            and from_.end - start >= size
            and memcmp(start, self.raw.start, size) == 0
        ):
            from_.at = start + size
            return 1
        if not take_elements(from_, scratch, count):
            return 0
        self.count = 0
        size = from_.at - start
        self.raw.used = self.packed.used = 0
        reserve(&self.raw, size + 1)
        memcpy(self.raw.start, start, size)
        self.raw.used = size
        own.at = self.raw.start
        own.end = own.at + size
        take_elements(&own, &self.elements, count)
        PyMem_Free(self.ends)
        self.ends = <Py_ssize_t *>PyMem_Malloc((count + 1) * sizeof(Py_ssize_t))
        if self.ends == NULL:
            raise MemoryError
        texts = []
        self.measure = HEADER_BYTES + 1 + integer_size(count) + integer_size(0)
        for i in range(count):
            texts.append(make_text(&self.elements.at[i]))
            self.measure += measured(&self.elements.at[i])
            reserve(&self.packed, text_size(&self.elements.at[i]) + ELEMENT_OVERHEAD)
            at = pack_element(self.packed.start + self.packed.used, &self.elements.at[i])
            self.ends[i] = self.packed.used = at - self.packed.start
        self.names = tuple(texts)
        self.distinct = is_distinct(self.elements.at, count, 1)
        self.count = count
        return 1

    cdef bint are(self, const Element *parts, Py_ssize_t count):
        """Tell whether the names of an entry are these."""
        cdef Py_ssize_t i
        if count != self.count:
            return False
        for i in range(count):
            if not is_same(&parts[2 * i], &self.elements.at[i]):
                return False
        return True


cdef Py_ssize_t room_for(const Element *parts, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i, size = 0
    for i in range(count):
        size += (DIGITS_MAX if parts[i].data == NULL else parts[i].size) + ELEMENT_OVERHEAD
    return size


cdef Py_ssize_t put_same(Growing *to, const Element *values, Names names) except -1:
    """Write the stored value of an entry with the names of its node; return its measure."""
    cdef Py_ssize_t count = names.count, i, start = 0, size, total
    cdef Bytes packed = names.packed.start
    cdef Room at
    reserve(to, names.packed.used + room_for(values, count) + ELEMENT_OVERHEAD)
    at = pack_head(to.start + to.used, names.distinct, count)
    total = 2 + integer_size(count + 3)
    for i in range(count):
        size = names.ends[i] - start
        memcpy(at, packed + start, size)
        at = pack_element(at + size, &values[i])
        start += size
        total += measured(&values[i])
    to.used = at - to.start
    return total


cdef Py_ssize_t put_own(Growing *to, const Element *parts, Py_ssize_t count, Names names) except -1:
    """Write the stored value of an entry with names of its own; return its measure."""
    cdef bint distinct = is_distinct(parts, count, 2)
    cdef bint same = names.are(parts, count)
    cdef Py_ssize_t i, total
    cdef Room at
    reserve(to, room_for(parts, 2 * count) + ELEMENT_OVERHEAD)
    at = pack_head(to.start + to.used, distinct, count)
    if same:
        total = 2 + integer_size(count + 3)
    else:
        total = 2 + integer_size(count) + integer_size(2 * count + 4)
    for i in range(2 * count):
        at = pack_element(at, &parts[i])
        if i & 1 or not same:
            total += measured(&parts[i])
    to.used = at - to.start
    return total


cdef struct Taken:
    Growing rows  # packed rows as in layout/columns.py
    Py_ssize_t count
    Py_ssize_t bytes_  # of the values
    int64_t measure  # bytes of the listpack without deleted entries and the counters
    int64_t declared
    int64_t appended
    uint64_t first_ms
    uint64_t first_seq
    uint64_t last_ms
    uint64_t last_seq
    uint64_t end_ms
    uint64_t end_seq


cdef int take_node(
    Bytes key, Bytes data, Py_ssize_t size, Py_ssize_t most, Py_ssize_t entry_most,
    Scratch *scratch, Names names, Taken *to,
) except -1:
    """Take all entries of a listpack and append them as rows; return 0 if one is not plain."""
    cdef Py_ssize_t at, length
    cdef int64_t zero = 1, elements, declared, i
    cdef bint below
    cdef Cursor cursor
    cdef Master master
    cdef Entry entry
    if not take_master(data, size, &cursor, &master):
        return 0
    master.ms = to.last_ms = to.end_ms = big_endian(key)
    master.seq = to.last_seq = to.end_seq = big_endian(key + 8)
    to.count = to.bytes_ = 0
    to.declared, to.appended = master.living, master.living + master.deleted
    if not names.take(&cursor, master.count, scratch):
        return 0
    if not take_integer(&cursor, &zero) or zero != 0:
        return 0
    elements = 4 + master.count
    to.measure = names.measure
    for i in range(to.appended):
        if not take_entry(&cursor, scratch, &master, &entry, &elements):
            return 0
        below = entry.ms < to.last_ms or (entry.ms == to.last_ms and entry.seq < to.last_seq)
        if entry.dead:
            if below:
                to.end_ms, to.end_seq = to.last_ms, to.last_seq
            else:
                to.end_ms, to.end_seq = entry.ms, entry.seq
            continue
        if below or (entry.ms == to.last_ms and entry.seq == to.last_seq and to.count > 0):
            return 0
        to.last_ms = to.end_ms = entry.ms
        to.last_seq = to.end_seq = entry.seq
        reserve(&to.rows, ROW_HEAD)
        at = to.rows.used
        to.rows.used += ROW_HEAD
        if entry.same:
            length = put_same(&to.rows, scratch.at, names)
        else:
            length = put_own(&to.rows, scratch.at, entry.count, names)
            if to.count == 0 and entry.ms == master.ms and entry.seq == master.seq:
                if not names.are(scratch.at, entry.count):
                    to.measure = NOT_MEASURED
        to.measure += length
        to.measure += integer_size(<int64_t>(entry.ms - master.ms))
        to.measure += integer_size(<int64_t>(entry.seq - master.seq))
        length = to.rows.used - at - ROW_HEAD
        to.bytes_ += length
        if length > entry_most or to.bytes_ > most:
            return 0
        put_id(to.rows.start + at, entry.ms, entry.seq)
        put_size(to.rows.start + at + ID_BYTES, length)
        if to.count == 0:
            to.first_ms, to.first_seq = entry.ms, entry.seq
        to.count += 1
    declared = little_endian(data + 4, 2)
    return cursor.at == cursor.end and (declared == elements or declared == UNCOUNTED)


def decode_node(
    bytes key not None, bytes listpack not None, Py_ssize_t most, Py_ssize_t entry_most
):
    """Twin of ``decode_in_python`` of nodes.py.

    Returns None also for values of more than ``most`` bytes together, or one above ``entry_most``.
    """
    cdef Scratch scratch
    cdef Taken taken
    cdef Names names = Names()
    cdef list ids = [], values = []
    if PyBytes_GET_SIZE(key) != ID_BYTES:
        return None
    memset(&scratch, 0, sizeof(scratch))
    memset(&taken, 0, sizeof(taken))
    try:
        if not take_node(
            <Bytes>PyBytes_AS_STRING(key),
            <Bytes>PyBytes_AS_STRING(listpack),
            PyBytes_GET_SIZE(listpack),
            most,
            entry_most,
            &scratch,
            names,
            &taken,
        ):
            return None
        split_rows(taken.rows.start, taken.rows.used, ids, values)
        return (
            names.names,
            ids,
            values,
            taken.appended,
            make_id(taken.end_ms, taken.end_seq),
            taken.declared,
        )
    finally:
        PyMem_Free(scratch.at)
        PyMem_Free(taken.rows.start)


# --- nodes as a file has them ---------------------------------------------------------------------


cdef inline bint take_length(Cursor *from_, Py_ssize_t *length) noexcept nogil:
    """Take the length of a plain STRING; return False for any other."""
    cdef Py_ssize_t left = from_.end - from_.at
    cdef unsigned char head
    if left < 5:
        return False
    head = from_.at[0]
    if head < 0x40:
        length[0] = head
        from_.at += 1
    elif head < 0x80:
        length[0] = (<Py_ssize_t>head & 0x3F) << 8 | from_.at[1]
        from_.at += 2
    elif head == 0x80:
        length[0] = (
            <Py_ssize_t>from_.at[1] << 24
            | <Py_ssize_t>from_.at[2] << 16
            | <Py_ssize_t>from_.at[3] << 8
            | from_.at[4]
        )
        from_.at += 5
    else:
        return False
    return True


cdef int take_listpack(
    Cursor *from_, Growing *room, Py_ssize_t ratio, Bytes *data, Py_ssize_t *size
) except -1:
    """Take the STRING of a listpack, decompressed into ``room``; return 0 if it is not plain."""
    cdef Py_ssize_t compressed = 0
    if from_.end - from_.at < 1:
        return 0
    if from_.at[0] != LZF:
        if not take_length(from_, size) or size[0] > from_.end - from_.at:
            return 0
        data[0] = from_.at
        from_.at += size[0]
        return 1
    from_.at += 1
    if not take_length(from_, &compressed) or not take_length(from_, size):
        return 0
    if compressed > from_.end - from_.at or size[0] > compressed * ratio:
        return 0
    if size[0] == 0 or size[0] > NODE_NEAR:
        return 0
    room.used = 0
    reserve(room, size[0])
    if not expand(from_.at, from_.at + compressed, room.start, room.start + size[0]):
        return 0
    from_.at += compressed
    data[0] = room.start
    return 1


def read_nodes(
    bytes buffer not None,
    Py_ssize_t start,
    Py_ssize_t stop,
    Py_ssize_t most,
    bytes last not None,
    tuple limits not None,
    Names names not None,
):
    """Read up to ``most`` whole and plain nodes above ``last``.

    Returns their bytes, and the arguments of a PackedNode for each. ``limits`` are ``_LIMITS`` of
    nodes.py.
    """
    cdef Py_ssize_t ratio, growth, free, entry_most, batch, size = 0, used = 0
    cdef Bytes first = <Bytes>PyBytes_AS_STRING(buffer) + start, data = NULL, key
    cdef unsigned char before[ID_BYTES]
    cdef bint follows = PyBytes_GET_SIZE(last) == ID_BYTES
    cdef Scratch scratch
    cdef Growing room
    cdef Taken taken
    cdef Cursor cursor
    cdef list found = []
    ratio, growth, free, entry_most, batch = limits
    if start < 0 or stop > PyBytes_GET_SIZE(buffer) or start > stop:
        return 0, found
    memset(&scratch, 0, sizeof(scratch))
    memset(&room, 0, sizeof(room))
    memset(&taken, 0, sizeof(taken))
    if follows:
        memcpy(before, PyBytes_AS_STRING(last), ID_BYTES)
    cursor.at = first
    cursor.end = <Bytes>PyBytes_AS_STRING(buffer) + stop
    try:
        while PyList_GET_SIZE(found) < most and batch > 0:
            if cursor.end - cursor.at <= ID_BYTES or cursor.at[0] != ID_BYTES:
                break
            key = cursor.at + 1
            cursor.at += 1 + ID_BYTES
            if follows and memcmp(key, before, ID_BYTES) <= 0:
                break
            if not take_listpack(&cursor, &room, ratio, &data, &size):
                break
            taken.rows.used = 0
            if not take_node(
                key, data, size, max(free, growth * size), entry_most, &scratch, names, &taken
            ):
                break
            if taken.count == 0 or taken.count != taken.declared:
                break
            found.append(
                (
                    PyBytes_FromStringAndSize(<const char *>key, ID_BYTES),
                    names.names,
                    taken.appended,
                    size,
                    make_id(taken.end_ms, taken.end_seq),
                    PyBytes_FromStringAndSize(<const char *>taken.rows.start, taken.rows.used),
                    taken.count,
                    taken.bytes_,
                    max(taken.measure, <int64_t>-1),
                    make_id(taken.first_ms, taken.first_seq),
                    make_id(taken.last_ms, taken.last_seq),
                )
            )
            put_id(before, taken.last_ms, taken.last_seq)
            follows = True
            batch -= taken.rows.used
            used = cursor.at - first
        return used, found
    finally:
        PyMem_Free(scratch.at)
        PyMem_Free(room.start)
        PyMem_Free(taken.rows.start)


# --- IDs and stored values as a node's listpack ---------------------------------------------------


cdef int put_master(Growing *to, tuple names, Py_ssize_t living) except -1:
    """Write room for the header, and the master entry; return 0 if a name is not bytes."""
    cdef Py_ssize_t i, count = PyTuple_GET_SIZE(names)
    cdef object name
    cdef Room at
    reserve(to, HEADER_BYTES + 4 * ELEMENT_OVERHEAD)
    at = put_integer(to.start + HEADER_BYTES, living)
    at = put_integer(put_integer(at, 0), count)
    to.used = at - to.start
    for i in range(count):
        name = <object>PyTuple_GET_ITEM(names, i)
        if type(name) is not bytes:
            return 0
        reserve(to, PyBytes_GET_SIZE(name) + 2 * ELEMENT_OVERHEAD)
        at = put_text(
            to.start + to.used, <Bytes>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
        )
        to.used = at - to.start
    to.used = put_integer(to.start + to.used, 0) - to.start
    to.elements = 4 + count
    return 1


cdef bint has_names(Cursor cursor, Py_ssize_t count, tuple names) noexcept:
    """Tell whether the next fields have these names."""
    cdef Bytes data = NULL
    cdef Py_ssize_t size = 0, i
    cdef object name
    if count != PyTuple_GET_SIZE(names):
        return False
    for i in range(count):
        name = <object>PyTuple_GET_ITEM(names, i)
        if not take_string(&cursor, &data, &size) or size != PyBytes_GET_SIZE(name):
            return False
        if memcmp(PyBytes_AS_STRING(name), data, size) or not take_string(&cursor, &data, &size):
            return False
    return True


cdef int put_entry(Growing *to, bytes value, tuple names, int64_t ms, int64_t seq) except -1:
    """Write an entry from a stored value; return 0 if it is not plain."""
    cdef Bytes data = NULL
    cdef Py_ssize_t size = 0, count, i
    cdef bint same
    cdef Cursor cursor
    cdef Room at
    cursor.at = <Bytes>PyBytes_AS_STRING(value)
    cursor.end = cursor.at + PyBytes_GET_SIZE(value)
    count = take_count(&cursor)
    if count <= 0:
        return 0
    same = has_names(cursor, count, names)
    reserve(to, PyBytes_GET_SIZE(value) + (2 * count + 6) * ELEMENT_OVERHEAD)
    at = put_integer(to.start + to.used, SAME_FIELDS if same else 0)
    at = put_integer(put_integer(at, ms), seq)
    if not same:
        at = put_integer(at, count)
    for i in range(2 * count):
        if not take_string(&cursor, &data, &size):
            return 0
        if i & 1 or not same:
            at = put_text(at, data, size)
    if cursor.at != cursor.end:
        return 0
    i = count + 3 if same else 2 * count + 4
    at = put_integer(at, i)
    to.used = at - to.start
    to.elements += i + 1
    return 1


cdef object finish(Growing *to):
    """Return the listpack that was written."""
    cdef int64_t count = min(to.elements, <int64_t>UNCOUNTED)
    cdef int i
    reserve(to, 1)
    to.start[to.used] = TERMINATOR
    to.used += 1
    for i in range(4):
        to.start[i] = (to.used >> 8 * i) & 0xFF
    to.start[4] = count & 0xFF
    to.start[5] = count >> 8
    return PyBytes_FromStringAndSize(<char *>to.start, to.used)


cdef object encode(bytes key, tuple names, list ids, list values, Growing *to):
    cdef Py_ssize_t count = PyList_GET_SIZE(ids), i
    cdef Bytes first = <Bytes>PyBytes_AS_STRING(key), last = first, at
    cdef object eid, value
    cdef int order
    if PyBytes_GET_SIZE(key) != ID_BYTES or count == 0 or count != PyList_GET_SIZE(values):
        return None
    if not put_master(to, names, count):
        return None
    for i in range(count):
        eid = <object>PyList_GET_ITEM(ids, i)
        value = <object>PyList_GET_ITEM(values, i)
        if type(eid) is not bytes or type(value) is not bytes or PyBytes_GET_SIZE(eid) != ID_BYTES:
            return None
        at = <Bytes>PyBytes_AS_STRING(eid)
        order = memcmp(last, at, ID_BYTES)
        if order > 0 or (order == 0 and i > 0):
            return None
        last = at
        if not put_entry(
            to,
            value,
            names,
            <int64_t>(big_endian(at) - big_endian(first)),
            <int64_t>(big_endian(at + 8) - big_endian(first + 8)),
        ):
            return None
    return finish(to)


def encode_node(bytes key not None, tuple names not None, list ids not None, list values not None):
    """Twin of ``encode_in_python`` of nodes.py."""
    cdef Growing to
    to.start = NULL
    to.used = to.room = to.elements = 0
    try:
        return encode(key, names, ids, values, &to)
    finally:
        PyMem_Free(to.start)


# --- pending entries ------------------------------------------------------------------------------


cdef struct Delivery:
    uint64_t deliveries
    Py_ssize_t size  # of the whole record


cdef inline bint take_delivery(Bytes at, Bytes end, Delivery *to) noexcept nogil:
    """Parse a pending entry; return False if it is not whole or not plain."""
    cdef Py_ssize_t left = end - at - PENDING_BYTES
    cdef unsigned char head
    if left < 1:
        return False
    at += PENDING_BYTES
    head = at[0]
    if head < 0x40:
        to.deliveries = head
        to.size = PENDING_BYTES + 1
    elif head < 0x80 and left >= 2:
        to.deliveries = (<uint64_t>head & 0x3F) << 8 | at[1]
        to.size = PENDING_BYTES + 2
    elif head == 0x80 and left >= 5:
        to.deliveries = <uint64_t>at[1] << 24 | <uint64_t>at[2] << 16 | <uint64_t>at[3] << 8 | at[4]
        to.size = PENDING_BYTES + 5
    elif head == 0x81 and left >= 9:
        to.deliveries = big_endian(at + 1)
        to.size = PENDING_BYTES + 9
    else:
        return False
    return True


def decode_pending(bytes data not None, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t most):
    """Return IDs, times and counts of the next whole entries, and their size."""
    cdef Bytes first = <Bytes>PyBytes_AS_STRING(data) + start, at = first
    cdef Bytes end = <Bytes>PyBytes_AS_STRING(data) + stop
    cdef Py_ssize_t room = min(most, (stop - start) // (PENDING_BYTES + 1)), count = 0
    cdef Delivery delivery
    cdef Room ids
    cdef int64_t *times
    cdef uint64_t *deliveries
    if room <= 0 or start < 0 or stop > PyBytes_GET_SIZE(data):
        return None
    ids_made = PyBytes_FromStringAndSize(NULL, room * ID_BYTES)
    times_made = PyBytes_FromStringAndSize(NULL, room * 8)
    deliveries_made = PyBytes_FromStringAndSize(NULL, room * 8)
    ids = <Room>PyBytes_AS_STRING(ids_made)
    times = <int64_t *>PyBytes_AS_STRING(times_made)
    deliveries = <uint64_t *>PyBytes_AS_STRING(deliveries_made)
    while count < room and take_delivery(at, end, &delivery):
        memcpy(ids + count * ID_BYTES, at, ID_BYTES)
        times[count] = <int64_t>little_endian(at + ID_BYTES, 8)
        deliveries[count] = delivery.deliveries
        count += 1
        at += delivery.size
    if count == 0:
        return None
    return (
        ids_made[: count * ID_BYTES],
        times_made[: count * 8],
        deliveries_made[: count * 8],
        at - first,
    )


cdef inline Room put_length(Room to, uint64_t number) noexcept nogil:
    cdef Py_ssize_t width, i
    if number < 64:
        to[0] = number
        return to + 1
    if number < 16384:
        to[0] = 0x40 | number >> 8
        to[1] = number & 0xFF
        return to + 2
    width = 4 if number <= 0xFFFFFFFFu else 8
    to[0] = 0x80 if width == 4 else 0x81
    for i in range(width, 0, -1):
        to[i] = number & 0xFF
        number >>= 8
    return to + width + 1


def encode_pending(bytes ids not None, int64_t[::1] times, uint64_t[::1] deliveries):
    """Twin of ``encode_columns_in_python`` of streams.py."""
    cdef Py_ssize_t count = times.shape[0], i, j
    cdef Bytes from_ = <Bytes>PyBytes_AS_STRING(ids)
    cdef Room start, at
    if PyBytes_GET_SIZE(ids) != count * ID_BYTES or deliveries.shape[0] != count:
        raise ValueError("columns differ in length")
    start = at = <Room>PyMem_Malloc(count * (PENDING_BYTES + 9) + 1)
    if start == NULL:
        raise MemoryError
    for i in range(count):
        memcpy(at, from_ + i * ID_BYTES, ID_BYTES)
        for j in range(8):
            at[ID_BYTES + j] = <uint64_t>times[i] >> 8 * j & 0xFF
        at = put_length(at + PENDING_BYTES, deliveries[i])
    try:
        return PyBytes_FromStringAndSize(<char *>start, at - start)
    finally:
        PyMem_Free(start)


def find_ids(ids, bytes wanted not None):
    """Twin of ``find_ids_in_python`` of streams.py."""
    cdef const unsigned char[::1] view = ids
    cdef Py_ssize_t total = view.shape[0] // ID_BYTES, count = PyBytes_GET_SIZE(wanted) // ID_BYTES
    cdef Py_ssize_t i, low = 0, high, middle, step
    cdef Bytes first = &view[0] if total else NULL
    cdef Bytes eid = <Bytes>PyBytes_AS_STRING(wanted)
    made = PyBytes_FromStringAndSize(NULL, count * 8)
    cdef int64_t *places = <int64_t *>PyBytes_AS_STRING(made)
    for i in range(count):
        step = 1  # the next ID is mostly near
        high = low
        while high < total and memcmp(first + high * ID_BYTES, eid, ID_BYTES) < 0:
            low = high + 1
            high += step
            step *= 2
        high = min(high, total)
        while low < high:
            middle = (low + high) // 2
            if memcmp(first + middle * ID_BYTES, eid, ID_BYTES) < 0:
                low = middle + 1
            else:
                high = middle
        if low == total or memcmp(first + low * ID_BYTES, eid, ID_BYTES) != 0:
            return None
        places[i] = low
        low += 1
        eid += ID_BYTES
    return made
