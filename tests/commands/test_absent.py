"""Commands of Redis that kvstream does not have: their error says what is missing."""

import pytest

from kvstream.commands.absent import reason_of
from kvstream.commands.command import every
from kvstream.server.commands import TABLE
from tests.server.asking import Asker
from tests.server.conftest import Served, redis82_port, redis82_process, serve, served

__all__ = ["redis82_port", "redis82_process", "serve", "served"]

LACKING = {
    "HSET k f v": "hashes",
    "hgetall k": "hashes",
    "LPUSH k v": "lists",
    "BLPOP k 0": "lists",
    "SADD k v": "sets",
    "ZADD k 1 v": "sorted sets",
    "ZRANGE k 0 1": "sorted sets",
    "SETBIT k 1 1": "bitmaps",
    "GEOADD k 1 1 v": "geospatial indexes",
    "PFADD k v": "HyperLogLogs",
    "VADD k VALUES 1 1 v": "vector sets",
    "JSON.SET k . 1": "JSON documents",
    "json.get k": "JSON documents",
    "FT.SEARCH i *": "search indexes",
    "TS.ADD k * 1": "time series",
    "BF.ADD k v": "Bloom filters",
    "CF.ADD k v": "cuckoo filters",
    "CMS.QUERY k v": "count-min sketches",
    "TOPK.ADD k v": "top-k lists",
    "TDIGEST.ADD k 1": "t-digests",
}


@pytest.mark.parametrize(("request_", "kind"), LACKING.items())
def test_the_error_says_which_type_is_missing(served: Served, request_: str, kind: str) -> None:
    name, _, rest = request_.partition(" ")
    with served.asker() as asker:
        reply = asker.ask(request_)
        quoted = "".join(f"'{word}' " for word in rest.split())
        beginning = f"ERR unknown command '{name}', with args beginning with: {quoted}"
        end = f" (kvstream has no {kind}: its types are streams and strings)"
        assert reply == beginning + end
        assert asker.ask("MULTI") == b"OK"
        assert asker.ask(request_) == reply
        assert asker.ask("EXEC").startswith("EXECABORT")
        arguments = ", ".join(f"'{word}'" for word in request_.split())
        reply = asker.ask("EVAL", f"return redis.call({arguments})", "0")
        assert reply.startswith(f"ERR Unknown Redis command called from script{end} script: ")


def test_other_unknown_commands_are_not_explained(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask("FOO a") == "ERR unknown command 'FOO', with args beginning with: 'a' "
        assert asker.ask("FOO") == "ERR unknown command 'FOO'"
        assert asker.ask("SORT k").endswith("'k'  (kvstream has no SORT)")
        assert asker.ask("SENTINEL masters").endswith("(kvstream has no Sentinel)")
        assert asker.ask("MIGRATE h 1 k 0 1").endswith(
            "(kvstream has no MIGRATE: use kvstream migrate)"
        )


def test_every_command_of_redis_is_there_or_explained(redis82_port: int) -> None:
    with Asker(redis82_port) as asker:
        names = {name.decode() for name in asker.ask("COMMAND LIST") if b"|" not in name}
    here = {each.name.partition("|")[0] for each in every(TABLE)}
    unexplained = {name for name in names - here if not reason_of(name)}
    assert unexplained == set()
