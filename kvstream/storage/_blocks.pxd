"""Blocks of RocksDB's tables, for the compiled modules: their sums, and numbers of any alignment.

The grammar is in _tables.pyx. Numbers are little-endian.
"""

from kvstream.layout._msgpack cimport Bytes
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

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
    static inline unsigned long long kvstream_swapped(const void *at) {
        return __builtin_bswap64(kvstream_u64(at));
    }
    static inline unsigned long long kvstream_rotate(unsigned long long number, int by) {
        return number << by | number >> (64 - by);
    }
    static inline int kvstream_zeros(unsigned long long number) {
        return __builtin_ctzll(number);
    }
    static const unsigned long long kvstream_p1 = 0x9E3779B185EBCA87u, kvstream_p2 = 0xC2B2AE3D27D4EB4Fu,
        kvstream_p3 = 0x165667B19E3779F9u, kvstream_p4 = 0x85EBCA77C2B2AE63u,
        kvstream_p5 = 0x27D4EB2F165667C5u;
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "written for little-endian machines: without it RocksDB's own writer does the work"
    #endif
    """
    uint64_t load64 "kvstream_u64"(const void *at) noexcept nogil
    uint32_t load32 "kvstream_u32"(const void *at) noexcept nogil
    uint64_t big64 "kvstream_swapped"(const void *at) noexcept nogil
    uint64_t rotate "kvstream_rotate"(uint64_t number, int by) noexcept nogil
    int zeros "kvstream_zeros"(uint64_t number) noexcept nogil
    const uint64_t P1 "kvstream_p1"
    const uint64_t P2 "kvstream_p2"
    const uint64_t P3 "kvstream_p3"
    const uint64_t P4 "kvstream_p4"
    const uint64_t P5 "kvstream_p5"

cdef enum:
    TRAILER = 5  # the kind of compression, and the sum
    KEY_TAIL = 8
    RESTART_ROWS = 16
    NOT_COMPRESSED = 0
    LZ4 = 4
    MATCH_MIN = 4
    STEP = 16  # bytes that are copied at once
    LZ4_MAX = 0x7E000000


# --- XXH64 ----------------------------------------------------------------------------------------


cdef inline uint64_t mixed(uint64_t lane, uint64_t given) noexcept nogil:
    return rotate(lane + given * P2, 31) * P1


cdef inline uint64_t merged(uint64_t sum_, uint64_t lane) noexcept nogil:
    return (sum_ ^ mixed(0, lane)) * P1 + P4


cdef inline uint64_t xxh64(Bytes at, Py_ssize_t size) noexcept nogil:
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


# --- what is read of blocks ------------------------------------------------------------------------


cdef inline bint take_varint(Bytes *at, Bytes end, Py_ssize_t *number) noexcept nogil:
    """Take a number below 2**35; False where there is none."""
    cdef int shift = 0
    number[0] = 0
    while at[0] < end and shift < 35:
        number[0] |= <Py_ssize_t>(at[0][0] & 127) << shift
        at[0] += 1
        if (at[0] - 1)[0] < 128:
            return True
        shift += 7
    return False


cdef inline bint take_more(Bytes *at, Bytes end, Py_ssize_t *count) noexcept nogil:
    """Add the bytes that go on with a length of 15."""
    while at[0] < end:
        count[0] += at[0][0]
        at[0] += 1
        if (at[0] - 1)[0] != 255:
            return True
    return False


cdef inline void copy(Room to, Bytes from_, Py_ssize_t count) noexcept nogil:
    """Copy so many bytes at a time as a STEP has, and more than were asked for, less than that."""
    cdef Room end = to + count
    while to < end:
        memcpy(to, from_, STEP)
        to += STEP
        from_ += STEP


cdef inline bint expand(Bytes at, Bytes end, Room to, Py_ssize_t room) noexcept nogil:
    """Write what an LZ4 block holds, exactly as many bytes as there is room for."""
    cdef Room out = to, stop = to + room
    cdef Py_ssize_t count, distance, step
    cdef unsigned char token
    while at < end:
        token = at[0]
        at += 1
        count = token >> 4
        if count == 15 and not take_more(&at, end, &count):
            return False
        if end - at < count or stop - out < count:
            return False
        if end - at >= count + STEP and stop - out >= count + STEP:
            copy(out, at, count)
        else:
            memcpy(out, at, count)
        out += count
        at += count
        if at == end:
            return out == stop
        if end - at < 2:
            return False
        distance = at[0] | <Py_ssize_t>at[1] << 8
        at += 2
        count = token & 15
        if count == 15 and not take_more(&at, end, &count):
            return False
        count += MATCH_MIN
        if distance == 0 or distance > out - to or stop - out < count:
            return False
        if distance >= STEP and stop - out >= count + STEP:
            copy(out, out - distance, count)
            out += count
            continue
        while count:  # what was copied may be copied on
            step = min(distance, count)
            memcpy(out, out - distance, step)
            out += step
            count -= step
    return False
