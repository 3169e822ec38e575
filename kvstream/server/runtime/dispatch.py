"""The call of a command: permissions, statistics, keyspace hits, the slow log and MONITOR.

``Dispatcher`` wraps every handler. ``Lookups`` counts keyspace hits and notes the last use of keys.
``monitor_line`` makes a line of MONITOR, ``listed`` one of CLIENT LIST.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

from kvstream.commands.args import text
from kvstream.commands.command import LATER, Answer, Command, Flag, Stepwise, Table
from kvstream.commands.replies import RESP3, ErrorReply, internal_error
from kvstream.commands.table import command_of
from kvstream.errors import KVStreamError, RequestError
from kvstream.logs import NOTICE, DeferredLogger, Throttle
from kvstream.meta.keyspace import Usage
from kvstream.meta.txn import Txn
from kvstream.server.acl import Denials, NoPermission
from kvstream.server.hotkeys import HotKeys
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Argv, ChannelKind, Client
from kvstream.server.runtime.pubsub import Notifications, PubSub
from kvstream.server.runtime.tracking import Trackers, Tracking
from kvstream.server.stats import Latency, Slowlog, Statistics, cut


class Lookups:
    """Keyspace hits and misses, and the last use of keys.

    Of an incremental command only the keys of the last step can count as misses.
    """

    def __init__(self, statistics: Statistics, usage: Usage) -> None:
        self._statistics = statistics
        self._usage = usage

    def record_use(self, client: Client, command: Command, argv: Argv, txn: Txn) -> None:
        """Record the last use of a finished call's keys, and its hits and misses."""
        counts, missing, statistics = command.counted_keys, txn.missing, self._statistics
        prefix = client.prefix
        if command.key_at and not client.no_touch:  # most calls
            name = prefix + argv[command.key_at]
            if counts:
                is_miss = name in missing
                statistics.keyspace_misses += is_miss
                statistics.keyspace_hits += not is_miss
            if command.touches_keys:
                self._usage.note_one(name, txn.now_ms)
            missing.clear()
            return
        names = [prefix + key for key in command.keys_of(argv)]
        if counts:
            counted = names if len(names) <= counts else names[:counts]
            absent = sum(map(missing.__contains__, counted)) if missing else 0
            statistics.keyspace_misses += absent
            statistics.keyspace_hits += len(counted) - absent
        if command.touches_keys:
            if client.no_touch and command.name != "touch":
                names = [name for name in names if name in missing]  # it may have made them
            if names:
                self._usage.record_use(names, txn.now_ms)
        if missing:
            missing.clear()

    def missed(self, client: Client, command: Command, argv: Argv, txn: Txn) -> list[bytes]:
        """Return the keys of a finished call that ``keymiss`` events name, in order.

        XREAD looks up each key twice, as in Redis.
        """
        missing, counts = txn.missing, command.counted_keys
        if command.name == "set" and b"GET" in [word.upper() for word in argv[3:]]:
            counts = 1
        if not (missing and counts) or command.name.startswith("object|"):
            return []
        names = [client.prefix + key for key in command.keys_of(argv)][:counts]
        return [name for name in names if name in missing] * (1 + (command.name == "xread"))

    def use(self, names: list[bytes], hits: int, misses: int, now_ms: int) -> None:
        """Note that keys are used now, and count hits and misses."""
        self._statistics.keyspace_hits += hits
        self._statistics.keyspace_misses += misses
        if names:
            self._usage.record_use(names, now_ms)


TIMED_S = 0.001
"""If the slow log has a lower threshold, each XADD runs and is timed on its own."""
_US = 1_000_000
_SIGNS = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 7: "\\a", 8: "\\b"}
_SIGNS |= {ord('"'): '\\"', ord("\\"): "\\\\"}
_SHOWN_WORDS = {b"ACL": 2, b"AUTH": 1}
"""Words of commands whose others may be passwords."""
_SECRET = re.compile(rb".*pas.*|.*auth|(?:master|primary)user", re.IGNORECASE | re.DOTALL)
"""Settings whose values are passwords or names of users, misspelt ones too, and those of Valkey."""
_REDACTED = b"(redacted)"


def monitor_line(client: Client, argv: Argv, in_script: bool) -> bytes:
    """Return the line of MONITOR for a client's request, or for a call of its script."""
    seconds, microseconds = divmod(time.time_ns() // 1000, _US)
    shown = " ".join(quoted(word) for word in redacted(argv))
    source = f"unix:{client.address.removesuffix(':0')}" if client.is_unix else client.address
    source = "lua" if in_script else source
    line = f"+{seconds}.{microseconds:06} [{client.db} {source}] {shown}\r\n"
    return line.encode("utf-8", "surrogateescape")


def redacted(argv: Argv) -> Argv:
    """Return a request with its passwords replaced."""
    word = argv[0].upper()
    shown = _SHOWN_WORDS.get(word)
    if shown is not None:
        return argv[:shown] + [_REDACTED] * (len(argv) - shown)
    if word == b"CONFIG" and any(map(_SECRET.fullmatch, argv[2::2])):
        return [_of_config(argv, at) for at in range(len(argv))]
    return _of_hello(argv) if word == b"HELLO" else argv


def _of_config(argv: Argv, at: int) -> bytes:
    """Return a word of CONFIG SET, or ``(redacted)`` for a password."""
    is_value = at > 2 and at % 2 == 1
    return _REDACTED if is_value and _SECRET.fullmatch(argv[at - 1]) else argv[at]


def _of_hello(argv: Argv) -> Argv:
    """Return HELLO with the user name and password of AUTH replaced."""
    words = [word.upper() for word in argv]
    if b"AUTH" not in words[2:]:
        return argv
    at = words.index(b"AUTH", 2) + 1
    hidden = argv[at : at + 2]
    return argv[:at] + [_REDACTED] * len(hidden) + argv[at + 2 :]


def quoted(word: bytes) -> str:
    """Return a word in quotes, escaped as Redis does."""
    return '"' + word.decode("latin-1").translate(_QUOTED) + '"'


def _sign(byte: int) -> str:
    return _SIGNS.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}")


_QUOTED = {byte: _sign(byte) for byte in range(256)}


class Request:
    """A request for a log line: its name, keys and size, but no value."""

    def __init__(self, command: Command, argv: Argv) -> None:
        self._command = command
        self._argv = argv

    def __str__(self) -> str:
        keys = cut([b"", *self._command.keys_of(self._argv)])[1:]
        words = [self._command.name.upper().replace("|", " "), *map(quoted, keys)]
        size = sum(map(len, self._argv))
        return f"{' '.join(words)} (arguments: {len(self._argv) - 1}, bytes: {size})"


class Shown:
    """Truncated words for a log line, formatted only if the line is written."""

    def __init__(self, argv: Sequence[bytes]) -> None:
        self._argv = argv

    def __str__(self) -> str:
        return " ".join(map(quoted, cut(self._argv)))


_log = DeferredLogger(__name__)

_REASONS = {"cmd": "command"}
"""The words of ACL LOG where they differ from those of INFO."""
_NO_AUTH = ErrorReply("NOAUTH", "Authentication required.")
OOM = ErrorReply("OOM", "command not allowed when used memory > 'maxmemory'.")
_SUBSCRIBED = (
    "Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed "
    "in this context"
)
_NO_MULTI = ErrorReply("ERR", "Command not allowed inside a transaction")
_CHANGED = (
    "ACLs rules changed between the moment the transaction was accumulated and the EXEC call. "
    "This command is no longer allowed for the following reason: {}"
)
_WITHDRAWN = {
    "cmd": "no permission to execute the command or subcommand",
    "key": "no permission to touch the specified keys",
    "channel": "no permission to access one of the channels used as arguments",
}
"""The reasons in EXEC's error, by the permission that was withdrawn."""


class Dispatcher:
    """The calls of one server, and what is recorded of them."""

    def __init__(
        self,
        options: ServerOptions,
        commands: Iterable[Command],
        clock: Callable[[], float],
        usage: Usage,
        trackers: Trackers,
        notifications: Notifications,
        pubsub: PubSub,
    ) -> None:
        self._options = options
        self.clock = clock
        writes = frozenset(command.name for command in commands if Flag.WRITE in command.flags)
        self.statistics = Statistics(writes)
        self.lookups = Lookups(self.statistics, usage)
        self.slowlog = Slowlog(
            options.slowlog_length, options.slowlog_words_max, options.slowlog_bytes_max
        )
        self.latency = Latency()
        self.trackers, self.notifications = trackers, notifications
        self._pubsub, self.monitors = pubsub, pubsub.monitors
        self.denials = Denials(options.acllog_length)
        self._logins, self._denied, self._slow = Throttle(), Throttle(), Throttle()
        self.hot_keys: HotKeys | None = None
        """What HOTKEYS GET shows."""
        self.paused = False
        """CLIENT PAUSE holds some commands or all."""
        self.over_maxmemory = False
        """The process exceeds ``maxmemory``."""
        self.prepare_scripts: Callable[[], bool] = lambda: False
        """Prepare for the first script; return whether its turn must be the next one."""
        self.in_script = False
        """The calls are those of a script."""
        self.read_only: ErrorReply | None = None
        """The error of every write after the store has failed."""
        self.ended = 0.0
        """When the last call ended; a turn uses it to look at the clock less often."""
        self.set_slow()
        self.needs_general_path = False
        """Every request takes the general path: MONITOR, HOTKEYS, tracking, notifications, a pause,
        maxmemory or a failed store."""
        self.batches_xadds = True
        """XADDs may be batched: as above, but tracking matters only for its keys, and a low
        threshold of the slow log times each call."""
        self.update_path()

    def update_path(self) -> None:
        """Decide anew whether requests may take the short path.

        Called when a turn begins and after each request on the general path: nothing else changes
        this within a turn.
        """
        hot_keys = self.hot_keys
        alone = bool(
            self.monitors
            or (hot_keys is not None and hot_keys.is_active)
            or self.notifications.of_calls
            or self.paused
            or self.over_maxmemory
            or self.read_only is not None
        )
        self.needs_general_path = alone or bool(self.trackers.clients)
        self.batches_xadds = not alone and self.noted_s >= TIMED_S

    @property
    def counts_hot_keys(self) -> bool:
        """Whether HOTKEYS has started a tracking that goes on."""
        return self.hot_keys is not None and self.hot_keys.is_active

    def refusal(self, client: Client, command: Command, argv: Argv) -> ErrorReply | None:
        """Return the error if a client may not run a command."""
        if not client.authenticated and Flag.NO_AUTH not in command.flags:
            return _NO_AUTH
        if not client.user.free or command.channels is not None:
            refusal = self._refusal_by_rights(client, command, argv)
            if refusal is not None:
                return ErrorReply.of(refusal)
        if client.queue is not None and Flag.NO_MULTI in command.flags:
            return _NO_MULTI
        if self.over_maxmemory and _asks(client, command, Flag.DENYOOM):
            return OOM
        if self.read_only is not None and _asks(client, command, Flag.WRITE):
            return self.read_only
        if (
            client.subscriptions is not None
            and client.protocol != RESP3
            and Flag.SUBSCRIBED not in command.flags
        ):
            return ErrorReply("ERR", _SUBSCRIBED.format(command.name))
        return None

    def _refusal_by_rights(
        self, client: Client, command: Command, argv: Argv
    ) -> NoPermission | None:
        """Check the ACL; count and log a refusal."""
        try:
            client.user.check(command, argv)
        except NoPermission as refusal:
            self.deny(client, refusal.kind, refusal.object, client.user.name)
            return refusal
        return None

    def refusal_in_exec(self, client: Client, command: Command, argv: Argv) -> ErrorReply | None:
        """Return the error if a queued command may not run any more."""
        refusal = self._refusal_by_rights(client, command, argv)
        if refusal is None:
            return OOM if self.over_maxmemory and Flag.DENYOOM in command.flags else None
        error = ErrorReply("NOPERM", _CHANGED.format(_WITHDRAWN[refusal.kind]))
        self.statistics.rejected(error.code)
        return error

    def refused(self, client: Client, name: str, error: ErrorReply) -> ErrorReply:
        """Count a refused or invalid request and return its reply.

        It makes the client's MULTI fail; a refused EXEC ends it at once.
        """
        if name == "exec":
            client.end_queue()
            reason = error.text if error.code == "ERR" else f"{error.code} {error.text}"
            error = ErrorReply("EXECABORT", f"Transaction discarded because of: {reason}")
        elif client.queue is not None:
            client.queue.failed = True
        self.statistics.rejected(error.code, name)
        return error

    def failed(self, name: str, error: ErrorReply) -> ErrorReply:
        """Count a call that failed at once, and return its reply."""
        self.statistics.ran(name, 0.0)
        self.statistics.failed(name, error.code)
        return error

    def answer_later(self, client: Client, command: Command, argv: Argv, txn: Txn) -> Answer:
        """Run a command, or a step of it, after checking the ACL again."""
        refusal = self._refusal_by_rights(client, command, argv)
        if refusal is not None:
            return self.refused(client, command.name, ErrorReply.of(refusal))
        return self.answer(client, command, argv, txn)

    def answer(self, client: Client, command: Command, argv: Argv, txn: Txn) -> Answer:
        """Run a command and record the call; return its reply or error."""
        clock, name = self.clock, command.name
        client.last_command = name
        client.commands_run += 1
        begun = clock()
        try:
            reply: Answer = command.run(txn, client, argv)
        except RequestError as error:
            self.statistics.failed(name, error.code)
            reply = ErrorReply.of(error)
        self.ended = ended = clock()
        self.record(client, command, argv, txn, reply, ended - begun)
        return reply

    def record(
        self, client: Client, command: Command, argv: Argv, txn: Txn, reply: Answer, spent: float
    ) -> None:
        """Record a call that took ``spent`` seconds, or a step of it."""
        name = command.name
        if reply is LATER:
            client.commands_run -= 1
            return
        row = self.statistics.of(name)
        if type(reply) is Stepwise:
            client.commands_run -= 1
            row.seconds += spent
            if self.trackers.clients:
                self.trackers.began(client, command, argv)
            return
        if self.monitors and not command.is_admin and not command.runs_scripts:
            self.show(client, argv)  # after the call: RESET ends MONITOR
        if command.keys is not None:
            if txn.wanted_events:
                self.notifications.ran(txn, self.lookups.missed(client, command, argv, txn))
            self.lookups.record_use(client, command, argv, txn)
            if self.hot_keys is not None and not self.in_script:
                self.hot_keys.ran(command, argv, reply, spent, client.protocol)
        if command.writes or self.trackers.clients:
            changed = txn.dirty and not txn.only_redelivered
            if changed and (type(reply) is ErrorReply or (not reply and command.shows_change)):
                changed = False  # an earlier call of the turn made the changes
            if self.trackers.clients:
                self.trackers.ran(client, command, argv, changed)
            if command.writes and not changed and type(reply) is not ErrorReply:
                row.idle += 1
        txn.only_redelivered = False
        row.ran(spent)
        if spent >= self.noted_s:
            self.note_slow(client, command, argv, spent)

    def note_failure(self, failure: KVStreamError | None) -> None:
        """Refuse writes from now on; None: allow them again."""
        self.read_only = None if failure is None else ErrorReply.of(failure)

    def show(self, client: Client, argv: Argv) -> None:
        """Send a call to the MONITOR clients."""
        if self.monitors:
            self._pubsub.to_monitors(monitor_line(client, argv, self.in_script))

    def answer_at_once(self, client: Client, command: Command, argv: Argv, txn: Txn) -> Answer:
        """Run a command without keys; its errors do not undo the turn."""
        try:
            return self.answer(client, command, argv, txn)
        except KVStreamError as error:
            return ErrorReply.of(error)
        except OSError as error:  # of a file in the configuration
            return ErrorReply("ERR", str(error))
        except Exception as error:
            return internal_error(error)

    def appended(self, names: list[bytes], count: int, seconds: float, txn: Txn) -> None:
        """Record batched XADDs to some streams."""
        self.lookups.use(names, 0, 0, txn.now_ms)
        txn.missing.clear()
        self.statistics.ran("xadd", seconds, count)

    def deny(self, client: Client, kind: str, what: bytes, user: bytes) -> None:
        """Count and log a refusal of kind ``auth``, ``cmd``, ``key`` or ``channel``."""
        self.statistics.deny(kind)
        if kind == "auth":
            text = "%s has no right to be user %s: wrong name or password"
            self._logins.log(_log, logging.WARNING, text, client.address, Shown([user]))
        else:
            text = "%s, user %s, has no right to %s %s"
            words = client.address, Shown([user]), _REASONS.get(kind, kind), Shown([what])
            self._denied.log(_log, logging.INFO, text, *words)
        in_exec = client.last_command == "exec" and (kind, what) != ("cmd", b"exec")
        in_multi = client.queue is not None or in_exec
        context = "lua" if self.in_script else "multi" if in_multi else "toplevel"
        now_ms = time.time_ns() // 1_000_000
        shown = listed(client, self.trackers.clients.get(client))
        self.denials.add(_REASONS.get(kind, kind), context, what, user, shown, now_ms)

    def set_slow(self) -> None:
        """Take the thresholds of SLOWLOG and LATENCY from the options."""
        microseconds, ms = self._options.slower_than_us, self._options.latency_threshold_ms
        self._slow_s = inf if microseconds < 0 else microseconds / _US
        self.noted_s = min(self._slow_s, ms / 1000 if ms else inf)

    def note_slow(self, client: Client, command: Command, argv: Argv, spent: float) -> None:
        """Note a slow call for LATENCY and SLOWLOG."""
        self.latency.add(_EVENTS[Flag.FAST in command.flags], spent)
        if spent < self._slow_s or Flag.SKIP_SLOWLOG in command.flags:
            return
        if not self.slowlog.is_off:
            microseconds, words = round(spent * _US), redacted(argv)
            self.slowlog.add(int(time.time()), microseconds, words, client.address, client.name)
            self.statistics.slow(command.name, microseconds)
        text = "a request of %s took %.3f ms: %s"
        self._slow.log(_log, NOTICE, text, client.address, 1000 * spent, Request(command, argv))


def _asks(client: Client, command: Command, flag: Flag) -> bool:
    """Return whether a command, or any command queued for EXEC, has a flag."""
    if command.name == "exec" and client.queue is not None:
        return any(flag in queued.flags for queued, _ in client.queue.commands)
    return flag in command.flags


def name_of(argv: Argv, commands: Table) -> str:
    """Return the command name of a refused request, or an empty string."""
    command = command_of(argv, commands)
    return "" if command is None else command.name


_EVENTS = ("command", "fast-command")
"""LATENCY events of a slow command."""


_LINE = (
    "id=%d addr=%s laddr=%s fd=%d name=%s age=%d idle=%d flags=%s db=%d sub=%d psub=%d ssub=%d "
    "multi=%d watch=%d qbuf=%d qbuf-free=0 argv-mem=0 multi-mem=%d rbs=0 rbp=0 obl=0 oll=%d "
    "omem=%d tot-mem=%d events=%s cmd=%s user=%s redir=%d resp=%d lib-name=%s lib-ver=%s "
    "io-thread=0 tot-net-in=%d tot-net-out=%d tot-cmds=%d"
)


def listed(client: Client, tracking: Tracking | None, asking: int = 0) -> str:
    """Return a client's line of CLIENT LIST; ``asking``: bytes of its own request for it."""
    now, subscriptions = client.server.clock(), client.subscriptions
    queued = 0 if client.queue is None else client.queue.size
    unread = client.reader.buffered + client.unread.size + asking
    pending = client.pending_output()
    return _LINE % (
        *(client.id, client.address, client.local_address, client.descriptor, text(client.name)),
        *(now - client.created, now - client.last_used, _flags(client, tracking), client.db),
        *((0, 0, 0) if subscriptions is None else [len(subscriptions[k]) for k in ChannelKind]),
        -1 if client.queue is None else len(client.queue.commands),
        *(len(client.watched), unread, queued, pending > 0, pending, unread + queued + pending),
        *("rw" if pending else "r", client.last_command or "NULL", text(client.user.name)),
        -1 if tracking is None else tracking.redirect,
        *(client.resp, text(client.lib_name), text(client.lib_version)),
        *(client.bytes_in, client.bytes_out, client.commands_run),
    )


def _flags(client: Client, tracking: Tracking | None) -> str:
    flags = (
        ("O", client.monitors),
        ("P", client.subscriptions is not None),
        ("x", client.queue is not None),
        ("b", client.block is not None),
        ("t", tracking is not None),
        ("R", tracking is not None and tracking.broken),
        ("B", tracking is not None and b"BCAST" in tracking.modes),
        ("c", client.closing),
        ("U", client.is_unix),
        ("e", client.no_evict),
        ("T", client.no_touch),
    )
    return "".join(letter for letter, is_set in flags if is_set) or "N"
