"""The record of calls: statistics, keyspace hits, last uses, SLOWLOG, LATENCY and MONITOR.

Each call on the general path is recorded by itself. ``Pipelines`` collects the times, keys and
changes of plain calls, which are recorded together, as batched XADDs are.
"""

import time
from collections.abc import Iterable
from math import inf

from kvstream.commands.command import LATER, Answer, Command, Flag, Stepwise
from kvstream.commands.replies import ErrorReply
from kvstream.logs import NOTICE, DeferredLogger, Throttle
from kvstream.meta.keyspace import Usage
from kvstream.meta.txn import Txn
from kvstream.server.hotkeys import HotKeys
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.call_text import Request, monitor_line, redact
from kvstream.server.runtime.client import Argv, Client
from kvstream.server.runtime.pubsub import Notifications, PubSub
from kvstream.server.runtime.tracking import Trackers
from kvstream.server.stats import Latency, Slowlog, Statistics

_log = DeferredLogger(__name__)
_US = 1_000_000
_EVENTS = ("command", "fast-command")
"""LATENCY events of a slow command."""


class CallRecorder:
    """Records the calls of one server."""

    def __init__(
        self,
        options: ServerOptions,
        commands: Iterable[Command],
        usage: Usage,
        trackers: Trackers,
        notifications: Notifications,
        pubsub: PubSub,
    ) -> None:
        self._options, self._usage = options, usage
        writes = frozenset(command.name for command in commands if Flag.WRITE in command.flags)
        self.statistics, self.latency = Statistics(writes), Latency()
        self.slowlog = Slowlog(
            options.slowlog_length, options.slowlog_words_max, options.slowlog_bytes_max
        )
        self._trackers, self._notifications = trackers, notifications
        self._pubsub, self._monitors = pubsub, pubsub.monitors
        self._slow = Throttle()
        self.hot_keys: HotKeys | None = None
        """What HOTKEYS GET shows."""
        self.in_script = False
        """A script makes the calls."""
        # Plain calls that are still to be recorded. Pipelines adds to these with each call.
        self.command: Command | None = None
        """The command of the last plain call; None when a turn begins."""
        self.times: list[float] = []
        """The seconds that each call of this command took."""
        self.idle = 0
        """How many of these changed nothing."""
        self.changed = False
        """A call of the turn has changed something."""
        self.names: list[bytes] = []
        """The keys that calls of any command used."""
        self.lookups = [0, 0]
        """How many keys they found, and how many they missed."""
        self.set_slow()

    @property
    def counts_hot_keys(self) -> bool:
        """Whether HOTKEYS tracks keys now."""
        return self.hot_keys is not None and self.hot_keys.is_active

    # --- calls on the general path --------------------------------------------------------------

    def record(
        self, client: Client, command: Command, argv: Argv, txn: Txn, reply: Answer, spent: float
    ) -> None:
        """Record a call that took ``spent`` seconds, or a step of it."""
        if reply is LATER:
            client.commands_run -= 1
            return
        row, at = self.statistics.of(command.name), command.key_at
        keys = [argv[at]] if at else command.keys_of(argv) if command.keys is not None else []
        if type(reply) is Stepwise:
            client.commands_run -= 1
            row.seconds += spent
            if self._trackers.clients:
                self._trackers.begin_call(client, command, keys)
            return
        if self._monitors and not command.is_admin and not command.runs_scripts:
            self.show(client, argv)  # after the call: RESET ends MONITOR
        if command.keys is not None:
            if txn.wanted_events:
                missed = _find_missed(client, command, argv, keys, txn)
                self._notifications.publish_call(txn, missed)
            self._record_use(client, command, keys, txn)
            if self.hot_keys is not None and not self.in_script:
                self.hot_keys.add_call(command, argv, reply, spent, client.protocol)
        if command.writes or self._trackers.clients:
            changed = txn.dirty and not txn.only_redelivered
            if changed and (type(reply) is ErrorReply or (not reply and command.shows_change)):
                changed = False  # an earlier call of the turn made the changes
            if self._trackers.clients:
                self._trackers.note_call(client, command, keys, changed)
            if command.writes and not changed and type(reply) is not ErrorReply:
                row.idle += 1
        txn.only_redelivered = False
        row.count(spent)
        if spent >= self.noted_s:
            self.note_slow(client, command, argv, spent)

    def show(self, client: Client, argv: Argv) -> None:
        """Send a call to the MONITOR clients."""
        if self._monitors:
            self._pubsub.to_monitors(monitor_line(client, argv, self.in_script))

    def _record_use(self, client: Client, command: Command, keys: list[bytes], txn: Txn) -> None:
        """Record the last use of a finished call's keys, and its hits and misses.

        For an incremental command, only keys that its last step missed count as misses.
        """
        prefix, missing = client.prefix, txn.missing
        names = [prefix + keys[0]] if len(keys) == 1 else [prefix + key for key in keys]
        if command.counted_keys:
            counted = names[: command.counted_keys] if missing else ()
            absent = sum(map(missing.__contains__, counted))
            self.statistics.keyspace_misses += absent
            self.statistics.keyspace_hits += min(len(names), command.counted_keys) - absent
        if command.touches_keys:
            if client.no_touch and command.name != "touch":
                names = [name for name in names if name in missing]  # it may have made them
            if names:
                self._usage.record_use(names, txn.now_ms)
        if missing:
            missing.clear()

    # --- slow calls -----------------------------------------------------------------------------

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
            microseconds, words = round(spent * _US), redact(argv)
            self.slowlog.add(int(time.time()), microseconds, words, client.address, client.name)
            self.statistics.count_slow(command.name, microseconds)
        text = "a request of %s took %.3f ms: %s"
        self._slow.log(_log, NOTICE, text, client.address, 1000 * spent, Request(command, argv))

    # --- plain calls ----------------------------------------------------------------------------

    def collect_keys(self, client: Client, command: Command, argv: Argv, txn: Txn) -> None:
        """Collect the keys of a plain call."""
        counted, at = command.counted_keys, command.key_at
        for key in [argv[at]] if at else command.keys_of(argv):
            name = client.prefix + key
            if command.touches_keys:
                self.names.append(name)
            if counted:
                counted -= 1
                self.lookups[name in txn.missing] += 1

    def collect_change(self, command: Command, reply: Answer, txn: Txn) -> None:
        """Collect whether a plain call of a write command has changed anything."""
        self.changed = self.changed or txn.dirty
        shows_none = txn.only_redelivered or (command.shows_change and not reply)
        self.idle += (shows_none or not self.changed) and type(reply) is not ErrorReply
        txn.only_redelivered = False

    def record_collected(self, txn: Txn) -> None:
        """Record the plain calls that were collected."""
        self.changed = False
        if self.times:
            self.record_times()
        self.command = None
        self.record_uses(txn)

    def record_uses(self, txn: Txn) -> None:
        """Record the keys that collected calls used, and their hits and misses."""
        hits, misses = self.lookups
        if self.names or hits or misses:
            self.statistics.keyspace_hits += hits
            self.statistics.keyspace_misses += misses
            if self.names:
                self._usage.record_use(self.names, txn.now_ms)
                self.names.clear()
            self.lookups[:] = 0, 0

    def record_times(self) -> None:
        """Record the times of the collected calls of one command."""
        assert self.command is not None
        self.statistics.count_each(self.command.name, self.times, self.idle)
        self.times.clear()
        self.idle = 0

    def forget(self) -> None:
        """Forget collected calls: their turn has failed."""
        self.command, self.idle, self.changed = None, 0, False
        self.times.clear()
        self.names.clear()
        self.lookups[:] = 0, 0

    def record_xadds(self, names: list[bytes], count: int, seconds: float, txn: Txn) -> None:
        """Record batched XADDs to some streams."""
        self._usage.record_use(names, txn.now_ms)
        txn.missing.clear()
        self.statistics.count("xadd", seconds, count)


def _find_missed(
    client: Client, command: Command, argv: Argv, keys: list[bytes], txn: Txn
) -> list[bytes]:
    """Return the keys of a finished call that ``keymiss`` events name, in order.

    XREAD looks up each key twice, as in Redis.
    """
    missing, counts = txn.missing, command.counted_keys
    if command.name == "set" and b"GET" in [word.upper() for word in argv[3:]]:
        counts = 1
    if not (missing and counts) or command.name.startswith("object|"):
        return []
    names = [client.prefix + key for key in keys][:counts]
    return [name for name in names if name in missing] * (1 + (command.name == "xread"))
