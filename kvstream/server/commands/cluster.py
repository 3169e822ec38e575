"""CLUSTER, READONLY, MODULE and the like: a server without cluster and modules answers as Redis's.

Clients and tools ask them when they connect, and take the error of a missing command for a failure.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvstream.commands.args import Argv
from kvstream.commands.command import Family, Session, flags
from kvstream.commands.replies import Reply
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn

COMMANDS = Family("cluster")
MODULES = Family("server")
_ASKS = "stale local"
_ASKS_EARLY = "loading stale local"
_ADMIN = "admin stale local"
_CHANGES = "admin stale no_async_loading local"
_VARIES = "nondeterministic_output"


class NoCluster(RequestError):
    """A command of a cluster."""

    def __init__(self) -> None:
        super().__init__("This instance has cluster support disabled")


class NoModules(RequestError):
    """MODULE LOAD and the like."""

    def __init__(self) -> None:
        super().__init__("MODULE command not allowed: kvstream loads no modules")


class _Part(NamedTuple):
    """A subcommand of CLUSTER."""

    name: str
    syntax: str = ""
    flags: str = _ASKS
    since: str = "3.0.0"
    tips: str = ""
    arity: int = 0
    options: str = ""
    """What its options mean, as in a docstring."""


_PARTS = (
    _Part("addslots", "slot [slot ...]", _CHANGES),
    _Part("addslotsrange", "start-slot end-slot [start-slot end-slot ...]", _CHANGES, "7.0.0"),
    _Part("bumpepoch", "", _CHANGES, tips=_VARIES),
    _Part("count-failure-reports", "node-id", _ADMIN, tips=_VARIES),
    _Part("countkeysinslot", "slot"),
    _Part("delslots", "slot [slot ...]", _CHANGES),
    _Part("delslotsrange", "start-slot end-slot [start-slot end-slot ...]", _CHANGES, "7.0.0"),
    _Part(
        *("failover", "[FORCE|TAKEOVER]", _CHANGES),
        options="FORCE: Without the master.\nTAKEOVER: Without the agreement of a majority.",
    ),
    _Part("flushslots", "", _CHANGES),
    _Part("forget", "node-id", _CHANGES),
    _Part("getkeysinslot", "slot count", tips=_VARIES),
    _Part("help", "", "loading stale local", "5.0.0"),
    _Part("info", tips=_VARIES),
    _Part("keyslot", "key"),
    _Part("links", since="7.0.0", tips=_VARIES),
    _Part("meet", "ip port [cluster-bus-port]", _CHANGES),
    _Part("myid"),
    _Part("myshardid", since="7.2.0", tips=_VARIES),
    _Part("nodes", tips=_VARIES),
    _Part("replicas", "node-id", _ADMIN, "5.0.0", _VARIES),
    _Part("replicate", "node-id", _CHANGES),
    _Part(
        *("reset", "[HARD|SOFT]", "admin noscript stale local"),
        options="HARD: With the epochs and the node's ID.\nSOFT: Without them.",
    ),
    _Part("saveconfig", "", _CHANGES),
    _Part("set-config-epoch", "config-epoch", _CHANGES),
    _Part(
        *("setslot", "slot (IMPORTING importing|MIGRATING migrating|NODE node|STABLE)", _CHANGES),
        arity=-4,
        options="IMPORTING: The slot comes from a node.\nMIGRATING: It goes to a node.\n"
        "NODE: It belongs to a node.\nSTABLE: It neither comes nor goes.",
    ),
    _Part("shards", "", _ASKS_EARLY, "7.0.0", _VARIES),
    _Part("slaves", "node-id", _ADMIN, tips=_VARIES),
    _Part(
        "slot-stats",
        "SLOTSRANGE start-slot end-slot|ORDERBY metric [LIMIT limit] [ASC|DESC]",
        *(_ASKS_EARLY, "8.2.0", f"{_VARIES} request_policy:all_shards", -4),
        options="SLOTSRANGE: Of these slots.\nORDERBY: In the order of a figure.\n"
        "LIMIT: So many slots.\nASC: The least first.\nDESC: The most first.",
    ),
    _Part("slots", "", _ASKS_EARLY, tips=_VARIES),
)


def _refuse_with(
    error: type[RequestError], summary: str, options: str = ""
) -> Callable[[Txn, Session, Argv], Reply]:
    """Return a handler that raises an error; ``summary`` and ``options`` document it."""

    def run(txn: Txn, session: Session, argv: Argv) -> Reply:
        raise error

    run.__doc__ = f"{summary}\n\n{options}".rstrip()
    return run


_IN_NO_CLUSTER = "Return an error: the server is in no cluster."
for _part in _PARTS:
    COMMANDS.command(
        *(f"cluster|{_part.name}", _part.syntax, flags(_part.flags)),
        since=_part.since,
        tips=_part.tips,
        arity=_part.arity,
    )(_refuse_with(NoCluster, _IN_NO_CLUSTER, _part.options))

for _name, _flags in (
    ("asking", "fast local"),
    ("readonly", "loading stale fast local"),
    ("readwrite", "loading stale fast local"),
):
    COMMANDS.command(_name, "", flags(_flags), since="3.0.0", categories="connection")(
        _refuse_with(NoCluster, _IN_NO_CLUSTER)
    )


# --- modules ------------------------------------------------------------------------------------

MODULES.add_help("module", since="5.0.0")
_LOAD = flags("admin noscript no_async_loading local")


@MODULES.command(
    *("module|list", "", flags("admin noscript local")),
    since="4.0.0",
    tips="nondeterministic_output_order",
)
def module_list(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the loaded modules: none."""
    return []


_LOADS_NONE = "Return an error: kvstream loads no modules."
for _name, _syntax, _since, _options in (
    ("load", "path [arg [arg ...]]", "4.0.0", ""),
    (
        *("loadex", "path [CONFIG name value [CONFIG name value ...]] [ARGS args [args ...]]"),
        *("7.0.0", "CONFIG: Settings of the module.\nARGS: Its arguments."),
    ),
    ("unload", "name", "4.0.0", ""),
):
    MODULES.command(f"module|{_name}", _syntax, _LOAD, since=_since)(
        _refuse_with(NoModules, _LOADS_NONE, _options)
    )
