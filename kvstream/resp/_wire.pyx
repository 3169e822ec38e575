# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of what every request and every entry of a reply goes through.

Each takes the plain case alone and leaves all else, damage included, to the Python twin: the
reading of requests stops there, the writing of entries returns None. Nothing is read beyond the
bytes given. What is written has been measured, or has room for the most that it may take.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from kvstream.layout._msgpack cimport (
    ID_BYTES,
    UNIQUE,
    Bytes,
    Cursor,
    big_endian,
    map_head_size,
    pack_map_head,
    pack_string,
    packed_size,
    take_count,
    take_row,
    take_string,
)
from libc.stdint cimport UINT32_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from kvstream.commands.replies import Entries, ErrorReply, Map, Simple, Streams
from kvstream.errors import RequestError
from kvstream.layout.rows import Rows, EncodedEntries
from kvstream.types.clock import perf_counter
from kvstream.types.records import RepeatedFields


ctypedef unsigned char *Buffer

cdef enum:
    PAIRS_NEAR = 16  # so many names are compared with each other
    OPTIONS_MAX = 5  # words before the ID of an XADD that trims
    TRIMS_KEPT = 256  # texts of trims that are remembered
    NUMBER_MAX = 20  # digits of 64 bits
    RESP3 = 3
    STRING_HEADS = 24  # mark, digits and ends of a string
    ROW_HEADS = 96  # those of an entry, of its fields, and its ID
    FIRST_ROOM = 32768
    READ_ROOM = 262144  # bytes read from a socket at once

cdef int64_t COUNT_MAX = 2147483647


# --- requests -----------------------------------------------------------------------------------


cdef inline int64_t take_number(Bytes data, Py_ssize_t *at, Py_ssize_t size) noexcept nogil:
    """Take a number in canonical digits, CR and the byte behind it; -1 for all else."""
    cdef Py_ssize_t start = at[0], here = at[0]
    cdef int64_t number = 0
    cdef unsigned char digit
    while here < size:
        digit = data[here] - 48
        if digit > 9:
            break
        number = number * 10 + digit
        here += 1
        if here - start > 10:
            return -1
    if here == start or here + 1 >= size or data[here] != 13:
        return -1
    if data[start] == 48 and here - start > 1:
        return -1
    at[0] = here + 2
    return number


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


# --- appends ------------------------------------------------------------------------------------


cdef struct Part:
    Bytes at
    Py_ssize_t size


cdef inline Py_ssize_t take_bulk(Bytes data, Py_ssize_t at, Py_ssize_t size, Part *to) noexcept nogil:
    """Take one argument; return what follows it, or -1."""
    cdef int64_t length
    if at >= size or data[at] != 36:  # $
        return -1
    at += 1
    length = take_number(data, &at, size)
    if length < 0 or size - at < length + 2:
        return -1
    to.at = data + at
    to.size = length
    return at + length + 2


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
        client.last_command = "xadd"
        client.commands_run += stop - at
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
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        self.statistics.bytes_in += size
        arrived = client.bytes_in + size
        client.bytes_in = arrived
        if arrived > client.look_at:
            self.limits.pause_if_ahead(client)
        if not (client.on_short_path and not client.requests and self.take(client, data, size)):
            self.receive_unusual(client, data)

    cdef bint take(self, object client, bytes data, Py_ssize_t size) except -1:
        """Take a batch or whole requests; return False for anything else."""
        cdef XaddBatch batch = None
        cdef list requests = []
        cdef tuple end
        if size <= self.batch_max:
            batch = take_batch(client, data, self.entry_max, self.read_trim)
        if batch is not None:
            client.last_used = self.clock()
            self.xadd_batches.append(batch)
            return True
        reader = client.reader
        if size > self.piece or not reader.trusted:
            return False
        end = take_plain(data, 0, requests, [], 0, reader.bulk_max)
        if end[0] != size or end[2] or not requests:
            return False
        client.last_used = self.clock()
        client.requests.extend(requests)
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


cdef extern from *:
    """
    #include <errno.h>
    #include <poll.h>
    #include <sys/socket.h>
    #include <time.h>
    #ifdef __linux__
    #include <sys/epoll.h>
    #endif
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    #define KVSTREAM_READY 256
    static Py_ssize_t kvstream_send(int socket, const char *data, Py_ssize_t size) {
        return send(socket, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    /* The number of bytes received; 0 at the end, -1 if there are none yet, -2 after an error. */
    static Py_ssize_t kvstream_receive(int socket, char *to, Py_ssize_t room) {
        Py_ssize_t size = recv(socket, to, room, MSG_DONTWAIT);
        if (size >= 0) return size;
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? -1 : -2;
    }
    /* The readable sockets of an epoll. */
    static int kvstream_ready(int epoll, int *sockets) {
    #ifdef __linux__
        struct epoll_event events[KVSTREAM_READY];
        int i, count = epoll_wait(epoll, events, KVSTREAM_READY, 0);
        for (i = 0; i < count; i++) sockets[i] = events[i].data.fd;
        return count;
    #else
        return 0;
    #endif
    }
    static long long kvstream_now_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    /* The readable sockets of an epoll, polled until there are some or the time is over. */
    static int kvstream_poll_ready(int epoll, int *sockets, long long ns) {
        long long until = kvstream_now_ns() + ns;
        int count;
        do count = kvstream_ready(epoll, sockets); while (!count && kvstream_now_ns() < until);
        return count;
    }
    /* Whether a socket is readable, polled until it is or the time is over. */
    static int kvstream_poll_readable(int socket, long long ns) {
        struct pollfd one = {socket, POLLIN, 0};
        long long until = kvstream_now_ns() + ns;
        int found;
        do found = poll(&one, 1, 0); while (!found && kvstream_now_ns() < until);
        return found != 0;
    }
    /* Whether a socket becomes readable in some milliseconds, without polling. */
    static int kvstream_await_readable(int socket, int ms) {
        struct pollfd one = {socket, POLLIN, 0};
        return poll(&one, 1, ms) != 0;
    }
    """
    enum:
        KVSTREAM_READY
    Py_ssize_t kvstream_send(int socket, const char *data, Py_ssize_t size) nogil
    Py_ssize_t kvstream_receive(int socket, char *to, Py_ssize_t room) nogil
    int kvstream_ready(int epoll, int *sockets) nogil
    int64_t kvstream_now_ns() nogil
    int kvstream_poll_ready(int epoll, int *sockets, int64_t ns) nogil
    int kvstream_poll_readable(int socket, int64_t ns) nogil
    int kvstream_await_readable(int socket, int ms) nogil


# How a wait for a socket begins: a thread that sleeps takes some 50 us to wake up, and then works
# more slowly, its caches cold. So it polls first, if the last waits were all short.
cdef enum:
    POLL_NS = 200_000
    SHORT_NS = 250_000  # with the time to wake up
    SHORT_MIN = 8


cdef class ShortWaits:
    """Counts the short waits in a row: they tell whether polling is worth its processor time."""

    cdef int count
    cdef bint allowed

    def __cinit__(self, bint allowed):
        """``allowed``: the machine has a processor for the other side."""
        self.allowed = allowed

    cdef inline bint expects_short(self):
        return self.allowed and self.count == SHORT_MIN

    cdef inline void note(self, bint short):
        self.count = min(self.count + 1, SHORT_MIN) if short else 0


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
        self.statistics.bytes_out += size
        client.bytes_out += size
        if self.socket >= 0 and not self.uncounted:
            if not self.buffered or not transport.get_write_buffer_size():
                self.buffered = False
                sent = kvstream_send(self.socket, PyBytes_AS_STRING(data), size)
                if sent == size:
                    if client.output_over_since is not None:
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
        if count == 0 and self.waits.expects_short():
            with nogil:
                count = kvstream_poll_ready(self.epoll, ready, POLL_NS)
            self.waits.note(count != 0)
        if count == 0:
            self.idle_since = kvstream_now_ns()
        return count

    def receive(self):
        """Read all readable sockets; return their number."""
        cdef int ready[KVSTREAM_READY]
        cdef int count, i, taken = 0
        cdef Py_ssize_t size
        cdef object found
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
                    channel.executor.receive(channel.client, data)
            except Exception as error:
                channel.report(error)
        return taken


# One thread of a process polls for replies: each takes a processor. A child that is forked
# meanwhile does not poll.
cdef bint polling = False


cdef class ReplyWait:
    """Waits for the first bytes of a reply on one socket."""

    cdef int socket
    cdef ShortWaits waits

    def __cinit__(self, int socket, bint polls):
        self.socket = socket
        self.waits = ShortWaits(polls)

    def wait(self):
        """Return when the socket is readable, or after about a millisecond."""
        global polling
        cdef int64_t begun
        cdef bint found
        if self.waits.expects_short() and not polling:
            polling = True
            with nogil:
                found = kvstream_poll_readable(self.socket, POLL_NS)
            polling = False
        else:
            begun = kvstream_now_ns()
            with nogil:
                found = kvstream_await_readable(self.socket, 1)
            found = found and kvstream_now_ns() - begun < SHORT_NS
        self.waits.note(found)


# --- plain requests -----------------------------------------------------------------------------


cdef class Answered:
    """Does what ``PythonAnswered`` of pipelines.py does."""

    cdef readonly object client, db, protocol
    cdef readonly list requests, replies

    def __init__(self, client):
        self.client = client
        self.db, self.protocol = client.db, client.protocol
        self.requests, self.replies = [], []


cdef inline bint is_common(object reply) noexcept:
    """Tell whether a handler's answer is a reply of one of the most frequent types."""
    cdef object kind = type(reply)
    return kind is Simple or kind is int or kind is bytes or kind is list or reply is None


cdef class PlainRun:
    """The state of the loops of ``run_in_python`` and ``run_ready_in_python`` of pipelines.py."""

    cdef object pipelines, turn, dispatcher, recorder, txn, clock, pipeline_type, command_type
    cdef object held_types
    cdef dict by_word, unchecked, readers, signals
    cdef list pending, times, names, lookups
    cdef set missing
    cdef object unanswered
    cdef double noted_s, until
    # The last command and what is asked of it at each request.
    cdef object last, handler
    cdef Py_ssize_t arity, key_at
    cdef bint touches, counts, collects, writes, shows_change

    def __init__(self, pipelines, turn, double until, list pending not None):
        dispatcher, recorder, txn = pipelines.dispatcher, pipelines.recorder, turn.txn
        self.pipelines, self.turn, self.dispatcher = pipelines, turn, dispatcher
        self.recorder, self.txn = recorder, txn
        self.pipeline_type, self.command_type = pipelines.pipeline_type, pipelines.command_type
        self.held_types, self.readers = pipelines.held_types, pipelines.readers
        self.clock = None if dispatcher.clock is perf_counter else dispatcher.clock
        self.by_word, self.unchecked = pipelines.by_word, pipelines.unchecked
        self.signals, self.missing = txn.signals, txn.missing
        self.times, self.names, self.lookups = recorder.times, recorder.names, recorder.lookups
        self.noted_s, self.until, self.pending = recorder.noted_s, until, pending
        self.last = recorder.command
        if self.last is not None:
            self.note(self.last)

    cdef int note(self, object plain) except -1:
        """Note the command of the next requests."""
        self.last, self.handler = plain, plain.run
        self.arity, self.key_at = plain.arity, plain.key_at
        self.touches, self.counts = plain.touches_keys, plain.counted_keys
        self.collects = not self.key_at and plain.keys is not None
        self.writes, self.shows_change = plain.writes, plain.shows_change
        return 0

    cdef int begin(self, object plain) except -1:
        """Begin a run of requests of one command."""
        if self.times:
            self.recorder.record_times()
        self.recorder.command = plain
        self.note(plain)
        if plain.grows:
            self.turn.grows = True
        return 0

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
        if self.key_at:
            name = <bytes?>client.prefix + <bytes>PyList_GET_ITEM(argv, self.key_at)
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
            changed = txn.dirty
            recorder.changed = changed
        idle = not changed or (self.shows_change and not reply)
        if txn.only_redelivered:
            txn.only_redelivered, idle = False, True
        if idle and type(reply) is not ErrorReply:
            recorder.idle += 1
        return 0

    cdef Py_ssize_t run(self, object client, Py_ssize_t most) except -1:
        """Do what ``run_in_python`` does; set ``unanswered``."""
        cdef Answered pipeline = self.pipeline_type(client)
        cdef list argvs = pipeline.requests, replies = pipeline.replies
        cdef object requests = client.requests, popleft = requests.popleft, plain, reply, argv
        cdef dict by_word = self.by_word if client.user.all_channels else self.unchecked
        cdef Py_ssize_t ran = 0, words
        cdef double began, ended
        self.unanswered = None
        self.pending.append(pipeline)
        ended = began = self.now()
        while ran < most and len(requests):
            argv = requests[0]
            words = PyList_GET_SIZE(argv)  # 0 for a Requeued, which is of a subclass
            plain = by_word.get(<object>PyList_GET_ITEM(argv, 0)) if words else None
            if plain is not self.last or plain is None:
                if type(plain) is not self.command_type:
                    plain = self.pipelines.find_next(client, PyList_GET_SIZE(argvs))
                    if plain is None:
                        break
                if plain is not self.last:
                    if not fits(plain.arity, words):
                        break
                    self.begin(plain)
            if not fits(self.arity, words):
                break
            argvs.append(popleft())
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
        self.dispatcher.ended = ended
        if replies:
            client.last_command = self.last.name
            client.commands_run += PyList_GET_SIZE(replies)
        elif not argvs:
            self.pending.pop()
        return ran


cdef inline bint fits(Py_ssize_t arity, Py_ssize_t words) noexcept:
    return words == arity or 0 < -arity <= words


def run_pipeline(pipelines, turn, client, Py_ssize_t most, double until, list pending not None):
    """Do what ``run_in_python`` of pipelines.py does."""
    cdef PlainRun run = PlainRun(pipelines, turn, until, pending)
    return run.run(client, most), run.unanswered


def run_ready(
    pipelines,
    turn,
    dict ready not None,
    Py_ssize_t most,
    double until,
    list pending not None,
):
    """Do what ``run_ready_in_python`` of pipelines.py does."""
    cdef PlainRun run = PlainRun(pipelines, turn, until, pending)
    cdef Py_ssize_t ran = 0, count, each = pipelines.client_requests
    cdef object xadds = pipelines.xadds
    while ready and ran < most and run.dispatcher.ended < until:
        client = next(iter(ready))
        del ready[client]
        if not client.on_short_path:
            return ran, client, None
        try:
            if xadds.waiting and client.requests and pipelines.has_next(client):
                xadds.flush(turn)
            count = run.run(client, min(most - ran, each))
        except pipelines.failure:
            ready[client] = None  # for the requests that have not run
            raise
        ran += count
        if run.unanswered is None and count >= each and client.requests:
            ready[client] = None
        elif run.unanswered is not None or client.requests:
            return ran, client, run.unanswered
    return ran, None, None


cdef inline object client_of(object pending):
    if isinstance(pending, Answered):
        return (<Answered>pending).client
    return (<XaddBatch>pending).client if type(pending) is XaddBatch else pending.client


cdef object encode_pending(object pending):
    """Return encoded replies; a pipeline with one that is not plain encodes them itself."""
    cdef Answered pipeline
    cdef bytes made
    if isinstance(pending, Answered):
        pipeline = <Answered>pending
        made = encode_plain(pipeline.replies, pipeline.protocol)
        if made is not None:
            return made
    elif type(pending) is XaddBatch:
        return (<XaddBatch>pending).replies
    return pending.encode()


def closing_clients(list replies not None):
    """Do what ``closing_in_python`` of reply_queue.py does."""
    cdef list clients = []
    cdef object pending, client
    for pending in replies:
        client = client_of(pending)
        if client.closing:
            clients.append(client)
    return clients


def write_replies(list replies not None, object begin_pages, Py_ssize_t most):
    """Do what ``write_in_python`` of reply_queue.py does."""
    cdef dict parts = {}
    cdef object pending, client, reply, before
    for pending in replies:
        client = client_of(pending)
        if client.lost:
            continue
        reply = encode_pending(pending)
        if not reply:
            if client.reply_unfinished:
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
    client.send(b"".join(replies) if type(replies) is list else replies)
    return 0


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


def encode_ids(list ids not None, Py_ssize_t start, Py_ssize_t stop):
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
    cdef object kind = type(reply), part, name
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
