# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled twins of the calls that EXEC and scripts make.

A call is plain if its command is in the table of plain commands, its client may do everything, and
nothing but the statistics observes calls. All else is left to the Python twins.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM
from kvstream.layout._slots cimport find_slots, get, is_of, part, put
from kvstream.resp._sockets cimport kvstream_now_ns
from kvstream.server._changes cimport BatchSlots, TxnSlots, is_dirty

from kvstream.commands.command import Blocked
from kvstream.commands.replies import OK, ErrorReply, Simple
from kvstream.errors import RequestError
from kvstream.types.clock import perf_counter

cdef enum:
    OBJECT_BYTES = 48  # as in commands/reply_pages.py
    RESP2 = 2
    RECENT = 1024  # as in stats.py
    ARGUMENTS_MAX = 4000  # as in scripting/sandbox.py
    SMALL = 900  # bytes of a reply that needs no further check, with OBJECT_BYTES

SMALL_COUNTS = {b"%d" % count: count for count in range(10)}
cdef long long SMALL_MAX = 1 << 62  # numbers beyond it may not be integers of RESP
NO_LIMIT = 1 << 40
SCRIPT_KILL = "SCRIPT KILL"
ZERO = 0.0
BOUNDS = {  # which a test compares with those of the Python functions
    "arguments_max": ARGUMENTS_MAX,
    "object_bytes": OBJECT_BYTES,
    "recent": RECENT,
    "small": SMALL,
}



# --- the slots of Python's classes -------------------------------------------------------------------


cdef struct ClientSlots:
    Py_ssize_t type
    Py_ssize_t commands_run, db, in_exec, last_command, no_touch, pages, prefix, protocol, user


cdef struct ScriptsSlots:
    Py_ssize_t type
    Py_ssize_t _allows_oom, _caching, _client, _error_of_call, _failure, _interpreter
    Py_ssize_t _is_read_only, _running, _txn, busy, protocol, quick


cdef struct BusySlots:
    Py_ssize_t type
    Py_ssize_t _end, _kill, _name, _pause_at, awaits_first, has_written, is_slow, is_stopping


cdef struct InterpreterSlots:
    Py_ssize_t type
    Py_ssize_t call, error, loaded, nearly, used


cdef struct ScriptSlots:
    Py_ssize_t type
    Py_ssize_t has_flags, sha, stays


cdef struct RowSlots:
    Py_ssize_t type
    Py_ssize_t calls, durations, idle, seconds


cdef ClientSlots CLIENT
cdef ScriptsSlots SCRIPTS
cdef BusySlots BUSY
cdef InterpreterSlots INTERPRETER
cdef ScriptSlots SCRIPT
cdef RowSlots ROW
cdef TxnSlots TXN
cdef BatchSlots BATCH


def bind(
    type client, type scripts, type busy, type interpreter, type script, type row, type txn,
    type batch,
):
    """Find the slots of the classes. What is of other classes, or comes before, is not plain."""
    global CLIENT, SCRIPTS, BUSY, INTERPRETER, SCRIPT, ROW, TXN, BATCH
    CLIENT, SCRIPTS = find_slots(client, CLIENT), find_slots(scripts, SCRIPTS)
    BUSY, INTERPRETER = find_slots(busy, BUSY), find_slots(interpreter, INTERPRETER)
    SCRIPT, ROW = find_slots(script, SCRIPT), find_slots(row, ROW)
    TXN, BATCH = find_slots(txn, TXN), find_slots(batch, BATCH)


# --- the queue of MULTI -----------------------------------------------------------------------------


cdef inline bint fits(Py_ssize_t arity, Py_ssize_t words) noexcept:
    return words == arity or 0 < -arity <= words


def queue_plain(client, dict commands not None, Py_ssize_t most, Py_ssize_t argument_bytes):
    """Do what ``queue_in_python`` of transactions.py does, for a client that needs no check."""
    cdef object queue = client.queue, requests = client.requests, popleft = requests.popleft
    cdef object command, last = None, argv, word
    cdef list queued = queue.commands
    cdef Py_ssize_t count = 0, words = 0, size = 0, arity = 0
    while count < most and len(requests):
        argv = requests[0]
        words = PyList_GET_SIZE(argv)  # 0 for a Requeued, which is of a subclass
        command = commands.get(<object>PyList_GET_ITEM(argv, 0)) if words else None
        if command is None:
            break
        if command is not last:
            arity = command.arity
        if not fits(arity, words):
            break
        if command is not last:
            queue.note(command)
            last = command
        queued.append((command, popleft()))
        size += words * argument_bytes
        for word in <list>argv:
            size += PyBytes_GET_SIZE(<bytes?>word)
        count += 1
    if last is not None:
        queue.size += size
        client.last_command = last.name
    return count


# --- calls --------------------------------------------------------------------------------------


cdef class PlainCommand:
    """A plain command, and what is asked of it at each call."""

    cdef object command, name, handler
    cdef Py_ssize_t arity, key_at
    cdef bint touches, counts, collects, writes, shows_change, grows, may_change, in_scripts
    cdef object row  # of the statistics, with its times
    cdef object durations
    cdef list recent

    def __init__(self, command, bint may_change, bint in_scripts):
        self.command, self.name, self.handler = command, command.name, command.run
        self.arity, self.key_at = command.arity, command.key_at
        self.touches, self.counts = command.touches_keys, command.counted_keys
        self.collects = not self.key_at and (self.touches or self.counts) and command.keys is not None
        self.writes, self.shows_change = command.writes, command.shows_change
        self.grows, self.may_change, self.in_scripts = command.grows, may_change, in_scripts


cdef inline bint is_common(object reply) noexcept:
    """Tell whether a handler's answer is a reply of one of the most frequent types."""
    cdef object kind = type(reply)
    return kind is Simple or kind is int or kind is bytes or reply is None


cdef class PlainCalls:
    """Runs the plain commands of EXEC and scripts, and records their calls."""

    cdef dict by_word
    cdef readonly object dispatcher
    cdef object recorder, statistics, clock
    cdef dict readers
    cdef list names, lookups
    cdef double noted_s

    def __init__(self, dispatcher, dict by_word not None, dict readers not None):
        """``by_word`` has for each word a command, and whether scripts may call it."""
        recorder = dispatcher.recorder
        self.dispatcher, self.recorder = dispatcher, recorder
        self.by_word = {word: PlainCommand(*row) for word, row in by_word.items()}
        self.statistics, self.readers = recorder.statistics, readers
        self.names, self.lookups = recorder.names, recorder.lookups
        self.clock = None if dispatcher.clock is perf_counter else dispatcher.clock

    cdef inline double now(self) except? -1:
        return kvstream_now_ns() * 1e-9 if self.clock is None else self.clock()

    cdef bint may_run(self, object client) except -1:
        """Return whether a client's calls may be plain now."""
        self.noted_s = self.recorder.noted_s
        return (
            is_of(client, CLIENT.type)
            and not get(client, CLIENT.no_touch)
            and get(client, CLIENT.user).free
            and not self.dispatcher.needs_general_path
        )

    cdef object answer(self, PlainCommand plain, object client, list argv, object txn):
        """Call the handler; return its answer, or an error that it has raised."""
        try:
            reply = plain.handler(txn, client, argv)
            if not is_common(reply):
                reader = self.readers.get(type(reply))
                if reader is not None:
                    reply = reader(txn, client, reply)
            return reply
        except RequestError as error:
            self.statistics.count_failure(plain.name, error.code)
            return ErrorReply.of(error)

    cdef int collect(self, PlainCommand plain, object client, list argv, object txn) except -1:
        """Collect the keys of a call."""
        cdef set missing = get(txn, TXN.missing) if is_of(txn, TXN.type) else txn.missing
        if plain.key_at:
            name = <bytes?>get(client, CLIENT.prefix) + <bytes>PyList_GET_ITEM(argv, plain.key_at)
            if plain.touches:
                self.names.append(name)
            if plain.counts:
                self.lookups[name in missing] += 1
        elif plain.collects:
            self.recorder.collect_keys(client, plain.command, argv, txn)
        if missing:
            missing.clear()
        return 0

    cdef bint is_idle(self, PlainCommand plain, object reply, object txn) except -1:
        """Return whether a call of a write has changed nothing."""
        cdef bint changed = self.recorder.changed, idle
        if not changed:
            changed = is_dirty(txn, &TXN, &BATCH)
            if changed:
                self.recorder.changed = True
        idle = not changed or (plain.shows_change and not reply)
        if txn.only_redelivered:
            txn.only_redelivered, idle = False, True
        return idle and type(reply) is not ErrorReply

    cdef int count(self, PlainCommand plain, double spent, bint idle) except -1:
        """Count one call."""
        cdef object row = (<dict?>self.statistics.commands).get(plain.name)
        if row is None or row is not plain.row:
            row = self.statistics.of(plain.name)
            if not is_of(row, ROW.type):
                raise TypeError("a row of the statistics has no slots")
            plain.row, plain.durations = row, get(row, ROW.durations)
            plain.recent = plain.durations.recent
        put(row, ROW.calls, get(row, ROW.calls) + 1)
        put(row, ROW.seconds, <double>get(row, ROW.seconds) + spent)
        if idle:
            put(row, ROW.idle, get(row, ROW.idle) + 1)
        plain.recent.append(spent)
        if PyList_GET_SIZE(plain.recent) >= RECENT:
            plain.durations.count()
        return 0

    def run_queue(
        self, client, list commands not None, Py_ssize_t at, txn, room, list replies not None
    ):
        """Do what ``run_in_python`` of transactions.py does, up to a command that is not plain.

        Return the index of that command.
        """
        cdef PlainCommand plain, last = None
        cdef list times = [], argv
        cdef object queued, reply
        cdef Py_ssize_t begun_at = at, count = PyList_GET_SIZE(commands)
        cdef object limits = room.limits
        cdef Py_ssize_t held = room.size, short_bytes = room.short_bytes
        cdef long idle = 0
        cdef double began, ended
        if not self.may_run(client):
            return at
        ended = self.now()
        while at < count:
            queued = <object>PyList_GET_ITEM(commands, at)
            argv = <list?>(<object>PyTuple_GET_ITEM(queued, 1))
            plain = self.by_word.get(<object>PyList_GET_ITEM(argv, 0))
            if plain is None:
                break
            if plain is not last:
                if times:
                    self.statistics.count_each(last.name, times, idle)
                    times, idle = [], 0
                last = plain
            began = ended
            reply = self.answer(plain, client, argv, txn)
            ended = self.now()
            self.collect(plain, client, argv, txn)
            if plain.writes and self.is_idle(plain, reply, txn):
                idle += 1
            times.append(ended - began)
            if ended - began >= self.noted_s:
                self.recorder.note_slow(client, plain.command, argv, ended - began)
            at += 1
            if is_common(reply) and (type(reply) is not bytes or PyBytes_GET_SIZE(reply) <= SMALL):
                held += OBJECT_BYTES + (PyBytes_GET_SIZE(reply) if type(reply) is bytes else 0)
                limits.reply_held = room.size = held
                replies.append(reply)
            else:
                if type(reply) is Blocked:
                    reply = reply.expired
                replies.append(room.take(plain.command, reply))
                held = room.size
        if held > short_bytes:
            room.is_long = True
        if times:
            self.statistics.count_each(last.name, times, idle)
        client.commands_run += at - begun_at
        self.dispatcher.ended = ended
        return at


cdef class ScriptCalls:
    """Does what ``PythonScriptCalls`` of scripts.py does."""

    cdef PlainCalls calls
    cdef dict cached
    cdef object scripts, client, txn, used
    cdef Py_ssize_t nearly
    cdef bint is_plain, reads, has_written

    def __init__(self, scripts, PlainCalls calls not None):
        self.scripts, self.calls, self.cached = scripts, calls, scripts.cache.scripts

    def begin(self, client, txn, interpreter, bint reads):
        """Take the state of a script that begins."""
        self.client, self.txn = client, txn
        self.used, self.nearly = interpreter.used, interpreter.nearly
        self.reads, self.has_written = reads, False
        self.is_plain = self.calls.may_run(client)

    def end(self):
        """Forget a script that has ended."""
        self.client = self.txn = self.used = None
        self.is_plain = False

    def run_sha(self, txn, client, list argv not None, bint reads):
        """Run EVALSHA of a compiled script that is known to be quick; else NotImplemented."""
        cdef object scripts = self.scripts, busy, script, sha, interpreter, word
        cdef Py_ssize_t keys, size = 0, at, nearly
        if not is_of(scripts, SCRIPTS.type) or not is_of(txn, TXN.type):
            return NotImplemented
        busy, interpreter = part(scripts, SCRIPTS.busy, BUSY.type), get(scripts, SCRIPTS._interpreter)
        script = self.cached.get(<object>PyList_GET_ITEM(argv, 1))
        word = SMALL_COUNTS.get(<object>PyList_GET_ITEM(argv, 2))
        if (
            not is_of(script, SCRIPT.type)
            or not is_of(interpreter, INTERPRETER.type)
            or word is None
            or get(script, SCRIPT.has_flags)
        ):
            return NotImplemented
        keys, sha = word, get(script, SCRIPT.sha)
        if (
            keys > PyList_GET_SIZE(argv) - 3
            or PyList_GET_SIZE(argv) > ARGUMENTS_MAX
            or sha not in <set>get(interpreter, INTERPRETER.loaded)
            or sha not in <set>get(scripts, SCRIPTS.quick)
            or get(busy, BUSY.awaits_first)
            or get(busy, BUSY.is_stopping)
            or not self.calls.may_run(client)
        ):
            return NotImplemented
        for at in range(3, PyList_GET_SIZE(argv)):
            size += 2 * PyBytes_GET_SIZE(<bytes?>PyList_GET_ITEM(argv, at))
        self.used, nearly = get(interpreter, INTERPRETER.used), get(interpreter, INTERPRETER.nearly)
        if <Py_ssize_t>self.used() + size > nearly:
            self.used = None
            return NotImplemented
        if not get(script, SCRIPT.stays):
            scripts.cache.get(argv[1])  # which notes the use
        self.nearly, self.is_plain, self.reads, self.has_written = nearly, True, reads, False
        self.client, self.txn = client, txn
        return self.run_script(interpreter, busy, sha, keys, argv)

    cdef int begin_script(self, object interpreter, object busy, object sha) except -1:
        """Do ``Scripts.begin`` and ``Busy.begin``."""
        cdef object scripts = self.scripts
        put(scripts, SCRIPTS._running, interpreter)
        put(scripts, SCRIPTS._client, self.client)
        put(scripts, SCRIPTS._txn, self.txn)
        put(scripts, SCRIPTS._error_of_call, None)
        put(scripts, SCRIPTS.protocol, RESP2)
        put(scripts, SCRIPTS._is_read_only, self.reads)
        put(scripts, SCRIPTS._allows_oom, self.reads)
        put(scripts, SCRIPTS._caching, None)
        put(busy, BUSY._name, sha)
        put(busy, BUSY._kill, SCRIPT_KILL)
        put(busy, BUSY._end, None)
        put(busy, BUSY._pause_at, ZERO)
        put(busy, BUSY.has_written, False)
        put(busy, BUSY.is_slow, False)
        return 0

    cdef object run_script(
        self, object interpreter, object busy, object sha, Py_ssize_t keys, list argv
    ):
        """Run a compiled script as ``Scripts.call`` does."""
        cdef object scripts = self.scripts, client = self.client, result, failure = None
        cdef object recorder = self.calls.recorder, last_command = get(client, CLIENT.last_command)
        cdef object db = get(client, CLIENT.db), in_exec = get(client, CLIENT.in_exec)
        cdef object pages = get(client, CLIENT.pages), protocol = get(client, CLIENT.protocol)
        cdef object limits = get(self.txn, TXN.catalog).limits
        self.begin_script(interpreter, busy, sha)
        put(client, CLIENT.in_exec, True)
        put(client, CLIENT.pages, False)
        recorder.in_script = True
        try:
            words = (sha, protocol, limits.reply_max or NO_LIMIT, keys, *argv[3:])
            try:
                result = get(interpreter, INTERPRETER.call)(*words)
            except get(interpreter, INTERPRETER.error) as error:
                result = interpreter.failure_of(error)
            else:
                if type(result) is not int and type(result) is not bytes:
                    result = interpreter.result_of(result)
        finally:
            put(client, CLIENT.in_exec, in_exec)
            put(client, CLIENT.pages, pages)
            put(client, CLIENT.last_command, last_command)
            recorder.in_script = False
            if get(client, CLIENT.db) != db:
                client.select(db)
            self.client = self.txn = self.used = None
            self.is_plain = False
            if get(scripts, SCRIPTS._failure) is not None or get(busy, BUSY.is_slow):
                failure = scripts.end(sha)
            else:  # it stays among the quick ones
                put(scripts, SCRIPTS._client, None)
                put(scripts, SCRIPTS._txn, None)
        if failure is not None:
            raise failure
        if type(result) is bytes or type(result) is int and -SMALL_MAX <= result <= SMALL_MAX:
            return result
        return scripts.reply_to(result, sha, argv, protocol)

    def __call__(self, *argv):
        """Run a command of the script; return its reply as the sandbox takes it."""
        cdef PlainCommand plain = None
        try:
            if self.is_plain and argv and self.used() <= self.nearly:
                plain = self.calls.by_word.get(<object>PyTuple_GET_ITEM(argv, 0))
                if plain is not None and self.takes(plain, len(argv)):
                    return self.run(plain, list(argv))
            return self.run_general(list(argv))
        except BaseException as error:
            return self.scripts.fail(error)

    cdef bint takes(self, PlainCommand plain, Py_ssize_t words) noexcept:
        """Return whether a command needs no refusal."""
        return plain.in_scripts and fits(plain.arity, words) and not (
            self.reads and plain.may_change
        )

    cdef object run_general(self, list argv):
        answer = self.scripts.answer(argv)
        if self.client is not None:
            self.calls.dispatcher.update_path()
            self.is_plain = self.calls.may_run(self.client)
        return answer

    cdef object run(self, PlainCommand plain, list argv):
        """Run a plain command and record the call."""
        cdef PlainCalls calls = self.calls
        cdef object client = self.client, txn = self.txn, reply, row
        cdef double began, spent
        cdef bint idle = False
        if plain.writes and not self.has_written:
            self.has_written = self.scripts.busy.has_written = True
        if plain.grows:
            txn.frees = False
        put(client, CLIENT.last_command, plain.name)
        put(client, CLIENT.commands_run, get(client, CLIENT.commands_run) + 1)
        began = calls.now()
        reply = calls.answer(plain, client, argv, txn)
        spent = calls.now() - began
        calls.collect(plain, client, argv, txn)
        if plain.writes:
            idle = calls.is_idle(plain, reply, txn)
        calls.count(plain, spent, idle)
        if spent >= calls.noted_s:
            calls.recorder.note_slow(client, plain.command, argv, spent)
        if type(reply) is int:
            return reply
        if type(reply) is bytes and PyBytes_GET_SIZE(reply) <= SMALL:
            return reply
        if reply is None and self.scripts.protocol == RESP2:
            return False
        return True if reply is OK else self.scripts.result(reply)
