"""redis-cli prints the same on kvstream as on redis-server; its modes work."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import redis

from tests.clients.debian import require, run
from tests.server.talking import request

LINES = """
PING
XADD s 1-1 sku a1 qty 2
XADD s 1-2 text "two words" line "a\\nb" bytes "\\xff"
XRANGE s - +
XREAD COUNT 1 STREAMS s none 0 0
XREAD BLOCK 5 STREAMS s $
XGROUP CREATE s g 0
XREADGROUP GROUP g c COUNT 1 STREAMS s >
XPENDING s g
XACK s g 1-1
XLEN s
XADD s 1-1 f v
XADD s
SET k v EX 100 NX
GET k
GET s
MGET k none
TYPE s
EXISTS s none
INCR n
NOSUCH x
MULTI
INCR n
XLEN s
GET none
EXEC
SELECT 1
DBSIZE
SELECT 0
CLIENT GETNAME
""".lstrip()
MANY = 20_000


@pytest.mark.parametrize("mode", ["-2", "-3"])
@pytest.mark.parametrize("form", ["--no-raw", "--raw", "--csv", "--json"])
def test_a_session_prints_the_same_as_with_redis(
    port: int, redis_port: int, mode: str, form: str
) -> None:
    ours, theirs = (
        run("redis-cli", each, mode, form, input=LINES.encode()) for each in (port, redis_port)
    )
    assert ours == theirs
    assert ours.count(b"\n") >= LINES.count("\n")


def test_very_many_requests_may_come_through_a_pipe(port: int) -> None:
    data = b"".join(request("XADD", "s", f"{n}-1", "n", str(n)) for n in range(1, MANY + 1))
    reply = run("redis-cli", port, "--pipe", input=data)
    assert reply.endswith(b"errors: 0, replies: %d\n" % MANY)
    with closing(redis.Redis(port=port)) as client:
        assert client.xlen("s") == MANY


def test_a_pipe_counts_the_errors(port: int) -> None:
    data = request("SET", "k", "v") + request("XADD", "k", "*", "f", "v") + b"GET k\r\n"
    process = subprocess.run(
        [require("redis-cli"), "-p", str(port), "--pipe"], input=data, capture_output=True
    )
    assert process.stdout.endswith(b"errors: 1, replies: 3\n")
    assert b"WRONGTYPE" in process.stderr


def test_keys_are_scanned(port: int) -> None:
    with closing(redis.Redis(port=port)) as client:
        for number in range(100):
            client.set(f"key:{number}", number)
    found = run("redis-cli", port, "--scan", "--pattern", "key:1*").split()
    assert sorted(found) == sorted(f"key:{n}".encode() for n in range(100) if str(n)[0] == "1")


def test_a_value_may_come_from_stdin(port: int) -> None:
    run("redis-cli", port, "-x", "SET", "k", input=b"\x00\xff raw\r\n")
    assert run("redis-cli", port, "--raw", "GET", "k") == b"\x00\xff raw\r\n\n"


@contextmanager
def running(port: int, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a mode of redis-cli that only ends when killed."""
    process = subprocess.Popen(
        # Its output is buffered if it is no terminal.
        ["stdbuf", "-oL", require("redis-cli"), "-p", str(port), *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_monitor_shows_the_requests_of_others(port: int) -> None:
    with running(port, "MONITOR") as process, closing(redis.Redis(port=port)) as client:
        assert process.stdout is not None
        assert process.stdout.readline() == "OK\n"
        client.xadd("s", {"two words": b"\xff\n"}, id="1-1")
        line = next(line for line in process.stdout if "XADD" in line)
    assert re.fullmatch(
        r'\d+\.\d{6} \[0 127\.0\.0\.1:\d+\] "XADD" "s" "1-1" "two words" "\\xff\\n"\n', line
    )


def test_stat_shows_a_frame(port: int) -> None:
    with closing(redis.Redis(port=port)) as client:
        client.set("k", "v")
    with running(port, "--stat", "-i", "0.01") as process:
        assert process.stdout is not None
        heads = [process.stdout.readline() for _ in range(2)]
        frame = process.stdout.readline().split()
    assert "keys" in heads[1]
    assert "requests" in heads[1]
    assert int(frame[0]) == 1
    assert frame[2:4] == ["1", "0"]  # clients, blocked


def test_big_keys_are_found(port: int) -> None:
    with closing(redis.Redis(port=port)) as client:
        for number in range(30):
            client.xadd("large", {"n": number})
        client.set("text", "x" * 1000)
    reply = run("redis-cli", port, "--bigkeys").decode()
    assert re.search(r"Biggest +stream found .*large.* has 30 entries", reply)
    assert re.search(r"Biggest +string found .*text.* has 1000 bytes", reply)
