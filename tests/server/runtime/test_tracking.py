"""CLIENT TRACKING: a caching client gets the invalidations that Redis sends."""

from pathlib import Path
from typing import Any

import pytest
import redis
from redis.cache import CacheConfig

from bench.calls import count_calls
from kvstream.commands.replies import RESP2, RESP3
from kvstream.operations import keyspace
from kvstream.types.clock import ManualClock
from tests.patience import until
from tests.server.asking import Asker
from tests.server.commands.test_kvstream_load import Load
from tests.server.conftest import Served
from tests.server.talking import Server, Talker, request

PUSHED = (b"invalidate", b"tracking-redir-broken")
ANN, BOB = "ann", "bob"
"""Ann tracks; Bob changes keys."""

MODES = {
    "all keys read": [
        *("ann: CLIENT TRACKING ON", "bob: SET k v", "ann: GET k", "bob: SET k w", "bob: SET k x"),
        *("ann: MGET a b none", "bob: SET a 1", "bob: INCR b", "bob: DEL a", "bob: SET none 1"),
        *("ann: GET a", "ann: EXISTS b", "ann: TTL k", "bob: EXPIRE k 100", "bob: RENAME b c"),
        *("ann: GET k", "bob: PERSIST k", "ann: STRLEN k", "bob: APPEND k v", "ann: TYPE k"),
        *("bob: GETDEL k", "ann: GET k", "bob: RESTORE k 0 x", "bob: SETRANGE k 2 v"),
        *("ann: GET c", "bob: SET c v NX", "bob: GET c", "bob: COPY k c REPLACE", "bob: NOSUCH c"),
    ],
    "streams": [
        *("ann: CLIENT TRACKING ON", "bob: XADD s 1-1 f v", "ann: XRANGE s - +"),
        *("bob: XADD s 2-1 f v", "ann: XLEN s", "bob: XDEL s 1-1", "ann: XREAD STREAMS s t 0 0"),
        *("bob: XADD t 1-1 f v", "bob: XTRIM s MAXLEN 0", "ann: XLEN s"),
        *("bob: XADD s 9-1 f v", "bob: XGROUP CREATE s g 0", "ann: XRANGE s - +"),
        *("bob: XREADGROUP GROUP g c STREAMS s >", "bob: XACK s g 9-1"),
        *("bob: XGROUP CREATE s h 0", "bob: XGROUP CREATE s i 0 MKSTREAM", "ann: XLEN new"),
        *("bob: XGROUP CREATE new g 0", "bob: XGROUP CREATE new g 0 MKSTREAM", "bob: DEL s"),
    ],
    "its own changes": [
        *("ann: CLIENT TRACKING ON", "ann: SET k v", "ann: GET k", "ann: SET k w", "ann: GET k"),
        *("ann: MULTI; GET k; SET k v; GET k; EXEC", "bob: SET k x"),
    ],
    "not its own changes": [
        *("ann: CLIENT TRACKING ON NOLOOP", "ann: SET k v", "ann: GET k", "ann: SET k w"),
        *("ann: GET k", "bob: SET k x", "ann: GET k", "ann: DEL k", "ann: XLEN s"),
        *("ann: XADD s 1-1 f v", "ann: XLEN s", "bob: XADD s 1-2 f v"),
    ],
    "only requested keys": [
        *("ann: CLIENT TRACKING ON OPTIN", "ann: GET k", "bob: SET k v", "ann: CLIENT CACHING yes"),
        *("ann: CLIENT TRACKINGINFO", "ann: GET k", "ann: CLIENT TRACKINGINFO", "ann: GET l"),
        *("bob: MSET k 1 l 1", "ann: CLIENT CACHING yes", "ann: MULTI; GET k; GET l; EXEC"),
        *("ann: GET m", "bob: MSET k 2 l 2 m 2", "ann: CLIENT CACHING no"),
        *(
            "ann: CLIENT CACHING x",
            "ann: CLIENT TRACKING ON OPTOUT",
            "ann: CLIENT TRACKING ON BCAST",
        ),
    ],
    "all but the requested keys": [
        *("ann: CLIENT TRACKING ON OPTOUT", "ann: GET k", "bob: SET k v", "ann: CLIENT CACHING no"),
        *("ann: GET k", "ann: GET l", "bob: MSET k 1 l 1", "ann: CLIENT CACHING yes"),
        *("ann: CLIENT TRACKINGINFO", "ann: CLIENT TRACKING ON OPTIN"),
    ],
    "all keys of some prefixes": [
        *("ann: CLIENT TRACKING ON BCAST PREFIX a PREFIX b", "bob: SET a1 v", "bob: MSET b 1 c 1"),
        *("bob: XADD as 1-1 f v", "bob: XADD cs 1-1 f v", "ann: SET a2 v", "bob: DEL a1 b cs"),
        *("ann: CLIENT TRACKING ON BCAST PREFIX ab", "ann: CLIENT TRACKING ON BCAST PREFIX d"),
        *("bob: SET d v", "bob: SET a v", "ann: CLIENT TRACKINGINFO", "ann: CLIENT TRACKING OFF"),
        *("bob: SET d w", "ann: CLIENT TRACKINGINFO"),
    ],
    "all keys after those of a prefix": [
        *("ann: CLIENT TRACKING ON BCAST PREFIX b PREFIX a", "ann: CLIENT TRACKINGINFO"),
        *("ann: CLIENT TRACKING ON BCAST", "bob: SET k v", "ann: CLIENT TRACKINGINFO"),
        "bob: MSET a1 v b v c v",
    ],
    "all but its own changes": [
        *("ann: CLIENT TRACKING ON BCAST NOLOOP", "bob: SET k v", "ann: SET l v", "bob: SET l w"),
        *("ann: XADD s 1-1 f v", "bob: XADD s 1-2 f v", "ann: CLIENT TRACKINGINFO"),
    ],
    "everything": [
        *("ann: CLIENT TRACKING ON", "bob: SET k v", "ann: GET k", "bob: FLUSHALL", "bob: SET k v"),
        *("ann: GET k", "bob: FLUSHDB", "ann: GET k", "ann: FLUSHALL"),
    ],
    "nothing after the end of tracking": [
        *("ann: CLIENT TRACKING ON", "ann: GET k", "ann: CLIENT TRACKING OFF", "bob: SET k v"),
        *("ann: CLIENT GETREDIR", "ann: CLIENT CACHING yes", "ann: CLIENT TRACKING ON"),
        *("ann: CLIENT GETREDIR", "ann: CLIENT CACHING yes", "ann: CLIENT TRACKINGINFO"),
    ],
}


class Pair:
    """Two clients of one server, with the messages to each."""

    def __init__(self, port: int) -> None:
        self._askers = {ANN: Asker(port, 3), BOB: Asker(port, 3)}
        self._askers[BOB].ask("FLUSHALL")

    def close(self) -> None:
        for asker in self._askers.values():
            asker.close()

    def step(self, step: str) -> list[Any]:
        """Send a request of one client; return the reply, and the messages to both."""
        who, _, line = step.partition(": ")
        heard: list[Any] = []
        for words in line.split("; "):
            heard += self._ask(who, *words.split())
        for name in (ANN, BOB):
            heard += self._ask(name, "ECHO", "over")
        return [step, *sorted(heard, key=repr)]

    def _ask(self, name: str, *words: str) -> list[Any]:
        """Return the output up to the reply."""
        asker = self._askers[name]
        asker.send(*words)
        heard: list[Any] = []
        while not heard or (isinstance(found := heard[-1][1], list) and found[0] in PUSHED):
            heard.append((name, asker.read()))
        return heard


@pytest.mark.parametrize("steps", MODES.values(), ids=MODES)
def test_clients_get_the_messages_of_redis(
    served: Served, redis_port: int, steps: list[str]
) -> None:
    ours, theirs = Pair(served.port), Pair(redis_port)
    try:
        for step in steps:
            assert ours.step(step) == theirs.step(step)
    finally:
        ours.close()
        theirs.close()


REDIRECTED = {
    "all keys read": [
        *("ann: CLIENT GETREDIR", "ann: CLIENT TRACKING ON REDIRECT CYD", "bob: SET k v"),
        *("ann: GET k", "ann: GET l", "bob: MSET k 1 l 2", "bob: SET k w", "ann: GET k"),
        *("bob: FLUSHALL", "ann: GET k", "ann: SET k own", "ann: CLIENT TRACKINGINFO"),
        *("ann: CLIENT GETREDIR", "ann: CLIENT TRACKING OFF", "ann: GET k", "bob: SET k v"),
        *("ann: CLIENT GETREDIR", "ann: CLIENT TRACKINGINFO"),
    ],
    "all but its own changes": [
        *("ann: CLIENT TRACKING ON REDIRECT CYD NOLOOP", "ann: GET k", "ann: SET k v"),
        *("ann: GET k", "bob: SET k w"),
    ],
    "broadcasts": [
        *("ann: CLIENT TRACKING ON BCAST REDIRECT CYD PREFIX a: PREFIX b:", "bob: SET a:1 v"),
        *("bob: MSET a:1 1 a:2 2 b:1 1 c:1 1", "ann: CLIENT TRACKING ON BCAST PREFIX c:"),
        *("bob: SET c:1 2", "bob: XADD a:s 1-1 f v", "bob: FLUSHDB", "ann: CLIENT TRACKINGINFO"),
    ],
    "requested keys": [
        *("ann: CLIENT TRACKING ON OPTIN REDIRECT CYD", "ann: GET k", "bob: SET k v"),
        *("ann: CLIENT CACHING yes", "ann: GET k", "bob: SET k w"),
        *("ann: CLIENT TRACKING OFF", "ann: CLIENT TRACKING ON OPTOUT REDIRECT CYD", "ann: GET k"),
        *("ann: CLIENT CACHING no", "ann: GET l", "bob: MSET k 1 l 1"),
    ],
    "nobody listens": [
        *("cyd: UNSUBSCRIBE __redis__:invalidate", "ann: CLIENT TRACKING ON REDIRECT CYD"),
        *("ann: GET k", "bob: SET k v", "cyd: UNSUBSCRIBE over", "ann: GET k", "bob: SET k w"),
        *("cyd: SUBSCRIBE over", "ann: GET k", "bob: SET k v"),
    ],
    "it speaks RESP3": [
        *("cyd: UNSUBSCRIBE", "cyd: HELLO 3", "ann: CLIENT TRACKING ON REDIRECT CYD"),
        *("ann: GET k", "bob: SET k v", "ann: GET k", "bob: FLUSHALL"),
    ],
    "both share": [
        *("ann: CLIENT TRACKING ON REDIRECT CYD", "bob: CLIENT TRACKING ON REDIRECT CYD"),
        *("ann: GET k", "bob: GET k", "ann: SET k v"),
    ],
    "the other client is gone": [
        *("ann: CLIENT TRACKING ON REDIRECT CYD", "ann: GET k", "ann: CLIENT KILL ID CYD"),
        *("ann: CLIENT TRACKINGINFO", "bob: SET k v", "ann: CLIENT TRACKINGINFO", "ann: GET k"),
        *("bob: SET k w", "ann: CLIENT GETREDIR", "ann: CLIENT TRACKING ON REDIRECT CYD"),
    ],
    "wrong": [
        *("ann: CLIENT TRACKING ON REDIRECT 12345678", "ann: CLIENT TRACKING ON REDIRECT x"),
        *("ann: CLIENT TRACKING ON REDIRECT CYD REDIRECT CYD", "ann: CLIENT TRACKING ON REDIRECT"),
        *("ann: CLIENT TRACKING ON REDIRECT 0", "ann: CLIENT GETREDIR"),
    ],
}


class Redirected(Pair):
    """Two clients, and Cyd, whose channel gets the messages of others."""

    def __init__(self, port: int, protocol: int) -> None:
        super().__init__(port)
        if protocol == RESP2:
            self._askers[ANN].close()
            self._askers[ANN] = Asker(port)
        self._cyd = Asker(port)
        self._number = self._cyd.ask("CLIENT", "ID")
        self._teller = Asker(port)
        self._cyd.ask("SUBSCRIBE", "__redis__:invalidate")
        self._cyd.ask("SUBSCRIBE", "over")

    def close(self) -> None:
        super().close()
        self._cyd.close()
        self._teller.close()

    def step(self, step: str) -> list[Any]:
        line = step.replace("CYD", str(self._number))
        if line.startswith("cyd: "):
            self._cyd.send(*line.removeprefix("cyd: ").split())
            self._cyd.send("PING", "done")
            while self._cyd.read() not in (b"done", [b"pong", b"done"]):
                pass
            heard: list[Any] = []
        else:
            heard = super().step(line)[1:]
        if self._teller.ask("PUBLISH", "over", "") == 0:  # Cyd is no longer subscribed, or is gone
            return [step, self._shown(heard)]
        while (message := self._cyd.read())[1:] != [b"over", b""]:
            heard.append(("cyd", message))
        return [step, self._shown(heard)]

    def _shown(self, heard: list[Any]) -> str:
        """Return the messages without Cyd's number, which differs between servers."""
        return repr(sorted(heard, key=repr)).replace(str(self._number), "CYD")


@pytest.mark.parametrize("protocol", [RESP2, RESP3])
@pytest.mark.parametrize("steps", REDIRECTED.values(), ids=REDIRECTED)
def test_another_client_gets_the_messages_of_redis(
    served: Served, redis_port: int, steps: list[str], protocol: int
) -> None:
    ours, theirs = Redirected(served.port, protocol), Redirected(redis_port, protocol)
    try:
        for step in steps:
            assert ours.step(step) == theirs.step(step)
    finally:
        ours.close()
        theirs.close()


def tracking(talker: Talker, *modes: str) -> Talker:
    talker.ask("HELLO", "3")
    assert talker.ask("CLIENT", "TRACKING", "ON", *modes) == b"+OK\r\n"
    return talker


def invalid(*keys: bytes) -> bytes:
    return b">2\r\n$10\r\ninvalidate\r\n" + request(*keys)


ALL_INVALID = b">2\r\n$10\r\ninvalidate\r\n_\r\n"


def test_a_message_follows_the_replies_of_its_turn(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.ask("SET", "k", "old")
    tracking(ann)
    ann.send("GET", "k")
    bob.send("SET", "k", "new")
    server.turn()
    assert ann.heard() == b"$3\r\nold\r\n" + invalid(b"k")
    ann.ask("GET", "k")
    ann.send("SET", "k", "own")
    server.turn()
    assert ann.heard() == b"+OK\r\n" + invalid(b"k")


def test_appends_that_run_together_invalidate(server: Server, ann: Talker, bob: Talker) -> None:
    tracking(ann).ask("XLEN", "s")
    for stream in ("s", "other", "s"):
        bob.send("XADD", stream, "*", "f", "v")
    server.turn()
    assert ann.heard() == invalid(b"s")
    tracking(cyd := server.client(), "BCAST", "PREFIX", "o")
    bob.send("XADD", "other", "*", "f", "v")
    server.turn()
    assert (ann.heard(), cyd.heard()) == (b"", invalid(b"other"))


def test_a_call_without_changes_does_not_invalidate(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.ask("XADD", "s", "5-1", "f", "v")
    tracking(ann).ask("XLEN", "s")
    for refused in (
        "XADD s 1-1 f v",
        "XDEL s 9-9",
        "XTRIM s MAXLEN 5",
        "XADD s NOMKSTREAM 5-0 f v",
    ):
        bob.send("SET", "k", "v")
        bob.send(*refused.split())
        server.turn()
        assert ann.heard() == b""


def test_keys_of_a_blocked_read_are_tracked(server: Server, ann: Talker, bob: Talker) -> None:
    tracking(ann).send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    server.turn()
    for said in (1, 1, 0):
        bob.ask("XADD", "s", "*", "f", "v")
        assert ann.heard().count(invalid(b"s")) == said
    ann.ask("XLEN", "s")
    ann.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    server.turn()
    bob.send_bytes(request("XADD", "s", "MAXLEN", "5", "*", "f", "v") * 3)
    server.turn()
    assert ann.heard().count(invalid(b"s")) == 2  # the third change is of an untracked key


def test_keys_read_by_a_script_are_tracked(server: Server, ann: Talker, bob: Talker) -> None:
    tracking(ann)
    for script in ("return redis.call('set', 'read', 'x')", "return redis.call('get', 'read')"):
        ann.ask("EVAL", script, "2", "named", "other")
        bob.ask("MSET", "named", "1", "other", "1", "read", "1")
    assert ann.heard() == invalid(b"read")  # of the second script, as since Redis 7.2


def test_expired_keys_invalidate(tmp_path: Path) -> None:
    clock = ManualClock()
    server = Server(tmp_path / "store", clock=clock)
    ann, bob = tracking(server.client(), "NOLOOP"), server.client()
    for key in ("unasked", "asked"):
        bob.ask("SET", key, "v", "PX", "50")
        ann.ask("GET", key)
    clock.advance(100)
    assert ann.ask("EXISTS", "asked") == b":0\r\n" + invalid(b"asked")
    server.engine.run(keyspace.delete_expired, 10)
    server.executor.tick()
    assert ann.heard() == invalid(b"unasked")
    server.engine.close()


def test_a_bulk_load_invalidates(served: Served, client: redis.Redis, tmp_path: Path) -> None:
    client.xadd("s", {"n": "1"}, id="1-0")
    load = Load(client, tmp_path, "s")
    with served.asker(3) as ann:
        ann.ask("CLIENT TRACKING ON")
        ann.ask("XLEN s")
        load.commit(*load.send({b"s": ([2], [2])}))
        client.ping()
        assert ann.read() == [b"invalidate", [b"s"]]
        assert ann.ask("XLEN s") == 2


def test_swapdb_invalidates_all_keys(server: Server, ann: Talker, bob: Talker) -> None:
    tracking(ann).ask("GET", "k")
    bob.ask("SWAPDB", "0", "1")
    assert ann.heard() == ALL_INVALID
    assert server.executor.trackers.known == {}


def test_invalidations_follow_a_long_reply(served: Served) -> None:
    with served.asker(3) as ann, served.asker() as bob:
        bob.ask("SET", "long", b"v" * (8 << 20))
        bob.ask("SET", "k", "v")
        ann.ask("CLIENT TRACKING ON")
        ann.ask("GET", "k")
        ann.send("GET", "long")
        while b"qbuf" not in bob.ask("CLIENT LIST") or not served.executor.streaming.under_way:
            pass
        bob.ask("SET", "k", "w")
        assert ann.read() == b"v" * (8 << 20)
        assert ann.read() == [b"invalidate", [b"k"]]


def test_redirected_messages_go_to_the_other_client(
    server: Server, ann: Talker, bob: Talker
) -> None:
    cyd = server.client()
    asked = ("CLIENT", "TRACKING", "ON", "REDIRECT", str(cyd.client.id))
    cyd.ask("HELLO", "3")
    ann.ask("HELLO", "3")
    assert ann.ask(*asked) == b"+OK\r\n"
    assert ann.ask("CLIENT", "GETREDIR") == b":%d\r\n" % cyd.client.id
    assert b" redir=%d " % cyd.client.id in ann.ask("CLIENT", "LIST")
    ann.ask("GET", "k")
    bob.ask("SET", "k", "v")
    assert (ann.heard(), cyd.heard()) == (b"", invalid(b"k"))
    ann.ask("GET", "k")
    cyd.ask("QUIT")  # nobody reads its messages from here on
    bob.ask("SET", "k", "v")
    assert ann.heard() == b">2\r\n$21\r\ntracking-redir-broken\r\n:%d\r\n" % cyd.client.id
    assert b"broken_redirect" in ann.ask("CLIENT", "TRACKINGINFO")
    assert b"flags=tR" in ann.ask("CLIENT", "INFO")


def test_a_client_that_redirects_to_itself_gets_messages_in_its_channel(
    ann: Talker, bob: Talker
) -> None:
    number = str(ann.client.id)
    assert ann.ask("CLIENT", "TRACKING", "ON", "BCAST", "REDIRECT", number) == b"+OK\r\n"
    bob.ask("SET", "k", "v")
    assert ann.heard() == b""
    ann.ask("SUBSCRIBE", "__redis__:invalidate")
    bob.ask("SET", "k", "w")
    channel = b"$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n"
    assert ann.heard() == b"*3\r\n" + channel + request("k")


def test_a_closed_or_reset_client_gets_no_messages(
    server: Server, ann: Talker, bob: Talker
) -> None:
    for end in (lambda: ann.ask("RESET"), lambda: ann.ask("CLIENT", "TRACKING", "OFF"), ann.leave):
        tracking(ann).ask("GET", "k")
        end()
        bob.ask("SET", "k", "v")
        assert ann.heard() in (b"", b"+RESET\r\n")
        assert not server.executor.trackers.clients
    assert b"tracking_clients:0\r\n" in bob.ask("INFO", "clients")


def test_a_broadcast_names_no_key_that_its_client_may_not_read(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.ask("ACL", "SETUSER", "ann", "on", "nopass", "+@all", "~own:*", "%W~log:*")
    ann.ask("HELLO", "3", "AUTH", "ann", "x")
    ann.ask("CLIENT", "TRACKING", "ON", "BCAST")
    for key in ("own:1", "other", "log:1"):
        bob.ask("SET", key, "v")
    assert ann.heard() == invalid(b"own:1")
    bob.ask("ACL", "SETUSER", "ann", "resetkeys", "(~other +@all)")
    bob.ask("SET", "own:1", "w")
    bob.ask("SET", "other", "w")
    assert ann.heard() == invalid(b"other")


@pytest.mark.parametrize("modes", [(), ("BCAST", "PREFIX", "other:")])
def test_a_change_that_concerns_no_client_costs_the_same_however_many_there_are(
    server: Server, bob: Talker, modes: tuple[str, ...]
) -> None:
    def calls() -> int:
        bob.send("SET", "key", "v")
        return count_calls(server.turn).calls

    tracking(server.client(), *modes)
    bob.ask("SET", "key", "v")
    few = calls()
    for _ in range(100):
        tracking(server.client(), *modes)
    bob.ask("SET", "key", "v")
    assert calls() <= few + 10


def test_own_changes_are_left_out_for_noloop_clients_alone(server: Server, bob: Talker) -> None:
    clients = [tracking(server.client(), "BCAST") for _ in range(3)]
    own = tracking(server.client(), "BCAST", "NOLOOP")
    own.send("SET", "a", "v")
    bob.send("SET", "b", "v")
    server.turn()
    for client in clients:
        assert client.heard() == invalid(b"a", b"b")
    assert own.heard() == b"+OK\r\n" + invalid(b"b")


def test_the_number_of_tracked_keys_is_limited(server: Server, ann: Talker, bob: Talker) -> None:
    bob.ask("CONFIG", "SET", "tracking-table-max-keys", "2")
    tracking(ann)
    for key in "abc":
        ann.send("GET", key)
    server.turn()
    assert ann.heard() == b"_\r\n" * 3 + invalid(b"a")
    reply = bob.ask("INFO", "stats")
    assert b"tracking_total_keys:2\r\ntracking_total_items:2\r\ntracking_total_prefixes:0" in reply


def test_in_resp2_no_messages_are_sent(ann: Talker, bob: Talker) -> None:
    assert ann.ask("CLIENT", "TRACKING", "ON") == b"+OK\r\n"
    ann.ask("GET", "k")
    bob.ask("SET", "k", "v")
    assert ann.heard() == b""


def test_redis_py_caches_values_until_they_change(served: Served) -> None:
    with redis.Redis(port=served.port, protocol=3, cache_config=CacheConfig()) as client:
        client.set("k", "v")
        assert [client.get("k"), client.get("k")] == [b"v", b"v"]
        calls = served.executor.statistics.of("get").calls
        with served.asker() as other:
            other.ask("SET", "k", "w")
        until(lambda: client.get("k") == b"w")  # another client may be notified earlier
        assert (calls, served.executor.statistics.of("get").calls) == (1, 2)
