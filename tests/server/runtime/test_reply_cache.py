"""The cache of encoded replies: current entries only, within its memory limit."""

from unittest.mock import patch

import pytest

from kvstream.errors import StoreFull
from kvstream.layout.keys import qualified
from kvstream.layout.rows import Rows
from kvstream.meta.reply_cache import ReplyCache, Stretch
from kvstream.operations.checks import check
from kvstream.operations.readgroup import NEW, read_group
from kvstream.server.options import HOT_MEMORY
from kvstream.storage.batch import Batch
from tests.server.talking import Server, Talker

ALL = ("XRANGE", "s", "-", "+", "COUNT", "100")
AFTER = ("XREAD", "COUNT", "100", "STREAMS", "s", "5-0")


@pytest.fixture(autouse=True)
def _keep_single_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplyCache, "rows_min", 1)


def add(ann: Talker, first: int, last: int, key: str = "s") -> None:
    for number in range(first, last + 1):
        assert ann.ask("XADD", key, f"{number}-0", "n", str(number)).startswith(b"$")


def entries(*numbers: int) -> bytes:
    parts = []
    for number in numbers:
        text = b"%d" % number
        eid = b"$%d\r\n%b-0\r\n" % (len(text) + 2, text)
        parts.append(b"*2\r\n" + eid + b"*2\r\n$1\r\nn\r\n$%d\r\n%b\r\n" % (len(text), text))
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def stretches(server: Server, key: str = "s") -> list[Stretch]:
    catalog = server.engine.catalog
    return catalog.reply_cache.of(catalog.streams[qualified(0, key.encode())].prefix)


def hits(server: Server) -> int:
    return server.engine.catalog.reply_cache.hits


def test_cached_entries_are_joined_for_any_range(server: Server, ann: Talker) -> None:
    add(ann, 1, 20)
    assert ann.ask(*ALL) == entries(*range(1, 21))
    assert hits(server) == 0
    assert ann.ask(*AFTER) == b"*1\r\n*2\r\n$1\r\ns\r\n" + entries(*range(6, 21))
    assert ann.ask("XRANGE", "s", "3", "(7-0", "COUNT", "99") == entries(3, 4, 5, 6)
    assert ann.ask("xread", "count", "8", "streams", "s", "18-0") == (
        b"*1\r\n*2\r\n$1\r\ns\r\n" + entries(19, 20)
    )
    assert hits(server) == 3
    add(ann, 21, 22)
    assert ann.ask(*ALL) == entries(*range(1, 23))
    assert hits(server) == 3  # two of them were new
    ann.ask("HELLO", "3")
    assert ann.ask(*AFTER) == b"%1\r\n$1\r\ns\r\n" + entries(*range(6, 23))
    assert ann.ask(*ALL) == entries(*range(1, 23))
    assert hits(server) == 5


def test_groups_of_a_stream_share_cached_entries(server: Server, ann: Talker) -> None:
    add(ann, 1, 40)
    for group in "abc":
        ann.ask("XGROUP", "CREATE", "s", group, "0")
    reply = b"*1\r\n*2\r\n$1\r\ns\r\n"
    for group, count in zip("abc", (20, 18, 30), strict=True):
        words = ("XREADGROUP", "GROUP", group, "me", "COUNT", str(count), "STREAMS", "s", ">")
        assert ann.ask(*words) == reply + entries(*range(1, count + 1))
        first, last = b"$3\r\n1-0\r\n", b"$4\r\n%d-0\r\n" % count
        assert ann.ask("XPENDING", "s", group).startswith(b"*4\r\n:%d\r\n" % count + first + last)
    assert hits(server) == 1  # the last of them continued
    ann.ask("XACK", "s", "a", "3-0")
    assert ann.ask("XPENDING", "s", "a").startswith(b"*4\r\n:19\r\n")
    assert ann.ask("XREADGROUP", "GROUP", "b", "me", "COUNT", "18", "STREAMS", "s", ">") == (
        reply + entries(*range(19, 37))
    )


def test_the_library_gets_entries(server: Server, ann: Talker) -> None:
    names = ("s", "t")
    for name in names:
        add(ann, 1, 20, name)
        for group in "abc":
            ann.ask("XGROUP", "CREATE", name, group, "0")
    ann.ask("XREADGROUP", "GROUP", "a", "me", "COUNT", "20", "STREAMS", *names, ">", ">")
    assert len(stretches(server, "s")) == len(stretches(server, "t")) == 1
    wanted = [(qualified(0, name.encode()), NEW) for name in names]
    found = server.engine.run(read_group, b"b", b"me", wanted, 20)
    assert [type(entries) for _, entries in found] == [Rows, Rows]
    assert hits(server) == 0


def test_entries_read_by_only_one_group_are_not_cached(server: Server, ann: Talker) -> None:
    add(ann, 1, 40)
    ann.ask("XGROUP", "CREATE", "s", "g", "0")
    ann.ask("XREADGROUP", "GROUP", "g", "me", "COUNT", "30", "STREAMS", "s", ">")
    assert stretches(server) == []


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (("XDEL", "s", "7-0"), [1, 2, 3, 4, 5, 6, 8, 9]),
        (("XDELEX", "s", "IDS", "2", "1-0", "9-0"), [2, 3, 4, 5, 6, 7, 8]),
        (("XTRIM", "s", "MAXLEN", "4"), [6, 7, 8, 9]),
        (("XTRIM", "s", "MINID", "4-0"), [4, 5, 6, 7, 8, 9]),
        (("XTRIM", "s", "MAXLEN", "2", "ACKED"), [8, 9]),
        (("XTRIM", "s", "MAXLEN", "0"), []),
        (("RENAME", "t", "s"), [100, 101]),
        (("DEL", "s"), []),
        (("FLUSHALL",), []),
        (("SWAPDB", "0", "1"), []),
        (("COPY", "t", "s", "REPLACE"), [100, 101]),
    ],
)
def test_deleted_entries_are_not_shown_again(
    ann: Talker, change: tuple[str, ...], left: list[int]
) -> None:
    add(ann, 100, 101, "t")
    add(ann, 1, 9)
    for _ in range(2):
        assert ann.ask(*ALL) == entries(*range(1, 10))
    assert not ann.ask(*change).startswith(b"-")
    for _ in range(2):
        assert ann.ask(*ALL) == entries(*left)


def test_an_id_may_be_reused_after_the_entries_above_are_deleted(ann: Talker) -> None:
    add(ann, 1, 9)
    assert ann.ask(*ALL) == entries(*range(1, 10))
    ann.ask("XTRIM", "s", "MAXLEN", "0")
    assert ann.ask("XSETID", "s", "2-0") == b"+OK\r\n"
    ann.ask("XADD", "s", "5-0", "n", "5")
    assert ann.ask(*ALL) == entries(5)


def test_a_restored_key_shows_its_own_entries(server: Server, ann: Talker) -> None:
    add(ann, 1, 9)
    payload = ann.ask("DUMP", "s").split(b"\r\n", 1)[1][:-2]
    ann.ask("XDEL", "s", "3-0")
    assert ann.ask(*ALL) == entries(1, 2, *range(4, 10))
    assert ann.ask("RESTORE", "s", "0", payload, "REPLACE") == b"+OK\r\n"
    assert ann.ask(*ALL) == entries(*range(1, 10))


def test_the_cache_is_empty_after_a_reopening(server: Server, ann: Talker) -> None:
    add(ann, 1, 9)
    assert ann.ask(*ALL) == entries(*range(1, 10))
    server.engine.reopen()
    assert (server.engine.catalog.reply_cache.memory, hits(server)) == (0, 0)
    assert ann.ask(*ALL) == entries(*range(1, 10))


def test_entries_cached_in_a_failed_turn_are_dropped(server: Server, ann: Talker) -> None:
    add(ann, 1, 3)
    assert ann.ask(*ALL) == entries(1, 2, 3)
    kept: list[int] = []

    def refuse(batch: Batch, frees: bool = False) -> int:
        kept.append(len(stretches(server)))
        raise StoreFull("no room")

    with patch.object(server.engine.database, "write", side_effect=refuse):
        ann.send("XADD", "s", "4-0", "n", "4")
        ann.send(*ALL)
        server.turn()
    assert kept[0] == 2  # including the uncommitted one
    assert ann.heard() == b"-MISCONF no room\r\n" + entries(1, 2, 3)
    add(ann, 5, 5)
    assert ann.ask(*ALL) == entries(1, 2, 3, 5)


def test_a_transaction_shows_its_changes(ann: Talker, bob: Talker) -> None:
    add(ann, 1, 9)
    assert bob.ask(*ALL) == entries(*range(1, 10))
    for request in (("MULTI",), ("XDEL", "s", "2-0"), ("XADD", "s", "10-0", "n", "10"), ALL):
        ann.ask(*request)
    assert ann.ask("EXEC").endswith(entries(1, *range(3, 11)))
    assert bob.ask(*ALL) == entries(1, *range(3, 11))


def test_the_memory_is_limited_shown_and_configurable(server: Server, ann: Talker) -> None:
    cache = server.engine.catalog.reply_cache
    assert cache.memory_max == HOT_MEMORY
    add(ann, 1, 80)
    assert ann.ask("CONFIG", "SET", "hot-entries-memory", "3kb") == b"+OK\r\n"
    for after in range(0, 80, 8):
        ann.ask("XREAD", "COUNT", "8", "STREAMS", "s", f"{after}-0")
    assert 0 < cache.memory <= 3072
    reply = b"used_memory_hot_entries:%d\r\n" % cache.memory
    assert reply in ann.ask("INFO", "memory")
    assert b"hot_entries_misses:10\r\n" in ann.ask("INFO", "stats")
    ann.ask("CONFIG", "RESETSTAT")
    assert b"hot_entries_hits:0\r\nhot_entries_misses:0\r\n" in ann.ask("INFO", "stats")
    ann.ask("CONFIG", "SET", "hot-entries-memory", "0")
    assert cache.memory == 0
    for _ in range(2):
        assert ann.ask(*ALL) == entries(*range(1, 81))
    assert (cache.memory, cache.hits) == (0, 0)


@pytest.mark.parametrize("words", [("DEL", "s"), ("UNLINK", "s"), ("FLUSHDB",), ("FLUSHALL",)])
def test_deleted_entries_use_no_memory(server: Server, ann: Talker, words: tuple[str, ...]) -> None:
    add(ann, 1, 9)
    ann.ask(*ALL)
    assert server.engine.catalog.reply_cache.memory > 0
    ann.ask(*words)
    assert server.engine.catalog.reply_cache.memory == 0


def test_long_entries_are_not_cached(server: Server, ann: Talker) -> None:
    ann.ask("XADD", "s", "1-0", "n", "x" * (1 << 18))
    ann.ask("XADD", "s", "2-0", "n", "2")
    for _ in range(2):
        assert ann.ask(*ALL).endswith(entries(2)[4:])
    assert ann.ask("XRANGE", "s", "2-0", "+", "COUNT", "8") == entries(2)
    assert ann.ask(*ALL).startswith(b"*2\r\n*2\r\n$3\r\n1-0\r\n")
    assert len(stretches(server)) == 1


def test_check_reports_cached_entries_that_do_not_exist(server: Server, ann: Talker) -> None:
    add(ann, 1, 9)
    for ids in (b"", b"x"):
        ann.ask(*ALL)
        [stretch] = stretches(server)
        text = stretch.text
        stretch.text = text._replace(ids=ids or text.ids, data=text.data.replace(b"9", b"8"))
        for repairs in (False, True):
            [fault] = server.engine.run(check, repairs)
            assert fault.message == "what was shown lately is not what is there"
        assert ann.ask(*ALL) == entries(*range(1, 10))
