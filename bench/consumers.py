"""Consumers that each read 100 entries of a stream of their own, then acknowledge them."""

from redis import Redis

from bench.load import (
    GROUP,
    Script,
    WrongReply,
    entry_id,
    entry_reply,
    exchanges,
    fill_numbered,
    run_scripts,
)
from bench.processes import CLIENTS, framed, port_of

PAGE = 100


def _key(number: int) -> str:
    return f"orders-{number:02d}"


def _pages(count: int) -> int:
    """Return the pages of one consumer."""
    return max(count // CLIENTS, 1)


def prepare_pages(client: Redis, count: int) -> None:
    """Fill a stream with a group for each consumer: ``count`` pages in all."""
    for number in range(CLIENTS):
        fill_numbered(port_of(client), _key(number), PAGE * _pages(count))
        client.xgroup_create(_key(number), GROUP, id="0")


def _script(key: str, pages: int) -> Script:
    read = framed("XREADGROUP", "GROUP", GROUP, "c", "COUNT", str(PAGE), "STREAMS", key, ">")
    head = b"*1\r\n*2\r\n$%d\r\n%b\r\n*%d\r\n" % (len(key), key.encode(), PAGE)
    pairs = []
    for first in range(0, PAGE * pages, PAGE):
        numbers = range(first, first + PAGE)
        pairs.append((read, head + b"".join(map(entry_reply, numbers))))
        pairs.append((framed("XACK", key, GROUP, *map(entry_id, numbers)), b":%d\r\n" % PAGE))
    return exchanges(pairs)


def consume_pages(client: Redis, count: int) -> float:
    """Read and acknowledge ``count`` pages with 50 consumers; return the seconds."""
    pages = _pages(count)
    scripts = [_script(_key(number), pages) for number in range(CLIENTS)]
    return run_scripts(port_of(client), scripts) * count / (pages * CLIENTS)


def check_pages(client: Redis, count: int) -> None:
    """Raise WrongReply unless every entry was read and acknowledged."""
    for number in range(CLIENTS):
        group = client.xinfo_groups(_key(number))[0]
        if group["pending"] or group["entries-read"] != PAGE * _pages(count):
            raise WrongReply(f"{_key(number)} was not consumed fully: {group}")
