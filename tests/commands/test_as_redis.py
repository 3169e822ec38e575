"""The same faulty requests, and unusual but valid ones, also sent to redis-server 7.0.15.

Requests that only newer versions know, or answer with another text, are left out.
"""

import hiredis

from kvstream.commands.replies import RESP2
from tests.commands.conftest import words
from tests.commands.dispatcher import Dispatcher
from tests.commands.test_errors import APPENDING, CLAIMING, DELETING, GROUPS, READING, SETTING
from tests.commands.wire import wire
from tests.operations.implementations import RedisServer
from tests.operations.replies import Error, Reply

PREPARATION = [
    "FLUSHALL",
    "CONFIG SET stream-node-max-entries 100 stream-node-max-bytes 4096",
    "XADD s 1-0 f v",
    "XADD s 2-0 f v g w",
    "XADD s 3-0 f v f w",
    "XADD s 3-5 f v",
    "XGROUP CREATE s g 0",
    "XADD dead 5-0 f v",
    "XDEL dead 5-0",
    "XADD t 7-0 a b",
    "XGROUP CREATE t g 0",
]
NEWER = (
    *("IDMP", "DELREF", "ACKED", "KEEPREF", "MAXCOUNT", "MAXSIZE", "CLAIM ", "XACKDEL", "XDELEX"),
    *("XNACK", "XCFGSET", "XIDMP", "STREAMS s +", "XSETID dead", "XADD s 1-* f v"),
    "BLOCK 9223372036854775807",
)
"""Words that 7.0 does not know, or refuses in another way."""
ODD = [
    "XADD s +4 f v",
    "XADD s 004-007 f v",
    "XADD s 4-* f v",
    "XADD s maxlen ~ 1 limit 0 nomkstream * f",
    "XADD nokey NOMKSTREAM 1 f v",
    "XADD nokey NOMKSTREAM 0-0 f v",
    "XTRIM s MAXLEN = 4",
    "XTRIM s minid 0",
    "XTRIM nokey MAXLEN 0",
    "XRANGE s - + COUNT 0",
    "XRANGE s - + COUNT -7",
    "XRANGE s - + COUNT 2 COUNT 1",
    "XRANGE s - + COUNT 9223372036854775807",
    "XRANGE s + -",
    "XRANGE s (2 (3-5",
    "XRANGE s +2 03-00",
    "XREVRANGE s + - COUNT 2",
    "XREVRANGE s 3 2",
    "XREVRANGE nokey + - COUNT 0",
    "XLEN s",
    "XREAD COUNT 0 STREAMS s t 0 0",
    "XREAD COUNT -1 STREAMS s 2",
    "XREAD COUNT 9223372036854775807 STREAMS s 2",
    "XREAD BLOCK 1 COUNT 1 COUNT 2 STREAMS s 0",
    "XREAD STREAMS s s 2 3",
    "XREAD STREAMS s nokey $ 0",
    "XREAD streams STREAMS 0",
    "XREADGROUP GROUP g c GROUP g d COUNT 1 STREAMS s >",
    "XREADGROUP NOACK COUNT 1 GROUP g c STREAMS s >",
    "XREADGROUP GROUP g c BLOCK 1 STREAMS s t 0 0",
    "XREADGROUP GROUP g c STREAMS t 18446744073709551615-18446744073709551615",
    "XREADGROUP GROUP g c STREAMS t 18446744073709551615-18446744073709551614",
    "XPENDING s g 8 + 9223372036854775807",
    "XPENDING s g - + -1",
    "XPENDING s g - + 10 c x y",
    "XPENDING s g idle 0 (1 + 10 nobody",
    "XCLAIM s g c -5 1 2",
    "XCLAIM s g c 0 1 2 FORCE FORCE JUSTID RETRYCOUNT -4 TIME -1 IDLE -1",
    "XAUTOCLAIM s g c -1 - COUNT 1 COUNT 2",
    "XAUTOCLAIM s g c 0 (1 JUSTID JUSTID",
    "XACK s g 1 1 9",
    "XDEL s 1 1 9",
    "XGROUP CREATE s h $ MKSTREAM MKSTREAM",
    "XGROUP CREATE s i 2 ENTRIESREAD 1 MKSTREAM",
    "XGROUP CREATE made g $ MKSTREAM",
    "XGROUP SETID s g -",
    "XGROUP SETID s g + ENTRIESREAD 2",
    "XGROUP SETID s g $",
    "XGROUP CREATECONSUMER s g z",
    "XGROUP CREATECONSUMER s g z",
    "XGROUP DELCONSUMER s g z",
    "XGROUP DESTROY s h",
    "XGROUP FOO",
    "XGROUP HELP x",
    "XINFO FOO s",
    "XINFO CONSUMERS s",
    "XINFO GROUPS s g",
    "XSETID s 9",
    "XSETID s 9 ENTRIESADDED 7 MAXDELETEDID 5 ENTRIESADDED 8",
    "XSETID dead 9-0 MAXDELETEDID 0-0",
    "FOO a b c",
    "EXPIRE s x FOO",
    "EXPIRE s 10 NX XX",
    "PEXPIRE s 9223372036854775807",
    "PEXPIREAT s 9223372036854775807",
    "PEXPIRETIME s",
    "EXPIRETIME s",
    "PERSIST s",
    "TTL s",
    "PTTL nokey",
    "SCAN x",
    "SCAN 0 COUNT 0",
    "SCAN 0 TYPE string MATCH *",
    "SELECT 99999999999",
    "SELECT -1",
    "RENAME nokey nokey",
    "RENAMENX s s",
    "EXISTS s s nokey",
    "TYPE s",
    "TYPE nokey",
    "PING",
    "PING a b",
    "ECHO a",
    "FLUSHALL FOO",
    "DEL s nokey",
    "DBSIZE",
]
FAULTY = [line for line, _ in (*APPENDING, *DELETING, *READING, *GROUPS, *CLAIMING, *SETTING)]
LINES = [line for line in (*FAULTY, *ODD) if not any(word in line for word in NEWER)]


def as_told(reply: Reply) -> Reply:
    """Return a reply of hiredis in which errors compare by their text."""
    return Error(str(reply).encode()) if isinstance(reply, hiredis.ReplyError) else reply


def ours(dispatcher: Dispatcher, line: str) -> Reply:
    reader = hiredis.Reader()
    reader.feed(wire(dispatcher.execute(words(line)), RESP2))
    return as_told(reader.gets())


def test_redis_returns_the_same_reply(dispatcher: Dispatcher, redis_server: RedisServer) -> None:
    for line in PREPARATION:
        assert ours(dispatcher, line) == redis_server(*line.split()), line
    for line in LINES:
        assert ours(dispatcher, line) == redis_server(*line.split()), line
    assert len(LINES) > 200
