"""Each command beside redis-server: one by one (-P 1), and sixteen at once (-P 16).

redis-benchmark sends the requests. Where they must differ from each other (IDs in sequence, a
transaction), ``load`` sends them. After a round a reply, or the state of the stream, is checked.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis import Redis

from bench.load import (
    CONSUMER,
    ENTRY,
    GROUP,
    Script,
    WrongReply,
    ask_in_batches,
    bulk_string,
    dealt,
    deliver,
    entry_id,
    entry_reply,
    fill_numbered,
    run_scripts,
)
from bench.processes import CLIENTS, framed, port_of
from bench.server import KEY, STORED, Check, Load, ServerRow, benchmark, fill
from bench.workload import Sizes

RANDOM = "__rand_int__"
"""redis-benchmark replaces it by 12 digits of a number below the value of -r."""
STREAMS = 10_000
PAGE = 100
KILOBYTE = "x" * 1000
LARGE = "x" * 100_000
PIPELINED = 16
COUNTERS = 10
RELEASE = """
if redis.call('get', KEYS[1]) == ARGV[1] then
    return redis.call('del', KEYS[1])
else
    return 0
end
"""
"""A lock is released by its owner alone, as redis-py's is."""
THREE_CALLS = """
redis.call('set', KEYS[1], ARGV[1])
redis.call('incr', KEYS[2])
return redis.call('get', KEYS[1])
"""
OVERSHOT = 2_000
"""Requests that redis-benchmark may send above the given number."""
SINGLE_TARGET = 0.6
"""The ratio that is promised to one client alone."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its words for redis-benchmark, or its requests."""

    name: str
    title: str
    targets: tuple[float, float]
    """The promised ratio at -P 1 and at -P 16; 0: none."""
    words: tuple[str, ...] = ()
    requests: Callable[[int], tuple[list[bytes], list[bytes]]] | None = None
    """Returns a number of requests and their replies, if redis-benchmark cannot make them."""
    prepare: Check = lambda client, count: None
    check: Check | None = None
    """Raises WrongReply; without it ``holds`` looks at one reply."""
    holds: Callable[[Any], bool] = bool
    keyspace: int = 0
    """The numbers among which redis-benchmark chooses; 0: as many as there are requests."""
    divisor: int = 1
    """By how much fewer requests there are than of a small command."""


def _keys(client: Redis, count: int) -> None:
    """Set a key for each number below the number of requests."""
    keys = [f"key:{number:012d}" for number in range(count)]
    ask_in_batches(port_of(client), [framed("SET", key, "1000000") for key in keys])


def _stored(client: Redis, count: int) -> None:
    fill(client, STORED)


def _pending(client: Redis, count: int) -> None:
    fill(client, STORED)
    deliver(port_of(client), KEY, STORED)


def _streams(client: Redis, count: int) -> None:
    keys = [f"{KEY}:{number:012d}" for number in range(STREAMS)]
    ask_in_batches(port_of(client), [framed("XADD", key, "*", *ENTRY) for key in keys])


def _large_entries(client: Redis, count: int) -> None:
    adds = [framed("XADD", KEY, "*", "payload", KILOBYTE)] * (10 * PAGE)
    ask_in_batches(port_of(client), adds)


def _unread(client: Redis, count: int) -> None:
    fill(client, count + OVERSHOT)
    client.xgroup_create(KEY, GROUP, id="0")


def _scripts(client: Redis, count: int) -> None:
    """Load the scripts, and take a lock that another client wants to release."""
    for script in (RELEASE, THREE_CALLS):
        client.script_load(script)
    client.set(KEY, "token")


def sha1_of(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _numbered(client: Redis, count: int) -> None:
    fill_numbered(port_of(client), KEY, count)


def deliver_all(client: Redis, count: int) -> None:
    """Fill a stream, and deliver all its entries to a consumer."""
    fill_numbered(port_of(client), KEY, count)
    deliver(port_of(client), KEY, count)


def _expect(what: str, found: int, holds: bool) -> None:
    """Raise WrongReply with the number that was found, unless it is right."""
    if not holds:
        raise WrongReply(f"{what}: {found:,}")


def _pending_count(client: Any, consumer: str | None = None) -> int:
    """Return the pending entries of the group, or of one consumer."""
    if consumer is None:
        return int(client.xpending(KEY, GROUP)["pending"])
    held = {each["name"].decode(): each["pending"] for each in client.xinfo_consumers(KEY, GROUP)}
    return int(held.get(consumer, 0))


def _check_delivered(client: Redis, count: int) -> None:
    found = _pending_count(client)
    _expect("entries delivered", found, found >= count)


def _check_read(client: Any, count: int) -> None:
    found = client.xinfo_groups(KEY)[0]["entries-read"] or 0
    _expect("entries read", found, found >= count)


def check_acked(client: Redis, count: int) -> None:
    """Raise WrongReply if an entry is still pending."""
    found = _pending_count(client)
    _expect("entries not acknowledged", found, found == 0)


def _check_deleted(client: Any, count: int) -> None:
    found = client.xlen(KEY)
    _expect("entries not deleted", found, found == 0)


def _check_claimed(client: Redis, count: int) -> None:
    found = _pending_count(client, "worker-2")
    _expect("entries claimed", found, found == count)


def _check_added(client: Any, count: int) -> None:
    found = client.xlen(KEY)
    _expect("entries added", found, found >= count)


def _check_streams(client: Any, count: int) -> None:
    found = sum(client.xlen(key) for key in client.scan_iter(count=STREAMS))
    _expect("entries in all streams", found, found >= STREAMS + count)


def _check_counters(client: Any, count: int) -> None:
    found = sum(map(int, client.mget(list(client.scan_iter(count=1000)))))
    _expect("the sum of all counters", found, found == COUNTERS * count)


def _acks(count: int) -> tuple[list[bytes], list[bytes]]:
    return [framed("XACK", KEY, GROUP, entry_id(n)) for n in range(count)], [b":1\r\n"] * count


def _deletions(count: int) -> tuple[list[bytes], list[bytes]]:
    return [framed("XDEL", KEY, entry_id(n)) for n in range(count)], [b":1\r\n"] * count


def _claims(count: int) -> tuple[list[bytes], list[bytes]]:
    numbers = range(count)
    requests = [framed("XCLAIM", KEY, GROUP, "worker-2", 0, entry_id(n)) for n in numbers]
    return requests, [b"*1\r\n" + entry_reply(n) for n in numbers]


def _lookups(count: int) -> tuple[list[bytes], list[bytes]]:
    numbers = range(count)
    requests = [framed("XRANGE", KEY, entry_id(n), entry_id(n)) for n in numbers]
    return requests, [b"*1\r\n" + entry_reply(n) for n in numbers]


def _transactions(count: int) -> tuple[list[bytes], list[bytes]]:
    """Return transactions of 10 INCR, each on counters of its own."""
    requests, replies = [], []
    for number in range(count):
        counters = [("INCR", f"counter:{number}:{which}") for which in range(COUNTERS)]
        calls = (("MULTI",), *counters, ("EXEC",))
        requests.append(b"".join(framed(*call) for call in calls))
        replies.append(b"+OK\r\n" + b"+QUEUED\r\n" * COUNTERS + b"*10\r\n" + b":1\r\n" * COUNTERS)
    return requests, replies


_GROUP_READ = ("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", "1", "STREAMS", KEY, ">")
_ADD = ("XADD", KEY, "*", *ENTRY)
_TEN_PAIRS = tuple(word for _ in range(10) for word in (f"key:{RANDOM}", "1000000"))
_ANY_OF_STORED = STORED - 2 * PAGE

PING = Command("ping", "PING", (0.8, 0.4), ("PING",))
SET = Command("set", "SET", (0.8, 0.4), ("SET", f"key:{RANDOM}", "1000000"))
XADD = Command("xadd", "XADD", (0.8, 0), _ADD, check=_check_added)
XREADGROUP = Command(
    "xreadgroup",
    "XREADGROUP COUNT 1",
    (0.6, 0.3),
    _GROUP_READ,
    prepare=_unread,
    check=_check_delivered,
)

COMMANDS = (
    PING,
    Command("get", "GET", (0.8, 0.4), ("GET", f"key:{RANDOM}"), prepare=_keys),
    SET,
    Command("incr", "INCR", (0.8, 0.4), ("INCR", f"key:{RANDOM}"), prepare=_keys),
    Command(
        "mget",
        "MGET of 10",
        (0.4, 0),
        ("MGET", *[f"key:{RANDOM}"] * 10),
        prepare=_keys,
        holds=lambda reply: len(reply) == 10 and None not in reply,
        divisor=2,
    ),
    Command("mset", "MSET of 10", (0.4, 0), ("MSET", *_TEN_PAIRS), divisor=2),
    Command(
        "xlen",
        "XLEN",
        (0.8, 0),
        ("XLEN", KEY),
        prepare=_stored,
        holds=lambda reply: reply == STORED,
    ),
    Command(
        "xadd-option",
        "XADD NOMKSTREAM",
        (0, 0),
        ("XADD", KEY, "NOMKSTREAM", "*", *ENTRY),
        prepare=lambda client, count: fill(client, 1),
        check=_check_added,
    ),
    Command(
        "xadd-streams",
        f"XADD over {STREAMS:,} streams",
        (0.8, 0),
        ("XADD", f"{KEY}:{RANDOM}", "*", *ENTRY),
        prepare=_streams,
        check=_check_streams,
        keyspace=STREAMS,
    ),
    Command(
        "xadd-1kb",
        "XADD of 1 kB",
        (0.8, 0),
        ("XADD", KEY, "*", "payload", KILOBYTE),
        check=_check_added,
    ),
    Command(
        "xadd-100kb",
        "XADD of 100 kB",
        (0.8, 0),
        ("XADD", KEY, "*", "payload", LARGE),
        check=_check_added,
        divisor=30,
    ),
    Command(
        "xrange",
        "XRANGE COUNT 1",
        (0.6, 0.3),
        ("XRANGE", KEY, RANDOM, "+", "COUNT", "1"),
        prepare=_stored,
        holds=lambda reply: len(reply) == 1,
        keyspace=_ANY_OF_STORED,
    ),
    Command(
        "xrange-id",
        "XRANGE of one ID",
        (0, 0),
        ("XRANGE", KEY, entry_id(0), entry_id(0)),
        requests=_lookups,
        prepare=_numbered,
        holds=lambda reply: len(reply) == 1,
    ),
    Command(
        "xrevrange",
        f"XREVRANGE of {PAGE} of 1 kB",
        (0.4, 0),
        ("XREVRANGE", KEY, "+", "-", "COUNT", str(PAGE)),
        prepare=_large_entries,
        holds=lambda reply: len(reply) == PAGE,
        divisor=20,
    ),
    Command(
        "xread",
        "XREAD COUNT 1",
        (0.6, 0.3),
        ("XREAD", "COUNT", "1", "STREAMS", KEY, RANDOM),
        prepare=_stored,
        holds=lambda reply: len(reply[0][1]) == 1,
        keyspace=_ANY_OF_STORED,
    ),
    Command(
        "xread-block",
        "XREAD COUNT 1 BLOCK",
        (0, 0),
        ("XREAD", "COUNT", "1", "BLOCK", "1000", "STREAMS", KEY, RANDOM),
        prepare=_stored,
        holds=lambda reply: len(reply[0][1]) == 1,
        keyspace=_ANY_OF_STORED,
    ),
    XREADGROUP,
    Command(
        "xreadgroup-noack",
        "XREADGROUP COUNT 1 NOACK",
        (0, 0),
        (*_GROUP_READ[:6], "NOACK", *_GROUP_READ[6:]),
        prepare=_unread,
        check=_check_read,
    ),
    Command(
        "xreadgroup-history",
        "XREADGROUP of 10 pending",
        (0, 0),
        (*_GROUP_READ[:5], "10", *_GROUP_READ[6:8], "0"),
        prepare=_pending,
        holds=lambda reply: len(reply[0][1]) == 10,
        divisor=3,
    ),
    Command(
        "xack",
        "XACK of 1",
        (0.8, 0.4),
        requests=_acks,
        prepare=deliver_all,
        check=check_acked,
    ),
    Command(
        "xdel",
        "XDEL of 1",
        (0.6, 0.3),
        requests=_deletions,
        prepare=_numbered,
        check=_check_deleted,
    ),
    Command(
        "xclaim",
        "XCLAIM of 1",
        (0.6, 0.3),
        requests=_claims,
        prepare=deliver_all,
        check=_check_claimed,
    ),
    Command(
        "xautoclaim",
        "XAUTOCLAIM COUNT 10",
        (0.4, 0.3),
        ("XAUTOCLAIM", KEY, GROUP, "worker-2", "0", RANDOM, "COUNT", "10"),
        prepare=_pending,
        holds=lambda reply: len(reply[1]) == 10,
        keyspace=_ANY_OF_STORED,
        divisor=3,
    ),
    Command(
        "xpending",
        "XPENDING summary",
        (0.4, 0.3),
        ("XPENDING", KEY, GROUP),
        prepare=_pending,
        holds=lambda reply: reply["pending"] == STORED,
    ),
    Command(
        "xinfo-stream",
        "XINFO STREAM",
        (0.4, 0.3),
        ("XINFO STREAM", KEY),
        prepare=_pending,
        holds=lambda reply: reply["length"] == STORED,
        divisor=2,
    ),
    Command(
        "xinfo-groups",
        "XINFO GROUPS",
        (0.4, 0.3),
        ("XINFO GROUPS", KEY),
        prepare=_pending,
        holds=lambda reply: reply[0]["pending"] == STORED,
        divisor=2,
    ),
    Command(
        "evalsha-release",
        "EVALSHA that releases a lock",
        (0.5, 0.5),
        ("EVALSHA", sha1_of(RELEASE), "1", KEY, "other"),
        prepare=_scripts,
        holds=lambda reply: reply == 0,
    ),
    Command(
        "evalsha-three",
        "EVALSHA of three calls",
        (0.5, 0.5),
        ("EVALSHA", sha1_of(THREE_CALLS), "2", f"{KEY}:1", f"{KEY}:2", "value"),
        prepare=_scripts,
        holds=lambda reply: reply == b"value",
        divisor=2,
    ),
    Command(
        "multi",
        f"MULTI of {COUNTERS} INCR",
        (0.4, 0.3),
        requests=_transactions,
        check=_check_counters,
        divisor=5,
    ),
)


def _load(command: Command, clients: int, pipeline: int) -> Load:
    """Return the load of a command by redis-benchmark, or by scripts."""
    make = command.requests
    if make is not None:

        def scripted(client: Redis, count: int) -> float:
            requests, replies = make(count)
            return run_scripts(port_of(client), dealt(requests, replies, clients, pipeline))

        return scripted

    def load(client: Redis, count: int) -> float:
        words = [part for word in command.words for part in _parts(word)]
        options = ("-r", str(command.keyspace or count))
        return benchmark(pipeline, *options, *words, clients=clients)(client, count)

    return load


def _parts(word: str) -> Sequence[str]:
    """Split the name of a subcommand, which redis-py wants as one word."""
    return word.split(" ") if word.startswith("XINFO ") else (word,)


def _check(command: Command) -> Check:
    """Return the check of a round."""
    if command.check is not None:
        return command.check

    def check(client: Any, count: int) -> None:
        words = (word.replace(RANDOM, f"{1:012d}") for word in command.words)
        reply = client.execute_command(*words)
        if not command.holds(reply):
            raise WrongReply(f"{reply!r} to {command.title}")

    return check


def _row(command: Command, clients: int, pipeline: int, target: float) -> ServerRow:
    """Return the row of a command with a number of clients."""

    def count(sizes: Sizes) -> int:
        requests = sizes.requests if pipeline == 1 else 3 * sizes.requests
        return max(requests // command.divisor, 2 * pipeline)

    one = "1 client" if clients == 1 else f"{clients:,} clients"
    few = clients == CLIENTS
    return ServerRow(
        f"{command.name}-p{pipeline}" if few else f"{command.name}-c{clients}",
        f"{command.title}, -P {pipeline}" if few else f"{command.title}, {one}",
        target,
        "everysec",
        count,
        _load(command, clients, pipeline),
        command.prepare,
        _check(command),
        lambda sizes: sizes.command_rounds,
    )


def command_rows(names: Sequence[str] = (), clients: Sequence[int] = ()) -> list[ServerRow]:
    """Return the rows of all commands, or of those named.

    With ``clients`` each command has a row for each of these numbers, in place of its own rows.
    """
    chosen = [command for command in COMMANDS if not names or command.name in names]
    few = [replace(each, divisor=3) for each in (PING, SET, XADD, XREADGROUP)]
    few = [command for command in few if not names or command.name in names]
    if clients:
        by_name = {command.name: command for command in (*few, *chosen)}
        return [_sent_by(each, number) for each in by_name.values() for number in clients]
    rows = [
        _row(command, CLIENTS, pipeline, target)
        for command in chosen
        for pipeline, target in zip((1, PIPELINED), command.targets, strict=True)
    ]
    return rows + [_sent_by(command, number) for command in few for number in (1, 1000)]


def _sent_by(command: Command, clients: int) -> ServerRow:
    """Return the row of a command that some clients send one by one."""
    target = {1: SINGLE_TARGET, CLIENTS: command.targets[0]}.get(clients, 0)
    return _row(command, clients, 1, target)


TURNS = 10
"""Commands that a client sends by turns."""


def _turn(client: int, number: int) -> list[tuple[bytes, bytes | None]]:
    """Return one turn of a client: its requests, and the replies that are known beforehand."""
    key, log, counter, string = (f"{name}:{client}" for name in ("queue", "log", "n", "k"))
    entry, entry_text = entry_id(number), entry_reply(number)
    one = b"*1\r\n*2\r\n" + bulk_string(key) + b"*1\r\n" + entry_text
    read = ("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", 1, "STREAMS", key, ">")
    exchanged: list[tuple[tuple[object, ...], bytes | None]] = [
        (("PING",), b"+PONG\r\n"),
        (("SET", string, number), b"+OK\r\n"),
        (("XADD", log, "*", *ENTRY), None),
        (("GET", string), bulk_string(str(number))),
        (read, one),
        (("INCR", counter), b":%d\r\n" % (number + 1)),
        (("XRANGE", key, entry, "+", "COUNT", 1), b"*1\r\n" + entry_text),
        (("XACK", key, GROUP, entry), b":1\r\n"),
        (("XREAD", "COUNT", 1, "STREAMS", key, entry_id(number - 1)), one),
        (("XLEN", log), b":%d\r\n" % (number + 1)),
    ]
    return [(framed(*words), reply) for words, reply in exchanged]


def _by_turns(client: int, count: int) -> list[tuple[bytes, bytes | None]]:
    """Return the requests of one client, which begins at a place of its own in its first turn."""
    skipped = client % TURNS
    turns = [_turn(client, number) for number in range(_turns(count) + 1)]
    return [each for turn in turns for each in turn][skipped : skipped + TURNS * _turns(count)]


def _turns(count: int) -> int:
    """Return the turns of one client."""
    return max(count // CLIENTS // TURNS, 2)


def _prepare_turns(client: Redis, count: int) -> None:
    """Fill the streams, and send what the clients skip."""
    port = port_of(client)
    for number in range(CLIENTS):
        fill_numbered(port, f"queue:{number}", _turns(count) + 1)
        client.xgroup_create(f"queue:{number}", GROUP, id="0")
        skipped = _turn(number, 0)[: number % TURNS]
        ask_in_batches(port, [request for request, _ in skipped])


def _sent_by_turns(pairs: Sequence[tuple[bytes, bytes | None]], pipeline: int) -> Script:
    """Send requests in pipelines, and compare the known replies."""
    for at in range(0, len(pairs), pipeline):
        part = pairs[at : at + pipeline]
        lines = sum(2 if known is None else known.count(b"\n") for _, known in part)
        left = yield b"".join(request for request, _ in part), lines
        for request, known in part:
            reply = left if known is None else known
            if not left.startswith(reply):
                raise WrongReply(f"{left[:200]!r} to {request[:200]!r}")
            # The ID of an XADD is not known beforehand: it has two lines.
            left = left.split(b"\r\n", 2)[2] if known is None else left[len(known) :]


def _run_turns(pipeline: int) -> Load:
    def load(client: Redis, count: int) -> float:
        sent = [_by_turns(number, count) for number in range(CLIENTS)]
        seconds = run_scripts(port_of(client), [_sent_by_turns(each, pipeline) for each in sent])
        return seconds * count / sum(map(len, sent))

    return load


def _check_turns(client: Any, count: int) -> None:
    found = sum(client.xlen(f"log:{number}") for number in range(CLIENTS))
    adds = CLIENTS * _turns(count) + sum(number % TURNS > 2 for number in range(CLIENTS))
    _expect("entries added by turns", found, found == adds)


def _turns_row(pipeline: int) -> ServerRow:
    def count(sizes: Sizes) -> int:
        return _turns(sizes.requests * (1 if pipeline == 1 else 3)) * TURNS * CLIENTS

    return ServerRow(
        f"mixed-p{pipeline}",
        f"{CLIENTS} clients, each ten commands by turns, -P {pipeline}",
        0,
        "everysec",
        count,
        _run_turns(pipeline),
        _prepare_turns,
        _check_turns,
        lambda sizes: sizes.command_rounds,
    )


MIXED_ROWS = (_turns_row(1), _turns_row(PIPELINED))
"""A turn of the server has many commands of many clients."""

COMMAND_NAMES = [command.name for command in (*COMMANDS, XADD)]
