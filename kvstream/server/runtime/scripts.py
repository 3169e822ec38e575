"""Scripts at work: one script runs in its turn's transaction, as EXEC's queue does.

Its commands see each other's writes and are committed together. As in Redis an error ends the
script, and what it has written before stays. A failure of the store undoes the turn, and the script
runs again in a turn of its own.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from kvstream.commands.absent import reason_of
from kvstream.commands.args import I64_MAX, I64_MIN, NOT_AN_INTEGER, integer, text
from kvstream.commands.command import (
    LATER,
    Answer,
    Blocked,
    Command,
    Container,
    Flag,
    Table,
)
from kvstream.commands.replies import (
    OK,
    RESP2,
    RESP3,
    Boolean,
    ErrorReply,
    NullArray,
    Reply,
    Shared,
)
from kvstream.commands.table import command_of
from kvstream.errors import KVStreamError, RequestError
from kvstream.logs import NOTICE, DeferredLogger, Throttle
from kvstream.meta.txn import Txn
from kvstream.resp.replies import encode
from kvstream.server.acl import NoPermission, User
from kvstream.server.compiled import calls as twins
from kvstream.server.runtime.busy import SCRIPT_KILL, Busy
from kvstream.server.runtime.client import Argv, Client, Server
from kvstream.server.runtime.dispatch import OOM, Dispatcher, name_of
from kvstream.server.scripting.sandbox import (
    FULL,
    INTERNAL_ERROR,
    LOAD_TIMEOUT,
    SMALL,
    Failure,
    Interpreter,
    Result,
    Wire,
)
from kvstream.server.scripting.script import (
    SHA_DIGITS,
    Script,
    ScriptCache,
    ScriptFlag,
    parse_script,
    sha1,
)
from kvstream.server.stats import CommandStatistics
from kvstream.storage.batch import Batch
from kvstream.types.clock import monotonic

_log = DeferredLogger(__name__)
REDIS_VERSION: Final = b"8.10.0"
"""The level of the stream commands: clients choose by it what they send, and scripts read it."""
_VERSION_NUMBER: Final = 0x00080A00
_LEVELS = (logging.DEBUG, logging.INFO, NOTICE, logging.WARNING)
_ENCODED, _FAILED, _REFUSED, _DEAD = 1, 2, 3, 4
"""The second value of a command's result: the same numbers as in ``calls.lua``."""
_NO_LIMIT: Final = 1 << 40
QUICK_MAX: Final = 10_000
"""Scripts that are known to end soon; a forgotten one runs in a turn of its own again."""
_SMALL_COUNTS = {b"%d" % count: count for count in range(10)}
"""The counts of keys that nearly all scripts have, as words."""
_UNKNOWN = "ERR Unknown Redis command called from script"
_WRONG_NUMBER = b"ERR Wrong number of args calling Redis command from script", _REFUSED
_NOT_ALLOWED = b"ERR This Redis command is not allowed from script", _REFUSED
_READ_ONLY = b"ERR Write commands are not allowed from read-only scripts.", _REFUSED
_MAY_WRITE = ErrorReply("ERR", "Can not execute a script with write flag using *_ro command.")
_STOPPING = ErrorReply("ERR", "the server stops and runs no scripts")


class NoScript(RequestError):
    """EVALSHA names a script that the server does not keep."""

    code = "NOSCRIPT"

    def __init__(self) -> None:
        super().__init__("No matching script. Please use EVAL.")


class Scripts:
    """The scripts of one server and their interpreter; it is the host that scripts call."""

    __slots__ = (
        "_allows_oom",
        "_caching",
        "_client",
        "_commands",
        "_error_of_call",
        "_failure",
        "_interpreter",
        "_is_read_only",
        "_running",
        "_server",
        "_throttle",
        "_txn",
        "busy",
        "cache",
        "command",
        "dispatcher",
        "load_until",
        "protocol",
        "quick",
    )

    def __init__(self, server: Server, dispatcher: Dispatcher, commands: Table, busy: Busy) -> None:
        self._server, self.dispatcher, self._commands = server, dispatcher, commands
        self.cache = ScriptCache(self._forget)
        self._interpreter: Interpreter | None = None
        self._running: Interpreter | None = None
        self._throttle = Throttle()
        self._client: Client | None = None
        """The client whose script runs."""
        self._txn: Txn | None = None
        self._error_of_call: ErrorReply | None = None
        """The last error that a command of the script has returned."""
        self._is_read_only = self._allows_oom = False
        self.busy = busy
        self.protocol = RESP2
        """The protocol in which the script gets replies."""
        self._caching: bool | None = None
        self.quick: set[bytes] = set()
        """Scripts, and functions in small letters, whose last run was not slow."""
        self.load_until: float | None = None
        """The monotonic time at which the library that is loaded must have run."""
        self._failure: BaseException | None = None
        """The exception that a command raised: the turn fails with it."""
        calls = dispatcher.plain_calls
        self.command = PythonScriptCalls(self) if calls is None else twins.ScriptCalls(self, calls)
        """Runs a command of the script, and returns its reply as the sandbox takes it."""

    @property
    def interpreter(self) -> Interpreter:
        """The interpreter of scripts; the first script creates it."""
        if self._interpreter is None:
            self._interpreter = self.new_interpreter()
        return self._interpreter

    def new_interpreter(self) -> Interpreter:
        """Return an interpreter whose host this is."""
        return Interpreter(self, self._server.options.script_memory, REDIS_VERSION, _VERSION_NUMBER)

    @property
    def memory(self) -> int:
        """The bytes that the interpreter takes."""
        return 0 if self._interpreter is None else self._interpreter.memory

    # --- the scripts that are kept --------------------------------------------------------------

    def load(self, source: bytes, stays: bool = True) -> Script:
        """Keep a script, or raise RequestError if it cannot be compiled."""
        script = self.cache.find(source)
        if script is None:
            script = parse_script(sha1(source), source)
            self.interpreter.load(script.sha, script.body)
            self.cache.add(script, stays)
        elif stays and not script.stays:
            self.cache.keep(script)
        return script

    def source_of(self, sha: bytes) -> bytes:
        """Return the text of a script, or raise NoScript."""
        script = self.cache.get(sha)
        if script is None:
            raise NoScript
        return script.source

    def only_reads(self, argv: Argv, by_sha: bool) -> bool:
        """Return whether the script of EVAL or EVALSHA has the flag no-writes."""
        try:
            script = self.cache.get(argv[1]) if by_sha else self.cache.find(argv[1])
            if script is None and not by_sha:
                script = parse_script(b"", argv[1])
        except RequestError:  # its first line is wrong
            return False
        return script is not None and ScriptFlag.NO_WRITES in script.flags

    def flush(self) -> None:
        """Forget all scripts, and the interpreter with them."""
        self.cache.clear()
        self._interpreter = None

    def _forget(self, script: Script) -> None:
        if self._interpreter is not None:
            self._interpreter.forget(script.sha)

    # --- running --------------------------------------------------------------------------------

    def run_text(self, txn: Txn, client: Client, argv: Argv, reads: bool) -> Answer:
        """Run EVAL; ``reads``: the script may not write."""
        try:
            keys = key_count(argv)
            script = self.load(argv[1], stays=False)
        except RequestError:
            self.dispatcher.recorder.show(client, argv)  # as in Redis; _run shows the others
            raise
        return self._run(txn, client, argv, script, keys, reads)

    def run_sha(self, txn: Txn, client: Client, argv: Argv, reads: bool) -> Answer:
        """Run EVALSHA of a script that ``command`` does not run."""
        try:
            if len(argv[1]) != SHA_DIGITS:
                raise NoScript
            keys = key_count(argv)
            script = self.cache.get(argv[1])
            if script is None:
                raise NoScript
        except RequestError:
            self.dispatcher.recorder.show(client, argv)
            raise
        return self._run(txn, client, argv, script, keys, reads)

    def waits(self, client: Client, name: bytes) -> bool:
        """Whether a script or function must wait for the next turn.

        A script that may run for long begins a turn of its own. Otherwise clients whose requests
        ran before it in the turn would wait for their replies until it ends.
        """
        busy = self.busy
        if busy.awaits_first:
            return client.steps and busy.prepare()
        if name in self.quick or not (busy.may_suspend and client.steps):
            return False
        return not self._server.is_alone(client)

    def _run(
        self, txn: Txn, client: Client, argv: Argv, script: Script, keys: int, reads: bool
    ) -> Answer:
        if self.waits(client, script.sha):
            return LATER
        self.dispatcher.recorder.show(client, argv)  # before the calls of the script
        interpreter = self.interpreter
        interpreter.make_room(2 * sum(map(len, argv[3:])))
        if not interpreter.has(script.sha):
            interpreter.load(script.sha, script.body)
        flags = script.flags if script.has_flags else None
        return self.call(interpreter, script.sha, txn, client, argv, keys, flags, reads)

    def call(
        self,
        interpreter: Interpreter,
        name: bytes,
        txn: Txn,
        client: Client,
        argv: Argv,
        keys: int,
        flags: frozenset[ScriptFlag] | None,
        reads: bool,
        kill: str = SCRIPT_KILL,
    ) -> Reply:
        """Run a loaded script or function; the first ``keys`` of its arguments are keys.

        ``argv`` is the request that runs it, and ``kill`` the command that ends it. ``flags`` are
        None for a script without them. ``reads``: it may only read.
        """
        if self.busy.is_stopping:
            return _STOPPING
        dispatcher = self.dispatcher
        self._is_read_only = self._allows_oom = reads
        if flags is not None:
            self._is_read_only = ScriptFlag.NO_WRITES in flags
            self._allows_oom = ScriptFlag.ALLOW_OOM in flags
            if dispatcher.over_maxmemory and not (self._allows_oom or self._is_read_only):
                return OOM
            if reads and not self._is_read_only:
                return _MAY_WRITE
        tracking = dispatcher.trackers.clients.get(client)
        self._caching = None if tracking is None else tracking.caching
        self.begin(client, txn, interpreter)
        self.command.begin(client, txn, interpreter, self._is_read_only)
        self.busy.begin(name, kill)
        db, in_exec, pages = client.db, client.in_exec, client.pages
        client.in_exec, client.pages, dispatcher.recorder.in_script = True, False, True
        last_command, reply_max = client.last_command, txn.catalog.limits.reply_max or _NO_LIMIT
        try:
            result = interpreter.run(name, argv[3:], keys, client.protocol, reply_max)
        finally:
            client.in_exec, client.pages = in_exec, pages
            client.last_command, dispatcher.recorder.in_script = last_command, False
            if client.db != db:
                client.select(db)
            self.command.end()
            failure = self.end(name.lower())
        if failure is not None:
            raise failure
        return self.reply_to(result, name, argv, client.protocol)

    def begin(self, client: Client, txn: Txn, interpreter: Interpreter) -> None:
        """Take the state of a script that begins."""
        self._running, self._client, self._txn = interpreter, client, txn
        self._error_of_call, self.protocol = None, RESP2

    def end(self, name: bytes) -> BaseException | None:
        """Note whether a script or function has ended soon; return what a command has raised."""
        self._client = self._txn = None
        failure, self._failure = self._failure, None
        if self.busy.is_slow:
            self.quick.discard(name)
        elif name not in self.quick:
            if len(self.quick) >= QUICK_MAX:
                self.quick.clear()
            self.quick.add(name)
        return failure

    def reply_to(self, result: Result, name: bytes, argv: Argv, protocol: int) -> Reply:
        """Return the reply of a script or function that the request ``argv`` has run."""
        if type(result) is Failure:
            return self._error(result, name, argv[0].lower().decode())
        return reply_of(result, protocol, self.protocol)

    def _error(self, failure: Failure, name: bytes, command: str) -> ErrorReply:
        """Count a script of ``command`` that has failed, and return its reply."""
        message = failure.message.partition(b"\0")[0]  # as in Redis, where a text of C ends there
        statistics = self.dispatcher.statistics
        statistics.of(command).failed += 1
        if not failure.counted:
            statistics.count_error(_code(message))
        called = self._error_of_call
        kind = called.kind if called is not None and called.line == message else RequestError
        if failure.position is not None:
            message += b" script: %b, on %b." % (name, failure.position)
        return _error_reply(message, kind)

    # --- what scripts call ----------------------------------------------------------------------

    def fail(self, error: BaseException) -> Any:
        """End the script, as a command has raised an exception; return what the sandbox gets."""
        self._failure = error
        return False, _DEAD

    def answer(self, argv: Argv) -> Any:
        """Run any command, or refuse it; return its reply as the sandbox takes it."""
        interpreter, client, txn = self._running, self._client, self._txn
        if interpreter is None or client is None or txn is None:
            return _NOT_ALLOWED
        if not interpreter.has_room():
            return FULL
        command = self._find(argv)
        if isinstance(command, tuple):
            return self._count_refusal(argv, command)
        refusal = self._refusal(client, command, argv, txn)
        if refusal is not None:
            return self._count_refusal(argv, refusal)
        if command.writes:
            self.busy.has_written = True
        if self.dispatcher.plain_calls is not None:
            self.dispatcher.recorder.record_uses(txn)  # those of the plain calls before it
        return self.result(self.dispatcher.answer(client, command, argv, txn))

    def _find(self, argv: list[bytes]) -> Command | tuple[bytes, int]:
        """Return the command of a request, or the refusal."""
        command = command_of(argv, self._commands)
        if command is None:
            is_container = len(argv) == 1 and self._commands.get(argv[0].lower()) is not None
            unknown = (_UNKNOWN + reason_of(text(argv[0]))).encode(), _REFUSED
            return _WRONG_NUMBER if is_container else unknown
        if len(argv) != command.arity and not 0 < -command.arity <= len(argv):
            return _WRONG_NUMBER
        return _NOT_ALLOWED if Flag.NOSCRIPT in command.flags else command

    def _refusal(
        self, client: Client, command: Command, argv: list[bytes], txn: Txn
    ) -> tuple[bytes, int] | None:
        """Return the refusal of a command that the script may not run now."""
        dispatcher = self.dispatcher
        if not client.user.free or command.channels is not None:
            denied = dispatcher.refusal_by_rights(client, command, argv)
            if denied is not None:
                return b"ERR ACL failure in script: " + str(denied).encode(), _REFUSED
        if self._is_read_only and (command.writes or Flag.MAY_REPLICATE in command.flags):
            return _READ_ONLY
        if command.writes and (refusal := dispatcher.refusal_of_writes) is not None:
            return refusal.line, _REFUSED
        if command.grows:
            if dispatcher.over_maxmemory and not self._allows_oom and not self.busy.has_written:
                return OOM.line, _REFUSED
            txn.frees = False
        if self._caching is not None:
            dispatcher.trackers.clients[client].caching = self._caching
        return None

    def _count_refusal(self, argv: list[bytes], refusal: tuple[bytes, int]) -> tuple[bytes, int]:
        """Count a refusal; the error of the script does not count again."""
        message = refusal[0]
        self.dispatcher.statistics.count_rejection(_code(message), name_of(argv, self._commands))
        return message, _FAILED

    def result(self, reply: Any) -> Any:
        """Return a reply as the sandbox takes it; a command that would block has timed out."""
        interpreter, kind = self._running, type(reply)
        assert interpreter is not None
        if kind is Blocked:
            reply = reply.expired
            kind = type(reply)
        if kind is int:
            return reply
        if kind is bytes:
            if len(reply) > SMALL and not interpreter.has_room(len(reply)):
                return FULL
            return reply
        if reply is None or kind is NullArray:
            return False if self.protocol == RESP2 else None
        if reply is OK:
            return True
        if type(reply) is ErrorReply:
            self._error_of_call = reply
            return reply.line, _FAILED
        wire = encode(reply, self.protocol)
        if len(wire) > SMALL and not interpreter.has_room(8 * len(wire)):
            return FULL
        return wire, _ENCODED

    def may_run(self, *argv: Any) -> bool | None:
        """Return whether the user may run a command; None if there is no such command."""
        client = self._client
        assert client is not None
        container = self._commands.get(argv[0].lower())
        if isinstance(container, Container) and len(argv) == 1:
            return any(_may(client.user, each, argv) for each in container.subcommands.values())
        command = command_of(argv, self._commands)
        return None if command is None else _may(client.user, command, argv)

    def sha1hex(self, data: bytes) -> bytes | None:
        """Return the SHA-1 of a text; None if there is not enough memory."""
        return None if self._running is None or self._running.is_full() else sha1(data)

    def log(self, level: int, message: bytes) -> None:
        """Write a line of a script to the log."""
        self._throttle.log(_log, _LEVELS[level], "%s", message.decode("utf-8", "backslashreplace"))

    def set_resp(self, protocol: int) -> None:
        """Set the protocol in which the script gets replies."""
        self.protocol = protocol

    def tick(self) -> int | None:
        """Return the number of the error that ends the script now."""
        if self.load_until is not None:
            return LOAD_TIMEOUT if monotonic() > self.load_until else None
        if self._client is None:  # a script is compiled
            return None
        try:
            return self.busy.tick()
        except BaseException as error:
            self._failure = error
            return INTERNAL_ERROR


class PythonScriptCalls:
    """Runs the commands of scripts."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def begin(self, client: Client, txn: Txn, interpreter: Interpreter, reads: bool) -> None:
        """Take the state of a script that begins."""

    def end(self) -> None:
        """Forget a script that has ended."""

    def run_sha(self, txn: Txn, client: Client, argv: Argv, reads: bool) -> Any:
        """Run a script in the usual way; NotImplemented: ``Scripts.run_sha`` runs it."""
        return NotImplemented

    def __call__(self, *argv: Any) -> Any:
        """Run a command of the script; return its reply as the sandbox takes it."""
        try:
            return self._scripts.answer(list(argv))
        except BaseException as error:
            return self._scripts.fail(error)


if twins is not None:
    twins.bind(Client, Scripts, Busy, Interpreter, Script, CommandStatistics, Txn, Batch)


def _may(user: User, command: Command, argv: Sequence[bytes]) -> bool:
    try:
        user.check(command, argv)
    except NoPermission:
        return False
    return True


def key_count(argv: Argv, not_a_number: str = NOT_AN_INTEGER) -> int:
    """Return how many of the arguments of a script or function are keys."""
    count = argv[2]
    keys = _SMALL_COUNTS[count] if count in _SMALL_COUNTS else integer(count, not_a_number)
    if keys > len(argv) - 3:
        raise RequestError("Number of keys can't be greater than number of args")
    if keys < 0:
        raise RequestError("Number of keys can't be negative")
    return keys


def _code(line: bytes) -> str:
    return line.partition(b" ")[0].decode("utf-8", "surrogateescape")


def _error_reply(line: bytes, kind: type[KVStreamError]) -> ErrorReply:
    code, space, rest = line.decode("utf-8", "surrogateescape").partition(" ")
    return ErrorReply(code if rest else code + space, rest, kind)  # Redis keeps a space at the end


def reply_of(result: Any, protocol: int, resp: int) -> Reply:
    """Return the reply of a script's result."""
    kind = type(result)
    if kind is bytes:
        return result  # type: ignore[no-any-return]
    if kind is Wire:
        return Shared(result.data, {protocol: result.data})
    if kind is bool:
        if resp == RESP3:
            return Boolean(result)
        return 1 if result else None
    if kind is float:
        if result != result or not -(2.0**63) <= result < 2.0**63:
            return I64_MIN
        return int(result)
    if kind is int:
        return result if I64_MIN <= result <= I64_MAX else I64_MIN
    return None
