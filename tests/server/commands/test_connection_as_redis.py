"""Commands of connections and administration answer as redis-server does, errors included."""

import shlex

import pytest

from kvstream.commands.command import Container, every
from kvstream.server.commands import TABLE
from tests.server.asking import Asker
from tests.server.conftest import Served

CONVERSATION = """
ACL CAT nosuch
ACL CAT x y
ACL DELUSER default
ACL DELUSER nobody
ACL DRYRUN default GET k
ACL DRYRUN default nosuch k
ACL DRYRUN nobody GET k
ACL GENPASS 0
ACL GENPASS 5000
ACL GENPASS x
ACL GETUSER nobody
ACL NOSUCH
ACL SETUSER u !abc
ACL SETUSER u #abc
ACL SETUSER u %X~k
ACL SETUSER u +@nosuch
ACL SETUSER u +nosuch
ACL SETUSER u <abc
ACL SETUSER u nosuch
ACL USERS
ACL WHOAMI
AUTH
AUTH a b c
AUTH default anything
AUTH nobody secret
AUTH secret
BGSAVE x
CLIENT GETNAME
CLIENT GETREDIR
CLIENT KILL 1.2.3.4:5
CLIENT KILL ADDR
CLIENT KILL ADDR 1.2.3.4:5
CLIENT KILL ID 0
CLIENT KILL ID 123456789
CLIENT KILL ID x
CLIENT KILL SKIPME maybe
CLIENT KILL TYPE nosuch
CLIENT KILL TYPE pubsub
CLIENT KILL USER nobody
CLIENT KILL nosuch 1
CLIENT LIST ID x
CLIENT LIST TYPE
CLIENT LIST TYPE nosuch
CLIENT LIST TYPE pubsub
CLIENT LIST x
CLIENT NO-EVICT maybe
CLIENT NO-EVICT off
CLIENT NO-EVICT on
CLIENT NOSUCH
CLIENT REPLY maybe
CLIENT SETNAME me
CLIENT GETNAME
CLIENT TRACKINGINFO
CLIENT UNBLOCK 123456789
CLIENT UNBLOCK 123456789 ERROR
CLIENT UNBLOCK 123456789 nosuch
CLIENT UNBLOCK 123456789 ERROR x
EXEC x
MULTI
EXEC x
EXEC
CLIENT UNBLOCK x
COMMAND COUNT x
COMMAND GETKEYS GET k
COMMAND GETKEYS MGET a b c
COMMAND GETKEYS PING x
COMMAND GETKEYS XREAD COUNT 2 STREAMS a b 0 0
COMMAND GETKEYS nosuch k
COMMAND GETKEYS EXEC x
COMMAND GETKEYS XGROUP nosuch k
COMMAND GETKEYS XGROUP CREATE k
COMMAND GETKEYSANDFLAGS SET k v
COMMAND GETKEYSANDFLAGS SET k v EX 5 GET
COMMAND GETKEYSANDFLAGS XREADGROUP GROUP g c STREAMS a b > >
COMMAND GETKEYSANDFLAGS RENAME a b
COMMAND INFO nosuch
COMMAND LIST FILTERBY ACLCAT nosuch
COMMAND LIST FILTERBY MODULE nosuch
COMMAND LIST FILTERBY PATTERN xgroup|des*
COMMAND LIST FILTERBY x y
COMMAND LIST x
COMMAND NOSUCH
CONFIG GET
CONFIG GET nosuch
CONFIG GET MAXclients
CONFIG GET MAXclient?
CONFIG GET slowlog-max-*
CONFIG GET maxclient? nosuch
CONFIG REWRITE
CONFIG SET appendonly
CONFIG SET client-output-buffer-limit nosuch
CONFIG SET databases 5
CONFIG SET maxclients 0
CONFIG SET maxclients x
CONFIG SET nosuch 1
CONFIG SET protected-mode maybe
CONFIG SET slowlog-max-len -1
CONFIG SET timeout 100 timeout 200
CONFIG SET timeout 100
CONFIG GET timeout
CONFIG SET timeout 0
CONFIG SET client-query-buffer-limit 2mb
CONFIG GET client-query-buffer-limit
CONFIG SET client-query-buffer-limit 1gb
CONFIG RESETSTAT
FUNCTION FLUSH
FUNCTION FLUSH nosuch
FUNCTION FLUSH SYNC x
SCRIPT FLUSH
SCRIPT FLUSH ASYNC
SCRIPT FLUSH nosuch
HELLO 4
HELLO x
HELLO 2 AUTH
HELLO 2 AUTH nobody secret
HELLO 2 nosuch
LATENCY HISTORY nosuch
LATENCY LATEST
LATENCY RESET
ROLE
SHUTDOWN ABORT
SHUTDOWN ABORT NOW
SHUTDOWN SAVE NOSAVE
SHUTDOWN nosuch
SLOWLOG GET -2
SLOWLOG GET x
SLOWLOG RESET
SLOWLOG LEN
SLOWLOG GET
WAIT 0 0
WAIT 0
WAIT 1 -1
WAIT 1 x
WAIT x 0
MULTI
SAVE
EXEC
""".strip().splitlines()


@pytest.mark.parametrize("version", [2, 3], ids=["RESP2", "RESP3"])
def test_a_conversation_gets_the_replies_of_redis(
    served: Served, redis_port: int, version: int
) -> None:
    with served.asker(version) as ours, Asker(redis_port, version) as redis:
        for line in CONVERSATION:
            assert (line, ours.ask(line)) == (line, redis.ask(line))


NEWER_CONVERSATION = """
ACL GETUSER default
ACL LIST
ACL SAVE
ACL LOAD
ACL DRYRUN default config nosuch
ACL DRYRUN default config|get x
ACL SETUSER ann on ~k -config|get|x
ACL SETUSER ann +config|get|x
ACL SETUSER ann '~a b'
ACL SETUSER ann '%R~a b'
ACL SETUSER ann '&a b'
CLIENT KILL MAXAGE 100000
CLIENT NO-TOUCH maybe
CLIENT SETINFO LIB-NAME 'x y'
COMMAND GETKEYS XREADGROUP GROUP STREAMS c STREAMS a >
COMMAND GETKEYS XREADGROUP GROUP g streams STREAMS a b > >
COMMAND GETKEYSANDFLAGS XACKDEL s g IDS 1 1-1
CONFIG SET timeout 0 TIMEOUT 1
CONFIG SET activedefrag maybe
CONFIG SET auto-aof-rewrite-min-size ''
CONFIG SET auto-aof-rewrite-min-size 18446744073709551615
CONFIG SET client-output-buffer-limit ''
CONFIG SET client-output-buffer-limit 'normal 1 0 -1'
CONFIG SET client-output-buffer-limit 'normal 0 0 1kb'
CONFIG SET client-output-buffer-limit 'normal 0 kb 0'
CONFIG SET client-output-buffer-limit 'normal 0  0 0'
CONFIG SET client-query-buffer-limit 1mb
CONFIG SET client-query-buffer-limit 1
CONFIG SET client-query-buffer-limit mb
CONFIG SET client-query-buffer-limit ''
CONFIG SET client-query-buffer-limit -1
CONFIG SET client-query-buffer-limit 1kib
CONFIG SET client-query-buffer-limit 1gb
CONFIG SET cluster-announce-hostname a_b
CONFIG SET cluster-announce-human-nodename a+b
CONFIG SET dbfilename x
CONFIG SET hz 1000
CONFIG GET hz
CONFIG SET hz 0
CONFIG GET hz
CONFIG SET hz 10
CONFIG SET latency-tracking-info-percentiles ' 1'
CONFIG SET busy-reply-threshold 7
CONFIG GET lua-time-limit
CONFIG SET lua-time-limit 5000
CONFIG SET maxmemory 1GB
CONFIG GET maxmemory
CONFIG SET maxmemory ''
CONFIG GET maxmemory
CONFIG SET maxmemory ' 1'
CONFIG SET maxmemory '1 '
CONFIG SET maxmemory +1
CONFIG SET maxmemory -1
CONFIG SET maxmemory 0x10
CONFIG SET maxmemory 1.5gb
CONFIG SET maxmemory 1e3
CONFIG SET maxmemory 1kib
CONFIG SET maxmemory 5%
CONFIG SET maxmemory kb
CONFIG GET maxmemory
CONFIG SET maxmemory-clients 0%
CONFIG GET maxmemory-clients
CONFIG SET maxmemory-clients 005%
CONFIG SET maxmemory-clients 5%
CONFIG GET maxmemory-clients
CONFIG SET maxmemory-clients 101%
CONFIG SET maxmemory-clients 5.5%
CONFIG SET maxmemory-clients 1mb%
CONFIG SET maxmemory-clients 9223372036854775808
CONFIG SET maxmemory-clients ''
CONFIG GET maxmemory-clients
CONFIG SET maxmemory-samples 65
CONFIG SET min-replicas-to-write x
CONFIG SET oom-score-adj maybe
CONFIG SET proc-title-template ''
CONFIG SET proc-title-template {nosuch}
CONFIG SET proto-max-bulk-len 18446744073709551615
CONFIG SET repl-backlog-size 1
CONFIG GET repl-backlog-size
CONFIG SET repl-backlog-size 0
CONFIG SET save '+3600 1'
CONFIG GET save
CONFIG SET save ' 3600 1'
CONFIG SET save ''
CONFIG SET stream-node-max-bytes ''
CONFIG GET stream-node-max-bytes
CONFIG SET stream-node-max-bytes 5b
CONFIG GET stream-node-max-bytes
CONFIG SET stream-node-max-bytes 2k
CONFIG GET stream-node-max-bytes
CONFIG SET stream-node-max-bytes 3m
CONFIG GET stream-node-max-bytes
CONFIG SET stream-node-max-bytes 1MB
CONFIG GET stream-node-max-bytes
CONFIG SET stream-node-max-bytes 1g
CONFIG GET stream-node-max-bytes
CONFIG SET stream-node-max-bytes 4kb
CONFIG SET stream-node-max-bytes x
CONFIG SET stream-node-max-bytes -1
CONFIG SET stream-node-max-entries x
CONFIG SET stream-node-max-entries -1
CONFIG SET stream-node-max-entries 7 nosuch 2
CONFIG SET stream-node-max-entries 7 stream-node-max-bytes
CONFIG SET stream-node-max-entries 7 stream-node-max-bytes x
CONFIG SET stream-node-max-entries 7 stream-node-max-entries 8
CONFIG GET stream-node-max-entries
CONFIG SET maxclients 5 timeout x
CONFIG SET maxclients x databases 1
CONFIG SET maxclients x dir 1
CONFIG GET maxclients
CONFIG SET hash-max-ziplist-value 9
CONFIG GET hash-max-listpack-value
CONFIG SET hash-max-listpack-value 64
CONFIG SET min-replicas-max-lag 2
CONFIG GET min-slaves-max-lag
CONFIG SET min-replicas-max-lag 10
CONFIG SET hash-max-listpack-entries x
CONFIG SET hash-max-listpack-entries 7
CONFIG GET hash-max-listpack-entries
CONFIG SET hash-max-listpack-entries 128
CONFIG SET aof-use-rdb-preamble maybe
CONFIG SET aof-use-rdb-preamble no
CONFIG GET aof-use-rdb-preamble
CONFIG SET aof-use-rdb-preamble yes
CONFIG SET active-expire-effort 11
CONFIG SET active-expire-effort 10
CONFIG GET active-expire-effort
CONFIG SET active-expire-effort 1
CONFIG SET loglevel loud
CONFIG SET repl-backlog-size big
CONFIG SET repl-backlog-size 20480
CONFIG GET repl-backlog-size
CONFIG SET client-output-buffer-limit 'replica 3mb 2mb 10'
CONFIG SET client-output-buffer-limit 'normal 1mb 0 0 pubsub 0 0 0'
CONFIG GET client-output-buffer-limit
CONFIG SET client-output-buffer-limit 'normal 1mb x 0'
CONFIG SET client-output-buffer-limit 'normal 0 0 0'
""".strip().splitlines()
"""Requests that newer versions answer differently from 7.0."""


def test_a_conversation_gets_the_replies_of_a_newer_redis(
    served: Served, redis82_port: int, protocol: int
) -> None:
    with served.asker(protocol) as ours, Asker(redis82_port, protocol) as redis:
        for line in NEWER_CONVERSATION:
            words = shlex.split(line)
            assert (line, ours.ask(*words)) == (line, redis.ask(*words))


def test_cluster_clients_get_the_address_of_the_server(served: Served) -> None:
    with served.asker() as asker:
        rows = asker.ask("COMMAND INFO del ping xadd xlen slowlog|len xidmprecord")
    assert [row[7] for row in rows] == [
        [b"request_policy:multi_shard", b"response_policy:agg_sum"],
        [b"request_policy:all_shards", b"response_policy:all_succeeded"],
        [b"nondeterministic_output"],
        [],
        [
            b"nondeterministic_output",
            b"request_policy:all_nodes",
            b"response_policy:agg_sum",
        ],
        [],
    ]
    assert {b"fast", b"write"} <= set(rows[-1][2])


def test_every_command_has_a_description(served: Served) -> None:
    with served.asker(3) as asker:
        reply = asker.ask("COMMAND DOCS")
        assert asker.ask("COMMAND COUNT") == len(TABLE) == len(reply)
    for row in TABLE.values():
        parts = every({b"": row}) if isinstance(row, Container) else (row,)
        assert all(part.summary.endswith(".") for part in parts)
        documented = reply[row.name.encode()]
        assert documented[b"summary"].decode().endswith(".")
        assert documented[b"since"].decode() == row.since
