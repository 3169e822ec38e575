"""CLUSTER, READONLY and MODULE: a server without cluster and modules answers as Redis's."""

import pytest
import redis
from redis.exceptions import RedisClusterException

from kvstream.commands.command import every
from kvstream.server.commands import TABLE
from tests.server.asking import Asker, Failure
from tests.server.conftest import Served

DISABLED = "ERR This instance has cluster support disabled"
PARTS = [each.name for each in every(TABLE) if each.name.startswith("cluster|")]

REQUESTS = [
    *(
        "CLUSTER",
        "CLUSTER INFO",
        "CLUSTER NODES",
        "CLUSTER SLOTS",
        "CLUSTER SHARDS",
        "CLUSTER HELP",
    ),
    *("CLUSTER KEYSLOT k", "CLUSTER KEYSLOT", "CLUSTER NOSUCH", "CLUSTER MEET 127.0.0.1 7000"),
    *(
        "CLUSTER RESET SOFT",
        "CLUSTER COUNTKEYSINSLOT x",
        "CLUSTER SETSLOT 1 STABLE",
        "CLUSTER INFO x",
    ),
    *("cluster slot-stats SLOTSRANGE 0 1", "CLUSTER FAILOVER TAKEOVER", "CLUSTER MYID"),
    *("READONLY", "READWRITE", "ASKING", "READONLY x", "ASKING x", "READWRITE x"),
    *("MODULE", "MODULE NOSUCH", "MODULE LIST x", "MODULE LOAD", "MODULE UNLOAD"),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_replies_are_those_of_redis(served: Served, redis82_port: int, request_: str) -> None:
    with served.asker() as asker, Asker(redis82_port) as other:
        assert asker.ask(request_) == other.ask(request_)


@pytest.mark.parametrize("name", PARTS)
def test_every_command_of_a_cluster_is_refused(served: Served, name: str) -> None:
    command = next(each for each in every(TABLE) if each.name == name)
    words = [*name.split("|"), *["1"] * (abs(command.arity) - 2)]
    with served.asker() as asker:
        assert asker.ask(*words) == Failure(DISABLED)
        assert asker.ask("PING") == b"PONG"


@pytest.mark.parametrize("protocol", [2, 3])
def test_there_are_no_modules(served: Served, protocol: int) -> None:
    with served.asker(protocol) as asker:
        assert asker.ask("MODULE LIST") == []
        for words in ("LOAD /tmp/x.so", "LOADEX /tmp/x.so ARGS 1", "UNLOAD search"):
            reply = asker.ask(f"MODULE {words}")
            assert reply == Failure("ERR MODULE command not allowed: kvstream loads no modules")
        assert asker.ask("MODULE HELP")[0].startswith(b"MODULE <subcommand>")
        assert asker.ask("MULTI") == b"OK"
        assert asker.ask("MODULE LIST") == b"QUEUED"
        assert asker.ask("EXEC") == [[]]
    assert served.client(protocol).module_list() == []


def test_a_client_of_clusters_says_that_there_is_none(served: Served) -> None:
    with pytest.raises(RedisClusterException, match="Cluster mode is not enabled"):
        redis.RedisCluster("127.0.0.1", served.port)


def test_the_commands_need_the_rights_that_redis_asks_for(served: Served) -> None:
    with served.asker() as admin, served.asker() as ann:
        rules = "on nopass -@all +cluster|info +readonly"
        admin.ask(f"ACL SETUSER ann {rules}")
        ann.ask("AUTH ann x")
        assert ann.ask("CLUSTER INFO") == Failure(DISABLED)
        assert ann.ask("READONLY") == Failure(DISABLED)
        for words in ("CLUSTER NODES", "MODULE LIST", "ASKING"):
            assert ann.ask(words).startswith("NOPERM")
