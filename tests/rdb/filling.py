"""What a Redis can hold, written into one: every kind of value in every encoding, and streams."""

from typing import Any

LONG = b"long enough that no listpack holds it, and the same again: " * 3
SHRINKING = b"ab" * 500
FAR_MS = 4_000_000_000_123
"""An expiry in the year 2096."""


def fill_values(client: Any) -> None:
    """Write a key of each kind and encoding."""
    client.set("string:empty", b"")
    for number in (0, -1, 127, -129, 40000, -70000, 1 << 31, 12345678901234567890):
        client.set(f"string:{number}", number)
    client.set("string:raw", bytes(range(256)))
    client.set("string:shrinking", SHRINKING)
    client.set("string:large", bytes(range(256)) * 4000)
    client.rpush("list:small", "a", 1, "b", -70000)
    client.rpush("list:long", *(b"%d %b" % (number, LONG) for number in range(300)))
    client.rpush("list:plain", b"x" * 20000, b"y" * 9000, "z")
    client.sadd("set:intset", 1, 2, 3, 1 << 40)
    client.sadd("set:hashtable", "a", "b", LONG)
    client.sadd("set:large", *range(1000))
    client.zadd("zset:listpack", {"a": 1.5, "b": -3, "c": float("inf")})
    client.zadd("zset:skiplist", {f"{number}": number / 7 for number in range(300)})
    client.zadd("zset:infinite", {LONG: float("-inf"), "b": float("inf"), "c": 3e300})
    client.hset("hash:listpack", mapping={"a": 1, "b": "two"})
    client.hset("hash:hashtable", mapping={f"{number}": LONG for number in range(200)})
    client.pfadd("string:hyperloglog", *range(1000))
    client.setbit("string:bits", 4000, 1)
    client.geoadd("zset:places", (13.361389, 38.115556, "Palermo"))
    client.set(b"\x00\xff any bytes \r\n", b"\r\n")
    client.set(b"12345", b"a key that is a number")
    client.set(b"k" * 30000, b"a long key")
    client.set("expires", "later", pxat=FAR_MS)
    client.pexpireat("list:small", FAR_MS + 1)


def fill_streams(client: Any) -> None:
    """Write streams with all that belongs to them."""
    for number in range(250):
        client.xadd(
            "stream:long", {"n": number, "text": LONG[: number % 60]}, id=f"{1000 + number}-1"
        )
    for number in range(0, 250, 7):
        client.xdel("stream:long", f"{1000 + number}-1")
    client.xgroup_create("stream:long", "workers", "1100-1")
    client.xgroup_create("stream:long", "7", "0", mkstream=True)
    client.xgroup_create("stream:long", b"\xff\x00", "$")
    for number in range(5):
        client.xreadgroup("workers", f"{number}", {"stream:long": ">"}, count=20)
    client.xack("stream:long", "workers", "1101-1", "1105-1")
    client.xdel("stream:long", "1102-1", "1103-1")
    client.xclaim("stream:long", "workers", "other", 0, ["1104-1"], time=77, retrycount=9)
    client.xgroup_createconsumer("stream:long", "workers", "idle")
    client.xadd("stream:mixed", {"b": 1, "a": 2}, id="5-5")
    client.xadd("stream:mixed", {"b": 1, "a": 2}, id="6-0")
    client.execute_command("XADD", "stream:mixed", "6-18446744073709551615", "f", "1", "f", "2")
    client.xadd("stream:mixed", {b"\x00": b"\xff", "empty": b"", "": "name"}, id="7-0")
    client.xadd("stream:mixed", {"large": SHRINKING * 20}, id="8-0")
    client.xadd("stream:trimmed", {"a": 1}, id="1-1")
    client.xtrim("stream:trimmed", maxlen=0)
    client.xgroup_create("stream:trimmed", "g", "0")
    client.xgroup_create("stream:never", "g", "$", mkstream=True)
    client.xadd("12", {"12": "34"}, id="12-34")
    client.xgroup_create("12", "-56", "0")
    client.xreadgroup("-56", "78", {"12": ">"})
    client.pexpireat("12", FAR_MS + 2)
