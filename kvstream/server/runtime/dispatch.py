"""The call of a command: permissions, refusals, the handler, and the record of the call.

``Dispatcher`` wraps every handler. ``describe_client`` makes a line of CLIENT LIST.
"""

import logging
import time
from collections.abc import Callable

from kvstream.commands.args import text
from kvstream.commands.command import Answer, Command, Flag, Table
from kvstream.commands.replies import RESP3, ErrorReply, internal_error
from kvstream.commands.reply_pages import READERS
from kvstream.commands.table import command_of
from kvstream.errors import KVStreamError, RequestError
from kvstream.logs import DeferredLogger, Throttle
from kvstream.meta.txn import Txn
from kvstream.server.acl import Denials, NoPermission
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.call_recorder import CallRecorder
from kvstream.server.runtime.call_text import Shown
from kvstream.server.runtime.client import Argv, ChannelKind, Client
from kvstream.server.runtime.plain_commands import compiled_calls
from kvstream.server.runtime.pubsub import Notifications, PubSub
from kvstream.server.runtime.tracking import Trackers, Tracking

TIMED_S = 0.001
"""If the slow log has a lower threshold, each XADD runs and is timed on its own."""
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
        clock: Callable[[], float],
        recorder: CallRecorder,
        trackers: Trackers,
        notifications: Notifications,
        pubsub: PubSub,
        prepare_scripts: Callable[[], bool],
        commands: Table,
    ) -> None:
        self.clock = clock
        self.recorder, self.statistics = recorder, recorder.statistics
        self.trackers, self.notifications = trackers, notifications
        self._monitors = pubsub.monitors
        self.denials = Denials(options.acllog_length)
        self._logins, self._denied = Throttle(), Throttle()
        self.paused = False
        """CLIENT PAUSE holds some commands or all."""
        self.over_maxmemory = False
        """The process exceeds ``maxmemory``."""
        self.prepare_scripts = prepare_scripts
        """Prepare for the first script; return whether its turn must be the next one."""
        self.read_only: ErrorReply | None = None
        """The error of every write after the store has failed."""
        self.refuses_writes: ErrorReply | None = None
        """The error of every write in the present state of the replication."""
        self.unavailable: ErrorReply | None = None
        """The error of a replica without present data, but for commands that need none."""
        self.ended = 0.0
        """When the last call ended; a turn uses it to look at the clock less often."""
        self.needs_general_path = False
        """Every request takes the general path: MONITOR, HOTKEYS, tracking, notifications, a pause,
        maxmemory or a failed store."""
        self.batches_xadds = True
        """XADDs may be batched. The same features prevent it, except that tracking concerns only
        tracked keys. A low threshold of the slow log prevents it too: each call is timed."""
        self.plain_calls = compiled_calls(self, commands)
        self.update_path()

    def update_path(self) -> None:
        """Decide anew whether requests may take the short path.

        Called when a turn begins and after each request on the general path: nothing else changes
        this within a turn.
        """
        alone = bool(
            self._monitors
            or (self.recorder.hot_keys is not None and self.recorder.counts_hot_keys)
            or self.notifications.of_calls
            or self.paused
            or self.over_maxmemory
            or self.read_only is not None
            or self.refuses_writes is not None
            or self.unavailable is not None
        )
        self.needs_general_path = alone or bool(self.trackers.clients)
        self.batches_xadds = not alone and self.recorder.noted_s >= TIMED_S

    def refusal(self, client: Client, command: Command, argv: Argv) -> ErrorReply | None:
        """Return the error if a client may not run a command."""
        if not client.authenticated and Flag.NO_AUTH not in command.flags:
            return _NO_AUTH
        if not client.user.free or command.channels is not None:
            refusal = self.refusal_by_rights(client, command, argv)
            if refusal is not None:
                return ErrorReply.of(refusal)
        if client.queue is not None and Flag.NO_MULTI in command.flags:
            return _NO_MULTI
        if self.over_maxmemory and _asks(client, command, Flag.DENYOOM):
            return OOM
        if self.refusal_of_writes is not None and _asks(client, command, Flag.WRITE):
            return self.refusal_of_writes
        if self.unavailable is not None and not _has(client, command, Flag.STALE):
            return self.unavailable
        if (
            client.subscriptions is not None
            and client.protocol != RESP3
            and Flag.SUBSCRIBED not in command.flags
        ):
            return ErrorReply("ERR", _SUBSCRIBED.format(command.name))
        return None

    @property
    def refusal_of_writes(self) -> ErrorReply | None:
        """The error of every write; None if writes are allowed."""
        return self.read_only or self.refuses_writes

    def refusal_by_rights(
        self, client: Client, command: Command, argv: Argv
    ) -> NoPermission | None:
        """Check the ACL; return the refusal, which is counted and logged, if there is one."""
        try:
            client.user.check(command, argv)
        except NoPermission as refusal:
            self.deny(client, refusal.kind, refusal.object, client.user.name)
            return refusal
        return None

    def refusal_in_exec(self, client: Client, command: Command, argv: Argv) -> ErrorReply | None:
        """Return the error if a queued command may not run any more."""
        refusal = self.refusal_by_rights(client, command, argv)
        if refusal is None:
            return OOM if self.over_maxmemory and Flag.DENYOOM in command.flags else None
        error = ErrorReply("NOPERM", _CHANGED.format(_WITHDRAWN[refusal.kind]))
        self.statistics.count_rejection(error.code)
        return error

    def refuse(self, client: Client, name: str, error: ErrorReply) -> ErrorReply:
        """Count a refused or invalid request and return its reply.

        A refused request makes the client's MULTI fail; a refused EXEC ends the MULTI at once.
        """
        if name == "exec":
            client.end_queue()
            reason = error.text if error.code == "ERR" else f"{error.code} {error.text}"
            error = ErrorReply("EXECABORT", f"Transaction discarded because of: {reason}")
        elif client.queue is not None:
            client.queue.failed = True
        self.statistics.count_rejection(error.code, name)
        return error

    def fail(self, name: str, error: ErrorReply) -> ErrorReply:
        """Count a call that failed at once, and return its reply."""
        self.statistics.count(name, 0.0)
        self.statistics.count_failure(name, error.code)
        return error

    def answer_later(self, client: Client, command: Command, argv: Argv, txn: Txn) -> Answer:
        """Run a command, or a step of it, after checking the ACL again."""
        refusal = self.refusal_by_rights(client, command, argv)
        if refusal is not None:
            return self.refuse(client, command.name, ErrorReply.of(refusal))
        return self.answer(client, command, argv, txn)

    def answer(self, client: Client, command: Command, argv: Argv, txn: Txn) -> Answer:
        """Run a command and record the call; return its reply or error."""
        clock, name = self.clock, command.name
        client.last_command = name
        client.commands_run += 1
        begun = clock()
        try:
            reply: Answer = command.run(txn, client, argv)  # type: ignore[assignment]
            if (kind := type(reply)) in READERS:
                reply = READERS[kind](txn, client, reply)
        except RequestError as error:
            self.statistics.count_failure(name, error.code)
            reply = ErrorReply.of(error)
        self.ended = ended = clock()
        self.recorder.record(client, command, argv, txn, reply, ended - begun)
        return reply

    def note_failure(self, failure: KVStreamError | None) -> None:
        """Refuse writes from now on; None: allow them again."""
        self.read_only = None if failure is None else ErrorReply.of(failure)

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

    def deny(self, client: Client, kind: str, what: bytes, user: bytes) -> None:
        """Count and log a refusal of kind ``auth``, ``cmd``, ``key`` or ``channel``."""
        self.statistics.count_denial(kind)
        if kind == "auth":
            text = "%s has no right to be user %s: wrong name or password"
            self._logins.log(_log, logging.WARNING, text, client.address, Shown([user]))
        else:
            text = "%s, user %s, has no right to %s %s"
            words = client.address, Shown([user]), _REASONS.get(kind, kind), Shown([what])
            self._denied.log(_log, logging.INFO, text, *words)
        in_exec = client.last_command == "exec" and (kind, what) != ("cmd", b"exec")
        in_multi = client.queue is not None or in_exec
        context = "lua" if self.recorder.in_script else "multi" if in_multi else "toplevel"
        now_ms = time.time_ns() // 1_000_000
        shown = describe_client(client, self.trackers.clients.get(client))
        self.denials.add(_REASONS.get(kind, kind), context, what, user, shown, now_ms)


def _asks(client: Client, command: Command, flag: Flag) -> bool:
    """Return whether a command, or any command queued for EXEC, has a flag."""
    if command.name == "exec" and client.queue is not None:
        return any(flag in queued.flags for queued, _ in client.queue.commands)
    return flag in command.flags


def _has(client: Client, command: Command, flag: Flag) -> bool:
    """Return whether a command, and each command queued for EXEC, has a flag."""
    if command.name == "exec" and client.queue is not None:
        return all(flag in queued.flags for queued, _ in client.queue.commands)
    return flag in command.flags


def name_of(argv: Argv, commands: Table) -> str:
    """Return the command name of a refused request, or an empty string."""
    command = command_of(argv, commands)
    return "" if command is None else command.name


_LINE = (
    "id=%d addr=%s laddr=%s fd=%d name=%s age=%d idle=%d flags=%s db=%d sub=%d psub=%d ssub=%d "
    "multi=%d watch=%d qbuf=%d qbuf-free=0 argv-mem=0 multi-mem=%d rbs=0 rbp=0 obl=0 oll=%d "
    "omem=%d tot-mem=%d events=%s cmd=%s user=%s redir=%d resp=%d lib-name=%s lib-ver=%s "
    "io-thread=0 tot-net-in=%d tot-net-out=%d tot-cmds=%d"
)


def describe_client(client: Client, tracking: Tracking | None, asking: int = 0) -> str:
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
        ("S", client.replica is not None and client.replica.is_linked),
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
