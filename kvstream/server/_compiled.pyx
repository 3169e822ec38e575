# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of the server's way of a request: arrivals, plain requests, replies, sockets.

Each takes the plain case alone and leaves all else to the Python twin that its docstring names.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from kvstream.layout._msgpack cimport (
    UNIQUE,
    Bytes,
    map_head_size,
    pack_map_head,
    pack_string,
    packed_size,
)
from kvstream.layout._slots cimport find_slots, get, is_of, put
from kvstream.resp._requests cimport Part, take_bulk, take_number
from kvstream.resp._sockets cimport (
    KVSTREAM_READY,
    kvstream_now_ns,
    kvstream_poll_ready,
    kvstream_ready,
    kvstream_receive,
    kvstream_send,
)
from kvstream.resp._waits cimport POLL_NS, SHORT_MIN, SHORT_NS, ShortWaits
from kvstream.resp._wire cimport encode_ids, encode_plain, take_plain
from kvstream.server._changes cimport BatchSlots, TxnSlots, is_dirty
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memset

from kvstream.commands.command import StreamsKeys
from kvstream.commands.replies import ErrorReply, Simple
from kvstream.errors import RequestError
from kvstream.types.clock import perf_counter

ctypedef unsigned char *Buffer

cdef enum:
    PAIRS_NEAR = 16  # so many names are compared with each other
    OPTIONS_MAX = 5  # words before the ID of an XADD that trims
    TRIMS_KEPT = 256  # texts of trims that are remembered
    RECENT = 1024  # as in stats.py
    XADD_WORDS = 5  # words of the shortest XADD
    READ_ROOM = 262144  # bytes read from a socket at once
    POLLED_MAX = 4  # clients for which polling gains; requests of more come soon enough


# --- the slots of Python's classes -------------------------------------------------------------------


cdef struct ClientSlots:
    Py_ssize_t type
    Py_ssize_t bytes_in
    Py_ssize_t bytes_out
    Py_ssize_t closing
    Py_ssize_t commands_run
    Py_ssize_t db
    Py_ssize_t last_command
    Py_ssize_t last_used
    Py_ssize_t look_at
    Py_ssize_t lost
    Py_ssize_t on_short_path
    Py_ssize_t output_over_since
    Py_ssize_t prefix
    Py_ssize_t protocol
    Py_ssize_t reader
    Py_ssize_t reply_unfinished
    Py_ssize_t requests
    Py_ssize_t send
    Py_ssize_t user


cdef struct ReaderSlots:
    Py_ssize_t type
    Py_ssize_t bulk_max
    Py_ssize_t trusted


cdef struct StatisticsSlots:
    Py_ssize_t type
    Py_ssize_t bytes_in
    Py_ssize_t bytes_out
    Py_ssize_t commands


cdef struct RowSlots:
    Py_ssize_t type
    Py_ssize_t calls, durations, idle, seconds


cdef struct PendingSlots:
    Py_ssize_t type
    Py_ssize_t head, is_sent, protocol, reply


cdef ClientSlots CLIENT
cdef PendingSlots PENDING
cdef ReaderSlots READER
cdef StatisticsSlots STATISTICS
cdef RowSlots ROW
cdef TxnSlots TXN
cdef BatchSlots BATCH


def bind(type client, type reader, type statistics, type row, type txn, type batch):
    """Find the slots of the classes."""
    global CLIENT, READER, STATISTICS, ROW, TXN, BATCH
    CLIENT, READER = find_slots(client, CLIENT), find_slots(reader, READER)
    STATISTICS, ROW = find_slots(statistics, STATISTICS), find_slots(row, ROW)
    TXN, BATCH = find_slots(txn, TXN), find_slots(batch, BATCH)


def bind_replies(type pending):
    """Find the slots of pending replies."""
    global PENDING
    PENDING = find_slots(pending, PENDING)


cdef inline object of_client(object client, Py_ssize_t place, object name):
    """Return an attribute of a client, at its place in a ``Client``."""
    return get(client, place) if is_of(client, CLIENT.type) else getattr(client, name)


cdef inline bint is_so(object client, Py_ssize_t place, object name) except -1:
    """Return whether an attribute of a client is true."""
    value = of_client(client, place, name)
    return False if value is False else True if value is True else bool(value)


cdef inline int set_of_client(object client, Py_ssize_t place, object name, object value) except -1:
    if is_of(client, CLIENT.type):
        put(client, place, value)
    else:
        setattr(client, name, value)
    return 0


cdef int note_commands(object client, object name, Py_ssize_t count) except -1:
    """Count commands that a client has run, the last one of that name."""
    set_of_client(client, CLIENT.last_command, "last_command", name)
    before = of_client(client, CLIENT.commands_run, "commands_run")
    return set_of_client(client, CLIENT.commands_run, "commands_run", before + count)


cdef inline int count_bytes_in(object statistics, Py_ssize_t size) except -1:
    if is_of(statistics, STATISTICS.type):
        put(statistics, STATISTICS.bytes_in, get(statistics, STATISTICS.bytes_in) + size)
    else:
        statistics.bytes_in += size
    return 0


cdef inline int count_bytes_out(object statistics, Py_ssize_t size) except -1:
    if is_of(statistics, STATISTICS.type):
        put(statistics, STATISTICS.bytes_out, get(statistics, STATISTICS.bytes_out) + size)
    else:
        statistics.bytes_out += size
    return 0


# --- batches of XADD ----------------------------------------------------------------------------


cdef inline bint is_append(Part *words) noexcept nogil:
    """Tell whether the first word is XADD."""
    if words[0].size != 4:
        return False
    return memcmp(words[0].at, b"XADD", 4) == 0 or memcmp(words[0].at, b"xadd", 4) == 0


cdef inline Py_ssize_t options_before(Part *words, Py_ssize_t count) noexcept nogil:
    """Return how many words stand before the *, the first of them MAXLEN or MINID; else -1."""
    cdef Py_ssize_t i
    if words[0].size == 1 and words[0].at[0] == 42:
        return 0
    if words[0].size not in (5, 6) or words[0].at[0] | 32 != 109:  # m
        return -1
    for i in range(1, min(count, OPTIONS_MAX + 1)):
        if words[i].size == 1 and words[i].at[0] == 42:
            return i
    return -1


cdef inline bint same(Part *one, Part *other) noexcept nogil:
    return one.size == other.size and memcmp(one.at, other.at, one.size) == 0


cdef bint names_differ(Part *fields, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i, j
    for i in range(1, count):
        for j in range(i):
            if same(&fields[2 * i], &fields[2 * j]):
                return False
    return True


cdef bytes pack_fields(Part *fields, Py_ssize_t count, Py_ssize_t limit):
    """Return the row value of fields whose names differ; None for one of too many bytes."""
    cdef Py_ssize_t total = 1 + map_head_size(count), i
    cdef Buffer to
    for i in range(2 * count):
        total += packed_size(fields[i].size)
    if total > limit:
        return None
    packed = PyBytes_FromStringAndSize(NULL, total)
    to = <Buffer>PyBytes_AS_STRING(packed)
    to[0] = UNIQUE
    to = pack_map_head(to + 1, count)
    for i in range(2 * count):
        to = pack_string(to, fields[i].at, fields[i].size)
    return packed


cdef tuple names_before = ()  # those made last: most requests have the same


cdef tuple names_of(Part *fields, Py_ssize_t count):
    """Return the names of fields that differ, None where they do not."""
    global names_before
    cdef Py_ssize_t i
    cdef bint again = PyTuple_GET_SIZE(names_before) == count
    cdef bytes name
    for i in range(count):
        if not again:
            break
        name = <bytes>PyTuple_GET_ITEM(names_before, i)
        again = PyBytes_GET_SIZE(name) == fields[2 * i].size and (
            memcmp(PyBytes_AS_STRING(name), fields[2 * i].at, fields[2 * i].size) == 0
        )
    if not again:
        if not names_differ(fields, count):
            return None
        names_before = tuple(
            [PyBytes_FromStringAndSize(<const char *>fields[2 * i].at, fields[2 * i].size) for i in range(count)]
        )
    return names_before


cdef dict trims_read = {}  # by the bytes of their words


cdef object trim_of(object read_trim, Part *words, Py_ssize_t count):
    """Return what the options mean; None unless they are those of a plain trim.

    The first word has at most six bytes, so no other words have the same bytes together.
    """
    cdef Bytes start = words[0].at
    cdef bytes text = PyBytes_FromStringAndSize(
        <const char *>start, words[count - 1].at + words[count - 1].size - start
    )
    cdef Py_ssize_t i
    found = trims_read.get(text, NotImplemented)
    if found is NotImplemented:
        found = read_trim(
            [PyBytes_FromStringAndSize(<const char *>words[i].at, words[i].size) for i in range(count)]
        )
        if len(trims_read) >= TRIMS_KEPT:
            trims_read.clear()
        trims_read[text] = found
    return found


cdef class XaddBatch:
    """Does what ``PythonXaddBatch`` of xadd_batching.py does."""

    cdef readonly object client
    cdef readonly bytes key
    cdef readonly list entries
    cdef readonly object sent
    cdef readonly list trims
    cdef public bytes replies
    cdef public bytes prefix

    def __init__(
        self, object client, bytes key not None, list entries not None, object sent, list trims=None
    ):
        self.client = client
        self.key = key
        self.entries = entries
        self.sent = sent
        self.trims = trims
        self.replies = self.prefix = b""

    def encode(self):
        return self.replies

    def memory(self):
        return len(self.replies) + sum([len(row) for row, _ in self.entries])

    def depends_on_store(self):
        return True

    def fail(self, error):
        self.replies = error.encoded(self.client.protocol) * len(self.entries)


cpdef XaddBatch take_batch(object client, bytes data, Py_ssize_t limit, object read_trim):
    """Return a batch of plain XADDs: ``XADD key [trim] * field value ...``.

    None unless the bytes are whole such requests, all to one key, with few and different fields, and
    no row of more than ``limit`` bytes. ``read_trim`` reads the words of a trim.
    """
    cdef Part words[3 + OPTIONS_MAX + 2 * PAIRS_NEAR]
    cdef Part known[2 * PAIRS_NEAR]
    cdef Part key = Part(NULL, -1)
    cdef Part *fields
    cdef Bytes start = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, pairs, count = 0, i, options
    cdef int64_t number
    cdef list entries = [], trims = None
    cdef tuple names = ()
    cdef bytes packed
    cdef object trim
    cdef bint again
    cdef XaddBatch batch
    while at < size:
        if start[at] != 42:  # *
            return None
        at += 1
        number = take_number(start, &at, size)
        if number < 5 or number > 3 + OPTIONS_MAX + 2 * PAIRS_NEAR:
            return None
        for i in range(number):
            at = take_bulk(start, at, size, &words[i])
            if at < 0 or (i == 0 and not is_append(words)):
                return None
        if key.size < 0:
            key = words[1]
        elif not same(&key, &words[1]):
            return None
        options = options_before(&words[2], number - 2)
        if options < 0:
            return None
        fields = &words[3 + options]
        pairs = number - 3 - options
        if pairs < 2 or pairs & 1 or pairs > 2 * PAIRS_NEAR:
            return None
        pairs >>= 1
        trim = None
        if options:
            trim = trim_of(read_trim, &words[2], options)
            if trim is None:
                return None
            if trims is None:
                trims = [None] * len(entries)
        if trims is not None:
            trims.append(trim)
        again = pairs == count
        for i in range(pairs):
            if not again:
                break
            again = same(&fields[2 * i], &known[2 * i])
        if not again:
            names = names_of(fields, pairs)
            if names is None:
                return None
            count = pairs
            for i in range(pairs):
                known[2 * i] = fields[2 * i]
        packed = pack_fields(fields, pairs, limit)
        if packed is None:
            return None
        entries.append((packed, names))
    if key.size < 0:
        return None
    batch = XaddBatch.__new__(XaddBatch)
    batch.client, batch.entries, batch.sent, batch.trims = client, entries, data, trims
    batch.key = PyBytes_FromStringAndSize(<const char *>key.at, key.size)
    batch.replies = batch.prefix = b""
    return batch


def gather(list batches not None, dict waiting not None, Py_ssize_t most):
    """Do what ``gather_in_python`` of xadd_batching.py does."""
    cdef Py_ssize_t at = 0, entries = 0
    cdef XaddBatch batch, before = None
    cdef object client, name, prefix, prefix_before = None
    cdef list others = [], same_stream = None
    cdef set trimming = set()
    while at < PyList_GET_SIZE(batches) and entries < most:
        batch = <XaddBatch?>batches[at]
        at += 1
        entries += PyList_GET_SIZE(batch.entries)
        client = batch.client
        if not client.on_short_path:
            others.append(batch)
            continue
        prefix = client.prefix
        batch.prefix = <bytes?>prefix
        if same_stream is None or prefix is not prefix_before or batch.key != before.key:
            name = prefix + batch.key
            same_stream = waiting.setdefault(name, [])
            before, prefix_before = batch, prefix
        same_stream.append(batch)
        if batch.trims is not None:
            trimming.add(name)
    return at, others, entries, trimming


def entries_of(list batches not None):
    """Do what ``entries_in_python`` of xadd_batching.py does."""
    cdef XaddBatch batch
    cdef list entries = [], trims = None
    for batch in batches:
        if batch.trims is not None and trims is None:
            trims = [None] * len(entries)
        if trims is not None:
            trims += [None] * len(batch.entries) if batch.trims is None else batch.trims
        entries += batch.entries
    return entries, trims


def answer(list batches not None, list ids not None):
    """Do what ``answer_in_python`` of xadd_batching.py does."""
    cdef Py_ssize_t at = 0, stop
    cdef XaddBatch batch
    cdef object client
    for batch in batches:
        stop = at + PyList_GET_SIZE(batch.entries)
        batch.replies = encode_ids(ids, at, stop)
        client = batch.client
        note_commands(client, "xadd", stop - at)
        at = stop


# --- arrivals -----------------------------------------------------------------------------------


cdef class Arrivals:
    """Does what ``PythonArrivals`` of arrivals.py does, and makes XADD batches."""

    cdef object statistics, limits, clock, receive_unusual, read_trim
    cdef dict ready
    cdef list xadd_batches
    cdef Py_ssize_t piece, batch_max, entry_max

    def __init__(self, piece, batch_max, entry_max, read_trim, server):
        """``piece``, ``batch_max`` and ``entry_max`` are bytes: of requests, batches and entries."""
        self.piece, self.batch_max, self.entry_max = piece, batch_max, entry_max
        self.read_trim, self.receive_unusual = read_trim, server.receive_unusual
        self.statistics, self.limits, self.clock = server.statistics, server.limits, server.clock
        self.ready, self.xadd_batches = server.ready, server.xadd_batches

    def __call__(self, client, bytes data not None):
        self.receive(client, data)

    cdef int receive(self, object client, bytes data) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        count_bytes_in(self.statistics, size)
        arrived = of_client(client, CLIENT.bytes_in, "bytes_in") + size
        set_of_client(client, CLIENT.bytes_in, "bytes_in", arrived)
        if arrived > of_client(client, CLIENT.look_at, "look_at"):
            self.limits.pause_if_ahead(client)
        if not (
            is_so(client, CLIENT.on_short_path, "on_short_path")
            and not len(of_client(client, CLIENT.requests, "requests"))
            and self.take(client, data, size)
        ):
            self.receive_unusual(client, data)
        return 0

    cdef bint take(self, object client, bytes data, Py_ssize_t size) except -1:
        """Take a batch or whole requests; return False for anything else."""
        cdef XaddBatch batch = None
        cdef list requests = []
        cdef tuple end
        if size <= self.batch_max:
            batch = take_batch(client, data, self.entry_max, self.read_trim)
        if batch is not None:
            set_of_client(client, CLIENT.last_used, "last_used", self.clock())
            self.xadd_batches.append(batch)
            return True
        reader = of_client(client, CLIENT.reader, "reader")
        if size > self.piece or not is_of(reader, READER.type):
            return False
        if get(reader, READER.trusted) is not True:
            return False
        end = take_plain(data, 0, requests, [], 0, get(reader, READER.bulk_max))
        if end[0] != size or end[2] or not requests:
            return False
        set_of_client(client, CLIENT.last_used, "last_used", self.clock())
        of_client(client, CLIENT.requests, "requests").extend(requests)
        self.ready[client] = None
        return True


# --- call times ---------------------------------------------------------------------------------


cdef enum:
    BUCKET_SHIFT = 45  # a bucket has the exponent and the first seven bits of a double
    BUCKETS = 5376  # from 2^-30 to 2^12 seconds


cdef union Bits:
    double number
    int64_t bits


cdef int add_count(dict counts, int64_t bucket, int count) except -1:
    cdef Bits low
    low.bits = bucket << BUCKET_SHIFT
    counts[low.number] = counts.get(low.number, 0) + count
    return 0


def count_times(list times not None, dict counts not None):
    """Do what ``count_in_python`` of stats.py does."""
    cdef int[BUCKETS] found
    cdef Bits time
    cdef int64_t first, bucket, least = BUCKETS, most = -1
    cdef double seconds
    time.number = 2.0**-30
    first = time.bits >> BUCKET_SHIFT
    memset(found, 0, sizeof(found))
    for seconds in times:
        time.number = max(seconds, 1e-9)
        bucket = (time.bits >> BUCKET_SHIFT) - first
        if bucket >= BUCKETS:
            add_count(counts, bucket + first, 1)
            continue
        found[bucket] += 1
        least, most = min(least, bucket), max(most, bucket)
    for bucket in range(least, most + 1):
        if found[bucket]:
            add_count(counts, bucket + first, found[bucket])


# --- connections --------------------------------------------------------------------------------


cdef class Channel:
    """Does what ``PythonChannel`` of asyncio_server.py does, and writes to ``socket`` by itself.

    Only what the socket does not take goes to the transport.
    """

    cdef public object client
    cdef public object transport
    cdef public int socket
    cdef bint buffered  # the transport may have unsent bytes
    cdef bint uncounted  # and its buffer size may not count them yet
    cdef object executor, statistics, limits, turns

    def __init__(self, executor, turns):
        self.executor, self.turns = executor, turns
        self.statistics, self.limits = executor.statistics, executor.limits
        self.socket = -1

    def data_received(self, data):
        if self.client is not None:
            self.executor.receive(self.client, data)
            if not self.turns.scheduled:
                self.turns.schedule()

    def send(self, bytes data not None):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), sent = 0
        transport, client = self.transport, self.client
        if transport is None or client is None:
            return
        if self.socket < 0 and transport.is_closing():
            return
        count_bytes_out(self.statistics, size)
        written = of_client(client, CLIENT.bytes_out, "bytes_out") + size
        set_of_client(client, CLIENT.bytes_out, "bytes_out", written)
        if self.socket >= 0 and not self.uncounted:
            if not self.buffered or not transport.get_write_buffer_size():
                self.buffered = False
                sent = kvstream_send(self.socket, PyBytes_AS_STRING(data), size)
                if sent == size:
                    if of_client(client, CLIENT.output_over_since, "output_over_since") is not None:
                        client.output_over_since = None
                    return
                if transport.is_closing():
                    return
        transport.write(data if sent <= 0 else data[sent:])
        self.buffered = True
        if self.socket >= 0 and not self.uncounted:
            self.uncounted = True
            self.turns.soon(self.counted)
        if transport.get_write_buffer_size() > self.limits.near or client.output_over_since:
            if not self.limits.admits(client):
                self.abort()

    def counted(self):
        """Note the next iteration of the loop: the transport's buffer size is right again."""
        self.uncounted = False

    def abort(self):
        if self.transport is not None:
            self.transport.abort()


cdef class Poller:
    """Reads all sockets of an epoll by one call; see asyncio_server.py."""

    cdef dict channels
    cdef char *buffer
    cdef int epoll
    cdef int[POLLED_MAX] sockets  # those that were found last, each once
    cdef int next  # the place of the next one
    cdef int steady  # looks in a row that have found no others
    cdef int64_t idle_since  # 0: the last look found a readable socket
    cdef ShortWaits waits

    def __cinit__(self, int epoll, bint polls):
        self.epoll = epoll
        self.waits = ShortWaits(polls)
        self.channels = {}
        self.buffer = <char *>PyMem_Malloc(READ_ROOM)
        if self.buffer is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def add(self, int socket, Channel channel not None):
        """Read a socket for a channel."""
        self.channels[socket] = channel

    def discard(self, int socket):
        """Read a socket no more; return whether it was read."""
        return self.channels.pop(socket, None) is not None

    cdef int look(self, int *ready):
        """Find the readable sockets; poll for them if they are expected soon."""
        cdef int count = kvstream_ready(self.epoll, ready)
        cdef int64_t since = self.idle_since
        if since:  # the loop has slept
            self.waits.note(kvstream_now_ns() - since < SHORT_NS)
            self.idle_since = 0
        if count == 0 and self.steady >= SHORT_MIN and self.waits.expects_short():
            with nogil:
                count = kvstream_poll_ready(self.epoll, ready, POLL_NS)
            self.waits.note(count != 0)
        if count == 0:
            self.idle_since = kvstream_now_ns()
        else:
            self.note_sockets(ready, count)
        return count

    cdef void note_sockets(self, int *ready, int count) noexcept:
        """Note whether a look has found other sockets than the looks before it."""
        cdef int i, j
        self.steady = min(self.steady + 1, SHORT_MIN)
        for i in range(count):
            for j in range(POLLED_MAX):
                if self.sockets[j] == ready[i]:
                    break
            else:
                self.sockets[self.next] = ready[i]
                self.next = (self.next + 1) % POLLED_MAX
                self.steady = 0

    def receive(self):
        """Read all readable sockets; return their number."""
        cdef int ready[KVSTREAM_READY]
        cdef int count, i, taken = 0
        cdef Py_ssize_t size
        cdef object found, executor = None, receive = None
        cdef Channel channel
        count = self.look(ready)
        for i in range(count):
            found = self.channels.get(ready[i])
            if found is None:  # discarded since
                continue
            channel = <Channel>found
            size = kvstream_receive(ready[i], self.buffer, READ_ROOM)
            if size == -1:
                continue
            taken += 1
            try:
                if size == 0:
                    channel.end_input()
                elif size < 0:
                    channel.abort()
                elif channel.client is not None:
                    data = PyBytes_FromStringAndSize(self.buffer, size)
                    if channel.executor is not executor:
                        executor = channel.executor
                        receive = executor.receive
                    if type(receive) is Arrivals:
                        (<Arrivals>receive).receive(channel.client, data)
                    else:
                        receive(channel.client, data)
            except Exception as error:
                channel.report(error)
        return taken


# --- plain requests -----------------------------------------------------------------------------


cdef class Answered:
    """Does what ``PythonAnswered`` of pipelines.py does."""

    cdef readonly object client, db, protocol
    cdef readonly list requests, replies

    def __init__(self, client):
        self.begin(client)

    cdef int begin(self, object client) except -1:
        self.client = client
        self.db = of_client(client, CLIENT.db, "db")
        self.protocol = of_client(client, CLIENT.protocol, "protocol")
        self.requests, self.replies = [], []
        return 0


cdef inline bint is_common(object reply) noexcept:
    """Tell whether a handler's answer is a reply of one of the most frequent types."""
    cdef object kind = type(reply)
    return kind is Simple or kind is int or kind is bytes or kind is list or reply is None


cdef inline bint is_streams(object word) noexcept:
    """Tell whether a word is STREAMS, in letters of any case."""
    cdef Bytes at = <Bytes>PyBytes_AS_STRING(word)
    cdef Bytes streams = b"streams"
    cdef int i
    if PyBytes_GET_SIZE(word) != 7:
        return False
    for i in range(7):
        if at[i] | 32 != streams[i]:
            return False
    return True


cdef object only_stream(list argv):
    """Return the key of an XREAD or XREADGROUP of one stream; None if it may have others."""
    cdef Py_ssize_t i, mark = PyList_GET_SIZE(argv) - 3
    if mark < 1 or not is_streams(<object>PyList_GET_ITEM(argv, mark)):
        return None
    for i in range(1, mark):
        if is_streams(<object>PyList_GET_ITEM(argv, i)):
            return None
    return <object>PyList_GET_ITEM(argv, mark + 1)


cdef extern from *:
    """
    /* An instance of a class whose __init__ is left out. */
    static inline PyObject *kvstream_new(PyObject *type, PyObject *none) {
        return ((PyTypeObject *)type)->tp_new((PyTypeObject *)type, none, NULL);
    }
    """
    object new_of "kvstream_new" (object type, tuple none)


cdef class PlainRun:
    """The state of the loops of ``run_in_python`` and ``run_ready_in_python`` of pipelines.py."""

    cdef object pipelines, turn, dispatcher, recorder, txn, clock, pipeline_type, command_type
    cdef object held_types, batched_type
    cdef dict by_word, unchecked, readers, signals
    cdef list pending, times, names, lookups
    cdef set missing
    cdef object unanswered
    cdef double noted_s, until, ended
    # The last command of the turn; the last one of any turn, and what is asked of it at each request.
    cdef object last, noted, handler, name
    cdef Py_ssize_t arity, key_at
    cdef bint touches, counts, collects, names_streams, writes, shows_change

    def __init__(self, pipelines):
        recorder = pipelines.recorder
        self.pipelines, self.dispatcher, self.recorder = pipelines, pipelines.dispatcher, recorder
        self.pipeline_type, self.command_type = pipelines.pipeline_type, pipelines.command_type
        self.held_types, self.readers = pipelines.held_types, pipelines.readers
        self.batched_type = pipelines.batched_type
        self.by_word, self.unchecked = pipelines.by_word, pipelines.unchecked
        self.times, self.names, self.lookups = recorder.times, recorder.names, recorder.lookups

    cdef int begin_turn(self, object turn, double until, list pending) except -1:
        clock, txn, recorder = self.dispatcher.clock, turn.txn, self.recorder
        self.clock = None if clock is perf_counter else clock
        self.turn, self.until, self.pending = turn, until, pending
        self.txn, self.signals, self.missing = txn, txn.signals, txn.missing
        self.noted_s, self.last = recorder.noted_s, recorder.command
        self.ended = self.dispatcher.ended
        if self.last is not None:
            self.note(self.last)
        return 0

    cdef int end_turn(self) except -1:
        """Note when the last call ended; keep no replies until the next turn."""
        self.dispatcher.ended = self.ended
        self.turn = self.txn = self.pending = self.unanswered = self.last = None
        self.signals, self.missing = None, None
        return 0

    cdef int note(self, object plain) except -1:
        """Note the command of the next requests."""
        self.last = plain
        if plain is self.noted:
            return 0
        self.noted, self.handler, self.name = plain, plain.run, plain.name
        self.arity, self.key_at = plain.arity, plain.key_at
        self.touches, self.counts = plain.touches_keys, plain.counted_keys
        self.collects = not self.key_at and (self.touches or self.counts) and plain.keys is not None
        self.names_streams = isinstance(plain.keys, StreamsKeys)
        self.writes, self.shows_change = plain.writes, plain.shows_change
        return 0

    cdef int begin(self, object plain) except -1:
        """Begin a run of requests of one command."""
        if self.times:
            self.record_times()
        self.recorder.command = plain
        self.note(plain)
        if plain.grows:
            self.turn.grows = True
        return 0

    cdef int record_times(self) except -1:
        """Do ``CallRecorder.record_times``."""
        cdef object recorder = self.recorder, statistics = recorder.statistics, row, durations
        cdef list recent
        cdef double seconds = 0, each
        row = None
        if is_of(statistics, STATISTICS.type):
            row = (<dict>get(statistics, STATISTICS.commands)).get(self.name)
        if not is_of(row, ROW.type):  # it is the first call
            recorder.record_times()
            return 0
        for each in self.times:
            seconds += each
        put(row, ROW.calls, get(row, ROW.calls) + PyList_GET_SIZE(self.times))
        put(row, ROW.seconds, get(row, ROW.seconds) + seconds)
        if recorder.idle:
            put(row, ROW.idle, get(row, ROW.idle) + recorder.idle)
            recorder.idle = 0
        durations = get(row, ROW.durations)
        recent = durations.recent
        recent.extend(self.times)
        self.times.clear()
        if PyList_GET_SIZE(recent) >= RECENT:
            durations.count()
        return 0

    cdef int record_collected(self, object txn) except -1:
        """Do ``CallRecorder.record_collected``."""
        cdef object recorder = self.recorder
        recorder.changed = False
        if self.times:
            if recorder.command is not self.noted:
                recorder.record_times()
            else:
                self.record_times()
        recorder.command = None
        if self.names or self.lookups[0] or self.lookups[1]:
            recorder.record_uses(txn)
        return 0

    cdef object find(self, object client, object plain, object requests, Py_ssize_t ran):
        """Do ``Pipelines.find_next`` for a request whose word has a command that may be batched."""
        cdef object argv = requests[0], following, word
        if type(plain) is self.batched_type and not self.pipelines.xadds.waiting:
            if PyList_GET_SIZE(argv) >= XADD_WORDS and len(requests) > 1:
                following = requests[1]
                word = <object>PyList_GET_ITEM(following, 0) if PyList_GET_SIZE(following) else None
                if word is not None and word != b"XADD" and word != b"xadd":
                    return plain[0]
        return self.pipelines.find_next(client, ran)

    cdef inline double now(self) except? -1:
        return kvstream_now_ns() * 1e-9 if self.clock is None else self.clock()

    cdef object answer(self, object client, object argv):
        """Call the handler; return its answer, or an error that it has raised."""
        try:
            reply = self.handler(self.txn, client, argv)
            if not is_common(reply):
                reader = self.readers.get(type(reply))
                if reader is not None:
                    reply = reader(self.txn, client, reply)
            return reply
        except RequestError as error:
            self.recorder.statistics.count_failure(self.last.name, error.code)
            return ErrorReply.of(error)
        except BaseException as error:
            self.turn.fail(error)

    cdef int collect(self, object client, object argv) except -1:
        """Collect the keys of a call."""
        cdef object key = None, name
        if self.key_at:
            key = <object>PyList_GET_ITEM(argv, self.key_at)
        elif self.names_streams:
            key = only_stream(<list>argv)
        if key is not None:
            name = <bytes?>of_client(client, CLIENT.prefix, "prefix") + <bytes>key
            if self.touches:
                self.names.append(name)
            if self.counts:
                self.lookups[name in self.missing] += 1
        elif self.collects:
            self.recorder.collect_keys(client, self.last, argv, self.txn)
        if self.missing:
            self.missing.clear()
        return 0

    cdef int count_idle(self, object reply) except -1:
        """Count a write that has changed nothing."""
        recorder, txn = self.recorder, self.txn
        cdef bint changed = recorder.changed, idle
        if not changed:
            changed = is_dirty(txn, &TXN, &BATCH)
            if changed:
                recorder.changed = True
        idle = not changed or (self.shows_change and not reply)
        if txn.only_redelivered:
            txn.only_redelivered, idle = False, True
        if idle and type(reply) is not ErrorReply:
            recorder.idle += 1
        return 0

    cdef Py_ssize_t run(self, object client, Py_ssize_t most) except -1:
        """Do what ``run_in_python`` does; set ``unanswered``."""
        cdef Answered pipeline = <Answered>new_of(self.pipeline_type, ())
        cdef list argvs, replies
        cdef object requests = of_client(client, CLIENT.requests, "requests"), plain, reply, argv
        cdef object user = of_client(client, CLIENT.user, "user")
        cdef dict by_word = self.by_word if user.all_channels else self.unchecked
        cdef Py_ssize_t ran = 0, words
        cdef double began, ended
        self.unanswered = None
        pipeline.begin(client)
        argvs, replies = pipeline.requests, pipeline.replies
        self.pending.append(pipeline)
        ended = began = self.now()
        while ran < most and len(requests):
            argv = requests[0]
            words = PyList_GET_SIZE(argv)  # 0 for a Requeued, which is of a subclass
            plain = by_word.get(<object>PyList_GET_ITEM(argv, 0)) if words else None
            if type(plain) is dict:  # of the subcommands of a container
                plain = (<dict>plain).get(<object>PyList_GET_ITEM(argv, 1)) if words > 1 else None
            if plain is not self.last or plain is None:
                if plain is None:
                    break
                if type(plain) is not self.command_type:
                    plain = self.find(client, plain, requests, PyList_GET_SIZE(argvs))
                    if plain is None:
                        break
                if plain is not self.last:
                    if not fits(plain.arity, words):
                        break
                    self.begin(plain)
            if not fits(self.arity, words):
                break
            argvs.append(requests.popleft())
            ran += 1
            reply = self.answer(client, argv)
            ended = self.now()
            if not is_common(reply) and type(reply) in self.held_types:
                self.unanswered = self.pipelines.detach_last(
                    pipeline, plain, reply, ended - began, self.txn
                )
                break
            replies.append(reply)
            self.times.append(ended - began)
            self.collect(client, argv)
            if self.writes:
                self.count_idle(reply)
            if ended - began >= self.noted_s:
                self.recorder.note_slow(client, plain, argv, ended - began)
            if self.signals:
                self.turn.serve()
            if ended >= self.until:
                break
            began = ended
        self.ended = ended
        if replies:
            note_commands(client, self.name, PyList_GET_SIZE(replies))
        elif not argvs:
            self.pending.pop()
        return ran


cdef inline bint fits(Py_ssize_t arity, Py_ssize_t words) noexcept:
    return words == arity or 0 < -arity <= words


cdef PlainRun prepare(pipelines):
    """Return the state of the loops of one server, which is kept between turns."""
    found = pipelines.prepared
    if type(found) is not PlainRun:
        found = pipelines.prepared = PlainRun(pipelines)
    return <PlainRun>found


def run_pipeline(pipelines, turn, client, Py_ssize_t most, double until, list pending not None):
    """Do what ``run_in_python`` of pipelines.py does."""
    cdef PlainRun run = prepare(pipelines)
    run.begin_turn(turn, until, pending)
    try:
        return run.run(client, most), run.unanswered
    finally:
        run.end_turn()


def record_collected(pipelines, txn):
    """Do what ``record_in_python`` of pipelines.py does."""
    cdef PlainRun run = prepare(pipelines)
    run.record_collected(txn)


def run_ready(
    pipelines,
    turn,
    dict ready not None,
    Py_ssize_t most,
    double until,
    list pending not None,
):
    """Do what ``run_ready_in_python`` of pipelines.py does."""
    cdef PlainRun run = prepare(pipelines)
    run.begin_turn(turn, until, pending)
    try:
        return run_all(run, pipelines, turn, ready, most, until)
    finally:
        run.end_turn()


cdef tuple run_all(
    PlainRun run, object pipelines, object turn, dict ready, Py_ssize_t most, double until
):
    cdef Py_ssize_t ran = 0, count, each = pipelines.client_requests, at
    cdef object xadds = pipelines.xadds, client, requests
    cdef bint waits, more
    cdef PyObject *first = NULL
    waits = bool(xadds.waiting)
    while ready and ran < most and run.ended < until:
        at = 0
        PyDict_Next(ready, &at, &first, NULL)
        client = <object>first
        del ready[client]
        if not is_so(client, CLIENT.on_short_path, "on_short_path"):
            return ran, client, None
        try:
            requests = of_client(client, CLIENT.requests, "requests")
            if waits and requests and pipelines.has_next(client):
                xadds.flush(turn)
                waits = False
            count = run.run(client, min(most - ran, each))
        except pipelines.failure:
            ready[client] = None  # for the requests that have not run
            raise
        ran += count
        more = len(requests) > 0
        if run.unanswered is None and count >= each and more:
            ready[client] = None
        elif run.unanswered is not None or more:
            return ran, client, run.unanswered
    return ran, None, None


cdef inline object client_of(object pending):
    if isinstance(pending, Answered):
        return (<Answered>pending).client
    return (<XaddBatch>pending).client if type(pending) is XaddBatch else pending.client


cdef object encode_pending(object pending):
    """Return encoded replies; a pipeline, or a pending reply, encodes what is not plain itself."""
    cdef Answered pipeline
    cdef bytes made
    if isinstance(pending, Answered):
        pipeline = <Answered>pending
        made = encode_plain(pipeline.replies, pipeline.protocol)
        if made is not None:
            return made
    elif type(pending) is XaddBatch:
        return (<XaddBatch>pending).replies
    elif is_of(pending, PENDING.type) and get(pending, PENDING.is_sent) is True:
        made = encode_plain(
            [get(pending, PENDING.reply)],
            get(pending, PENDING.protocol) or of_client(pending.client, CLIENT.protocol, "protocol"),
        )
        if made is not None:
            return <bytes>get(pending, PENDING.head) + made
    return pending.encode()


def closing_clients(list replies not None):
    """Do what ``closing_in_python`` of reply_queue.py does."""
    cdef list clients = []
    cdef object pending, client
    for pending in replies:
        client = client_of(pending)
        if is_so(client, CLIENT.closing, "closing"):
            clients.append(client)
    return clients


def write_replies(list replies not None, object begin_pages, Py_ssize_t most):
    """Do what ``write_in_python`` of reply_queue.py does."""
    cdef dict parts = {}
    cdef object pending, client, reply, before
    for pending in replies:
        client = client_of(pending)
        if is_so(client, CLIENT.lost, "lost"):
            continue
        reply = encode_pending(pending)
        if not reply:
            if is_so(client, CLIENT.reply_unfinished, "reply_unfinished"):
                begin_pages(pending)
            continue
        before = parts.get(client)
        if before is None:
            parts[client] = reply
        elif type(before) is list:
            (<list>before).append(reply)
        else:
            parts[client] = [before, reply]
        if PyBytes_GET_SIZE(<bytes?>reply) > most:
            send(client, parts.pop(client))
    for client, reply in parts.items():
        send(client, reply)


cdef int send(object client, object replies) except -1:
    reply = b"".join(replies) if type(replies) is list else replies
    of_client(client, CLIENT.send, "send")(reply)
    return 0
