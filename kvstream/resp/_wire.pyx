# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of what every request and every entry of a reply goes through.

Each takes the plain case alone and leaves all else, damage included, to the Python twin: the
reading of requests stops there, the writing of entries returns None. Nothing is read beyond the
bytes given. What is written has been measured, or has room for the most that it may take.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from kvstream.layout._msgpack cimport (
    ID_BYTES,
    UNIQUE,
    Bytes,
    Cursor,
    big_endian,
    take_count,
    take_row,
    take_string,
)
from kvstream.resp._requests cimport take_number
from libc.stdint cimport UINT32_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from kvstream.commands.replies import Entries, Map, Simple, StoredEntry, Streams
from kvstream.layout.rows import Rows, EncodedEntries
from kvstream.types.records import RepeatedFields


ctypedef unsigned char *Buffer

cdef enum:
    PAIRS_NEAR = 16  # so many names are compared with each other
    NUMBER_MAX = 20  # digits of 64 bits
    RESP3 = 3
    STRING_HEADS = 24  # mark, digits and ends of a string
    ROW_HEADS = 96  # those of an entry, of its fields, and its ID
    FIRST_ROOM = 32768

cdef int64_t COUNT_MAX = 2147483647


# --- requests -----------------------------------------------------------------------------------


cpdef tuple take_plain(
    bytes data, Py_ssize_t at, list requests, list args, int64_t left, int64_t bulk_max
):
    """Do the same as ``take_plain`` of requests.py; each has its own limits of a plain request."""
    cdef Bytes start = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), here
    cdef int64_t number
    if at < 0:
        return at, args, left
    while True:
        while left > 0:
            here = at + 1
            if at >= size or start[at] != 36:  # $
                return at, args, left
            number = take_number(start, &here, size)
            if number < 0 or number > bulk_max or size - here < number + 2:
                return at, args, left
            args.append(PyBytes_FromStringAndSize(<const char *>start + here, number))
            at = here + number + 2
            left -= 1
        if args:
            requests.append(args)
            args = []
        here = at + 1
        if at >= size or start[at] != 42:  # *
            return at, args, left
        number = take_number(start, &here, size)
        if number <= 0 or number > COUNT_MAX:
            return at, args, left
        left, at = number, here


# --- writing ------------------------------------------------------------------------------------


cdef inline int digits_of(uint64_t number) noexcept nogil:
    cdef int digits = 1
    while number >= 10000:
        number //= 10000
        digits += 4
    return digits + (number >= 10) + (number >= 100) + (number >= 1000)


cdef inline Buffer put_number(Buffer at, uint64_t number, int digits) noexcept nogil:
    cdef Buffer here = at + digits
    while True:
        here -= 1
        here[0] = 48 + number % 10
        number //= 10
        if number == 0:
            return at + digits


cdef inline Buffer put_end(Buffer at) noexcept nogil:
    at[0] = 13
    at[1] = 10
    return at + 2


cdef inline Buffer put_head(Buffer at, unsigned char mark, uint64_t number) noexcept nogil:
    at[0] = mark
    return put_end(put_number(at + 1, number, digits_of(number)))


cdef inline Py_ssize_t head_size(uint64_t number) noexcept nogil:
    return 3 + digits_of(number)


cdef inline Py_ssize_t string_size(Py_ssize_t size) noexcept nogil:
    return head_size(size) + size + 2


cdef inline Buffer put_string(Buffer at, const void *data, Py_ssize_t size) noexcept nogil:
    at = put_head(at, 36, size)
    memcpy(at, data, size)
    return put_end(at + size)


cdef inline Py_ssize_t id_size(uint64_t ms, uint64_t seq) noexcept nogil:
    return string_size(digits_of(ms) + 1 + digits_of(seq))


cdef inline Buffer put_id(Buffer at, uint64_t ms, uint64_t seq) noexcept nogil:
    cdef int before = digits_of(ms), after = digits_of(seq)
    at = put_head(at, 36, before + 1 + after)
    at = put_number(at, ms, before)
    at[0] = 45
    return put_end(put_number(at + 1, seq, after))


cdef inline bint take_id(object eid, uint64_t *ms, uint64_t *seq) except -1:
    if not isinstance(eid, tuple) or PyTuple_GET_SIZE(eid) != 2:
        return False
    ms[0] = <object>PyTuple_GET_ITEM(eid, 0)
    seq[0] = <object>PyTuple_GET_ITEM(eid, 1)
    return True


cpdef bytes encode_ids(list ids, Py_ssize_t start, Py_ssize_t stop):
    """Return the IDs of ``start <= index < stop`` as bulk strings, one behind the other."""
    cdef Py_ssize_t total = 0, i
    cdef uint64_t ms = 0, seq = 0
    cdef Buffer to
    if not 0 <= start <= stop <= PyList_GET_SIZE(ids):
        raise IndexError("no such IDs")
    for i in range(start, stop):
        if not take_id(<object>PyList_GET_ITEM(ids, i), &ms, &seq):
            raise TypeError("an ID is a pair of numbers")
        total += id_size(ms, seq)
    made = PyBytes_FromStringAndSize(NULL, total)
    to = <Buffer>PyBytes_AS_STRING(made)
    for i in range(start, stop):
        take_id(<object>PyList_GET_ITEM(ids, i), &ms, &seq)
        to = put_id(to, ms, seq)
    return made


def encode_alike(list ids not None, bytes head not None, bytes tail not None):
    """Return for each packed ID the head, the ID as a bulk string, and the tail; else None."""
    cdef Py_ssize_t total = 0, count = PyList_GET_SIZE(ids), i
    cdef Py_ssize_t before = PyBytes_GET_SIZE(head), behind = PyBytes_GET_SIZE(tail)
    cdef object eid
    cdef Bytes at
    cdef Buffer to
    for i in range(count):
        eid = <object>PyList_GET_ITEM(ids, i)
        if type(eid) is not bytes or PyBytes_GET_SIZE(eid) != 16:
            return None
        at = <Bytes>PyBytes_AS_STRING(eid)
        total += before + id_size(big_endian(at), big_endian(at + 8)) + behind
    made = PyBytes_FromStringAndSize(NULL, total)
    to = <Buffer>PyBytes_AS_STRING(made)
    for i in range(count):
        at = <Bytes>PyBytes_AS_STRING(<object>PyList_GET_ITEM(ids, i))
        memcpy(to, PyBytes_AS_STRING(head), before)
        to = put_id(to + before, big_endian(at), big_endian(at + 8))
        memcpy(to, PyBytes_AS_STRING(tail), behind)
        to += behind
    return made


# --- rows ---------------------------------------------------------------------------------------


cdef bint few_differ(Bytes *names, Py_ssize_t *sizes, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i, j
    for i in range(1, count):
        for j in range(i):
            if sizes[i] == sizes[j] and memcmp(names[i], names[j], sizes[i]) == 0:
                return False
    return True


cdef bint many_differ(Cursor cursor, Py_ssize_t count) except -1:
    cdef Bytes data = NULL
    cdef Py_ssize_t size = 0, i
    cdef set names = set()
    for i in range(count):
        take_string(&cursor, &data, &size)
        names.add(PyBytes_FromStringAndSize(<const char *>data, size))
        take_string(&cursor, &data, &size)
    return len(names) == count


cdef inline Py_ssize_t row_bound(bytes value) noexcept:
    """Return the most bytes that a row takes on the wire; -1: not plain."""
    cdef Cursor cursor
    cdef Py_ssize_t pairs
    cursor.at = <Bytes>PyBytes_AS_STRING(value)
    cursor.end = cursor.at + PyBytes_GET_SIZE(value)
    pairs = take_count(&cursor)
    if pairs <= 0:
        return -1
    return ROW_HEADS + PyBytes_GET_SIZE(value) + 2 * pairs * STRING_HEADS


cdef Buffer put_fields(Buffer to, bytes value) except? NULL:
    """Write the fields of a row into its room; NULL where it is not plain."""
    cdef Bytes names[PAIRS_NEAR]
    cdef Py_ssize_t sizes[PAIRS_NEAR]
    cdef Cursor cursor, first
    cdef Bytes data = NULL
    cdef Py_ssize_t size = 0, pairs, i
    cursor.at = <Bytes>PyBytes_AS_STRING(value)
    cursor.end = cursor.at + PyBytes_GET_SIZE(value)
    pairs = take_count(&cursor)
    first = cursor
    to = put_head(to, 42, 2 * pairs)
    for i in range(2 * pairs):
        if not take_string(&cursor, &data, &size):
            return NULL
        if not i & 1 and i < 2 * PAIRS_NEAR:
            names[i >> 1] = data
            sizes[i >> 1] = size
        to = put_string(to, data, size)
    if cursor.at != cursor.end:
        return NULL
    # A map in which a name stands twice is none of ours.
    if (<Bytes>PyBytes_AS_STRING(value))[0] == UNIQUE:
        if not (
            few_differ(names, sizes, pairs) if pairs <= PAIRS_NEAR else many_differ(first, pairs)
        ):
            return NULL
    return to


cdef class Text:
    """Room for text that grows."""

    cdef Buffer made
    cdef Py_ssize_t used
    cdef Py_ssize_t size

    cdef int make_room(self, Py_ssize_t need) except -1:
        cdef Buffer grown
        if self.used + need > self.size:
            self.size = max(2 * self.size, self.used + need, FIRST_ROOM)
            grown = <Buffer>PyMem_Realloc(self.made, self.size)
            if grown == NULL:
                raise MemoryError
            self.made = grown
        return 0

    def __dealloc__(self):
        PyMem_Free(self.made)

    cdef bytes whole(self):
        return PyBytes_FromStringAndSize(<char *>self.made, self.used)


cdef Bytes put_row(Text text, list page, Py_ssize_t at, Py_ssize_t prefix) except? NULL:
    """Write the entry of a row, whose key has an ID after ``prefix`` bytes.

    Return where its packed ID is; NULL, with nothing written, where the row is not plain.
    """
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    cdef Py_ssize_t need
    cdef Bytes eid
    cdef Buffer to
    if not take_row(page, at, prefix, &key, &value):
        return NULL
    need = row_bound(<bytes>value)
    if need < 0:
        return NULL
    text.make_room(need)
    eid = <Bytes>PyBytes_AS_STRING(<object>key) + prefix
    to = text.made + text.used
    memcpy(to, b"*2\r\n", 4)
    to = put_fields(put_id(to + 4, big_endian(eid), big_endian(eid + 8)), <bytes>value)
    if to == NULL:
        return NULL
    text.used = to - text.made
    return eid


def encode_rows(list page not None, Py_ssize_t prefix, Py_ssize_t start, Py_ssize_t room):
    """Return the entries of rows from ``start`` on as RESP, and where to go on; else None.

    The keys have an ID after ``prefix`` bytes. Once ``room`` bytes are full no row is added.
    """
    cdef Py_ssize_t stop = start, count = PyList_GET_SIZE(page)
    cdef Text text = Text()
    if prefix < 0 or start < 0:
        return None
    while stop < count and text.used < room:
        if put_row(text, page, stop, prefix) == NULL:
            return None
        stop += 1
    return text.whole(), stop


def write_rows(list page not None, Py_ssize_t prefix, Py_ssize_t most):
    """Return the parts of the text of rows, as ``text_of`` of rows.py takes them; else None."""
    cdef Py_ssize_t at, count = PyList_GET_SIZE(page), total = 0
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    cdef Text text = Text()
    cdef bytes ids, ends
    cdef unsigned char *id_at
    cdef uint32_t *end_at
    cdef Bytes eid
    if prefix < 0 or most > UINT32_MAX:
        return None
    for at in range(count):  # before anything is written in vain
        if not take_row(page, at, prefix, &key, &value):
            return None
        total += PyBytes_GET_SIZE(<object>value)
        if total > most:
            return None
    ids = PyBytes_FromStringAndSize(NULL, count * ID_BYTES)
    ends = PyBytes_FromStringAndSize(NULL, count * sizeof(uint32_t))
    id_at = <unsigned char *>PyBytes_AS_STRING(ids)
    end_at = <uint32_t *>PyBytes_AS_STRING(ends)
    for at in range(count):
        eid = put_row(text, page, at, prefix)
        if eid == NULL or text.used > most:
            return None
        memcpy(id_at + at * ID_BYTES, eid, ID_BYTES)
        end_at[at] = <uint32_t>text.used
    return ids, ends, text.whole()


# --- entries ------------------------------------------------------------------------------------


cdef struct Numbers:
    uint64_t ms
    uint64_t seq
    int64_t idle
    int64_t deliveries
    bint has_idle


cdef bint take_numbers(tuple entry, Numbers *to) except -1:
    """Take the ID of an entry, and what a CLAIM read tells; False where these are not plain."""
    cdef object eid = <object>PyTuple_GET_ITEM(entry, 0)
    cdef object idle = <object>PyTuple_GET_ITEM(entry, 2)
    cdef object deliveries = <object>PyTuple_GET_ITEM(entry, 3)
    if not isinstance(eid, tuple) or PyTuple_GET_SIZE(eid) != 2:
        return False
    to.ms = <object>PyTuple_GET_ITEM(eid, 0)
    to.seq = <object>PyTuple_GET_ITEM(eid, 1)
    to.has_idle = idle is not None
    if to.has_idle:
        to.idle = idle
        to.deliveries = deliveries
        return to.idle >= 0 and to.deliveries >= 0
    return True


cdef Py_ssize_t flat_size(tuple flat) except -2:
    cdef Py_ssize_t i, count = PyTuple_GET_SIZE(flat), total = head_size(count)
    for i in range(count):
        if type(<object>PyTuple_GET_ITEM(flat, i)) is not bytes:
            return -1
        total += string_size(PyBytes_GET_SIZE(<object>PyTuple_GET_ITEM(flat, i)))
    return total


cdef Py_ssize_t dict_size(dict fields) except -2:
    cdef PyObject *name = NULL
    cdef PyObject *value = NULL
    cdef Py_ssize_t at = 0, total = head_size(2 * len(fields))
    while PyDict_Next(fields, &at, &name, &value):
        if type(<object>name) is not bytes or type(<object>value) is not bytes:
            return -1
        total += string_size(PyBytes_GET_SIZE(<object>name))
        total += string_size(PyBytes_GET_SIZE(<object>value))
    return total


cdef Buffer put_any(Buffer to, object fields, bint resp3) noexcept:
    """Write fields that were measured: a dict, a flat tuple or None."""
    cdef PyObject *name = NULL
    cdef PyObject *value = NULL
    cdef Py_ssize_t at = 0, i
    cdef object part
    if fields is None:
        memcpy(to, b"_\r\n" if resp3 else b"*-1\r\n", 3 if resp3 else 5)
        return to + (3 if resp3 else 5)
    if isinstance(fields, dict):
        to = put_head(to, 42, 2 * len(<dict>fields))
        while PyDict_Next(fields, &at, &name, &value):
            to = put_string(to, PyBytes_AS_STRING(<object>name), PyBytes_GET_SIZE(<object>name))
            to = put_string(to, PyBytes_AS_STRING(<object>value), PyBytes_GET_SIZE(<object>value))
        return to
    to = put_head(to, 42, PyTuple_GET_SIZE(fields))
    for i in range(PyTuple_GET_SIZE(fields)):
        part = <object>PyTuple_GET_ITEM(fields, i)
        to = put_string(to, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
    return to


cdef object plain_entries(list entries, Py_ssize_t start, Py_ssize_t room, bint resp3):
    cdef Py_ssize_t stop = start, count = PyList_GET_SIZE(entries), total = 0, size, i
    cdef Numbers numbers
    cdef object entry, fields
    cdef Buffer to
    cdef list measured = []
    while stop < count and total < room:
        entry = <object>PyList_GET_ITEM(entries, stop)
        if not isinstance(entry, tuple) or PyTuple_GET_SIZE(entry) != 4:
            return None
        if not take_numbers(<tuple>entry, &numbers):
            return None
        fields = <object>PyTuple_GET_ITEM(entry, 1)
        if fields is None:
            size = 3 if resp3 else 5
        elif isinstance(fields, dict) and type(fields) is not RepeatedFields:
            size = dict_size(<dict>fields)
        else:
            fields = fields.flat
            size = flat_size(<tuple?>fields)
        if size < 0:
            return None
        measured.append((entry, fields))
        total += 4 + id_size(numbers.ms, numbers.seq) + size
        if numbers.has_idle:
            total += head_size(numbers.idle) + head_size(numbers.deliveries)
        stop += 1
    made = PyBytes_FromStringAndSize(NULL, total)
    to = <Buffer>PyBytes_AS_STRING(made)
    for i in range(stop - start):
        entry, fields = <tuple>PyList_GET_ITEM(measured, i)
        take_numbers(<tuple>entry, &numbers)
        to = put_head(to, 42, 4 if numbers.has_idle else 2)
        to = put_id(to, numbers.ms, numbers.seq)
        to = put_any(to, fields, resp3)
        if numbers.has_idle:
            to = put_head(put_head(to, 58, numbers.idle), 58, numbers.deliveries)
    return made, stop


def encode_entries(list entries not None, Py_ssize_t start, Py_ssize_t room, int protocol):
    """Return entries from ``start`` on as RESP, and where to go on; else None.

    Once ``room`` bytes are full no entry is added.
    """
    if start < 0:
        return None
    try:
        return plain_entries(entries, start, room, protocol == RESP3)
    except (AttributeError, OverflowError, TypeError):
        return None


# --- short replies ------------------------------------------------------------------------------


cdef int put_bytes(Text text, const void *data, Py_ssize_t size) except -1:
    text.make_room(size)
    memcpy(text.made + text.used, data, size)
    text.used += size
    return 0


cdef int put_count(Text text, unsigned char mark, uint64_t count) except -1:
    text.make_room(4 + NUMBER_MAX)
    text.used = put_head(text.made + text.used, mark, count) - text.made
    return 0


cdef int put_bulk(Text text, bytes data) except -1:
    text.make_room(STRING_HEADS + PyBytes_GET_SIZE(data))
    text.used = (
        put_string(text.made + text.used, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        - text.made
    )
    return 0


cdef bint put_entries(Text text, object entries, bint resp3) except -1:
    """Write Rows, EncodedEntries or a list of entries; False if one is not plain."""
    cdef object made, part
    cdef Py_ssize_t at
    if type(entries) is Rows:
        page, prefix = <list?>entries.page, entries.prefix
        put_count(text, 42, PyList_GET_SIZE(page))
        for at in range(PyList_GET_SIZE(page)):
            if put_row(text, page, at, prefix) == NULL:
                return False
        return True
    put_count(text, 42, len(entries))
    if type(entries) is EncodedEntries:
        parts = entries.parts
    elif type(entries) is list:
        made = plain_entries(<list>entries, 0, COUNT_MAX, resp3)
        if made is None:
            return False
        parts = made[:1]
    else:
        return False
    for part in parts:
        put_bytes(text, PyBytes_AS_STRING(<bytes?>part), PyBytes_GET_SIZE(<bytes?>part))
    return True


cdef bint put_reply(Text text, object reply, bint resp3) except -1:
    """Write a reply; False if a part of it is of another type."""
    cdef object kind = type(reply), part, name, entries
    cdef int64_t number
    if kind is bytes:
        put_bulk(text, <bytes>reply)
    elif kind is int:
        number = reply
        if number < 0:
            put_bytes(text, b":-", 2)
            text.make_room(4 + NUMBER_MAX)
            text.used = put_end(
                put_number(text.made + text.used, -<uint64_t>number, digits_of(-<uint64_t>number))
            ) - text.made
        else:
            put_count(text, 58, number)
    elif reply is None:
        put_bytes(text, b"_\r\n" if resp3 else b"$-1\r\n", 3 if resp3 else 5)
    elif kind is Simple:
        part = reply.line
        put_bytes(text, PyBytes_AS_STRING(<bytes?>part), PyBytes_GET_SIZE(<bytes?>part))
    elif kind is list:
        put_count(text, 42, PyList_GET_SIZE(reply))
        for part in <list>reply:
            if not put_reply(text, part, resp3):
                return False
    elif kind is Map:
        pairs = reply.pairs
        put_count(text, 37 if resp3 else 42, len(pairs) if resp3 else 2 * len(pairs))
        for name, part in pairs:
            if not (put_reply(text, name, resp3) and put_reply(text, part, resp3)):
                return False
    elif kind is Rows or kind is EncodedEntries:
        return put_entries(text, reply, resp3)
    elif kind is Entries:
        return put_entries(text, reply.entries, resp3)
    elif kind is StoredEntry:
        entries = reply.rows
        return put_row(text, <list?>entries.page, 0, entries.prefix) != NULL
    elif kind is Streams and type(reply.streams) is list:
        put_count(text, 37 if resp3 else 42, PyList_GET_SIZE(reply.streams))
        for name, part in <list>reply.streams:
            if not resp3:
                put_bytes(text, b"*2\r\n", 4)
            put_bulk(text, <bytes?>name)
            if not put_entries(text, part, resp3):
                return False
    else:
        return False
    return True


cdef bint put_plain(Text text, object reply, bint resp3) except -1:
    """Write a reply; False, with nothing written, if a part of it is not plain."""
    cdef Py_ssize_t before = text.used
    try:
        if put_reply(text, reply, resp3):
            return True
    except (AttributeError, OverflowError, TypeError, ValueError):
        pass
    text.used = before
    return False


def encode_reply(object reply, int protocol):
    """Return a reply of plain values, lists, maps and entries as RESP; else None."""
    cdef Text text = Text()
    return text.whole() if put_plain(text, reply, protocol == RESP3) else None


cdef bytes encode_plain(list replies, int protocol):
    """Return replies as RESP; None if one is not plain."""
    cdef Text text
    cdef object reply
    cdef bytes made
    cdef Py_ssize_t size
    if PyList_GET_SIZE(replies) == 1:
        reply = replies[0]
        if type(reply) is Simple:
            return reply.line
        if type(reply) is bytes:  # it may be long
            size = PyBytes_GET_SIZE(reply)
            made = PyBytes_FromStringAndSize(NULL, string_size(size))
            put_string(<Buffer>PyBytes_AS_STRING(made), PyBytes_AS_STRING(reply), size)
            return made
    text = Text()
    for reply in replies:
        if not put_plain(text, reply, protocol == RESP3):
            return None
    return text.whole()


def encode_all(list replies not None, int protocol, object encode):
    """Do what ``encode_all`` of replies.py does; ``encode`` is called for what is not plain."""
    cdef bytes made = encode_plain(replies, protocol)
    cdef Text text
    cdef object reply
    if made is not None:
        return made
    text = Text()
    for reply in replies:
        if not put_plain(text, reply, protocol == RESP3):
            made = encode(reply, protocol)
            put_bytes(text, PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made))
    return text.whole()
