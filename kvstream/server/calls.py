"""What every call goes through besides its handler: rights, counters, the slow log, MONITOR."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf

from kvstream.commands.command import LATER, Answer, Command, Container, Flag, Stepwise
from kvstream.commands.replies import ErrorReply, internal_error
from kvstream.errors import KVStreamError, RequestError
from kvstream.logs import NOTICE, Throttle
from kvstream.meta.txn import Txn
from kvstream.meta.usage import Usage
from kvstream.server.acl import NoPermission
from kvstream.server.client import Argv, Client
from kvstream.server.denials import Denials
from kvstream.server.invalidation import Trackers
from kvstream.server.latency import Latency
from kvstream.server.listing import listed
from kvstream.server.lookups import Lookups
from kvstream.server.monitoring import tell, told
from kvstream.server.options import ServerOptions
from kvstream.server.slowlog import Shown, Slowlog
from kvstream.server.statistics import Statistics

_log = logging.getLogger(__name__)

_US = 1_000_000
LONG_S = 0.0001
"""Calls that take longer are not run one after another without a look at the time."""
_REASONS = {"cmd": "command"}
"""What INFO and ACL LOG call by different words."""
_NO_AUTH = ErrorReply("NOAUTH", "Authentication required.")
_OOM = ErrorReply("OOM", "command not allowed when used memory > 'maxmemory'.")
_NO_MULTI = ErrorReply("ERR", "Command not allowed inside a transaction")
_CHANGED = (
    "ACLs rules changed between the moment the transaction was accumulated and the EXEC call. "
    "This command is no longer allowed for the following reason: {}"
)
_WITHDRAWN = {
    "cmd": "no permission to execute the command or subcommand",
    "key": "no permission to touch the specified keys",
}
"""What EXEC says of a queued command, by what its user has no right to any more."""


class Calls:
    """The calls of one server."""

    def __init__(
        self,
        options: ServerOptions,
        commands: Iterable[Command],
        clock: Callable[[], float],
        usage: Usage,
        trackers: Trackers,
    ) -> None:
        self._options = options
        self.clock = clock
        rows = list(commands)
        self.statistics = Statistics(frozenset(row.name for row in rows if Flag.WRITE in row.flags))
        self.lookups = Lookups(self.statistics, rows, usage)
        self.slowlog = Slowlog(options.slowlog_length)
        self.latency = Latency()
        self.trackers = trackers
        self.denials = Denials(options.acllog_length)
        self._logins, self._denied, self._slow = Throttle(), Throttle(), Throttle()
        self.monitors: dict[Client, None] = {}
        self.paused = False
        """Some commands, or all of them, are to wait."""
        self.crowded = False
        """The process takes more memory than it may."""
        self.read_only: ErrorReply | None = None
        """Why nothing may be written until the store is opened again."""
        self.took_long = False
        """A call has taken long since this was set to False."""
        self.set_slow()

    def refusal(self, client: Client, command: Command, argv: Argv) -> ErrorReply | None:
        """Return why a client may not run a command, if it may not."""
        if not client.authenticated and Flag.NO_AUTH not in command.flags:
            return _NO_AUTH
        if not client.user.free:
            refusal = self._refusal_by_rights(client, command, argv)
            if refusal is not None:
                return ErrorReply.of(refusal)
        if client.queue is not None and Flag.NO_MULTI in command.flags:
            return _NO_MULTI
        if self.crowded and _asks(client, command, Flag.DENYOOM):
            return _OOM
        if self.read_only is not None and _asks(client, command, Flag.WRITE):
            return self.read_only
        return None

    def _refusal_by_rights(
        self, client: Client, command: Command, argv: Argv
    ) -> NoPermission | None:
        """Return why the rights of a client's user do not allow a command, and note it."""
        try:
            client.user.check(command, argv)
        except NoPermission as refusal:
            self.deny(client, refusal.kind, refusal.object, client.user.name)
            return refusal
        return None

    def refusal_in_exec(self, client: Client, command: Command, argv: Argv) -> ErrorReply | None:
        """Return why a queued command may not run, if it may not by now."""
        refusal = self._refusal_by_rights(client, command, argv)
        if refusal is None:
            return _OOM if self.crowded and Flag.DENYOOM in command.flags else None
        error = ErrorReply("NOPERM", _CHANGED.format(_WITHDRAWN[refusal.kind]))
        self.statistics.rejected(error.code)
        return error

    def refused(self, client: Client, name: str, error: ErrorReply) -> ErrorReply:
        """Count a request that may not run, or is none, and return what its client is told.

        A transaction can then only be discarded; a refused EXEC is the end of it at once.
        """
        if name == "exec":
            client.end_queue()
            told = error.text if error.code == "ERR" else f"{error.code} {error.text}"
            error = ErrorReply("EXECABORT", f"Transaction discarded because of: {told}")
        elif client.queue is not None:
            client.queue.failed = True
        self.statistics.rejected(error.code, name)
        return error

    def failed(self, name: str, error: ErrorReply) -> ErrorReply:
        """Count a call that ran and failed before it did anything, and return its reply."""
        self.statistics.ran(name, 0.0)
        self.statistics.failed(name, error.code)
        return error

    def answer_later(self, client: Client, command: Command, argv: Argv, txn: Txn) -> Answer:
        """Run a command, or a step of it, that others have come before: if it may run by now."""
        refusal = self._refusal_by_rights(client, command, argv)
        if refusal is not None:
            return self.refused(client, command.name, ErrorReply.of(refusal))
        return self.answer(client, command, argv, txn)

    def answer(self, client: Client, command: Command, argv: Argv, txn: Txn) -> Answer:
        """Run a command; a refusal is a reply too."""
        clock, name = self.clock, command.name
        client.last_command = name
        client.commands_run += 1
        begun = clock()
        try:
            reply: Answer = command.run(txn, client, argv)
        except RequestError as error:
            self.statistics.failed(name, error.code)
            reply = ErrorReply.of(error)
        if reply is LATER:
            client.commands_run -= 1
            return reply
        spent = clock() - begun
        row = self.statistics.of(name)
        if type(reply) is Stepwise:
            client.commands_run -= 1
            row.seconds += spent
            if self.trackers.clients:
                self.trackers.began(client, command, argv)
            return reply
        if self.monitors and not command.is_admin:
            tell(self.monitors, client, argv)  # behind the call: RESET ends a MONITOR
        if command.keys is not None:
            self.lookups.note(client, command, argv, txn)
        if command.writes or self.trackers.clients:
            changed = txn.dirty and not txn.noted
            if changed and (type(reply) is ErrorReply or (not reply and name in _TELLING)):
                changed = False  # what came before it in its turn has changed something
            if self.trackers.clients:
                self.trackers.ran(client, command, argv, changed)
            if command.writes and not changed and type(reply) is not ErrorReply:
                row.idle += 1
        txn.noted = False
        row.ran(spent)
        if spent >= self._long_s:
            self._note_long(client, command, argv, spent)
        return reply

    def note_failure(self, failure: KVStreamError | None) -> None:
        """Refuse commands that write from here on, or with None no more."""
        self.read_only = None if failure is None else ErrorReply.of(failure)

    def show(self, client: Client, argv: Argv) -> None:
        """Show a call to those who have asked for all of them."""
        if self.monitors:
            tell(self.monitors, client, argv)

    def answer_at_once(self, client: Client, command: Command, argv: Argv, txn: Txn) -> Answer:
        """Run a command that touches no key: nothing that goes wrong in it harms the turn."""
        try:
            return self.answer(client, command, argv, txn)
        except KVStreamError as error:
            return ErrorReply.of(error)
        except OSError as error:  # of a file that an administrator has named
            return ErrorReply("ERR", str(error))
        except Exception as error:
            return internal_error(error)

    def appended(self, name: bytes, count: int, seconds: float, txn: Txn) -> None:
        """Count XADDs to a stream that have run together."""
        self.lookups.appended(name, txn)
        self.statistics.ran("xadd", seconds, count)

    def deny(self, client: Client, kind: str, what: bytes, user: bytes) -> None:
        """Count and note what a client was refused: ``auth``, ``cmd`` or ``key``."""
        self.statistics.deny(kind)
        if kind == "auth":
            text = "%s has no right to be user %s: wrong name or password"
            self._logins.log(_log, logging.WARNING, text, client.address, Shown([user]))
        else:
            text = "%s, user %s, has no right to %s %s"
            given = client.address, Shown([user]), _REASONS.get(kind, kind), Shown([what])
            self._denied.log(_log, logging.INFO, text, *given)
        in_multi = client.queue is not None or client.last_command == "exec"
        context = "multi" if in_multi else "toplevel"
        now_ms = time.time_ns() // 1_000_000
        shown = listed(client, self.trackers.clients.get(client))
        self.denials.add(_REASONS.get(kind, kind), context, what, user, shown, now_ms)

    def set_slow(self) -> None:
        """Take over from the options what counts as slow."""
        microseconds = self._options.slower_than_us
        self._slow_s = inf if microseconds < 0 else microseconds / _US
        self._long_s = min(self._slow_s, LONG_S)

    def _note_long(self, client: Client, command: Command, argv: Argv, spent: float) -> None:
        """Have the turn look at the time, and keep what counts as slow."""
        self.took_long = True
        if self.latency.threshold_ms:
            self.latency.add(_EVENTS[Flag.FAST in command.flags], spent)
        if spent < self._slow_s or command.name in _NOT_SLOW:
            return
        now, name, words = int(time.time()), client.name, told(argv)
        self.slowlog.add(now, round(spent * _US), words, client.address, name)
        text = "a request of %s took %.3f ms: %s"
        self._slow.log(_log, NOTICE, text, client.address, 1000 * spent, Shown(words))


def _asks(client: Client, command: Command, flag: Flag) -> bool:
    """Tell whether a command has a flag; EXEC: whether one that it runs has."""
    if command.name == "exec" and client.queue is not None:
        return any(flag in queued.flags for queued, _ in client.queue.commands)
    return flag in command.flags


def name_of(argv: Argv, commands: Mapping[bytes, Command | Container]) -> str:
    """Return the name of the command that a refused request was meant for; none: there is none."""
    found = commands.get(argv[0].lower())
    if isinstance(found, Container):
        found = found.subcommands.get(argv[1].lower()) if len(argv) > 1 else found.alone
    return "" if found is None else found.name


_TELLING = frozenset(
    {
        *("copy", "del", "delex", "getdel", "move", "msetex", "msetnx", "persist", "renamenx"),
        *("expire", "expireat", "pexpire", "pexpireat", "setnx", "unlink", "xack", "xadd", "xdel"),
        *("xgroup|createconsumer", "xgroup|destroy", "xtrim"),
    }
)
"""Commands that answer 0 or a null where they have changed nothing, and only there."""
_EVENTS = ("command", "fast-command")
"""What LATENCY calls a command that took long."""
_NOT_SLOW = frozenset({"exec"})
"""Its commands are noted one by one."""
