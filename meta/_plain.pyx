# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of the plain XADD, XREADGROUP of new entries, XACK and XDEL.

Each does what is plain, on objects that are in memory: an entry with an automatic ID joins the open
node; the consumer that was active last gets the next entries of its group; one entry is
acknowledged, or deleted from a node of which the live IDs are known. For all else they change
nothing and say so: then the Python function does the work.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from kvstream.layout._ids cimport PyObject_GC_UnTrack, kvstream_alloc, make_id, put_big_endian
from kvstream.layout._msgpack cimport ID_BYTES, Bytes, big_endian, is_sound, take_row
from kvstream.layout._slots cimport bounded, find_slots, get, is_of, part, put
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove

cdef enum:
    ANCHOR, PACKED, OWNER, TIME_MS, DELIVERIES, RANK  # the parts of a run
    PARTS

cdef enum:  # as in filling.py and records.py, and operations/reads/limits.py and rows.py
    NEAR = 4096
    COUNTERS_MAX = 20
    HEAD_FAR = 32
    NOTED_BYTES_MAX = 4096
    NODE_BYTES_MAX = 1 << 30
    UNRECORDED_MAX = 128
    FIRST_PAGE = 100
    FIRST_BYTES = 1 << 20
    SHORT = 16
    DIGITS_MAX = 18  # of a number that needs no further check
    MEMBER_VERSION = 2
    POLICY_VERSION = 3
    GROUP_BYTES = 78
    ACTIVITY_BYTES = 20
    RUN_BYTES = 28

cdef uint64_t U64_MAX = 0xFFFFFFFFFFFFFFFF

BOUNDS = {  # which a test compares with those of the Python functions
    "near": NEAR,
    "counters_max": COUNTERS_MAX,
    "head_far": HEAD_FAR,
    "noted_bytes_max": NOTED_BYTES_MAX,
    "node_bytes_max": NODE_BYTES_MAX,
    "unrecorded_max": UNRECORDED_MAX,
    "first_page": FIRST_PAGE,
    "first_bytes": FIRST_BYTES,
    "short": SHORT,
    "member_version": MEMBER_VERSION,
    "policy_version": POLICY_VERSION,
    "group_bytes": GROUP_BYTES,
    "activity_bytes": ACTIVITY_BYTES,
    "run_bytes": RUN_BYTES,
}


# --- the slots of Python's classes -------------------------------------------------------------------

cdef struct TxnSlots:
    Py_ssize_t type
    Py_ssize_t _known, _members, _streams, awaited, batch, catalog, events, expiry_ms, frees
    Py_ssize_t groups_dropped, keeps_expired, missing, now_ms, only_redelivered, read_only
    Py_ssize_t signals, thresholds, unwritten, wanted_events

cdef struct BatchSlots:
    Py_ssize_t type
    Py_ssize_t deferred, puts, ranges

cdef struct LimitsSlots:
    Py_ssize_t type
    Py_ssize_t node_max_bytes, node_max_entries

cdef struct ThresholdsSlots:
    Py_ssize_t type
    Py_ssize_t cached_ids, cached_rows, chunk_keys, run_ids

cdef struct StreamSlots:
    Py_ssize_t type
    Py_ssize_t _cold, cached_nodes, changed_nodes, deleted_to, deletions, entries_added
    Py_ssize_t expire_at, first, first_ids, groups, last, length, max_deleted, measured
    Py_ssize_t names_seen, near, open_appended, open_bytes, open_first, open_ids
    Py_ssize_t open_last, open_live, prefix, row, shrinks, slack, unmeasured
    Py_ssize_t unrecorded_entries, width

cdef struct NodeSlots:
    Py_ssize_t type
    Py_ssize_t first, ids, is_changed, last, live

cdef struct GroupSlots:
    Py_ssize_t type
    Py_ssize_t activity, consumers, consumers_count, consumers_tree, entries_read, grown, index
    Py_ssize_t indexed, keyed, last_delivered, looked_rank, nack_rank, nacked, near, owned_since
    Py_ssize_t pending, policy, rated, readahead, row, runs, times, watches

cdef struct ConsumerSlots:
    Py_ssize_t type
    Py_ssize_t active_ms, activity, name, row, seen_ms

cdef struct ActivitySlots:
    Py_ssize_t type
    Py_ssize_t at_ms, name, number

cdef struct ReadaheadSlots:
    Py_ssize_t type
    Py_ssize_t after, rows, shrinks

cdef struct TreeSlots:
    Py_ssize_t type
    Py_ssize_t _changed, _encode, id, memory, prefix, room

cdef struct SortedRowsSlots:
    Py_ssize_t type
    Py_ssize_t items, keys

cdef struct SortedKeysSlots:
    Py_ssize_t type
    Py_ssize_t _chunks, _firsts

cdef struct RowsSlots:
    Py_ssize_t type
    Py_ssize_t _entries, page, prefix

cdef struct StreamsSlots:
    Py_ssize_t type
    Py_ssize_t streams

cdef TxnSlots TXN
cdef BatchSlots BATCH
cdef LimitsSlots LIMITS
cdef ThresholdsSlots THRESHOLDS
cdef StreamSlots STREAM
cdef NodeSlots NODE
cdef GroupSlots GROUP
cdef ConsumerSlots CONSUMER
cdef ActivitySlots ACTIVITY
cdef ReadaheadSlots READAHEAD
cdef TreeSlots TREE
cdef SortedRowsSlots ROWS
cdef SortedKeysSlots KEYS
cdef RowsSlots REPLY_ROWS
cdef StreamsSlots STREAMS
cdef object run_encode, rows_type, streams_type


def bind(
    type txn, type batch, type limits, type thresholds, type stream, type node, type group,
    type consumer, type activity, type readahead, type tree, type rows, type keys, encode_of_run,
):
    """Find the slots of the classes. What is of other classes, or comes before, is not plain.

    Trees whose rows ``encode_of_run`` encodes are trees of runs.
    """
    global TXN, BATCH, LIMITS, THRESHOLDS, STREAM, GROUP, CONSUMER, ACTIVITY, READAHEAD, TREE, ROWS
    global KEYS, NODE, run_encode
    TXN, BATCH = find_slots(txn, TXN), find_slots(batch, BATCH)
    LIMITS, THRESHOLDS = find_slots(limits, LIMITS), find_slots(thresholds, THRESHOLDS)
    STREAM, GROUP = find_slots(stream, STREAM), find_slots(group, GROUP)
    NODE = find_slots(node, NODE)
    CONSUMER, ACTIVITY = find_slots(consumer, CONSUMER), find_slots(activity, ACTIVITY)
    READAHEAD, TREE = find_slots(readahead, READAHEAD), find_slots(tree, TREE)
    ROWS, KEYS = find_slots(rows, ROWS), find_slots(keys, KEYS)
    run_encode = encode_of_run


def bind_replies(rows, type streams):
    """Find the slots of the classes of a reply's entries."""
    global REPLY_ROWS, STREAMS, rows_type, streams_type
    REPLY_ROWS, STREAMS = find_slots(<type>rows, REPLY_ROWS), find_slots(streams, STREAMS)
    rows_type, streams_type = rows, streams


cdef extern from *:
    """
    /* An instance of a class whose __init__ is left out. */
    static inline PyObject *kvstream_made(PyObject *type, PyObject *none) {
        return ((PyTypeObject *)type)->tp_new((PyTypeObject *)type, none, NULL);
    }
    """
    object new_of "kvstream_made" (object type, tuple none)


# --- words ------------------------------------------------------------------------------------------


cdef bint is_word(word, const char *lower, Py_ssize_t size) noexcept:
    """Return whether a word is the one in small letters, or the same in letters of any case."""
    cdef Bytes at
    cdef Py_ssize_t i
    if type(word) is not bytes or PyBytes_GET_SIZE(word) != size:
        return False
    at = <Bytes>PyBytes_AS_STRING(word)
    for i in range(size):
        if (at[i] | 32) != lower[i]:
            return False
    return True


cdef inline Bytes take_digits(Bytes at, Bytes end, uint64_t *number) noexcept:
    """Take a canonical number of at most DIGITS_MAX digits; NULL if there is none."""
    cdef Bytes start = at
    cdef uint64_t found = 0
    while at < end and 48 <= at[0] <= 57:
        found = 10 * found + at[0] - 48
        at += 1
        if at - start > DIGITS_MAX:
            return NULL
    if at == start or (start[0] == 48 and at - start > 1):
        return NULL
    number[0] = found
    return at


cdef bytes id_of(word):
    """Return the packed ID of ``ms-seq``; None for all else."""
    cdef Bytes at, end
    cdef uint64_t ms = 0, seq = 0
    if type(word) is not bytes:
        return None
    at = <Bytes>PyBytes_AS_STRING(word)
    end = at + PyBytes_GET_SIZE(word)
    at = take_digits(at, end, &ms)
    if at == NULL or at == end or at[0] != 45:  # -
        return None
    if take_digits(at + 1, end, &seq) != end:
        return None
    return key_of(b"", ms, seq)


def read_words(type run_type not None, txn, bytes prefix not None, argv):
    """Run ``XREADGROUP GROUP group consumer COUNT n STREAMS key >``; return None if not plain."""
    cdef Bytes at, end
    cdef uint64_t count = 0
    cdef bytes word
    cdef object key, found, rows, streams
    if (
        type(argv) is not list
        or PyList_GET_SIZE(argv) != 9
        or not is_word(<object>PyList_GET_ITEM(argv, 1), b"group", 5)
        or not is_word(<object>PyList_GET_ITEM(argv, 4), b"count", 5)
        or not is_word(<object>PyList_GET_ITEM(argv, 6), b"streams", 7)
    ):
        return None
    word = <bytes?>PyList_GET_ITEM(argv, 5)
    at = <Bytes>PyBytes_AS_STRING(word)
    end = at + PyBytes_GET_SIZE(word)
    if take_digits(at, end, &count) != end or not 0 < count <= SHORT:
        return None
    key = <object>PyList_GET_ITEM(argv, 7)
    found = read_new(
        run_type,
        txn,
        prefix + <bytes>key,
        <bytes>PyList_GET_ITEM(argv, 2),
        <bytes>PyList_GET_ITEM(argv, 3),
        <Py_ssize_t>count,
    )
    if found is None:
        return None
    rows = new_of(rows_type, ())
    put(rows, REPLY_ROWS.page, <object>PyTuple_GET_ITEM(found, 0))
    put(rows, REPLY_ROWS.prefix, <object>PyTuple_GET_ITEM(found, 1))
    put(rows, REPLY_ROWS._entries, None)
    streams = new_of(streams_type, ())
    put(streams, STREAMS.streams, [(key, rows)])
    return streams


def acknowledge_words(type run_type not None, txn, bytes prefix not None, argv):
    """Run ``XACK key group id``; return 1 if it was pending, -2 if that is not plain."""
    cdef bytes packed = None
    if type(argv) is list and PyList_GET_SIZE(argv) == 4:
        packed = id_of(<object>PyList_GET_ITEM(argv, 3))
    if packed is None:
        return -2
    name = prefix + <bytes>PyList_GET_ITEM(argv, 1)
    return acknowledge(run_type, txn, name, <bytes>PyList_GET_ITEM(argv, 2), packed)


def delete_words(measure, txn, bytes prefix not None, argv):
    """Run ``XDEL key id``; return 1 if there was the entry, -2 if that is not plain."""
    cdef bytes packed = None
    if type(argv) is list and PyList_GET_SIZE(argv) == 3:
        packed = id_of(<object>PyList_GET_ITEM(argv, 2))
    if packed is None:
        return -2
    return delete(measure, txn, prefix + <bytes>PyList_GET_ITEM(argv, 1), packed)


cdef object stream_of(txn, bytes name):
    """Return a stream that is in memory and does not expire; None if that is not known."""
    if not is_of(txn, TXN.type):
        return None
    stream = (<dict>get(txn, TXN._known)).get(name)
    if not is_of(stream, STREAM.type) or get(stream, STREAM.expire_at):
        return None
    return stream


cdef object group_of(stream, bytes name):
    """Return a group that is in memory; None if that is not known."""
    group = (<dict>get(stream, STREAM.groups)).get(name)
    return group if is_of(group, GROUP.type) else None


# --- XADD -----------------------------------------------------------------------------------------


def append(txn, bytes name not None, bytes value not None, tuple names not None):
    """Do ``add`` of operations/append.py; return the ID, None if that is not plain."""
    cdef uint64_t ms, seq
    cdef int64_t now_ms  # it may be before 1970
    cdef Py_ssize_t length = PyBytes_GET_SIZE(value), appended, slack, unrecorded, count
    cdef object limits, last, eid, rows, stream = stream_of(txn, name)
    if stream is None or get(txn, TXN.wanted_events) or name in get(txn, TXN.awaited):
        return None
    last, rows = get(stream, STREAM.last), get(stream, STREAM.unmeasured)
    now_ms = get(txn, TXN.now_ms)
    take_id(last, &ms, &seq)
    if now_ms > 0 and <uint64_t>now_ms > ms:
        ms, seq = <uint64_t>now_ms, 0
    elif seq < U64_MAX:
        seq += 1
    else:
        return None
    appended, slack = get(stream, STREAM.open_appended), get(stream, STREAM.slack)
    unrecorded = get(stream, STREAM.unrecorded_entries)
    limits = get(txn, TXN.catalog).limits
    if (
        appended == 0
        or not is_of(limits, LIMITS.type)
        or 0 < bounded(get(limits, LIMITS.node_max_entries)) <= appended
        or <Py_ssize_t>get(stream, STREAM.open_bytes) + slack + length + COUNTERS_MAX
        >= (bounded(get(limits, LIMITS.node_max_bytes)) or NODE_BYTES_MAX)
        or length > NOTED_BYTES_MAX
        or unrecorded >= UNRECORDED_MAX
        or type(rows) is not list
        or names != get(stream, STREAM.names_seen)
    ):
        return None
    if length < <Py_ssize_t>get(stream, STREAM.near) and is_near(
        ms, seq, get(stream, STREAM.open_first)
    ):
        slack += length + <Py_ssize_t>get(stream, STREAM.width)
    else:
        slack += 2 * length + 16 * len(names) + HEAD_FAR
    put(stream, STREAM.slack, slack)
    eid = make_id(type(last), ms, seq)
    put(stream, STREAM.open_appended, appended + 1)
    put(stream, STREAM.open_live, <Py_ssize_t>get(stream, STREAM.open_live) + 1)
    put(stream, STREAM.open_last, eid)
    put(stream, STREAM.last, eid)
    count = get(stream, STREAM.length)
    if count == 0:
        put(stream, STREAM.first, eid)
    put(stream, STREAM.length, count + 1)
    put(stream, STREAM.entries_added, get(stream, STREAM.entries_added) + 1)
    put(stream, STREAM.unrecorded_entries, unrecorded + 1)
    key = key_of(get(stream, STREAM.prefix), ms, seq)
    (<dict>(<tuple>get(part(txn, TXN.batch, BATCH.type), BATCH.puts))[0])[key] = value
    row = (key, value)
    PyObject_GC_UnTrack(<PyObject *>row)
    (<list>rows).append(row)
    return eid


cdef bint is_near(uint64_t ms, uint64_t seq, first) except -1:
    """Return whether an ID differs little from the first one of its node."""
    cdef uint64_t first_ms, first_seq
    take_id(first, &first_ms, &first_seq)
    return ms - first_ms < NEAR and (seq - first_seq if seq > first_seq else first_seq - seq) < NEAR


cdef inline int take_id(eid, uint64_t *ms, uint64_t *seq) except -1:
    """Take the numbers of an ID."""
    if not PyTuple_Check(eid) or PyTuple_GET_SIZE(eid) != 2:
        raise TypeError("an ID is a tuple of two numbers")
    ms[0], seq[0] = <object>PyTuple_GET_ITEM(eid, 0), <object>PyTuple_GET_ITEM(eid, 1)
    return 0


cdef bytes key_of(bytes prefix, uint64_t ms, uint64_t seq):
    """Return the key of an entry."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix)
    key = PyBytes_FromStringAndSize(NULL, size + ID_BYTES)
    to = <unsigned char *>PyBytes_AS_STRING(key)
    memcpy(to, PyBytes_AS_STRING(prefix), size)
    put_big_endian(to + size, ms)
    put_big_endian(to + size + 8, seq)
    return key


# --- XREADGROUP -----------------------------------------------------------------------------------


def read_new(
    type run_type not None,
    txn,
    bytes name not None,
    bytes group_name not None,
    bytes consumer_name not None,
    Py_ssize_t count,
    bint given_back=False,
):
    """Do ``read_short`` of operations/readgroup.py for entries of the readahead or the open node.

    Return their rows and the length of their prefix; None if that is not plain. With ``given_back``
    it is not plain if entries were given back to the group.
    """
    cdef object stream = stream_of(txn, name), group
    if stream is None:
        return None
    group = group_of(stream, group_name)
    if group is None or get(group, GROUP.policy) is not None:
        return None
    if given_back and get(group, GROUP.nack_rank):
        return None
    return read_next(run_type, txn, stream, group, consumer_name, count)


def lease(
    type run_type not None,
    txn,
    bytes name not None,
    bytes group_name not None,
    bytes consumer_name not None,
    object most,
    int64_t lease_ms,
):
    """Do ``lease`` of operations/readgroup.py for one stream, if only new messages may be due.

    Return their rows and the length of their prefix; None if that is not plain.
    """
    cdef object stream = stream_of(txn, name), group, policy, packed
    cdef Py_ssize_t count = min(most, 1 << 62)
    cdef int64_t now_ms, since
    cdef uint64_t ms, seq
    if stream is None:
        return None
    group = group_of(stream, group_name)
    if group is None:
        return None
    policy = get(group, GROUP.policy)
    if (
        policy is None
        or policy.order_by
        or policy.limits
        or get(group, GROUP.looked_rank) != get(group, GROUP.nack_rank)
    ):
        return None
    now_ms, since = get(txn, TXN.now_ms), get(group, GROUP.owned_since)
    lease_ms = policy.lease_ms or lease_ms
    if now_ms < since or now_ms - lease_ms >= since:
        return None  # the clock was set back, or a lease may have ended
    packed = last_pending(group)
    if packed is None:
        return None
    take_id(get(group, GROUP.last_delivered), &ms, &seq)
    if PyBytes_GET_SIZE(packed) and is_above(<Bytes>last_of(packed), ms, seq):
        return None
    return read_next(run_type, txn, stream, group, consumer_name, count)


cdef bytes last_pending(group):
    """Return the IDs of a group's last run; None if its runs are not in memory."""
    cdef list chunks, chunk
    memory = get(part(group, GROUP.runs, TREE.type), TREE.memory)
    if not is_of(memory, ROWS.type):
        return None
    chunks = get(part(memory, ROWS.keys, KEYS.type), KEYS._chunks)
    if not PyList_GET_SIZE(chunks):
        return b""
    chunk = <list>PyList_GET_ITEM(chunks, PyList_GET_SIZE(chunks) - 1)
    anchor = <object>PyList_GET_ITEM(chunk, PyList_GET_SIZE(chunk) - 1)
    return <object>PyTuple_GET_ITEM((<dict>get(memory, ROWS.items))[anchor], PACKED)


cdef inline bint is_above(Bytes eid, uint64_t ms, uint64_t seq) noexcept:
    """Return whether a packed ID is above another one."""
    cdef uint64_t own = big_endian(eid)
    return own > ms or (own == ms and big_endian(eid + 8) > seq)


cdef object read_next(
    type run_type, txn, stream, group, bytes consumer_name, Py_ssize_t count
):
    """Deliver the next entries of a group; return as ``read_new``."""
    cdef object consumer, last, known
    cdef list page, ids
    cdef Py_ssize_t prefix
    if not 0 < count <= SHORT or get(txn, TXN.read_only):
        return None
    consumer = (<dict>get(group, GROUP.consumers)).get(consumer_name)
    last = get(group, GROUP.last_delivered)
    if consumer is None or get(stream, STREAM.last) <= last or not get(stream, STREAM.length):
        return None
    if count > 1 and (
        get(stream, STREAM.open_bytes) * FIRST_PAGE
        > FIRST_BYTES * get(stream, STREAM.open_appended)
    ):
        return None
    prefix, known = PyBytes_GET_SIZE(get(stream, STREAM.prefix)), get(group, GROUP.readahead)
    if (
        is_of(known, READAHEAD.type)
        and get(known, READAHEAD.rows)
        and get(known, READAHEAD.after) == last
    ):
        page = read_ahead(stream, known, prefix, count)
    else:
        page, known = read_recent(stream, last, count), None
    if page is None:
        return None
    ids = [(<bytes>(<tuple>row)[0])[prefix:] for row in page]
    if not give(run_type, txn, stream, group, consumer, ids):
        return None
    if known is not None:
        rows = get(known, READAHEAD.rows)
        for _ in range(count):
            rows.popleft()
        put(known, READAHEAD.after, get(group, GROUP.last_delivered))
    return page, prefix


cdef list read_ahead(stream, known, Py_ssize_t prefix, Py_ssize_t count):
    """Return the first rows of a readahead; None if they are too few, or may be damaged or dead."""
    cdef list page
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    cdef Py_ssize_t i
    rows = get(known, READAHEAD.rows)
    if get(known, READAHEAD.shrinks) != get(stream, STREAM.shrinks) or len(rows) < count:
        return None
    page = [rows[i] for i in range(count)]
    for i in range(count):
        if not take_row(page, i, prefix, &key, &value) or not is_sound(<bytes>value):
            return None
    return page


cdef list read_recent(stream, last, Py_ssize_t count):
    """Return the rows after an ID; None if they are not all in memory."""
    cdef Py_ssize_t at
    cdef uint64_t ms, seq
    cdef object rows = get(stream, STREAM.unmeasured), measured = get(stream, STREAM.measured)
    if not rows:
        return None
    take_id(last, &ms, &seq)
    at = count_rows_to(rows, key_of(get(stream, STREAM.prefix), ms, seq))
    if at == 0 and not (any(measured) and measured <= last):
        return None  # there may be others before them
    return (<list>rows)[at : at + count]


cdef Py_ssize_t count_rows_to(list rows, bytes key) except -1:
    """Return how many of the ascending ``rows`` have keys that are not above a key."""
    cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(rows), middle
    while low < high:
        middle = (low + high) // 2
        if key < <bytes>(<tuple>PyList_GET_ITEM(rows, middle))[0]:
            high = middle
        else:
            low = middle + 1
    return low


def give(type run_type not None, txn, stream, group, consumer, list ids not None):
    """Make ``ids`` pending and the last delivered ones; return False if that is not plain."""
    cdef object memory, activity, number, now_ms, name
    if not (
        is_of(txn, TXN.type)
        and is_of(stream, STREAM.type)
        and is_of(group, GROUP.type)
        and is_of(consumer, CONSUMER.type)
    ):
        return False
    memory = get(part(group, GROUP.runs, TREE.type), TREE.memory)
    activity, name = part(group, GROUP.activity, ACTIVITY.type), get(consumer, CONSUMER.name)
    if (
        not is_of(memory, ROWS.type)
        or get(group, GROUP.indexed)
        or get(group, GROUP.watches) is not None
        or get(activity, ACTIVITY.name) != name
        or not counts_further(stream, group)
        or not are_ids(ids)
        or not put_last(run_type, txn, group, name, memory, ids)
    ):
        return False
    eid = <Bytes>PyBytes_AS_STRING(<object>PyList_GET_ITEM(ids, PyList_GET_SIZE(ids) - 1))
    put(group, GROUP.entries_read, get(group, GROUP.entries_read) + PyList_GET_SIZE(ids))
    last = make_id(type(get(group, GROUP.last_delivered)), big_endian(eid), big_endian(eid + 8))
    put(group, GROUP.last_delivered, last)
    number, now_ms = get(activity, ACTIVITY.number) + 1, get(txn, TXN.now_ms)
    put(activity, ACTIVITY.number, number)
    put(consumer, CONSUMER.activity, number)
    put(activity, ACTIVITY.at_ms, now_ms)
    put(consumer, CONSUMER.seen_ms, now_ms)
    put(consumer, CONSUMER.active_ms, now_ms)
    (<dict>get(txn, TXN.catalog).seen).pop(get(consumer, CONSUMER.row), None)
    (<dict>get(txn, TXN._members))[get(group, GROUP.row)] = group
    return True


cdef bint counts_further(stream, group) except -1:
    """Return whether each further entry adds one to those that the group has read."""
    cdef object last = get(group, GROUP.last_delivered), deleted = get(stream, STREAM.max_deleted)
    if get(group, GROUP.entries_read) < 0 or last < get(stream, STREAM.first):
        return False
    return not get(stream, STREAM.length) or deleted < last or not any(deleted)


cdef bint are_ids(list ids) noexcept:
    """Return whether there is an ID, and all are 16 bytes."""
    for eid in ids:
        if type(eid) is not bytes or PyBytes_GET_SIZE(eid) != ID_BYTES:
            return False
    return PyList_GET_SIZE(ids) > 0


cdef bint put_last(type run_type, txn, group, owner, memory, list ids) except -1:
    """Add IDs to the last run, or as a run of their own; return False if that is not plain."""
    cdef Py_ssize_t count = PyList_GET_SIZE(ids), size = 0, most, grown
    cdef dict items = get(memory, ROWS.items)
    cdef object keys = part(memory, ROWS.keys, KEYS.type)
    cdef list chunks = get(keys, KEYS._chunks), chunk = None
    cdef object runs = part(group, GROUP.runs, TREE.type), index = get(group, GROUP.index)
    cdef object sizes = part(txn, TXN.thresholds, THRESHOLDS.type)
    cdef object first = <object>PyList_GET_ITEM(ids, 0), anchor = first, run = None, packed = b""
    if PyList_GET_SIZE(chunks):
        chunk = <list>PyList_GET_ITEM(chunks, PyList_GET_SIZE(chunks) - 1)
        anchor = <object>PyList_GET_ITEM(chunk, PyList_GET_SIZE(chunk) - 1)
        run = items[anchor]
        packed = <object>PyTuple_GET_ITEM(run, PACKED)
        size = PyBytes_GET_SIZE(packed)
        if compare(last_of(packed), first) >= 0:
            return False
    most = get(sizes, THRESHOLDS.run_ids)
    grown = get(group, GROUP.grown)
    grown += count
    if (
        run is not None
        and size // ID_BYTES + count <= most
        and shares(run, owner, get(txn, TXN.now_ms))
    ):
        items[anchor] = remade(run_type, run, joined(packed, size, ids))
        defer(runs, txn, anchor, True)
        if index is not None:
            index.count(run, count)
    else:
        if (
            count > most
            or grown > <Py_ssize_t>get(sizes, THRESHOLDS.cached_ids)
            or len(items)
            >= <Py_ssize_t>max(get(runs, TREE.room), get(sizes, THRESHOLDS.cached_rows))
            or owner not in get(group, GROUP.consumers)
            or (
                chunk is not None
                and PyList_GET_SIZE(chunk) + 1 >= 2 * <Py_ssize_t>get(sizes, THRESHOLDS.chunk_keys)
            )
        ):
            return False
        run = (first, joined(b"", 0, ids), owner, get(txn, TXN.now_ms), 1, 0)
        run = remade(run_type, run, <object>PyTuple_GET_ITEM(run, PACKED))
        items[first] = run
        if chunk is None:
            chunks.append([first])
            (<list>get(keys, KEYS._firsts)).append(first)
        else:
            chunk.append(first)
        defer(runs, txn, first, False)
        if index is not None:
            index.add(run)
    put(group, GROUP.grown, grown)
    return True


# --- XACK -----------------------------------------------------------------------------------------


def acknowledge(
    type run_type not None,
    txn,
    bytes name not None,
    bytes group_name not None,
    bytes eid not None,
):
    """Acknowledge an entry: return 1 if it was pending, -2 if that is not plain."""
    cdef object stream = stream_of(txn, name), group
    if stream is None:
        return -2
    group = group_of(stream, group_name)
    if group is None or get(group, GROUP.policy) is not None:
        return -2
    put(txn, TXN.frees, True)
    return discard(run_type, txn, group, eid)


def settle(
    type run_type not None,
    txn,
    bytes name not None,
    bytes group_name not None,
    bytes owner not None,
    eid,
    deliveries,
):
    """Acknowledge one message as ``ack`` of operations/queues/leases.py; -2 if not plain."""
    cdef object stream = stream_of(txn, name), group, policy
    cdef uint64_t ms, seq
    if stream is None:
        return -2
    group = group_of(stream, group_name)
    if group is None:
        return -2
    policy = get(group, GROUP.policy)
    if policy is not None and policy.limits:
        return -2
    try:
        take_id(eid, &ms, &seq)
    except OverflowError:
        return -2
    put(txn, TXN.frees, True)
    return discard(run_type, txn, group, key_of(b"", ms, seq), owner, deliveries)


def discard(
    type run_type not None, txn, group, bytes eid not None, bytes owner=None, deliveries=None
):
    """Do ``discard_one`` of meta/pel.py, or with an owner ``discard_leased``; -2 if not plain."""
    cdef object memory, runs, index, keys
    cdef Py_ssize_t at, place, offset
    cdef dict items
    cdef list chunks, firsts, chunk
    if not is_of(txn, TXN.type) or not is_of(group, GROUP.type):
        return -2
    runs, index = part(group, GROUP.runs, TREE.type), get(group, GROUP.index)
    memory = get(runs, TREE.memory)
    if (
        not is_of(memory, ROWS.type)
        or get(group, GROUP.indexed)
        or get(group, GROUP.watches) is not None
        or get(group, GROUP.keyed) is not None
        or PyBytes_GET_SIZE(eid) != ID_BYTES
    ):
        return -2
    items, keys = get(memory, ROWS.items), part(memory, ROWS.keys, KEYS.type)
    chunks, firsts = get(keys, KEYS._chunks), get(keys, KEYS._firsts)
    at = count_to(firsts, eid) - 1
    if at < 0:
        return 0
    chunk = <list>PyList_GET_ITEM(chunks, at)
    place = count_to(chunk, eid) - 1
    anchor = <object>PyList_GET_ITEM(chunk, place)
    run = items[anchor]
    packed = <object>PyTuple_GET_ITEM(run, PACKED)
    offset = offset_of(packed, eid)
    if offset < 0:
        return 0
    if owner is not None and not is_leased(run, owner, deliveries):
        return -1
    defer(runs, txn, anchor, True)
    if PyBytes_GET_SIZE(packed) > ID_BYTES:
        items[anchor] = remade(run_type, run, without(packed, offset))
        if index is not None:
            index.count(run, -1)
        return 1
    put(group, GROUP.near, None)
    del items[anchor]
    del chunk[place]
    if not PyList_GET_SIZE(chunk):
        del chunks[at]
        del firsts[at]
    elif place == 0:
        firsts[at] = <object>PyList_GET_ITEM(chunk, 0)
    if index is not None:
        index.remove(run)
    return 1


# --- XDEL -----------------------------------------------------------------------------------------


def delete(measure, txn, bytes name not None, bytes packed not None):
    """Do ``delete_one`` of operations/delete.py; return -2 if that is not plain.

    ``measure`` counts the bytes of entries of the open node.
    """
    cdef object stream = stream_of(txn, name), catalog, node = None, known, first_ids, batch
    cdef uint64_t ms, seq
    cdef Py_ssize_t live, offset
    if stream is None or get(txn, TXN.wanted_events) or PyBytes_GET_SIZE(packed) != ID_BYTES:
        return -2
    catalog, batch = get(txn, TXN.catalog), part(txn, TXN.batch, BATCH.type)
    if catalog.deletions.watches:
        return -2
    ms = big_endian(<Bytes>PyBytes_AS_STRING(packed))
    seq = big_endian(<Bytes>PyBytes_AS_STRING(packed) + 8)
    if get(stream, STREAM.open_live) and order_of(ms, seq, get(stream, STREAM.open_first)) >= 0:
        if get(stream, STREAM.open_ids) is None:
            return -2
        if get(stream, STREAM.slack):
            measure(batch, stream)
        known, live = get(stream, STREAM.open_ids), get(stream, STREAM.open_live)
    else:
        node = node_over(get(stream, STREAM.cached_nodes), ms, seq)
        if node is None or order_of(ms, seq, get(node, NODE.last)) > 0:
            return -2
        known, live = get(node, NODE.ids), get(node, NODE.live)
    if type(known) is not bytearray or PyByteArray_GET_SIZE(known) != live * ID_BYTES or live < 2:
        return -2
    offset = place_of(known, packed)
    first_ids = get(stream, STREAM.first_ids)
    if first_ids and order_of(ms, seq, first_ids[len(first_ids) - 1]) <= 0:
        return -2
    put(txn, TXN.frees, True)
    if offset < 0:
        return 0
    take_out(known, offset)
    if node is None:
        put(stream, STREAM.open_live, live - 1)
    else:
        put(node, NODE.live, live - 1)
        note_changed(batch, stream, node)
    (<dict>(<tuple>get(batch, BATCH.puts))[0])[<bytes>get(stream, STREAM.prefix) + packed] = None
    cache = catalog.reply_cache
    if cache.memory:
        cache.drop_between(get(stream, STREAM.prefix), packed, packed)
    put(stream, STREAM.deletions, get(stream, STREAM.deletions) + 1)
    put(stream, STREAM.shrinks, get(stream, STREAM.shrinks) + 1)
    put(stream, STREAM.length, get(stream, STREAM.length) - 1)
    note_deleted(stream, ms, seq, known)
    (<dict>get(txn, TXN._streams))[get(stream, STREAM.row)] = stream
    return 1


cdef int note_deleted(stream, uint64_t ms, uint64_t seq, bytearray ids) except -1:
    """Update the first and the greatest deleted IDs; ``ids`` are the others of the entry's node."""
    cdef object last = get(stream, STREAM.last), eid = None
    if order_of(ms, seq, get(stream, STREAM.first)) == 0:
        at = <Bytes>PyByteArray_AS_STRING(ids)
        put(stream, STREAM.first, make_id(type(last), big_endian(at), big_endian(at + 8)))
    if order_of(ms, seq, get(stream, STREAM.deleted_to)) > 0:
        eid = make_id(type(last), ms, seq)
        put(stream, STREAM.deleted_to, eid)
    if order_of(ms, seq, get(stream, STREAM.max_deleted)) > 0:
        put(stream, STREAM.max_deleted, make_id(type(last), ms, seq) if eid is None else eid)
        put(stream, STREAM._cold, None)
    return 0


cdef inline int order_of(uint64_t ms, uint64_t seq, eid) except? -2:
    """Compare an ID with another one, a tuple: return -1, 0 or 1."""
    cdef uint64_t number = <object>PyTuple_GET_ITEM(eid, 0), own = ms
    if number == ms:
        number, own = <object>PyTuple_GET_ITEM(eid, 1), seq
    return 0 if own == number else -1 if own < number else 1


cdef object node_over(list nodes, uint64_t ms, uint64_t seq):
    """Return the last node that begins at or below an ID, None if there is none."""
    cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(nodes), middle
    while low < high:
        middle = (low + high) // 2
        node = <object>PyList_GET_ITEM(nodes, middle)
        if not is_of(node, NODE.type):
            return None
        if order_of(ms, seq, get(node, NODE.first)) < 0:
            high = middle
        else:
            low = middle + 1
    return <object>PyList_GET_ITEM(nodes, low - 1) if low else None


cdef void note_changed(batch, stream, node) except *:
    """Note a changed node, as ``put`` of nodes.py does."""
    cdef list changed
    if get(node, NODE.is_changed):
        return
    put(node, NODE.is_changed, True)
    changed = get(stream, STREAM.changed_nodes)
    if not PyList_GET_SIZE(changed):
        (<list>get(batch, BATCH.deferred)).append(stream.put_nodes)
    changed.append(node)


cdef Py_ssize_t place_of(bytearray ids, bytes packed) noexcept:
    """Return where an ID begins among ascending packed ones; -1 if it is not there."""
    cdef Py_ssize_t low = 0, high = PyByteArray_GET_SIZE(ids) // ID_BYTES, middle
    cdef int order
    while low < high:
        middle = (low + high) // 2
        order = compare(PyByteArray_AS_STRING(ids) + middle * ID_BYTES, packed)
        if order == 0:
            return middle * ID_BYTES
        if order > 0:
            high = middle
        else:
            low = middle + 1
    return -1


cdef int take_out(bytearray ids, Py_ssize_t offset) except -1:
    """Remove the packed ID at an offset."""
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(ids) - ID_BYTES
    at = PyByteArray_AS_STRING(ids) + offset
    memmove(at, at + ID_BYTES, size - offset)
    PyByteArray_Resize(ids, size)
    return 0


# --- runs -----------------------------------------------------------------------------------------


cdef inline int compare(const char *one, bytes other) noexcept:
    return memcmp(one, PyBytes_AS_STRING(other), ID_BYTES)


cdef inline const char *last_of(bytes packed) noexcept:
    return PyBytes_AS_STRING(packed) + PyBytes_GET_SIZE(packed) - ID_BYTES


cdef bint shares(run, owner, now_ms) except -1:
    """Return whether a run has the entries that an owner has got now, for the first time."""
    return (
        <object>PyTuple_GET_ITEM(run, TIME_MS) == now_ms
        and <object>PyTuple_GET_ITEM(run, DELIVERIES) == 1
        and <object>PyTuple_GET_ITEM(run, RANK) == 0
        and <object>PyTuple_GET_ITEM(run, OWNER) == owner
    )


cdef bint is_leased(run, owner, deliveries) except -1:
    """Return whether a run has a delivery to an owner."""
    return (
        <object>PyTuple_GET_ITEM(run, RANK) == 0
        and <object>PyTuple_GET_ITEM(run, OWNER) == owner
        and <object>PyTuple_GET_ITEM(run, DELIVERIES) == deliveries
    )


cdef object remade(type run_type, run, packed):
    """Return a run with other IDs."""
    cdef Py_ssize_t i
    made = kvstream_alloc(<PyTypeObject *>run_type, PARTS)
    for i in range(PARTS):
        part = packed if i == PACKED else <object>PyTuple_GET_ITEM(run, i)
        Py_INCREF(part)
        PyTuple_SET_ITEM(made, i, part)
    return made


cdef bytes joined(bytes packed, Py_ssize_t size, list ids):
    """Return packed IDs with others behind them."""
    cdef Py_ssize_t i, count = PyList_GET_SIZE(ids)
    made = PyBytes_FromStringAndSize(NULL, size + count * ID_BYTES)
    to = PyBytes_AS_STRING(made)
    memcpy(to, PyBytes_AS_STRING(packed), size)
    for i in range(count):
        eid = PyBytes_AS_STRING(<object>PyList_GET_ITEM(ids, i))
        memcpy(to + size + i * ID_BYTES, eid, ID_BYTES)
    return made


cdef bytes without(bytes packed, Py_ssize_t offset):
    """Return packed IDs without the one at an offset."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(packed) - ID_BYTES
    made = PyBytes_FromStringAndSize(NULL, size)
    to, start = PyBytes_AS_STRING(made), PyBytes_AS_STRING(packed)
    memcpy(to, start, offset)
    memcpy(to + offset, start + offset + ID_BYTES, size - offset)
    return made


cdef Py_ssize_t offset_of(bytes packed, bytes eid) noexcept:
    """Return where an ID begins among packed ones; -1 if it is not there."""
    cdef Py_ssize_t at
    for at in range(0, PyBytes_GET_SIZE(packed), ID_BYTES):
        if compare(PyBytes_AS_STRING(packed) + at, eid) == 0:
            return at
    return -1


cdef Py_ssize_t count_to(list keys, bytes eid) except -1:
    """Return how many of the ascending ``keys`` are not above an ID."""
    cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(keys), middle
    while low < high:
        middle = (low + high) // 2
        if eid < <object>PyList_GET_ITEM(keys, middle):
            high = middle
        else:
            low = middle + 1
    return low


cdef void defer(runs, txn, anchor, exists) except *:
    """Note a changed row, as ``Tree._defer`` does."""
    cdef dict changed = get(runs, TREE._changed)
    if not changed:
        (<list>get(part(txn, TXN.batch, BATCH.type), BATCH.deferred)).append(runs._put_changed)
    if anchor not in changed:
        changed[anchor] = exists


# --- transactions ---------------------------------------------------------------------------------


def reset(txn, now_ms, read_only):
    """Do ``Txn.reset``; return False if that is not plain."""
    if not is_of(txn, TXN.type):
        return False
    put(txn, TXN.now_ms, now_ms)
    put(txn, TXN.expiry_ms, now_ms)
    put(txn, TXN.frees, False)
    put(txn, TXN.only_redelivered, False)
    put(txn, TXN.groups_dropped, 0)
    put(txn, TXN.read_only, read_only)
    put(txn, TXN.keeps_expired, read_only)
    put(txn, TXN.wanted_events, get(txn, TXN.catalog).wanted_events)
    if get(txn, TXN.events):
        put(txn, TXN.events, [])
    if get(txn, TXN.signals):
        put(txn, TXN.signals, {})
    if get(txn, TXN.unwritten):
        put(txn, TXN.unwritten, {})
    if get(txn, TXN.missing):
        put(txn, TXN.missing, set())
    return True


def finish(txn):
    """Do ``Changeset.finish``; return False if that is not plain."""
    cdef object batch, seen
    cdef dict members, trees
    cdef tuple puts
    if not is_of(txn, TXN.type) or get(txn, TXN._streams):
        return False
    batch, members = part(txn, TXN.batch, BATCH.type), get(txn, TXN._members)
    puts = get(batch, BATCH.puts)
    if not (
        puts[0]
        or members
        or get(batch, BATCH.deferred)
        or puts[1]
        or puts[2]
        or get(batch, BATCH.ranges)
    ):
        return None
    seen = get(txn, TXN.catalog).seen
    if seen:
        members.update(seen)
        seen.clear()
    if members:
        trees = puts[2]
        for row, member in members.items():
            packed = encode_group(member)
            if packed is None:
                return False
            trees[row] = packed
        members.clear()
    return batch


def put_changed(tree, batch):
    """Do ``Tree._put_changed`` for a tree of runs; return False if that is not plain."""
    cdef dict changed, items, puts
    cdef bytes prefix
    if (
        not is_of(tree, TREE.type)
        or not is_of(batch, BATCH.type)
        or get(tree, TREE._encode) is not run_encode
    ):
        return False
    memory, changed = get(tree, TREE.memory), get(tree, TREE._changed)
    if not is_of(memory, ROWS.type):
        return False
    items, prefix = get(memory, ROWS.items), get(tree, TREE.prefix)
    puts = (<tuple>get(batch, BATCH.puts))[2]
    for suffix, exists in changed.items():
        run = items.get(suffix)
        if run is not None:
            packed = encode_run(run)
            if packed is None:
                return False
            puts[prefix + <bytes>suffix] = packed
        elif exists:
            puts[prefix + <bytes>suffix] = None
    changed.clear()
    return True


cdef bytes encode_run(run):
    """Do ``Run.encode``; return None if a number is out of range."""
    cdef bytes owner = <object>PyTuple_GET_ITEM(run, OWNER)
    cdef bytes ids = <object>PyTuple_GET_ITEM(run, PACKED)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(owner)
    cdef uint64_t time_ms, deliveries, rank
    try:
        time_ms = <object>PyTuple_GET_ITEM(run, TIME_MS)
        deliveries = <object>PyTuple_GET_ITEM(run, DELIVERIES)
        rank = <object>PyTuple_GET_ITEM(run, RANK)
    except OverflowError:
        return None
    made = PyBytes_FromStringAndSize(NULL, RUN_BYTES + length + PyBytes_GET_SIZE(ids))
    to = <unsigned char *>PyBytes_AS_STRING(made)
    put_big_endian(to, time_ms)
    put_big_endian(to + 8, deliveries)
    put_big_endian(to + 16, rank)
    put_short(to + 24, <uint32_t>length)
    memcpy(to + RUN_BYTES, PyBytes_AS_STRING(owner), length)
    memcpy(to + RUN_BYTES + length, PyBytes_AS_STRING(ids), PyBytes_GET_SIZE(ids))
    return made


def encode_group(group):
    """Do ``GroupMeta.encode``; return None if that is not plain."""
    cdef bytes rules = b"", name
    cdef Py_ssize_t length = 0, size
    cdef uint64_t numbers[11]
    cdef int64_t at_ms
    if not is_of(group, GROUP.type) or get(group, GROUP.rated):
        return None
    policy, activity = get(group, GROUP.policy), part(group, GROUP.activity, ACTIVITY.type)
    if policy is not None:
        rules = policy.encoded
        length = PyBytes_GET_SIZE(rules) + 5
    name = get(activity, ACTIVITY.name)
    try:
        take_id(get(group, GROUP.last_delivered), &numbers[0], &numbers[1])
        numbers[2] = <uint64_t>bounded(get(group, GROUP.entries_read))
        numbers[3] = get(group, GROUP.pending)
        numbers[4] = get(group, GROUP.nacked)
        numbers[5] = get(group, GROUP.nack_rank)
        numbers[6] = get(group, GROUP.consumers_count)
        numbers[7] = get(group, GROUP.consumers_tree)
        numbers[8] = get(part(group, GROUP.runs, TREE.type), TREE.id)
        numbers[9] = get(part(group, GROUP.times, TREE.type), TREE.id)
        numbers[10] = get(activity, ACTIVITY.number)
        at_ms = get(activity, ACTIVITY.at_ms)
    except OverflowError:
        return None
    if numbers[6] > <uint64_t>0xFFFFFFFF:
        return None
    size = GROUP_BYTES + length + ACTIVITY_BYTES + PyBytes_GET_SIZE(name)
    made = PyBytes_FromStringAndSize(NULL, size)
    to = <unsigned char *>PyBytes_AS_STRING(made)
    to[0] = MEMBER_VERSION if policy is None else POLICY_VERSION
    put_big_endian(to + 1, numbers[0])
    put_big_endian(to + 9, numbers[1])
    put_big_endian(to + 17, numbers[2])
    to[25] = 1 if get(group, GROUP.indexed) else 0
    put_big_endian(to + 26, numbers[3])
    put_big_endian(to + 34, numbers[4])
    put_big_endian(to + 42, numbers[5])
    put_short(to + 50, <uint32_t>numbers[6])
    put_big_endian(to + 54, numbers[7])
    put_big_endian(to + 62, numbers[8])
    put_big_endian(to + 70, numbers[9])
    to += GROUP_BYTES
    if length:
        put_short(to, <uint32_t>(length - 5))
        memcpy(to + 4, PyBytes_AS_STRING(rules), length - 5)
        to[length - 1] = 0  # no deliveries that a rate counts
        to += length
    put_big_endian(to, numbers[10])
    put_big_endian(to + 8, <uint64_t>at_ms)
    put_short(to + 16, <uint32_t>PyBytes_GET_SIZE(name))
    memcpy(to + ACTIVITY_BYTES, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    return made


cdef inline void put_short(unsigned char *at, uint32_t number) noexcept nogil:
    cdef int i
    for i in range(3, -1, -1):
        at[i] = number & 0xFF
        number >>= 8
