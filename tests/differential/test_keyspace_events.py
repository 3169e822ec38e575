"""Keyspace notifications: each command of ours publishes the events that a Redis publishes.

A conversation is a list of requests. After each request the messages of both servers are compared,
keyspace and keyevent ones in their order.
"""

import os
import shlex
from collections.abc import Iterator
from random import Random
from time import sleep, time

import pytest

from tests.differential.machines import BEGINNING, FIRST_IDS, Naming
from tests.differential.wire_grammar import ALSO, LEAVE, wire_step
from tests.peers import PeerProcess
from tests.server.asking import Asker
from tests.serving import ServerProcess

Events = list[bytes]
EXAMPLES, STEPS = int(os.environ.get("KVSTREAM_EXAMPLES", "10")), 100

CONVERSATIONS = {
    "xadd": """
        XADD s * f v
        XADD s 5-* f v
        XADD s NOMKSTREAM * f v
        XADD no NOMKSTREAM * f v
        XADD s MAXLEN 1 * f v
        XADD s MAXLEN 100 * f v
        XADD s MAXLEN 0 * f v
        XADD s MINID 99999999999999 * f v
        XADD s MAXLEN ~ 1 * f v
        XADD s 1-1 f v
        XADD s * f
        """,
    "xadd fresh trimmed": """
        XADD s MAXLEN 0 * f v
        XADD s MAXLEN 5 * f v
        XADD t MAXLEN = 5 1-1 f v
        """,
    "xadd type": """
        SET k v
        XADD k * f v
        """,
    "xtrim": """
        XTRIM s MAXLEN 0
        XADD s 1-1 f v
        XADD s 1-2 f v
        XADD s 1-3 f v
        XTRIM s MAXLEN 5
        XTRIM s MAXLEN 2
        XTRIM s MINID 1-2
        XTRIM s MINID 1-3
        XTRIM s MAXLEN 0
        XTRIM s MAXLEN 0
        """,
    "xdel": """
        XADD s 1-1 f v
        XADD s 1-2 f v
        XDEL s 9-9
        XDEL no 1-1
        XDEL s 1-1 1-2
        XDEL s 1-1
        """,
    "xgroup": """
        XGROUP CREATE s g $
        XGROUP CREATE s g $ MKSTREAM
        XGROUP CREATE s g $
        XGROUP CREATE s h 0 MKSTREAM ENTRIESREAD 0
        XGROUP CREATECONSUMER s g c
        XGROUP CREATECONSUMER s g c
        XGROUP SETID s g 0
        XGROUP SETID s g $ ENTRIESREAD 1
        XGROUP SETID s no 0
        XGROUP DELCONSUMER s g c
        XGROUP DELCONSUMER s g c
        XGROUP DESTROY s g
        XGROUP DESTROY s g
        XGROUP CREATECONSUMER s g c
        XGROUP DESTROY no g
        """,
    "xsetid": """
        XADD s 1-1 f v
        XSETID s 5-5
        XSETID s 6-6 ENTRIESADDED 5 MAXDELETEDID 5-5
        XSETID s 0-1
        XSETID no 1-1
        """,
    "set": """
        SET k v
        SET k v
        SET k v NX
        SET k v XX
        SET n v XX
        SET n v NX
        SET k v EX 100
        SET k v KEEPTTL
        SET k v PX 100000
        SET k v EXAT 99999999999
        SET k v PXAT 99999999999000
        SET k v GET
        SET n2 v GET
        SET n2 v GET EX 10
        SET no v EX -1
        SET k v XX GET
        SET k v NX GET
        SET k3 v NX GET
        """,
    "set over stream": """
        XADD s * f v
        SET s v
        XADD t * f v
        SET t v EX 10
        XADD u * f v
        SET u v GET
        XADD w * f v
        SETRANGE w 0 v
        XADD y * f v
        GETSET y v
        SETEX y 10 v
        XADD z * f v
        SET z v KEEPTTL
        XADD z2 * f v
        EXPIRE z2 1000
        SET z2 v KEEPTTL
        PTTL z2
        XADD z1 * f v
        SETNX z1 v
        PSETEX z1 100 v
        """,
    "set family": """
        SETNX k v
        SETNX k v
        SETEX k 10 v
        SETEX k2 10 v
        SETEX k2 0 v
        PSETEX k 10000 v
        PSETEX k3 10000 v
        GETSET k w
        GETSET k4 w
        MSET a 1 b 2
        MSETNX a 1 z 2
        MSETNX y 1 z 2
        """,
    "setrange": """
        SETRANGE k 0 v
        SETRANGE k 5 v
        SETRANGE k 5 ""
        SETRANGE no 5 ""
        APPEND k v
        APPEND no v
        APPEND k ""
        APPEND no2 ""
        """,
    "incr": """
        INCR k
        INCR k
        DECR k
        DECR k2
        INCRBY k 5
        DECRBY k 5
        DECRBY k 0
        INCRBYFLOAT k 1.5
        INCRBYFLOAT k9 1.5
        INCR k
        SET k x
        INCR k
        INCRBYFLOAT k 1
        """,
    "getdel": """
        GETDEL no
        SET k v
        GETDEL k
        GETDEL k
        GETEX no
        SET k v EX 10
        GETEX k
        GETEX k PERSIST
        GETEX k PERSIST
        GETEX k EX 10
        GETEX k PX 10000
        GETEX k EXAT 99999999999
        GETEX k PXAT 99999999999000
        GETEX k PXAT 1
        GETEX k
        GETEX k PERSIST
        GETEX no EX 10
        """,
    "expire": """
        EXPIRE no 10
        SET k v
        EXPIRE k 10
        EXPIRE k 10 NX
        EXPIRE k 20 XX
        EXPIRE k 30 GT
        EXPIRE k 10 LT
        PEXPIRE k 10000
        EXPIREAT k 99999999999
        PEXPIREAT k 99999999999000
        PERSIST k
        PERSIST k
        PERSIST no
        EXPIRE k -1
        SET k v
        EXPIRE k 0
        SET k v
        PEXPIRE k -1
        SET k v
        EXPIREAT k 1
        SET k v
        PEXPIREAT k 1
        EXPIRE k -1
        XADD s * f v
        EXPIRE s 10
        PERSIST s
        EXPIRE s -1
        SET k v EX 10
        EXPIRE k -1 NX
        EXPIRE k -1 LT
        """,
    "del": """
        DEL no
        SET a 1
        SET b 1
        DEL a no b
        DEL a
        SET a 1
        SET b 1
        UNLINK a no b a
        XADD s * f v
        UNLINK s
        XADD s * f v
        XGROUP CREATE s g 0
        DEL s
        DEL s s
        """,
    "rename": """
        RENAME no b
        SET a 1
        RENAME a b
        SET a 2 EX 100
        RENAME a b
        RENAME b b
        RENAMENX b b
        SET c 1
        RENAMENX b c
        RENAMENX b d
        RENAMENX no d
        XADD s * f v
        RENAME s d
        RENAME d t
        SET str v
        RENAME str t
        """,
    "copy": """
        COPY no b
        SET a 1 EX 100
        COPY a b
        COPY a b
        COPY a b REPLACE
        COPY a b DB 1
        COPY a b DB 1 REPLACE
        XADD s * f v
        COPY s t
        COPY s a
        COPY s a REPLACE
        COPY no a REPLACE
        """,
    "move": """
        MOVE no 1
        SET a 1 EX 100
        MOVE a 1
        SET a 2
        MOVE a 1
        XADD s * f v
        MOVE s 1
        """,
    "databases": """
        SELECT 1
        SET a 1
        SELECT 2
        SET a 2
        SWAPDB 1 2
        SWAPDB 1 1
        SELECT 1
        DEL a
        COPY b c
        SELECT 3
        XADD s * f v
        MOVE s 0
        FLUSHDB
        SET a 1
        FLUSHDB ASYNC
        SET a 1
        FLUSHALL
        SELECT 0
        """,
    "restore": """
        SET a v
        #DUMP a $P
        RESTORE b 0 $P
        RESTORE b 0 $P
        RESTORE b 0 $P REPLACE
        RESTORE c 10000 $P
        RESTORE d 99999999999000 $P ABSTTL
        RESTORE e 1 $P ABSTTL
        RESTORE b 1 $P ABSTTL REPLACE
        XADD s 1-1 f v
        #DUMP s $Q
        RESTORE t 0 $Q
        RESTORE c 0 $Q REPLACE
        RESTORE c 0 $P REPLACE
        RESTORE x 0 bad
        """,
    "multi": """
        MULTI
        SET a 1
        XADD s * f v
        DEL a
        EXEC
        MULTI
        SET a 1
        DISCARD
        WATCH a
        MULTI
        SET a 2
        EXEC
        """,
    "scripts": """
        EVAL "redis.call('SET','a','1') redis.call('XADD','s','*','f','v') redis.call('INCR','a')" 0
        EVAL "redis.pcall('INCR','s') redis.call('DEL','a','none')" 0
        EVAL "redis.call('SET','b','1') error('oh')" 0
        EVAL_RO "return redis.call('GET','none')" 0
        EVAL "return redis.call('EXPIRE',KEYS[1],ARGV[1])" 1 b -1
        """,
    "misses": """
        GET no
        MGET no no2 no
        STRLEN no
        GETRANGE no 0 1
        SUBSTR no 0 1
        EXISTS no
        EXISTS no no
        TYPE no
        TTL no
        PTTL no
        EXPIRETIME no
        PEXPIRETIME no
        OBJECT ENCODING no
        OBJECT IDLETIME no
        OBJECT REFCOUNT no
        OBJECT FREQ no
        TOUCH no no2
        DUMP no
        MEMORY USAGE no
        XLEN no
        XRANGE no - +
        XREVRANGE no + -
        XINFO STREAM no
        XINFO GROUPS no
        XINFO CONSUMERS no g
        XPENDING no g
        XPENDING no g - + 10
        XREAD STREAMS no 0
        XREAD COUNT 1 STREAMS no $
        XTRIM no MAXLEN 1
        XDEL no 1-1
        XSETID no 1-1
        XCLAIM no g c 0 1-1
        XAUTOCLAIM no g c 0 0
        XACK no g 1-1
        XGROUP CREATE no g 0
        XGROUP SETID no g 0
        XGROUP DESTROY no g
        WATCH no
        UNWATCH
        SCAN 0
        KEYS *
        RANDOMKEY
        DBSIZE
        PERSIST no
        EXPIRE no 10
        RENAME no no2
        RENAMENX no no2
        MOVE no 1
        COPY no no2
        GETDEL no
        GETEX no
        APPEND no v
        SETRANGE no2 0 ""
        INCR no3
        """,
    "expired": """
        SET a 1 PX 1
        !
        GET a
        SET a 1 PX 1
        !
        SET a 2
        SET b 1 PX 1
        !
        DEL b
        SET b 1 PX 1
        !
        EXISTS b
        XADD s * f v
        PEXPIRE s 1
        !
        XADD s * f v
        PEXPIRE s 1
        !
        XLEN s
        SET c 1 PX 1
        SET d 2
        !
        RENAME d c
        SET d 2 PX 1
        !
        RENAME d x
        SET e 2 PX 1
        !
        SET e 3 NX
        SET e 2 PX 1
        !
        SET e 3 XX
        SET f 2 PX 1
        !
        GETSET f 1
        SET f 2 PX 1
        !
        SETNX f 1
        SET f 2 PX 1
        !
        INCR f
        SET g 1 PX 1
        !
        SET g 1 PX 1
        !
        SET g 1 PX 1
        !
        TTL g
        SET h 1 PX 1
        !
        MGET h h
        XGROUP CREATE h g 0 MKSTREAM
        PEXPIRE h 1
        !
        XREADGROUP GROUP g c STREAMS h >
        XGROUP CREATE h g 0 MKSTREAM
        PEXPIRE h 1
        !
        XGROUP CREATE h g 0 MKSTREAM
        """,
}
"""By subject. `!` waits until keys with PX 1 have expired; `#DUMP k $P` keeps a payload as $P."""
NEWER = {
    "xdelex": """
        XADD s 1-1 f v
        XADD s 1-2 f v
        XADD s 1-3 f v
        XGROUP CREATE s g 0
        XREADGROUP GROUP g c COUNT 1 STREAMS s >
        XDELEX s KEEPREF IDS 1 9-9
        XDELEX s ACKED IDS 1 1-1
        XDELEX s DELREF IDS 2 1-1 1-2
        XDELEX s DELREF IDS 1 1-1
        XDELEX no IDS 1 1-1
        XREADGROUP GROUP g c COUNT 1 STREAMS s >
        XACKDEL s g IDS 1 1-3
        XACKDEL s g IDS 1 1-3
        XADD s 1-9 f v
        XREADGROUP GROUP g c COUNT 1 STREAMS s >
        XACKDEL s g ACKED IDS 2 1-9 1-8
        XACKDEL no g IDS 1 1-3
        """,
    "xackdel kept": """
        XADD s 1-1 f v
        XGROUP CREATE s g 0
        XGROUP CREATE s h 0
        XREADGROUP GROUP g c STREAMS s >
        XREADGROUP GROUP h c STREAMS s >
        XACKDEL s g ACKED IDS 1 1-1
        XACKDEL s g IDS 1 1-1
        XACKDEL s h DELREF IDS 1 1-1
        """,
    "xreadgroup": """
        XADD s 1-1 f v
        XADD s 1-2 f v
        XGROUP CREATE s g 0
        XREADGROUP GROUP g a COUNT 1 STREAMS s >
        XREADGROUP GROUP g a STREAMS s 0
        XREADGROUP GROUP g b STREAMS s 0
        XREADGROUP GROUP g c STREAMS s >
        XREADGROUP GROUP g c STREAMS s >
        XREADGROUP GROUP g d STREAMS s >
        XREADGROUP GROUP g d STREAMS s >
        XREADGROUP GROUP g e NOACK STREAMS s >
        XREADGROUP GROUP no e STREAMS s >
        XREADGROUP GROUP g e STREAMS no >
        XREADGROUP GROUP g e STREAMS s no > >
        XADD t 1-1 f v
        XGROUP CREATE t g 0
        XREADGROUP GROUP g z STREAMS s t > >
        XACK s g 1-1 1-2
        XACK s g 1-1
        XACK no g 1-1
        XACK s no 1-1
        XPENDING s g
        XREAD STREAMS s 0
        XREAD STREAMS s no 0 0
        XREAD STREAMS s $
        """,
    "xclaim": """
        XADD s 1-1 f v
        XADD s 1-2 f v
        XGROUP CREATE s g 0
        XREADGROUP GROUP g a STREAMS s >
        XCLAIM s g b 0 1-1
        XCLAIM s g b 0 1-1
        XCLAIM s g x 100000 1-1
        XCLAIM s g y 0 9-9
        XCLAIM s g y 0 9-9 FORCE
        XCLAIM s g c 0 1-1 JUSTID
        XCLAIM s g c 0 1-1 LASTID 5-5
        XCLAIM no g c 0 1-1
        XCLAIM s no c 0 1-1
        XAUTOCLAIM s g d 0 0
        XAUTOCLAIM s g d 0 0 JUSTID
        XAUTOCLAIM s g e 100000 0
        XAUTOCLAIM s no e 100000 0
        XAUTOCLAIM no g e 100000 0
        XDEL s 1-1
        XAUTOCLAIM s g d 0 0
        XCLAIM s g f 0 1-1
        XDEL s 1-2
        XCLAIM s g h 0 1-2
        XGROUP DELCONSUMER s g d
        """,
}
"""What Redis 7.0 lacks, or does without an event: consumers that get nothing are not made there."""


class Conversation:
    """A client and a subscriber of one server; another client signals the end of the messages."""

    def __init__(self, port: int, flags: str) -> None:
        self._client, self._subscriber, self._other = Asker(port), Asker(port), Asker(port)
        self._payloads: dict[str, bytes] = {}
        self._client.ask("CONFIG", "SET", "notify-keyspace-events", flags)
        assert self._client.ask("DEBUG SET-ACTIVE-EXPIRE 0") == b"OK"
        self._client.ask("CONFIG SET stream-node-max-entries 100")
        self._client.ask("FLUSHALL")
        self._subscriber.ask("PSUBSCRIBE", "__key*", "over")
        self._subscriber.read()

    def close(self) -> None:
        for asker in (self._client, self._subscriber, self._other):
            asker.close()

    def events(self, line: str) -> list[Events]:
        """Send a request, and return the channels and texts of the messages that it causes."""
        words = [self._payloads.get(word, word) for word in shlex.split(line)]
        if words[0] == "#DUMP":
            self._payloads[str(words[2])] = self._client.ask("DUMP", words[1])
            return []
        self._client.ask(*words)
        self._other.ask("PUBLISH", "over", "")
        heard: list[Events] = []
        while (message := self._subscriber.read())[2] != b"over":
            heard.append(message[2:])
        return heard

    def newest(self, key: str) -> str:
        """Return the last entry's ID, without an event of the request."""
        last: bytes = self._other.ask("XINFO", "STREAM", key)[7]
        return last.decode()


def wait_for_expiry() -> None:
    """Wait until the clock, which all servers of this machine share, has gone on by 2 ms."""
    until = time() + 0.002
    while time() <= until:
        sleep(0.001)


@pytest.fixture(scope="module", params=["redis-7.0", "redis-8.2"])
def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    """A Redis that allows DEBUG: its name and its port."""
    directory = tmp_path_factory.mktemp(request.param)
    process = PeerProcess(request.param, directory, "--enable-debug-command", "yes")
    yield request.param, process.port
    process.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("served") / "store", "--durability", "no")
    yield server
    server.stop()


@pytest.mark.parametrize("subject", [*CONVERSATIONS, *NEWER])
def test_each_command_publishes_what_redis_publishes(
    served: ServerProcess, peer: tuple[str, int], subject: str
) -> None:
    name, port = peer
    if subject in NEWER and name == "redis-7.0":
        pytest.skip("newer than Redis 7.0")
    flags = "KEAnm" if name == "redis-7.0" else "KEAnmoc"
    ours, theirs = Conversation(served.port, flags), Conversation(port, flags)
    try:
        for line in map(str.strip, (CONVERSATIONS | NEWER)[subject].strip().splitlines()):
            if line == "!":
                wait_for_expiry()
            else:
                assert (line, ours.events(line)) == (line, theirs.events(line))
    finally:
        ours.close()
        theirs.close()


class RandomConversation(Naming):
    """Random requests of the grammar to both servers, without those that make a client wait."""

    def __init__(self, ours: Conversation, theirs: Conversation, seed: int) -> None:
        self._both, self._random, self.ids = (ours, theirs), Random(seed), list(FIRST_IDS)
        for line in ("CONFIG SET stream-node-max-entries 5", *BEGINNING):
            for each in self._both:
                each.events(line)

    def step(self) -> None:
        argv = self.with_ids(self._next())
        ours, theirs = (each.events(shlex.join(argv)) for each in self._both)
        assert (argv, ours) == (argv, theirs)
        if argv[0] == "XADD" and any(text == b"xadd" for _, text in ours):
            self.ids.append(self._both[0].newest(argv[1]))

    def _next(self) -> list[str]:
        while True:
            _, *argv = wire_step(self._random, "redis-8.2")
            argv = argv[: argv.index(ALSO)] if ALSO in argv else argv
            if argv and argv[0] not in _LEFT_OUT and "BLOCK" not in argv:
                return argv


_LEFT_OUT = {LEAVE, "MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "RESET", "SELECT", "CLIENT"}


@pytest.mark.parametrize("peer", ["redis-8.2"], indirect=True)
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_random_commands_publish_what_redis_publishes(
    served: ServerProcess, peer: tuple[str, int], seed: int
) -> None:
    flags = "KEAnoc"  # a refused command may look up a key in vain, or not
    ours, theirs = Conversation(served.port, flags), Conversation(peer[1], flags)
    try:
        conversation = RandomConversation(ours, theirs, seed)
        for _ in range(STEPS):
            conversation.step()
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    "letters",
    [
        *("", "K", "E", "A", "KA", "KEA", "An", "Amn", "KEAmn", "mnKE", "dK", "xEK", "tn", "gKE"),
        *("$lshzxeKE", "g$lshzxetd", "g$lshzxetdKEmn", "q", "KEAq", "kea"),
    ],
)
def test_the_setting_is_shown_as_redis_shows_it(
    served: ServerProcess, peer: tuple[str, int], letters: str
) -> None:
    with Asker(served.port) as ours, Asker(peer[1]) as theirs:
        for each in (ours, theirs):
            each.ask("CONFIG", "SET", "notify-keyspace-events", "K")
        for asked in (("SET", "notify-keyspace-events", letters), ("GET", "notify-*")):
            assert ours.ask("CONFIG", *asked) == theirs.ask("CONFIG", *asked)
