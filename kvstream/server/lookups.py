"""What a call looked for: when its keys were used, and whether they were there.

Of keys that a long call looks for in several steps all count as found, but for those of the last.
"""

import sys
from collections.abc import Iterable
from typing import TypeAlias

from kvstream.commands.command import FIRST, Command, Flag
from kvstream.meta import usage
from kvstream.meta.txn import Txn
from kvstream.meta.usage import Usage
from kvstream.server.client import Argv, Client
from kvstream.server.statistics import Statistics

_UNUSED = frozenset(
    {
        *("exists", "expiretime", "pexpiretime", "pttl", "ttl", "type", "watch"),
        *("object|encoding", "object|freq", "object|idletime", "object|refcount"),
        *("kvstream.load|state", "kvstream.load|ticket", "memory|usage", "restore"),
    }
)
"""Commands that look at a key and do not count as its use, and RESTORE, which notes it."""
_COUNTED = {
    **dict.fromkeys(("copy", "delex", "getdel", "getex", "getset"), 1),
    **dict.fromkeys(("xack", "xackdel", "xautoclaim", "xclaim"), 1),
    "xreadgroup": sys.maxsize,
}
"""Commands that write, of which so many keys count as hits or misses nevertheless, as in Redis."""


_Manner: TypeAlias = tuple[bool, int, bool]
"""How a command looks for its keys: whether it uses them, of how many it tells whether they are
there, and whether it has one alone, its first argument."""


class Lookups:
    """The lookups of one server's calls."""

    def __init__(self, statistics: Statistics, commands: Iterable[Command], used: Usage) -> None:
        self._statistics = statistics
        self._usage = used
        self._manners = {row.name: _manner(row) for row in commands if row.keys is not None}

    def note(self, client: Client, command: Command, argv: Argv, txn: Txn) -> None:
        """Note the keys of a call that has run."""
        uses, counts, one = self._manners[command.name]
        missing, statistics = txn.missing, self._statistics
        if one and not missing and not client.no_touch:
            if counts:
                statistics.keyspace_hits += 1
            if uses:
                recent = self._usage.recent
                recent[client.prefix + argv[1]] = txn.now_ms
                if len(recent) > usage.USED_MAX:
                    self._usage.age(txn.now_ms)
            return
        prefix = client.prefix
        names = [prefix + key for key in command.keys_of(argv)]
        if counts:
            counted = names if len(names) <= counts else names[:counts]
            absent = sum(map(missing.__contains__, counted)) if missing else 0
            statistics.keyspace_misses += absent
            statistics.keyspace_hits += len(counted) - absent
        if uses:
            if client.no_touch and command.name != "touch":
                names = [name for name in names if name in missing]  # it may have made them
            if names:
                self._usage.note(names, txn.now_ms)
        if missing:
            missing.clear()

    def appended(self, name: bytes, txn: Txn) -> None:
        """Note a stream that got entries of several calls."""
        self._usage.note([name], txn.now_ms)
        txn.missing.clear()


def _manner(row: Command) -> _Manner:
    reads = Flag.READONLY in row.flags and row.name != "memory|usage"
    counts = sys.maxsize if reads else _COUNTED.get(row.name, 0)
    return row.name not in _UNUSED, counts, row.keys == FIRST
