"""REPLICAOF, ROLE, WAIT and the requests of replicas."""

from functools import partial
from typing import NamedTuple

from kvstream.commands.args import (
    Argv,
    at_least,
    integer,
    syntax_error,
    text,
    timeout,
)
from kvstream.commands.command import OURS, Answer, Family, flags
from kvstream.commands.replies import OK, Reply, Simple
from kvstream.engine.following import Source
from kvstream.errors import InvalidArgument, ReplicationRefused, RequestError
from kvstream.meta.txn import Txn
from kvstream.replicas import protocol
from kvstream.server.runtime.client import Client, ReplyMode
from kvstream.server.runtime.executor import server_of
from kvstream.server.runtime.replication.replicas import introduce
from kvstream.server.runtime.replication.waits import Wait
from kvstream.storage.durability import WAITING

COMMANDS = Family("server")
_PORT_MAX = 65535
_ROLE = flags("admin noscript stale no_async_loading local")
_LINK = flags("admin noscript no_async_loading no_multi local")
_SYNC = flags("admin noscript stale no_async_loading no_multi local")
"""A primary that answers nobody else answers replicas."""
_ON_REPLICA = (
    "{} cannot be used with replica instances. Please also note that since Redis 4.0 if a replica "
    "is configured to be writable (which is not the default) writes to replicas are just local and "
    "are not propagated."
)


@COMMANDS.command(
    *("role", "", flags("noscript loading stale fast local")),
    since="2.8.12",
    categories="admin dangerous",
)
def role(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the role: `master` with its replicas, or `slave` with its primary.

    A primary's second field is the position of its last write, and each replica has its address,
    port and position. A replica has the host and port of its primary, the state of the link, and
    its own position.
    """
    replication = server_of(client).replication
    source, follower = replication.source, replication.follower
    if source is not None:
        link = "connect" if follower is None else str(follower.link)
        host, port = source
        return [b"slave", host.encode(), port, link.encode(), replication.lsn]
    shown: list[Reply] = [
        [each.address.encode(), b"%d" % each.port, b"%d" % each.lsn]
        for each in replication.replicas
    ]
    return [b"master", replication.lsn, shown]


def _follow(txn: Txn, client: Client, argv: Argv) -> Reply:
    replication = server_of(client).replication
    if replication.failover.is_under_way:
        raise RequestError("REPLICAOF not allowed while failing over.")
    if argv[1].upper() == b"NO" and argv[2].upper() == b"ONE":
        if replication.source is not None:
            replication.change_role(None)
        replication.trust()
        return OK
    port = integer(argv[2], "Invalid master port")
    if not 0 <= port <= _PORT_MAX:
        raise RequestError("Invalid master port")
    source = Source(text(argv[1]), port)
    if replication.source == source:
        return Simple("OK Already connected to specified master")
    replication.change_role(source)
    return OK


@COMMANDS.command("replicaof", "host port|NO ONE", _ROLE, since="5.0.0", arity=3)
def replicaof(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Follow another server, or become a primary.

    NO: Follow none: become a primary, with all data that were taken over.
    ONE: As in NO ONE.

    The own data are replaced once the copy of the primary is whole; what this server alone had is
    kept in its directory. The role is kept in the store. A replica serves reads, and refuses writes
    and XREADGROUP. Clients that are blocked when a primary becomes a replica get UNBLOCKED.
    """
    return _follow(txn, client, argv)


@COMMANDS.command("slaveof", "host port|NO ONE", _ROLE, since="1.0.0", arity=3)
def slaveof(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Follow another server, or become a primary: the former name of REPLICAOF.

    NO: Follow none: become a primary, with all data that were taken over.
    ONE: As in NO ONE.
    """
    return _follow(txn, client, argv)


@COMMANDS.command(
    *("failover", "[TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]"),
    flags("admin noscript stale"),
    since="6.2.0",
)
def failover(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Hand over to a replica: it becomes the primary, and this server its replica.

    TO: The address of the replica, as INFO shows it; else the first that has all.
    FORCE: Hand over when the time is over although the replica has not all.
    ABORT: End a failover; writes go on here.
    TIMEOUT: How long to wait for a replica that has all, at most, and how long writes are held.

    Writes are held until the replica has all; then their clients get READONLY, and blocked ones
    UNBLOCKED. Without TIMEOUT it waits until a replica has all, and holds writes for three seconds
    at a time. INFO shows `master_failover_state`.
    """
    options = _failover_options(argv)
    under_way = server_of(client).replication.failover
    if options.aborts:
        under_way.abort()
    else:
        txn.write_seen()  # nothing may be written later
        under_way.begin(options.target, options.timeout_s, options.forced)
    server_of(client).replication.is_busy = True
    return OK


class _FailoverOptions(NamedTuple):
    target: Source | None
    timeout_s: float | None
    forced: bool
    aborts: bool


def _failover_options(argv: Argv) -> _FailoverOptions:
    words, at = [word.upper() for word in argv], 1
    target, timeout_s, forced = None, None, False
    if words[1:] == [b"ABORT"]:
        return _FailoverOptions(None, None, False, True)
    while at < len(argv):
        left = len(argv) - at - 1
        if words[at] == b"TIMEOUT" and left >= 1 and timeout_s is None:
            timeout_ms = integer(argv[at + 1])
            if timeout_ms <= 0:
                raise RequestError("FAILOVER timeout must be greater than 0")
            timeout_s, at = timeout_ms / 1000, at + 2
        elif words[at] == b"TO" and left >= 2 and target is None:
            target, at = Source(text(argv[at + 1]), integer(argv[at + 2])), at + 3
        elif words[at] == b"FORCE" and not forced:
            forced, at = True, at + 1
        else:
            raise syntax_error()
    return _FailoverOptions(target, timeout_s, forced, False)


# --- requests of replicas -----------------------------------------------------------------------


def _refuse_redis(name: str, syntax: str, since: str, arity: int) -> None:
    def run(txn: Txn, client: Client, argv: Argv) -> Reply:
        raise ReplicationRefused(
            "a Redis server cannot be a replica of kvstream, whose log has rows: use kvstream "
            "migrate to copy streams to Redis"
        )

    run.__doc__ = (
        "Return an error: a Redis server cannot be a replica of kvstream; `kvstream migrate` "
        "copies streams to one."
    )
    COMMANDS.command(name, syntax, _LINK, since=since, arity=arity)(run)


_refuse_redis("psync", "replicationid offset", "2.8.0", -3)
_refuse_redis("sync", "", "1.0.0", 1)


@COMMANDS.command("kvstream.sync", "version epoch branch lsn [FAILOVER]", _SYNC, since=OURS)
def kvstream_sync(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Make this connection that of a replica, which gets the log from its position on, or a copy.

    FAILOVER: It was the primary: this replica, which has its history, becomes one first.

    Replicas of kvstream alone send it. Frames follow, no replies: `kvstream/replicas/protocol.py`
    has their bytes.
    """
    server_of(client).replication.attach(client, *protocol.decode_sync(list(argv)))
    client.reply_mode = ReplyMode.OFF  # its frames are written to the socket
    return OK


@COMMANDS.command(
    "replconf",
    "",
    flags("admin noscript loading stale allow_busy"),
    since="3.0.0",
    arity=-1,
)
def replconf(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Take what a replica says of itself: where it listens, and what it has.

    Other options of Redis are accepted, and change nothing.
    """
    replication = server_of(client).replication
    word = argv[1].lower() if len(argv) > 1 else b""
    if word == b"ack":
        lsn, durable, echo_ns = (integer(raw) for raw in [*argv[2:5], b"0", b"0", b"0"][:3])
        replication.acknowledge(client, (lsn, durable, echo_ns), txn)
        return OK
    if word == b"need":
        replication.replicas.need(client, [integer(raw) for raw in argv[2:]])
        return OK
    if len(argv) % 2 == 0:
        raise syntax_error()
    for option, value in zip(argv[1::2], argv[2::2], strict=True):
        name = option.lower()
        if name == b"listening-port":
            introduce(client).port = integer(value)
        elif name == b"ip-address":
            introduce(client).ip = text(value)
        elif name not in _IGNORED:
            raise InvalidArgument(f"Unrecognized REPLCONF option: {text(option)}")
    return OK


_IGNORED = frozenset((b"capa", b"version", b"rdb-only", b"rdb-filter-only", b"getack"))


# --- waiting ------------------------------------------------------------------------------------


def _refuse_on_replica(client: Client, name: str) -> None:
    if server_of(client).replication.source is not None:
        raise RequestError(_ON_REPLICA.format(name))


def _waited(local: bool, count: int) -> Reply:
    return [int(local), count]


@COMMANDS.command(
    *("wait", "numreplicas timeout", flags("blocking")),
    since="3.0.0",
    group="generic",
    categories="connection",
    tips="request_policy:all_shards response_policy:agg_min",
)
def wait(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Wait until replicas have all writes so far; return how many have them.

    The writes of other clients count, too.
    """
    wanted, timeout_ms = integer(argv[1]), timeout(argv[2])
    _refuse_on_replica(client, "WAIT")
    asked = Wait(client, max(wanted, 0), int, durable=False, local=False)
    return server_of(client).replication.wait(asked, txn, timeout_ms or None)


@COMMANDS.command(
    *("waitaof", "numlocal numreplicas timeout", flags("blocking")),
    since="7.2.0",
    group="generic",
    categories="connection",
    tips="request_policy:all_shards response_policy:agg_min",
)
def waitaof(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Wait until all writes so far are on disk, here and on replicas; return 1, and how many.

    It waits for an fsync at any durability.
    """
    local = integer(argv[1])
    if not 0 <= local <= 1:
        raise InvalidArgument("value is out of range, value must between 0 and 1")
    message = "value is out of range, must be positive"
    replicas = at_least(0, argv[2], message, message)
    timeout_ms = timeout(argv[3]) or None
    _refuse_on_replica(client, "WAITAOF")
    server = server_of(client)
    if replicas:
        asked = Wait(
            client, replicas, partial(_waited, bool(local)), durable=True, local=bool(local)
        )
        if local:
            server.checkpoints.start_sync()
        return server.replication.wait(asked, txn, timeout_ms)
    if not local:
        return [int(server.engine.durability in WAITING), 0]
    return server.checkpoints.start_sync().wait([1, 0], timeout_ms, [0, 0])
