"""Streams of every shape in a redis-server, and their description.

Clients are Any: the types of redis-py do not cover all commands.
"""

from typing import Any

import redis

FAR_FUTURE_MS = 4_000_000_000_000
DATABASES = 16

LONG_NAME = b"\xff\x00 binary \n" * 30


def fill(client: Any) -> None:
    """Fill one database with streams that have every part."""
    _orders(client)
    _deleted(client)
    _odd_names(client)
    client.xadd("empty", {"a": 1}, "5-5")
    client.xgroup_create("empty", "waiting", "0")
    client.xtrim("empty", maxlen=0, approximate=False)
    client.execute_command("XGROUP", "CREATE", "never", "g", "$", "MKSTREAM")
    client.set("a string", "of bytes \xff")
    client.set("expiring", "1", pxat=FAR_FUTURE_MS)


def _orders(client: Any) -> None:
    pipe = client.pipeline(transaction=False)
    for at in range(700):
        pipe.xadd("orders", {"sku": f"a{at}", "qty": at, "note": "x" * (at % 90)}, f"{1000 + at}-1")
    pipe.execute()
    client.xgroup_create("orders", "bill", "0")
    client.xreadgroup("bill", "worker-1", {"orders": ">"}, 150)
    client.xreadgroup("bill", "worker-2", {"orders": ">"}, 50)
    client.xgroup_createconsumer("orders", "bill", "idle")
    client.xack("orders", "bill", *(f"{1000 + at}-1" for at in range(0, 150, 3)))
    ids = ["1001-1", "1002-1"]
    how: dict[str, Any] = {"time": 1_600_000_000_123, "retrycount": 17, "justid": True}
    client.xclaim("orders", "bill", "worker-3", 0, ids, **how)
    client.xgroup_create("orders", "7", "1300-1")
    client.pexpireat("orders", FAR_FUTURE_MS)


def _deleted(client: Any) -> None:
    """Create a stream with tombstones inside its nodes, and pending entries of deleted messages."""
    pipe = client.pipeline(transaction=False)
    for at in range(450):
        pipe.xadd("deleted", {"n": at}, f"{1 + at}-0")
    pipe.execute()
    client.xgroup_create("deleted", "g", "0")
    client.xreadgroup("g", "c", {"deleted": ">"}, 300)
    client.xdel("deleted", "2-0", "3-0", "120-0", "299-0", "450-0")
    client.xtrim("deleted", maxlen=400, approximate=False)


def _odd_names(client: Any) -> None:
    key = LONG_NAME
    client.xadd(key, {"": "", b"\x80\xff": b"\x00", "-70000": "007", "12": "9223372036854775807"})
    for words in ("1", "2"):
        client.execute_command("XADD", key, "*", "twice", words, "twice", "again")
    client.xadd("ids", {"a": 1}, "0-1")
    client.xadd("ids", {"a": 2}, "1000-5")
    client.xadd("ids", {"a": 3}, "1001-0")
    client.xadd("ids", {"a": 4}, "18446744073709551615-18446744073709551615")
    client.xgroup_create("ids", "-12", "0")
    client.xreadgroup("-12", "34", {"ids": ">"})


def fill_all_databases(client: Any) -> None:
    """Fill the first database as ``fill`` does, and create a stream in each of the others."""
    fill(client)
    port = client.connection_pool.connection_kwargs["port"]
    for db in range(1, DATABASES):
        with redis.Redis(port=port, db=db) as other:
            other.xadd(f"of {db}", {"db": db}, f"{db}-0")
            other.xadd("everywhere", {"db": db}, f"{db}-0")


def full(client: Any) -> dict[bytes, Any]:
    """Return the reply of XINFO STREAM FULL for every stream, without the fields of the tree."""
    found = {}
    for key in sorted(client.scan_iter(count=1000)):
        if client.type(key) == b"stream":
            reply = mapped(client.execute_command("XINFO", "STREAM", key, "FULL", "COUNT", 0))
            found[key] = {name: reply[name] for name in reply if not name.startswith(b"radix-tree")}
    return found


def mapped(flat: list[Any]) -> dict[bytes, Any]:
    """Return name, value, name, value ... as a mapping, also for groups and consumers in it."""
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    for name in (b"groups", b"consumers"):
        if name in found:
            found[name] = [mapped(each) for each in found[name]]
    return found


def dumps(client: Any) -> dict[bytes, bytes]:
    """Return the DUMP of every key."""
    return {key: client.dump(key) or b"" for key in sorted(client.scan_iter(count=1000))}


def expiries(client: Any) -> dict[bytes, int]:
    """Return when each key expires."""
    keys = sorted(client.scan_iter(count=1000))
    return {key: client.execute_command("PEXPIRETIME", key) for key in keys}
