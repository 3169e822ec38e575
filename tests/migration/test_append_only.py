"""Append-only files of a redis-server used in every way, compared with what it loads itself."""

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

from kvstream import Store
from kvstream.errors import RequestError
from kvstream.migration import LossRefused, plan, run, verify
from kvstream.migration.aof_source import AofSource
from kvstream.migration.items import Selection
from tests.migration.conftest import Start
from tests.migration.servers import RedisServer

STEPS = 600
KEYS = [f"k{number}" for number in range(12)]
STREAMS = (
    *("XADD {k} * a 1", "XADD {k} * a 1", "XADD {k} MAXLEN 3 * a 1", "XDEL {k} 0-1"),
    *("XGROUP CREATE {k} g 0 MKSTREAM", "XREADGROUP GROUP g c STREAMS {k} >", "XTRIM {k} MAXLEN 2"),
    *("XGROUP DESTROY {k} g", "XSETID {k} 99999999999999-0"),
)
STRINGS = (
    *("SET {k} 1", "SET {k} v", "SET {k} v PX 1000000", "APPEND {k} x", "INCR {k}", "GETSET {k} 5"),
    *("SETRANGE {k} 3 abc", "MSET {k} 1 {j} 2", "SETNX {k} n", "INCRBYFLOAT {k} 1.5", "GETDEL {k}"),
)
COMPUTED = (
    *("SETBIT {k} 7 1", "BITOP OR {k} {j} {i}", "BITOP NOT {k} {j}", "BITFIELD {k} SET u8 0 7"),
    *("PFADD {k} a b c", "PFMERGE {k} {j}", "PFCOUNT {k}"),
)
OTHERS = (
    *("RPUSH {k} a b", "LPUSH {k} a", "LINSERT {k} BEFORE a b", "LMOVE {k} {j} LEFT RIGHT"),
    *(
        "SADD {k} a b",
        "SMOVE {k} {j} a",
        "SUNIONSTORE {k} {j} {i}",
        "HSET {k} f v",
        "HINCRBY {k} n 1",
    ),
    *("ZADD {k} 1 a", "ZINCRBY {k} 1 b", "ZUNIONSTORE {k} 1 {j}", "ZRANGESTORE {k} {j} 0 -1"),
    *("GEOADD {k} 1 1 a", "GEOSEARCHSTORE {k} {j} FROMLONLAT 1 1 BYRADIUS 9 km"),
    *(
        "SORT {k} ALPHA STORE {j}",
        "LPOP {k}",
        "SPOP {k}",
        "HDEL {k} f",
        "ZPOPMIN {k}",
        "LTRIM {k} 0 0",
    ),
)
ANY = (
    *("DEL {k}", "UNLINK {k} {j}", "RENAME {k} {j}", "RENAMENX {k} {j}", "COPY {k} {j} REPLACE"),
    *(
        "COPY {k} {j}",
        "COPY {k} {j} DB 1 REPLACE",
        "MOVE {k} 1",
        "PEXPIRE {k} 1000000",
        "PERSIST {k}",
    ),
    *("GETEX {k} PX 1000000", "TOUCH {k}", "FLUSHDB", "SWAPDB 0 1", "dump"),
)


def use(client: Any, random: Random, rewrite: bool) -> None:
    """Run random commands over all types; refused commands are ignored."""
    families = [STREAMS] * 3 + [STRINGS] * 2 + [COMPUTED, OTHERS, OTHERS, ANY]
    for step in range(STEPS):
        line = random.choice(random.choice(families))
        if line in ("FLUSHDB", "SWAPDB 0 1") and random.random() < 0.7:
            continue
        words = line.format(**{name: random.choice(KEYS) for name in "kji"}).split()
        with (
            suppress(redis.ResponseError),
            client.pipeline(transaction=random.random() < 0.2) as at,
        ):
            if line == "dump":
                payload = client.dump(random.choice(KEYS))
                if payload is not None:
                    at.execute_command("RESTORE", random.choice(KEYS), 0, payload, "REPLACE")
            else:
                at.execute_command(*words)
            at.execute()
        if rewrite and step == STEPS // 2:
            rewritten(client)


def rewritten(client: Any) -> None:
    client.execute_command("BGREWRITEAOF")
    while client.info("persistence")["aof_rewrite_in_progress"]:
        pass


def kinds_of(server: RedisServer) -> dict[tuple[int, bytes], str]:
    """Return the type of each key of two databases."""
    found = {}
    for db in (0, 1):
        client = server.client(db=db)
        found.update({(db, key): client.type(key).decode() for key in client.scan_iter()})
    return found


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("seed", range(4))
def test_a_log_of_all_types_gives_the_state_that_redis_loads(
    start_redis: Start, tmp_path: Path, seed: int, preamble: str
) -> None:
    options = ("--appendonly", "yes", "--aof-use-rdb-preamble", preamble, "--appendfsync", "no")
    server = start_redis("logging", *options)
    use(server.client(), Random(seed), rewrite=seed % 2 == 1)
    server.kill()
    server.start()
    log, store = server.folder / "appendonlydir", tmp_path / "store"
    run(log, store, allow_loss=["other-types"])
    theirs = kinds_of(server)
    named = {(each.db, each.key): each for each in plan(log)}
    skipped = {
        name: each.kind.partition(" ")[0] for name, each in named.items() if not each.carried
    }
    carried = {name: each.kind for name, each in named.items() if each.carried}
    # Commands that remove elements are not counted: a named key may be empty by now.
    assert carried.items() <= theirs.items()
    assert theirs.items() <= (skipped | carried).items()
    assert {name for name in theirs if theirs[name] == "stream"} <= carried.keys()
    verified = verify(server.url, store)
    found = [each for each in verified.differences if not each.may_move]
    assert {(each.db, each.key) for each in found} <= skipped.keys(), found


# --- single commands ------------------------------------------------------------------------------


def log_of(tmp_path: Path, *lines: str) -> Path:
    """Write a log manually, with commands that no available redis-server has, or sends."""
    file = tmp_path / "made.aof"
    with file.open("wb") as out:
        for line in lines:
            words = line.encode().split()
            out.write(b"*%d\r\n" % len(words))
            out.writelines(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    return file


def skipped_of(log: Path) -> dict[bytes, str]:
    return {each.key: each.kind for each in plan(log) if not each.carried}


def carried_of(log: Path) -> set[bytes]:
    return {each.key for each in plan(log) if each.carried}


COMPUTED_LINES = (
    *("SETBIT b 7 1", "BITOP AND b2 b b", "BITFIELD f SET u8 0 7", "PFADD p a", "PFMERGE q p"),
    "PFCOUNT p",
)


def test_strings_that_cannot_be_computed_are_named_and_skipped(tmp_path: Path) -> None:
    log = log_of(tmp_path, "XADD s 1-1 f v", "SET b stale", *COMPUTED_LINES, "APPEND b x")
    assert skipped_of(log) == {
        b"b": "string (SETBIT)",
        b"b2": "string (BITOP)",
        b"f": "string (BITFIELD)",
        b"p": "string (PFCOUNT)",
        b"q": "string (PFMERGE)",
    }
    with pytest.raises(LossRefused, match=r"string \(SETBIT\) \(1 key\)"):
        run(log, tmp_path / "store")
    report = run(log, tmp_path / "store", allow_loss=["other-types"])
    assert (report.keys, report.skipped.total()) == (6, 5)
    assert carried_of(log) == {b"s"}
    chosen = run(log, tmp_path / "chosen", match=["s"])
    assert (chosen.keys, chosen.skipped.total()) == (1, 0)
    assert verify(log, tmp_path / "store").equal


@pytest.mark.parametrize(
    "line",
    [
        *("SET b v", "MSET a 1 b v", "GETSET b v", "RENAME t b", "COPY t b REPLACE", "SETEX b 9 v"),
        *("PSETEX b 900000 v", "XADD b 1-1 f v"),
    ],
)
def test_an_overwritten_string_is_migrated_again(tmp_path: Path, line: str) -> None:
    made = ["SET t v", "SETBIT b 7 1"] + (["DEL b"] if line.startswith("XADD") else [])
    log = log_of(tmp_path, *made, line)
    assert skipped_of(log) == {}
    assert b"b" in carried_of(log)


def test_skipped_keys_are_tracked_when_renamed_or_copied(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        *("RPUSH l a", "SETBIT b 7 1", "XADD s 1-1 f v", "SET plain v"),
        *("RENAME l l2", "COPY b b2", "COPY l2 s REPLACE", "RENAME plain l2", "MOVE b 1"),
        *("SWAPDB 0 1", "SELECT 1", "HSET h f v", "DEL h", "SADD set a", "UNLINK set"),
        *("BITOP AND l2 b2 b2", "ZADD z 1 a", "XADD z 1-1 f v", "XADD late 1-1 f v"),
        *("JSON.SET j $ 1", "FT.CREATE index", "PEXPIREAT j 99999999999999", "LMPOP 1 list LEFT"),
    )
    found = {(each.db, each.key): each.kind for each in plan(log)}
    assert found == {
        (0, b"b"): "string (SETBIT)",
        (1, b"b2"): "string (SETBIT)",
        (1, b"s"): "list",
        (1, b"l2"): "string (BITOP)",
        (1, b"z"): "stream",
        (1, b"late"): "stream",
        (1, b"j"): "module",
        (1, b"list"): "list",
    }
    [expires] = {each.expire_at_ms for each in plan(log) if each.key == b"j"}
    assert expires == 99999999999999


@pytest.mark.parametrize("line", ["NEWEST 7 s", "EVAL return 1 s", "EVALSHA 0123 1 s"])
def test_a_command_that_may_have_changed_a_key_refuses_only_that_key(
    tmp_path: Path, line: str
) -> None:
    log = log_of(tmp_path, "XADD s 1-1 f v", "XADD t 1-1 f v", line, "XADD s 2-1 f v")
    with pytest.raises(RequestError, match=rf"key b's' .* the log has {line.split()[0]}"):
        run(log, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    assert run(log, tmp_path / "store", match=["t"]).keys == 1
    again = log_of(tmp_path, "XADD s 1-1 f v", line, "DEL s", "XADD s 2-1 f v")
    assert carried_of(again) == {b"s"}


def test_an_unknown_command_that_names_no_key_refuses_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path, "XADD s 1-1 f v", "NEWEST a b c", "CF.ADD filter x", "FUNCTION FLUSH")
    assert run(log, tmp_path / "store", allow_loss=["other-types"]).keys == 2
    assert skipped_of(log) == {b"filter": "module"}
    source = AofSource(log)
    try:
        assert source.remarks == [
            "1 commands cf.add, which kvstream does not have",
            "1 commands newest, which kvstream does not have",
        ]
        assert {item.key for item in source.items(Selection())} == {b"s", b"filter"}
    finally:
        source.close()


def test_a_command_refused_by_the_store_refuses_its_key_with_the_reason(tmp_path: Path) -> None:
    log = log_of(tmp_path, "XADD s 5-1 f v", "XSETID s 1-1", "XADD t 1-1 f v")
    with pytest.raises(RequestError, match=r"key b's' .*XSETID of the log was refused"):
        run(log, tmp_path / "store")
    assert run(log, tmp_path / "store", match=["t"]).keys == 1


def test_keys_that_a_migration_built_under_a_temporary_name_are_tracked(tmp_path: Path) -> None:
    log = log_of(
        tmp_path, "XADD kvstream:migrate:1 1-1 f v", "RENAME kvstream:migrate:1 s", "XADD s 2-1 f v"
    )
    run(log, tmp_path / "store")
    assert verify(log, tmp_path / "store").entries == 2


# --- what groups have read ------------------------------------------------------------------------


def work(client: Any, random: Random, deletes: bool) -> None:
    """Read, claim and acknowledge as consumers do."""
    client.xgroup_create("s", "all", "0", mkstream=True)
    client.xgroup_create("s", "new", "$")
    for step in range(400):
        group, consumer = random.choice(["all", "new"]), random.choice("abc")
        some = [f"{random.randrange(1, step + 2)}-0" for _ in range(3)]
        kind = random.random()
        if kind < 0.4:
            client.xadd("s", {"n": step}, f"{step + 1}-0")
        elif kind < 0.75:
            noack = random.random() < 0.2
            client.xreadgroup(group, consumer, {"s": ">"}, random.choice([1, 3, 9]), noack=noack)
        elif kind < 0.85:
            client.xack("s", group, *some)
        elif kind < 0.9:
            client.xautoclaim("s", group, consumer, 0, count=3)
        elif kind < 0.94 and deletes:
            client.xdel("s", *some)
        elif kind < 0.96 and deletes:
            client.xtrim("s", maxlen=30)
        elif kind > 0.99:
            client.execute_command("XGROUP", "SETID", "s", group, some[0])


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("rewrite", [False, True])
@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_groups_have_the_entries_read_of_a_redis_that_loads_the_same_log(
    start_redis: Start, tmp_path: Path, preamble: str, rewrite: bool, deletes: bool
) -> None:
    options = ("--appendonly", "yes", "--aof-use-rdb-preamble", preamble, "--appendfsync", "no")
    server = start_redis("logging", *options)
    random = Random(f"{preamble} {rewrite} {deletes}")
    work(server.client(), random, deletes)
    if rewrite:
        rewritten(server.client())
        for group in ("all", "new"):
            server.client().xreadgroup(group, "late", {"s": ">"}, 2)
    server.kill()
    server.start()
    run(server.folder / "appendonlydir", tmp_path / "store")
    theirs = {group["name"]: group for group in server.client().xinfo_groups("s")}
    with Store.open(tmp_path / "store", read_only=True) as store:
        for name, group in theirs.items():
            ours = store.stream("s").group(name).info()
            assert ours.entries_read == group["entries-read"]
            assert str(ours.last_delivered_id) == group["last-delivered-id"].decode()
            if not deletes:  # Redis 7.0 has other rules for the lag after deleted entries
                assert ours.lag == group["lag"]
