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


def _refusal(part: _Part) -> Callable[[Txn, Session, Argv], Reply]:
    def run(txn: Txn, session: Session, argv: Argv) -> Reply:
        raise NoCluster

    run.__doc__ = f"Return an error: the server is in no cluster.\n\n{part.options}".rstrip()
    return run


for _part in _PARTS:
    COMMANDS.command(
        *(f"cluster|{_part.name}", _part.syntax, flags(_part.flags)),
        since=_part.since,
        tips=_part.tips,
        arity=_part.arity,
    )(_refusal(_part))


_CONNECTION = flags("loading stale fast local")


@COMMANDS.command("asking", "", flags("fast local"), since="3.0.0", categories="connection")
def asking(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return an error: the server is in no cluster."""
    raise NoCluster


@COMMANDS.command("readonly", "", _CONNECTION, since="3.0.0", categories="connection")
def readonly(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return an error: the server is in no cluster."""
    raise NoCluster


@COMMANDS.command("readwrite", "", _CONNECTION, since="3.0.0", categories="connection")
def readwrite(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return an error: the server is in no cluster."""
    raise NoCluster


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


@MODULES.command("module|load", "path [arg [arg ...]]", _LOAD, since="4.0.0")
def module_load(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return an error: kvstream loads no modules."""
    raise NoModules


@MODULES.command(
    "module|loadex",
    "path [CONFIG name value [CONFIG name value ...]] [ARGS args [args ...]]",
    _LOAD,
    since="7.0.0",
)
def module_loadex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return an error: kvstream loads no modules.

    CONFIG: Settings of the module.
    ARGS: Its arguments.
    """
    raise NoModules


@MODULES.command("module|unload", "name", _LOAD, since="4.0.0")
def module_unload(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return an error: kvstream loads no modules."""
    raise NoModules
