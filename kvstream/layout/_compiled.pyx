# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of values.py, which has the grammar, rows.py, and functions of meta and commands.

Each handles plain input and returns None for all other input, damage included: then the Python
function does the work. Nothing is read beyond the bytes given.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from kvstream.layout._ids cimport PyObject_GC_UnTrack, kvstream_alloc, make_id, put_big_endian
from kvstream.layout._listpack cimport element_size, integer_size
from kvstream.layout._msgpack cimport (
    ID_BYTES,
    UNIQUE,
    Bytes,
    Cursor,
    big_endian,
    is_sound,
    map_head_size,
    pack_map_head,
    pack_string,
    packed_size,
    take_count,
    take_row,
    take_string,
)
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy

from kvstream.types.records import EntryFields

cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()
    bint PyUnicode_IS_COMPACT_ASCII(object)
    void *PyUnicode_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1


cdef extern from *:
    """
    static inline PyObject *kvstream_dict(PyObject *type) {
        PyObject *made = PyDict_Type.tp_new((PyTypeObject *)type, NULL, NULL);
        /* As a plain dict: tracked once it holds something that can be part of a cycle. */
        if (made != NULL) PyObject_GC_UnTrack(made);
        return made;
    }
    """
    object kvstream_dict(object type)


cdef enum:
    COUNT_MAX = 65535  # pairs of a msgpack map16
    PAIRS_NEAR = 32  # up to so many names are compared pairwise
    FIELDS_NEAR = 64  # so many name objects are reused from row to row
    DIGITS = 20  # of a 64-bit integer, with its sign


# --- packing ------------------------------------------------------------------------------------


cdef struct Part:
    const char *data
    Py_ssize_t size


cdef inline int view(PyObject *part, bint text, Part *to) except -1:
    """Point at the bytes of a part; return 0 for another type."""
    if text:
        if type(<object>part) is not str:
            return 0
        if PyUnicode_IS_COMPACT_ASCII(<object>part):
            to.data = <const char *>PyUnicode_DATA(<object>part)
            to.size = PyUnicode_GET_LENGTH(<object>part)
        else:
            to.data = PyUnicode_AsUTF8AndSize(<object>part, &to.size)
        return 1
    if type(<object>part) is not bytes:
        return 0
    to.data = PyBytes_AS_STRING(<object>part)
    to.size = PyBytes_GET_SIZE(<object>part)
    return 1


cdef inline int view_value(PyObject *value, char *digits, Part *to) except -1:
    """Point at the bytes of a value, of a number in ``digits``; return 0 for another type."""
    cdef int overflow = 0
    cdef long long number
    cdef unsigned long long left
    if type(<object>value) is not int:
        return view(value, type(<object>value) is str, to)
    number = PyLong_AsLongLongAndOverflow(<object>value, &overflow)
    if overflow:
        return 0
    left = 0 - <unsigned long long>number if number < 0 else <unsigned long long>number
    to.size = 0
    while True:
        to.size += 1
        digits[DIGITS - to.size] = 48 + left % 10
        left //= 10
        if left == 0:
            break
    if number < 0:
        to.size += 1
        digits[DIGITS - to.size] = 45
    to.data = digits + DIGITS - to.size
    return 1


cdef tuple pack_plain(dict fields, Py_ssize_t limit, tuple before):
    """Pack fields; ``before`` are the names of the entry before, to be reused if equal."""
    cdef Py_ssize_t count = len(fields), at = 0, total, i = 0, near
    cdef PyObject *name = NULL
    cdef PyObject *value = NULL
    cdef Part parts[2 * FIELDS_NEAR]
    cdef Part *part
    cdef char digits[FIELDS_NEAR][DIGITS]
    cdef unsigned char *to
    cdef bint text = True, same = before is not None and PyTuple_GET_SIZE(before) == count
    if count == 0 or count > COUNT_MAX:
        return None
    total = 1 + map_head_size(count)
    while PyDict_Next(fields, &at, &name, &value):
        if i == 0:
            text = type(<object>name) is str
        near = i if i < FIELDS_NEAR else FIELDS_NEAR - 1
        part = &parts[2 * near]
        if not view(name, text, part) or not view_value(value, digits[near], part + 1):
            return None
        total += packed_size(part[0].size) + packed_size(part[1].size)
        if total > limit:
            return None
        if same and PyTuple_GET_ITEM(before, i) != name:
            same = False
        i += 1
    packed = PyBytes_FromStringAndSize(NULL, total)
    to = <unsigned char *>PyBytes_AS_STRING(packed)
    to[0] = UNIQUE
    to = pack_map_head(to + 1, count)
    if count <= FIELDS_NEAR:
        for i in range(2 * count):
            to = pack_string(to, parts[i].data, parts[i].size)
    else:
        at = 0
        while PyDict_Next(fields, &at, &name, &value):
            view(name, text, &parts[0])
            to = pack_string(to, parts[0].data, parts[0].size)
            view_value(value, digits[0], &parts[0])
            to = pack_string(to, parts[0].data, parts[0].size)
    return packed, before if same else tuple(fields)


cdef inline tuple pack_valid(dict fields, Py_ssize_t limit, tuple before):
    try:
        return pack_plain(fields, limit, before)
    except UnicodeEncodeError:
        return None


def pack_fields(dict fields not None, Py_ssize_t limit):
    """Return (row value, names) of a dict whose names are all text or all bytes, else None.

    Returns None also for invalid Unicode, and for a row of more than ``limit`` bytes.
    """
    return pack_valid(fields, limit, None)


cdef list pack_each(list entries, Py_ssize_t limit):
    cdef list packed = []
    cdef tuple one, names = None
    for each in entries:
        one = pack_valid(<dict>each, limit, names) if type(each) is dict else None
        packed.append(one)
        if one is not None:
            PyObject_GC_UnTrack(<PyObject *>one)
            if <PyObject *>names != PyTuple_GET_ITEM(one, 1):
                names = <tuple>PyTuple_GET_ITEM(one, 1)
                PyObject_GC_UnTrack(<PyObject *>names)
    return packed


def pack_many(list entries not None, Py_ssize_t limit):
    """Return the result of ``pack_fields`` for each of many entries; None if it is not a dict."""
    cdef int collecting = PyGC_Disable()
    try:
        return pack_each(entries, limit)
    finally:
        if collecting:
            PyGC_Enable()


def pack_flat(list flat not None, Py_ssize_t limit):
    """Return (row value, names) of field, value, field, value ... as bytes, else None.

    Returns None also if a name repeats.
    """
    cdef Py_ssize_t size = PyList_GET_SIZE(flat), count = size // 2, total, i, j
    cdef unsigned char *to
    cdef object part, name, other
    cdef tuple names
    if size == 0 or size & 1:
        return None
    total = 1 + map_head_size(count)
    for i in range(size):
        part = <object>PyList_GET_ITEM(flat, i)
        if type(part) is not bytes:
            return None
        total += packed_size(PyBytes_GET_SIZE(part))
        if total > limit:
            return None
    names = tuple(flat[::2])
    if count > PAIRS_NEAR and len(set(names)) != count:
        return None
    for i in range(1, count if count <= PAIRS_NEAR else 1):
        name = <object>PyList_GET_ITEM(flat, 2 * i)
        for j in range(i):
            other = <object>PyList_GET_ITEM(flat, 2 * j)
            if PyBytes_GET_SIZE(name) == PyBytes_GET_SIZE(other) and (
                memcmp(PyBytes_AS_STRING(name), PyBytes_AS_STRING(other), PyBytes_GET_SIZE(name))
                == 0
            ):
                return None
    packed = PyBytes_FromStringAndSize(NULL, total)
    to = <unsigned char *>PyBytes_AS_STRING(packed)
    to[0] = UNIQUE
    to = pack_map_head(to + 1, count)
    for i in range(size):
        part = <object>PyList_GET_ITEM(flat, i)
        to = pack_string(to, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
    return packed, names


# --- reading ------------------------------------------------------------------------------------


cdef struct Name:
    Bytes data
    Py_ssize_t size
    PyObject *object


cdef object decode_fields(bytes value, Name *names, Py_ssize_t *known, list kept):
    """Return the dict of one row value, or None; name objects of earlier rows are reused."""
    cdef Cursor cursor
    cdef Bytes data = NULL
    cdef Py_ssize_t size = 0, count, i
    cdef dict fields
    cdef object name
    cursor.at = <Bytes>PyBytes_AS_STRING(value)
    cursor.end = cursor.at + PyBytes_GET_SIZE(value)
    if PyBytes_GET_SIZE(value) == 0 or cursor.at[0] != UNIQUE:
        return None
    count = take_count(&cursor)
    if count <= 0:
        return None
    fields = <dict>kvstream_dict(EntryFields)
    for i in range(count):
        if not take_string(&cursor, &data, &size):
            return None
        if i < known[0] and names[i].size == size and memcmp(names[i].data, data, size) == 0:
            name = <object>names[i].object
        else:
            name = PyBytes_FromStringAndSize(<const char *>data, size)
            if i < FIELDS_NEAR and i <= known[0]:
                kept.append(name)  # keeps it alive
                names[i].object = <PyObject *>name
                names[i].data = <Bytes>PyBytes_AS_STRING(name)
                names[i].size = size
                if i == known[0]:
                    known[0] = i + 1
        if not take_string(&cursor, &data, &size):
            return None
        fields[name] = PyBytes_FromStringAndSize(<const char *>data, size)
    if cursor.at != cursor.end or len(fields) != count:
        return None
    return fields


def decode_page(values):
    """Return the dicts of a sequence of row values, or None."""
    cdef Name names[FIELDS_NEAR]
    cdef Py_ssize_t known = 0
    cdef list kept = [], page = []
    for value in values:
        if type(value) is not bytes:
            return None
        fields = decode_fields(<bytes>value, names, &known, kept)
        if fields is None:
            return None
        page.append(fields)
    return page


def ids_from(type stream_id not None, uint64_t ms, uint64_t seq, Py_ssize_t count):
    """Twin of ``ids_in_python`` of rows.py; ``stream_id`` is the class of the IDs."""
    cdef Py_ssize_t i
    cdef object all_ms = ms
    cdef int collecting = PyGC_Disable()
    try:
        return [make_id(stream_id, all_ms, seq + i) for i in range(count)]
    finally:
        if collecting:
            PyGC_Enable()


cdef inline Bytes take_u64(Bytes at, Bytes end, uint64_t *to) noexcept nogil:
    """Take a number of at most 19 digits; return its end, NULL if there is none."""
    cdef Bytes start = at
    cdef uint64_t number = 0
    while at < end and 48 <= at[0] <= 57:
        number = number * 10 + (at[0] - 48)
        at += 1
    to[0] = number
    return at if 0 < at - start < 20 else NULL


cdef inline bint take_id(object word, uint64_t *ms, uint64_t *seq):
    """Parse an ID, ``ms-seq`` or ``ms``; return whether the word is one."""
    cdef Bytes at, end
    if type(word) is not bytes:
        return False
    at = <Bytes>PyBytes_AS_STRING(word)
    end = at + PyBytes_GET_SIZE(word)
    at = take_u64(at, end, ms)
    seq[0] = 0
    if at != NULL and at < end and at[0] == 45:  # a hyphen
        at = take_u64(at + 1, end, seq)
    return at == end


def parse_ids(list words not None, type stream_id not None):
    """Return the IDs of words, ``ms-seq`` or ``ms``; None if one is not an ID."""
    cdef Py_ssize_t i
    cdef uint64_t ms = 0, seq = 0
    cdef list ids = []
    for i in range(PyList_GET_SIZE(words)):
        if not take_id(<object>PyList_GET_ITEM(words, i), &ms, &seq):
            return None
        ids.append(make_id(stream_id, <object>ms, seq))
    return ids


def pack_ids(list words not None):
    """Return the packed IDs of words; None if one is not an ID."""
    cdef Py_ssize_t i
    cdef uint64_t ms = 0, seq = 0
    cdef unsigned char packed[ID_BYTES]
    cdef list ids = []
    for i in range(PyList_GET_SIZE(words)):
        if not take_id(<object>PyList_GET_ITEM(words, i), &ms, &seq):
            return None
        put_big_endian(packed, ms)
        put_big_endian(packed + 8, seq)
        ids.append(PyBytes_FromStringAndSize(<char *>packed, ID_BYTES))
    return ids


def packed_ids(list page not None, Py_ssize_t prefix):
    """Return the packed IDs of rows; None if one may be damaged."""
    cdef Py_ssize_t i, count = PyList_GET_SIZE(page)
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    cdef list ids = []
    for i in range(count):
        if not take_row(page, i, prefix, &key, &value) or not is_sound(<bytes>value):
            return None
        ids.append(
            PyBytes_FromStringAndSize(PyBytes_AS_STRING(<object>key) + prefix, ID_BYTES)
        )
    return ids


def below(bytes ids not None, bytes eid not None):
    """Twin of ``below_in_python`` of rows.py."""
    cdef Bytes start = <Bytes>PyBytes_AS_STRING(ids)
    cdef Bytes wanted = <Bytes>PyBytes_AS_STRING(eid)
    cdef Py_ssize_t low = 0, high = PyBytes_GET_SIZE(ids) // ID_BYTES, middle
    cdef Py_ssize_t size = PyBytes_GET_SIZE(eid)
    cdef bint longer = size > ID_BYTES
    cdef int order
    if size > ID_BYTES:
        size = ID_BYTES
    while low < high:
        middle = (low + high) >> 1
        order = memcmp(start + middle * ID_BYTES, wanted, size)
        if order < 0 or (order == 0 and longer):
            low = middle + 1
        else:
            high = middle
    return low


cdef list entries_of(list page, Py_ssize_t prefix, type entry, type stream_id):
    cdef Name names[FIELDS_NEAR]
    cdef Py_ssize_t known = 0, i, count = PyList_GET_SIZE(page)
    cdef list kept = [], entries = []
    cdef Bytes at
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    cdef object fields, eid, made, ms = None
    cdef uint64_t number, last = 0
    for i in range(count):
        if not take_row(page, i, prefix, &key, &value):
            return None
        PyObject_GC_UnTrack(PyList_GET_ITEM(page, i))  # tuples of bytes need no tracking
        at = <Bytes>PyBytes_AS_STRING(<object>key) + prefix
        number = big_endian(at)
        if ms is None or number != last:
            ms = last = number
        eid = make_id(stream_id, ms, big_endian(at + 8))
        fields = decode_fields(<bytes>value, names, &known, kept)
        if fields is None:
            return None
        made = kvstream_alloc(<PyTypeObject *>entry, 4)
        Py_INCREF(eid)
        PyTuple_SET_ITEM(made, 0, eid)
        Py_INCREF(fields)
        PyTuple_SET_ITEM(made, 1, fields)
        Py_INCREF(None)
        PyTuple_SET_ITEM(made, 2, None)
        Py_INCREF(None)
        PyTuple_SET_ITEM(made, 3, None)
        entries.append(made)
    return entries


def decode_rows(list page not None, Py_ssize_t prefix, type entry, type stream_id):
    """Return the entries of a page of rows whose keys have an ID after ``prefix`` bytes, or None.

    ``entry`` and ``stream_id`` are the classes to create: (id, fields, None, None) and (ms, seq).
    The cycle collector is off meanwhile: no new object is part of a cycle.
    """
    cdef int collecting = PyGC_Disable()
    try:
        return entries_of(page, prefix, entry, stream_id)
    finally:
        if collecting:
            PyGC_Enable()


# --- sizes of listpacks -------------------------------------------------------------------------


cdef Py_ssize_t entry_size(bytes value, tuple names) except -2:
    """Return the listpack bytes of a row value, without its ID deltas; -1 if it is not plain."""
    cdef Cursor cursor
    cdef Bytes data = NULL
    cdef Py_ssize_t size = 0, count, i, element, own = 0, foreign = 0
    cdef bint same
    cdef object name
    cursor.at = <Bytes>PyBytes_AS_STRING(value)
    cursor.end = cursor.at + PyBytes_GET_SIZE(value)
    count = take_count(&cursor)
    if count <= 0:
        return -1
    same = count == PyTuple_GET_SIZE(names)
    for i in range(count):
        if not take_string(&cursor, &data, &size):
            return -1
        if same:
            name = <object>PyTuple_GET_ITEM(names, i)
            if type(name) is not bytes:
                return -1
            same = (
                PyBytes_GET_SIZE(name) == size
                and memcmp(PyBytes_AS_STRING(name), data, size) == 0
            )
        foreign += element_size(data, size)
        if not take_string(&cursor, &data, &size):
            return -1
        element = element_size(data, size)
        foreign += element
        own += element
    if cursor.at != cursor.end:
        return -1
    if same:
        return 2 + integer_size(count + 3) + own
    return 2 + integer_size(count) + integer_size(2 * count + 4) + foreign


def entries_size(list rows, tuple names, uint64_t first_ms, uint64_t first_seq):
    """Return the listpack bytes of rows in a node with these names, or None."""
    cdef Py_ssize_t total = 0, one
    cdef Bytes eid
    for key, value in rows:
        if type(value) is not bytes or type(key) is not bytes or len(<bytes>key) < ID_BYTES:
            return None
        one = entry_size(<bytes>value, names)
        if one < 0:
            return None
        eid = <Bytes>PyBytes_AS_STRING(key) + PyBytes_GET_SIZE(key) - ID_BYTES
        total += one + integer_size(<int64_t>(big_endian(eid) - first_ms))
        total += integer_size(<int64_t>(big_endian(eid + 8) - first_seq))
    return total


def data_size(bytes value):
    """Return the bytes of the names and values in a row value, or None."""
    cdef Cursor cursor
    cdef Bytes data = NULL
    cdef Py_ssize_t size = 0, count, i, total = 0
    cursor.at = <Bytes>PyBytes_AS_STRING(value)
    cursor.end = cursor.at + PyBytes_GET_SIZE(value)
    count = take_count(&cursor)
    if count <= 0:
        return None
    for i in range(2 * count):
        if not take_string(&cursor, &data, &size):
            return None
        total += size
    return total if cursor.at == cursor.end else None


def fit(
    list ids not None,
    list values not None,
    Py_ssize_t start,
    Py_ssize_t stop,
    tuple names not None,
    bytes first not None,
    tuple node not None,
    Py_ssize_t limit,
):
    """Twin of ``fit_in_python`` of meta/bulk_fill.py; None if an entry is not plain."""
    cdef Py_ssize_t at, size, live, dead, one, data
    cdef uint64_t first_ms, first_seq
    cdef Bytes place
    cdef object eid, value
    if PyBytes_GET_SIZE(first) != ID_BYTES or PyList_GET_SIZE(ids) != PyList_GET_SIZE(values):
        return None
    if start < 0 or stop > PyList_GET_SIZE(ids):
        return None
    first_ms = big_endian(<Bytes>PyBytes_AS_STRING(first))
    first_seq = big_endian(<Bytes>PyBytes_AS_STRING(first) + 8)
    size, live, dead = node
    for at in range(start, stop):
        eid = <object>PyList_GET_ITEM(ids, at)
        value = <object>PyList_GET_ITEM(values, at)
        if type(eid) is not bytes or type(value) is not bytes:
            return None
        if PyBytes_GET_SIZE(eid) != ID_BYTES:
            return None
        one = entry_size(<bytes>value, names)
        if one < 0:
            return None
        if live + dead:
            data = size + integer_size(live) + integer_size(dead)
            if data + PyBytes_GET_SIZE(value) >= limit and data + <Py_ssize_t>data_size(value) >= limit:
                return at, size
        place = <Bytes>PyBytes_AS_STRING(eid)
        size += one + integer_size(<int64_t>(big_endian(place) - first_ms))
        size += integer_size(<int64_t>(big_endian(place + 8) - first_seq))
        live += 1
    return max(start, stop), size


# --- filling a node -----------------------------------------------------------------------------


def fill(
    list ids not None,
    list entries not None,
    Py_ssize_t start,
    Py_ssize_t stop,
    tuple names not None,
    first,
    tuple bounds not None,
    bytes prefix not None,
    list noted not None,
    dict puts not None,
):
    """Twin of ``fill_in_python`` of meta/filling.py."""
    cdef int collecting = PyGC_Disable()
    try:
        return fill_while(ids, entries, start, stop, names, first, bounds, prefix, noted, puts)
    finally:
        if collecting:
            PyGC_Enable()


cdef tuple fill_while(
    list ids,
    list entries,
    Py_ssize_t start,
    Py_ssize_t stop,
    tuple names,
    first,
    tuple bounds,
    bytes prefix,
    list noted,
    dict puts,
):
    cdef uint64_t first_ms, first_seq, ms, seq
    cdef int64_t delta
    cdef Py_ssize_t near, width, slack, room, far, at, length
    cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix)
    cdef unsigned char *key_at
    cdef object eid, entry, value, given, key, same = names, row
    first_ms, first_seq = first
    near, width, slack, room, far = bounds
    at = start
    while at < stop:
        entry = entries[at]
        value, given = <tuple?>entry
        eid = ids[at]
        if not isinstance(eid, tuple) or PyTuple_GET_SIZE(eid) != 2:
            raise TypeError("an ID is a pair of numbers")
        ms = <object>PyTuple_GET_ITEM(eid, 0)
        seq = <object>PyTuple_GET_ITEM(eid, 1)
        length = PyBytes_GET_SIZE(<bytes?>value)
        delta = <int64_t>(seq - first_seq)
        if (
            length >= near
            or slack + length >= room
            or ms - first_ms >= <uint64_t>far
            or delta >= far
            or delta <= -far
            or (given is not same and given != names)
        ):
            break
        same = given
        slack += length + width
        key = PyBytes_FromStringAndSize(NULL, size + 16)
        key_at = <unsigned char *>PyBytes_AS_STRING(key)
        memcpy(key_at, PyBytes_AS_STRING(prefix), size)
        put_big_endian(key_at + size, ms)
        put_big_endian(key_at + size + 8, seq)
        puts[key] = value
        row = (key, value)
        PyObject_GC_UnTrack(<PyObject *>row)
        noted.append(row)
        at += 1
    return at, slack
