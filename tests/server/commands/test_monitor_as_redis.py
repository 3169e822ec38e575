"""MONITOR shows the requests that redis-server shows, also those that fail when they run."""

import re
import shlex
from collections.abc import Iterator

from tests.server.asking import Asker
from tests.server.conftest import Served

REQUESTS = r"""
PING
GET a
SET t x
INCR t
INCRBY t 5
APPEND t y
XADD s 5-0 a 1
XADD s 1-0 a 2
XADD t * a 1
XADD s bad a 1
XADD s * a
XACK t g 1
XACK s g bad
XLEN t
GET
NOSUCH x
XNOSUCH
CONFIG GET port
CONFIG SET maxmemory 0
CONFIG NOSUCH
CLIENT ID
CLIENT SETNAME x
CLIENT LIST
CLIENT INFO
CLIENT NOSUCH
CLIENT SETINFO lib-name x
ACL WHOAMI
ACL SETUSER bob >pw
AUTH x
AUTH bob wrong
HELLO 2 AUTH default wrong
HELLO 9
HELLO 3
HELLO 2 SETNAME me
HELLO 2 AUTH bob hidden SETNAME me
ECHO hi
SELECT 99
SELECT 1
SELECT 0
EVAL return+1 0
EVAL return 0
EVAL "return 1" abc
EVAL "return 1" 5
EVAL "return 1" -1
EVAL "return redis.call('get','k')" 0
EVAL "return redis.call('incr','t')" 0
EVAL "return redis.pcall('nosuch','t')" 0
EVAL "return redis.call('get')" 0
EVAL "error('x')" 0
EVAL "#!lua flags=bad\\nreturn 1" 0
EVALSHA abc 0
EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
EVALSHA ffffffffffffffffffffffffffffffffffffffff x
EVAL_RO "return redis.call('set','k','v')" 0
EVALSHA_RO abc 0
SCRIPT EXISTS abc
SCRIPT LOAD bad(
SCRIPT LOAD "return 1"
SCRIPT FLUSH
SCRIPT KILL
FUNCTION LIST
FUNCTION LOAD bad
FUNCTION KILL
FCALL nosuch 0
FCALL nosuch x
FCALL_RO nosuch 0
MULTI
SET q 1
INCR t
EXEC
MULTI
NOSUCH
EXEC
EXEC
DISCARD
MULTI
MULTI
DISCARD
WATCH t
MULTI
SET t 1
EXEC
MULTI
EVAL "return redis.call('get','k')" 0
EVALSHA abc 0
EXEC
UNWATCH
WATCH
XREAD BLOCK 1 STREAMS s $
XREAD COUNT 1 STREAMS t 0
XREAD STREAMS s
XREADGROUP GROUP g c STREAMS s >
XGROUP CREATE s g $
XGROUP CREATE s g $
XGROUP CREATE t g $
XREADGROUP GROUP g c BLOCK 1 STREAMS s >
XINFO STREAM nosuch
XINFO STREAM t
XINFO NOSUCH
XRANGE s bad +
XRANGE t - +
XDEL t 1
XTRIM t MAXLEN 1
XPENDING s nog
XCLAIM s nog c 0 1-1
XAUTOCLAIM s nog c 0 0
COPY a b
RENAME nosuch b
OBJECT ENCODING nosuch
OBJECT NOSUCH
RESTORE k 0 bad
DUMP t
EXPIRE t abc
TTL t
DEBUG SLEEP 0
SLOWLOG GET
SLOWLOG NOSUCH
LATENCY LATEST
MEMORY USAGE t
MEMORY DOCTOR
INFO server
COMMAND COUNT
COMMAND INFO get
COMMAND NOSUCH
SUBSCRIBE ch
PSUBSCRIBE ch*
PING
UNSUBSCRIBE
PUNSUBSCRIBE
PUBLISH ch m
SPUBLISH ch m
PUBSUB CHANNELS
PUBSUB NOSUCH
KEYS *
DBSIZE
SCAN abc
SCAN 0
FLUSHDB BAD
WAIT 0 0
RESET
FLUSHALL
TIME
LOLWUT
ROLE
MODULE LIST
SWAPDB 0 99
MOVE t 99
OBJECT FREQ t
WAITAOF 1 0 0
SET k v EX bad
SETRANGE t -1 x
GETRANGE t a b
MSET a
GETDEL nosuch
GETEX t BAD
"""
"""One request a line. Refused ones are not shown; those that fail when they run are."""
SOURCE = re.compile(r"\[(\d+) (lua)?[^\]]*\]")


def requests() -> Iterator[list[str]]:
    for line in REQUESTS.strip().splitlines():
        yield [word.replace("\\n", "\n") for word in shlex.split(line)]


def lines_shown(port: int) -> list[tuple[list[str], list[str]]]:
    """Return each request with the lines that MONITOR shows of it, without times and addresses."""
    with Asker(port) as asker, Asker(port) as monitor, Asker(port) as marker:
        asker.ask("ACL SETUSER bob on >hidden +@all ~* &*")
        monitor.ask("MONITOR")
        shown: list[tuple[list[str], list[str]]] = []
        for number, words in enumerate(requests()):
            asker.ask(*words)
            marker.ask("ECHO", f"mark {number}")
            lines: list[str] = []
            while f"mark {number}" not in (line := monitor.read().decode()):
                lines.append(SOURCE.sub(r"[\1 \2]", line.partition(" ")[2]))
            shown.append((words, lines))
        return shown


def test_every_request_that_runs_is_shown(served: Served, redis82_port: int) -> None:
    ours, theirs = lines_shown(served.port), lines_shown(redis82_port)
    assert sum(bool(lines) for _, lines in theirs) > 80
    for (words, mine), (_, lines) in zip(ours, theirs, strict=True):
        assert mine == lines, words


def test_requests_are_shown_before_the_calls_of_their_scripts(served: Served) -> None:
    with served.asker() as asker, served.asker() as monitor:
        monitor.ask("MONITOR")
        asker.ask("EVAL", "return redis.call('nosuch')", "0")
        asker.ask("EVAL", "redis.call('SET', 'k', 'v') return redis.call('INCR', 'k')", "0")
        asker.ask("EVALSHA", "f" * 40, "0")
        asker.ask("PING")
        words = [re.findall('"[^"]*"', monitor.read().decode())[0] for _ in range(6)]
        assert words == ['"EVAL"', '"EVAL"', '"SET"', '"INCR"', '"EVALSHA"', '"PING"']
