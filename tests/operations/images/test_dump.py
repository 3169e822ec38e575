"""DUMP and RESTORE, compared with a real redis-server and with known payloads.

``KVSTREAM_EXAMPLES=n`` sets the number of random streams.
"""

import os
from random import Random

import pytest

from kvstream import InvalidArgument, Store
from kvstream.errors import BadPayload, KeyExists
from tests.differential.grammar import STEP_7, Argv
from tests.differential.machines import BEGINNING, FIRST_IDS, Naming, without
from tests.operations.images.kept import take_image
from tests.operations.implementations import Kvstream, RedisServer
from tests.operations.replies import Error, Reply

EXAMPLES = int(os.environ.get("KVSTREAM_EXAMPLES", "20"))
PAYLOADS = {
    "redis:6.2": bytes.fromhex(
        "0f0110000000000000000100000000000000014046460000001800030100010101816102000102010001"
        "00010101040102010101dfff028568656c6c6f0604010001010100010201816202f290eefe048163028330"
        "3037040801ff030201010167020001000000000000000100000000000000010068e5cf8b01000001010263"
        "31f469e5cf8b01000001000000000000000100000000000000010900cd26edaa0027c32f"
    ),
    "redis:7.0": bytes.fromhex(
        "130110000000000000000100000000000000014046460000001800030100010101816102000102010001"
        "00010101040102010101dfff028568656c6c6f0604010001010100010201816202f290eefe048163028330"
        "3037040801ff030201010100000301016702000201000000000000000100000000000000010068e5cf8b01"
        "00000101026331f469e5cf8b01000001000000000000000100000000000000010a00fe01d74c90eb7cf7"
    ),
    "redis:7.4": bytes.fromhex(
        "150110000000000000000100000000000000014046460000001800030100010101816102000102010001"
        "00010101040102010101dfff028568656c6c6f0604010001010100010201816202f290eefe048163028330"
        "3037040801ff030201010100000301016702000201000000000000000100000000000000010068e5cf8b01"
        "00000101026331f469e5cf8b0100000068e5cf8b01000001000000000000000100000000000000010c00a3"
        "66e05f30b0ad7c"
    ),
}
"""Payloads of one stream that servers of these versions accepted and returned; not that of 6.2."""


def stream_of_the_payloads(store: Store) -> None:
    """Create the stream of each payload."""
    stream = store.stream("s")
    stream.add({"a": 1}, id="1-1")
    stream.add({"a": "hello"}, id="2-0")
    stream.add([("b", -70000), ("c", "007")], id="2-1")


@pytest.mark.parametrize("name", PAYLOADS)
def test_known_payloads_are_restored_and_dumped(store: Store, name: str) -> None:
    assert store.restore("s", PAYLOADS[name]) == []
    stream_of_the_payloads(store.select(1))
    assert store.stream("s").range() == store.select(1).stream("s").range()
    (group,) = store.stream("s").info_full().groups
    (consumer,) = group.consumers
    assert (group.name, str(group.last_delivered_id), group.pel_count) == (b"g", "2-0", 1)
    assert group.entries_read == 2
    assert (consumer.name, consumer.seen_time_ms) == (b"c1", 1700000000500)
    assert consumer.active_time_ms == 1700000000000 + 500 * (name != "redis:7.4")
    assert store.dump("s", name) == PAYLOADS[name]


def test_a_payload_has_the_oldest_lossless_form(store: Store) -> None:
    def form(key: str) -> tuple[int, int]:
        payload = store.dump(key)
        assert payload is not None
        assert store.restore("copy", payload, replace=True) == []
        assert take_image(store, "copy").rest == take_image(store, key).rest
        return payload[0], int.from_bytes(payload[-10:-8], "little")

    stream = store.stream("s")
    stream.add({"f": "v"}, id="1-0")
    assert form("s") == (19, 10)
    group = stream.create_group("g", "0")
    group.create_consumer("idle")
    assert form("s") == (21, 11)
    stream.configure(idmp_maxsize=5)
    assert form("s") == (26, 13)
    entries = group.consumer("c").read(count=1)
    group.nack(entries[0])
    assert form("s") == (27, 14)


def test_a_store_can_write_payloads_for_an_older_target(store: Store, opened: Kvstream) -> None:
    stream_of_the_payloads(store)
    for name, head in (("redis:6.2", 15), ("valkey", 21), ("redis:8.10", 27)):
        payload = store.dump("s", name)
        assert payload is not None
        assert payload[0] == head
    with pytest.raises(InvalidArgument, match=r"redis:7\.2"):
        store.dump("s", "redis:1.0")
    assert opened("CONFIG", "SET", "dump-target", "redis:7.2") == b"OK"
    assert opened("CONFIG", "GET", "dump-target") == [b"dump-target", b"redis:7.2"]
    opened("XADD", "s", "1-0", "f", "v")
    payload = opened("DUMP", "s")
    assert isinstance(payload, bytes)
    assert (payload[0], payload[-10]) == (21, 11)
    assert isinstance(opened("CONFIG", "SET", "dump-target", "redis:1.0"), Error)
    assert opened("CONFIG", "SET", "dump-target", "auto") == b"OK"
    opened("FLUSHALL")


def test_an_invalid_payload_changes_nothing(store: Store) -> None:
    store.stream("s").add({"f": "v"}, id="1-0")
    payload = store.dump("s")
    assert payload is not None
    for bad in (b"", payload[:-1], payload + b"x", b"\x05" + payload[1:]):
        with pytest.raises(BadPayload):
            store.restore("s", bad, replace=True)
    with pytest.raises(KeyExists):
        store.restore("s", payload)
    with pytest.raises(BadPayload), store.transaction():
        store.restore("t", payload[:-1])
    assert store.keys() == [b"s"]
    assert len(store.stream("s")) == 1


def test_blocked_readers_get_restored_entries(store: Store) -> None:
    store.stream("s").add({"f": "v"}, id="5-0")
    payload = store.dump("s")
    assert payload is not None
    seen: list[object] = []
    store.engine.submit(
        [b"\0\0t"], lambda txn: txn.stream(b"\0\0t"), lambda outcome: seen.append(outcome.reply)
    )
    store.restore("t", payload)
    assert len(seen) == 1


# --- beside redis-server ------------------------------------------------------------------------

ARGUMENTS = """
    k 0 @
    k 0 @ REPLACE
    k 0 @
    k -1 @ REPLACE
    k x @ REPLACE
    k -1 @
    k 0 @ REPLACE ABSTTL
    k 1 @ REPLACE ABSTTL
    k 1000000 @ REPLACE
    k 0 bad REPLACE
    k 0 @bad REPLACE
    k 0 @ REPLACE IDLETIME 5
    k 0 @ REPLACE IDLETIME -1
    k 0 @ REPLACE IDLETIME x
    k 0 @ REPLACE IDLETIME
    k 0 @ REPLACE FREQ 255
    k 0 @ REPLACE FREQ 256
    k 0 @ REPLACE FREQ -1
    k 0 @ REPLACE FREQ x
    k 0 @ REPLACE FREQ 1 IDLETIME 1
    k 0 @ REPLACE IDLETIME 1 FREQ 1
    k 0 @ REPLACE IDLETIME 1 IDLETIME 2
    k 0 @ FOO
    k 0
""".strip().splitlines()


def test_a_time_to_live_beyond_63_bits_is_refused_and_keeps_the_key(
    opened: Kvstream,
) -> None:
    opened("FLUSHALL")
    payload = PAYLOADS["redis:7.0"]
    for ttl in (2**63 - 1, 2**63 - 10**12):
        reply = opened("RESTORE", "k", str(ttl), payload)
        assert reply == Error(b"ERR invalid expire time in 'restore' command")
        assert opened("EXISTS", "k") == 0
        assert opened("RESTORE", "k", str(ttl), payload, "ABSTTL") == b"OK"
        assert opened("PEXPIRETIME", "k") == ttl
        opened("DEL", "k")


@pytest.mark.parametrize("payload", [PAYLOADS["redis:7.0"], b"string"])
def test_restore_answers_as_redis_does(
    redis_server: RedisServer, opened: Kvstream, payload: bytes
) -> None:
    for subject in (redis_server, opened):
        subject("FLUSHALL")
        if payload == b"string":
            redis_server("SET", "source", "12345")
    whole = redis_server("DUMP", "source") if payload == b"string" else payload
    assert isinstance(whole, bytes)
    for line in ARGUMENTS:
        words = [word.encode() for word in line.split()]
        words = [whole + b"x" if word == b"@bad" else word for word in words]
        argv = [whole if word == b"@" else word for word in words]
        theirs, ours = (subject("RESTORE", *argv) for subject in (redis_server, opened))
        assert ours == theirs, line
        theirs, ours = (subject("EXISTS", "k") for subject in (redis_server, opened))
        assert ours == theirs, line
    assert redis_server("DUMP", "missing") is opened("DUMP", "missing") is None
    for kind, make in (("list", "RPUSH l a"), ("hash", "HSET h f v"), ("zset", "ZADD z 1 a")):
        redis_server(*make.split())
        other = redis_server("DUMP", kind[0])
        assert opened("RESTORE", "other", "0", other) == Error(b"ERR Bad data format")


class Restored(Naming):
    """A redis-server on which random commands run, and a store that gets its keys by DUMP."""

    def __init__(self, redis: RedisServer, store: Kvstream, r: Random) -> None:
        self.redis, self.store = redis, store
        self.ids = list(FIRST_IDS)
        redis("FLUSHALL")
        store("FLUSHALL")
        redis("CONFIG", "SET", "rdbcompression", "no")
        redis("CONFIG", "SET", "stream-node-max-entries", r.choice([2, 3, 100]))
        redis("CONFIG", "SET", "stream-node-max-bytes", r.choice([4096, 60]))
        for command in BEGINNING:
            redis(*command.split())

    def step(self, argv: Argv) -> None:
        reply = self.redis(*self.with_ids(argv))
        if argv[:1] == ["XADD"] and isinstance(reply, bytes):
            self.ids.append(reply.decode())

    def full_info(self, key: str) -> Reply:
        found = self.redis("XINFO", "STREAM", key, "FULL", "COUNT", "0")
        return without(found, (b"radix-tree-nodes",))

    def compare(self, key: str) -> bool:
        """Compare a key with itself after both ways; return whether it had no deleted entries."""
        payload = self.redis("DUMP", key)
        assert self.store("RESTORE", key, "0", payload, "REPLACE") == b"OK"
        store = Store(self.store.engine)
        whole = all(node.appended == len(node.ids) for node in take_image(store, key).found)
        back = store.dump(key, "redis:7.0") or b""
        assert self.redis("RESTORE", "back", "0", back, "REPLACE") == b"OK"
        assert self.full_info("back") == self.full_info(key)
        assert self.redis("DUMP", "back") == back
        assert not whole or back == payload
        self.redis("DEL", "back")
        return whole


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_random_streams_survive_a_round_trip(
    redis_server: RedisServer, opened: Kvstream, seed: int
) -> None:
    r = Random(seed)
    restored = Restored(redis_server, opened, r)
    for _ in range(120):
        restored.step(STEP_7(r))
    for key in ("s", "t", "u"):
        if redis_server("TYPE", key) == b"stream":
            restored.compare(key)
    assert opened.faults() == []
    redis_server("FLUSHALL")
    opened("FLUSHALL")
