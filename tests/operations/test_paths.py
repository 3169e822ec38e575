"""Each command returns the same reply, and has the same effect, on every path that serves it.

A case has requests, the same as calls of the library, and the replies. It starts from the stream
``s``: entries 1-0 to 6-0, of which 2-0 was deleted; group ``g`` delivered 1-0 to 4-0 to ``ann``,
and ``bob`` claimed 3-0 of them. The effect is compared by DUMP and XINFO STREAM FULL.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis

from kvstream import KVStreamError, ManualClock, Store, StreamID, connect
from kvstream.commands.replies import ErrorReply
from kvstream.layout import PURE_VARIABLE
from kvstream.operations.checks import check
from kvstream.types.records import BareEntry, PendingSummary
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.commands.dispatcher import Dispatcher, flatten
from tests.operations.cases import SMALLER, WRONGTYPE, as_reply, e, err
from tests.operations.replies import Error
from tests.server.talking import Server, Talker, Worker, request

NOW_MS = 5000
SETUP = """
    XADD s 1-0 f 1 | XADD s 2-0 f 2 | XADD s 3-0 f 3 | XADD s 4-0 f 4 | XADD s 5-0 f 5
    | XADD s 6-0 f 6 | XGROUP CREATE s g 0 | XREADGROUP GROUP g ann COUNT 4 STREAMS s >
    | XCLAIM s g bob 0 3-0 | XDEL s 2-0 | XADD t 1-0 g 1 | SET k v
"""
E1, E3, E4, E5, E6 = (e(f"{n}-0", "f", str(n)) for n in (1, 3, 4, 5, 6))
T = ["t", [e("1-0", "g", "1")]]
MAX = (1 << 64) - 1
NEW, IDLE = "store.read_group('g', 'cy', {'s': '>'}", "g.autoclaim('cy', 0.009"
DELEX = "s.delete_entries(1, 2, 6, ref_policy="
ZERO = err("The ID specified in XADD must be greater than 0-0")
EXHAUSTED = err("The stream has exhausted the last possible ID, unable to add more items")
NO_TILDE = err("syntax error, LIMIT cannot be used without the special ~ option")
IDMP_ID = err("syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
IDMP_TWICE = err("syntax error, IDMP/IDMPAUTO specified multiple times")
ABOVE_LAST = err("The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
DURATION = err("IDMP-DURATION must be between 1 and 86400 seconds")
RETRYCOUNT = err("Invalid RETRYCOUNT value, must be >= 0")
ENTRIESREAD = err("value for ENTRIESREAD must be positive or -1")
BUSYGROUP = Error(b"BUSYGROUP Consumer Group name already exists")


@dataclass(frozen=True)
class Case:
    requests: str
    """Separated by ``|``."""
    calls: str | None
    """The same as calls of the library, if it has them; one call may do all requests."""
    replies: list[Any]


Outcome = tuple[list[Any], list[Any]]
"""The replies of a case, and the state after it."""
Play = Callable[[Case], Outcome]


def case(requests: str, calls: str | None, *replies: Any) -> Case:
    return Case(requests, calls, list(replies))


def twice(request: str, call: str) -> tuple[str, str]:
    return f"{request} | {request}", f"{call} | {call}"


# fmt: off
CASES = [
    # --- XADD, XTRIM, XSETID, XCFGSET
    case("XADD s * f v", "s.add(F)", "5000-0"),
    case("XADD s * f v | XADD s * f v", "s.add_many([F, F])", "5000-0", "5000-1"),
    case("XADD s 6-* f v", "s.add(F, '6-*')", "6-1"),
    case("XADD s 6-0 f v", "s.add(F, '6-0')", SMALLER),
    case("XADD s 0-0 f v", "s.add(F, '0-0')", ZERO),
    case("XADD n NOMKSTREAM * f v", "store.stream('n').add(F, nomkstream=True)", None),
    case(*twice("XADD s MAXLEN 2 * f v", "s.add(F, maxlen=2)"), "5000-0", "5000-1"),
    case(*twice("XADD s MINID = 4 * f v", "s.add(F, minid=4)"), "5000-0", "5000-1"),
    case("XADD s MINID ~ 3 LIMIT 0 * f v", "s.add(F, minid=3, approximate=True, limit=0)",
        "5000-0"),
    case("XADD s LIMIT 0 7-0 f v", "s.add(F, '7-0', limit=0)", NO_TILDE),
    case("XADD s MAXLEN 2 LIMIT 5 * f v", "s.add(F, maxlen=2, limit=5)", NO_TILDE),
    case(*twice("XADD s IDMP p i * f v", "s.add(F, idmp=('p', 'i'))"), "5000-0", "5000-0"),
    case(*twice("XADD s IDMPAUTO p * f v", "s.add(F, idmpauto='p')"), "5000-0", "5000-0"),
    case("XADD s IDMP p i 9-0 f v", "s.add(F, '9-0', idmp=('p', 'i'))", IDMP_ID),
    case("XADD s IDMP p i IDMP p i * f v", None, IDMP_TWICE),
    case(f"XADD s {MAX}-{MAX - 2} f v" + 5 * " | XADD s * f v",
        f"s.add(F, '{MAX}-{MAX - 2}')" + 5 * " | s.add(F)",
        *[f"{MAX}-{seq}" for seq in (MAX - 2, MAX - 1, MAX)], *[EXHAUSTED] * 3),
    case("XTRIM s MAXLEN 2", "s.trim(maxlen=2)", 3),
    case("XTRIM s MINID 5 DELREF", "s.trim(minid=5, ref_policy='DELREF')", 3),
    case("XTRIM s MAXLEN 0 ACKED", "s.trim(maxlen=0, ref_policy='ACKED')", 0),
    case("XTRIM s MAXLEN -1", "s.trim(maxlen=-1)", err("The MAXLEN argument must be >= 0.")),
    case("XSETID s 9-0 ENTRIESADDED 20 MAXDELETEDID 3-0",
        "s.set_id('9-0', entries_added=20, max_deleted_id='3-0')", "OK"),
    case("XSETID s 9-0 MAXDELETEDID 10-0", "s.set_id('9-0', max_deleted_id='10-0')", ABOVE_LAST),
    case("XCFGSET s IDMP-DURATION 0", "s.configure(idmp_duration=0)", DURATION),
    # --- XLEN, XRANGE, XREVRANGE, XREAD
    case("XLEN s", "len(s)", 5),
    case("XRANGE s - +", "s.range()", [E1, E3, E4, E5, E6]),
    case("XRANGE s (1 5 COUNT 2", "s.range('(1-0', 5, 2)", [E3, E4]),
    case("XREVRANGE s + (3-0 COUNT 9", "s.revrange('+', '(3-0', 9)", [E6, E5, E4]),
    case("XREAD COUNT 2 STREAMS s 3-0", "store.read({'s': 3}, 2)", [["s", [E4, E5]]]),
    case("XREAD STREAMS s t n 5 0 0", "store.read({'s': 5, 't': 0, 'n': 0})", [["s", [E6]], T]),
    case("XREAD STREAMS s t + $", "store.read({'s': '+', 't': '$'})", [["s", [E6]]]),
    case("XREAD STREAMS s 6", "store.read({'s': 6})", None),
    case("XREAD MAXCOUNT 2 STREAMS s t 4 0", "store.read({'s': 4, 't': 0}, max_count=2)",
        [["s", [E5, E6]]]),
    case("XREAD STREAMS s k 0 0", "store.read({'s': 0, 'k': 0})", WRONGTYPE),
    # --- XREADGROUP
    case("XREADGROUP GROUP g cy COUNT 1 STREAMS s >", f"{NEW}, 1)", [["s", [E5]]]),
    case(*twice("XREADGROUP GROUP g cy STREAMS s >", f"{NEW})"), [["s", [E5, E6]]], None),
    case("XREADGROUP GROUP g cy NOACK STREAMS s >", f"{NEW}, noack=True)", [["s", [E5, E6]]]),
    case("XREADGROUP GROUP g cy COUNT 2 CLAIM 0 STREAMS s >", f"{NEW}, 2, claim_min_idle=0)",
        [["s", [[*E1, 0, 1], [*E3, 0, 2]]]]),
    case("XREADGROUP GROUP g ann STREAMS s 0", "store.read_group('g', 'ann', {'s': 0})",
        [["s", [E1, ["2-0", None], E4]]]),
    # --- XACK, XACKDEL, XNACK
    case("XACK s g 1-0 2-0 3-0 6-0", "g.ack(1, 2, 3, 6)", 3),
    case("XACK s g 4-0 1-0 4-0", "g.ack(4, 1, 4)", 2),
    case("XACK s none 1-0 2-0", "s.group('none').ack(1, 2)", 0),
    *[case(f"XACKDEL s g {policy} IDS 4 4-0 1-0 4-0 5-0",
        f"g.ack_delete(4, 1, 4, 5, ref_policy='{policy}')", [1, 1, -1, -1])
        for policy in ("KEEPREF", "DELREF")],
    case("XACKDEL s g ACKED IDS 1 1-0", "g.ack_delete(1, ref_policy='ACKED')", [1]),
    *[case(f"XNACK s g {mode} IDS 3 1-0 3-0 5-0", f"g.nack(1, 3, 5, mode='{mode}')", 2)
        for mode in ("SILENT", "FAIL", "FATAL")],
    case("XNACK s g FAIL IDS 4 4-0 1-0 4-0 5-0 FORCE RETRYCOUNT 7",
        "g.nack(4, 1, 4, 5, retrycount=7, force=True)", 4),
    case("XNACK s g FAIL IDS 1 1-0 RETRYCOUNT -1", "g.nack(1, retrycount=-1)", RETRYCOUNT),
    # --- XCLAIM, XAUTOCLAIM
    case("XCLAIM s g bob 0 1-0 2-0 3-0 5-0", "g.claim('bob', 1, 2, 3, 5)", [E1, E3]),
    case("XCLAIM s g bob 0 4-0 1-0 4-0", "g.claim('bob', 4, 1, 4)", [E4, E1, E4]),
    case("XCLAIM s g bob 9 4-0 1-0", "g.claim('bob', 4, 1, min_idle=0.009)", []),
    case("XCLAIM s g bob 0 4-0 1-0 IDLE 9", "g.claim('bob', 4, 1, idle=0.009)", [E4, E1]),
    case("XCLAIM s g cy 0 5-0 2-0 1-0 9-0 FORCE RETRYCOUNT 3 LASTID 5-0",
        "g.claim('cy', 5, 2, 1, 9, force=True, retrycount=3, last_id=5)", [E5, E1]),
    case("XCLAIM s g cy 0 1-0 4-0 TIME 1000 JUSTID", "g.claim('cy', 1, 4, time=1.0, justid=True)",
        ["1-0", "4-0"]),
    case("XAUTOCLAIM s g cy 0 0 COUNT 2", "g.autoclaim('cy', count=2)", ["3-0", [E1], ["2-0"]]),
    case("XAUTOCLAIM s g cy 0 3", "g.autoclaim('cy', start=3)", ["0-0", [E3, E4], []]),
    case("XAUTOCLAIM s g cy 9 0 COUNT 9", f"{IDLE}, count=9)", ["0-0", [], ["2-0"]]),
    case("XAUTOCLAIM s g cy 9 0 COUNT 1", f"{IDLE}, count=1)", ["3-0", [], ["2-0"]]),
    case("XAUTOCLAIM s g cy 0 0 COUNT 9 JUSTID", "g.autoclaim('cy', count=9, justid=True)",
        ["0-0", ["1-0", "3-0", "4-0"], ["2-0"]]),
    case("XAUTOCLAIM s g cy 0 0 COUNT 0", "g.autoclaim('cy', count=0)", err("COUNT must be > 0")),
    # --- XPENDING
    case("XPENDING s g", "g.pending()", [4, "1-0", "4-0", [["ann", "3"], ["bob", "1"]]]),
    case("XPENDING s g (1-0 + 2", "g.pending_range('(1-0', '+', 2)",
        [["2-0", "ann", 0, 1], ["3-0", "bob", 0, 2]]),
    case("XPENDING s g IDLE 1 - + 9 ann",
        "g.pending_range(count=9, consumer='ann', min_idle=0.001)", []),
    # --- XDEL, XDELEX
    case("XDEL s 1-0", "s.delete(1)", 1),
    case("XDEL s 6-0 2-0 1-0 6-0 9-0", "s.delete(6, 2, 1, 6, 9)", 2),
    case("XDELEX s IDS 3 6-0 2-0 6-0", "s.delete_entries(6, 2, 6)", [1, -1, -1]),
    *[case(f"XDELEX s {policy} IDS 3 1-0 2-0 6-0", f"{DELEX}'{policy}')", found)
        for policy, found in (("DELREF", [1, -1, 1]), ("ACKED", [2, 2, 2]))],
    # --- XGROUP
    case("XGROUP CREATE s h 3-0 ENTRIESREAD 2", "s.create_group('h', 3, entries_read=2) and None",
        "OK"),
    case("XGROUP CREATE s g 0", "s.create_group('g', 0)", BUSYGROUP),
    case("XGROUP SETID s g 1 ENTRIESREAD -2", "g.set_id(1, entries_read=-2)", ENTRIESREAD),
    case("XGROUP SETID s g 1-0 | XREADGROUP GROUP g cy STREAMS s >", f"g.set_id(1) | {NEW})",
        *("OK", [["s", [E3, E4, E5, E6]]])),
    case("XGROUP DELCONSUMER s g ann", "g.delete_consumer('ann')", 3),
    case("XGROUP DESTROY s g", "g.destroy()", 1),
    # --- keys and strings
    case("COPY s u | XACK u g 1-0", None, 1, 1),
    case("COPY s t | COPY s t REPLACE", None, 0, 1),
    case("RENAME s u | XLEN u", "store.rename('s', 'u') and None | len(store.stream('u'))", "OK", 5
        ),
    case("DEL s n t s", "store.delete('s', 'n', 't', 's')", 2),
    case("EXISTS s n s k", None, 3),
    case("MGET k n s k", None, ["v", None, None, "v"]),
    case("MSET k 1 s 2 u 3 k 4 | MGET k s u", None, "OK", ["4", "2", "3"]),
    case("MSETNX u 1 k 2 | MSETNX u 1 w 2 | MGET u k w", None, 0, 1, ["1", "v", "2"]),
]
# fmt: on


# --- paths --------------------------------------------------------------------------------------


def attempt(call: Callable[[], Any]) -> Any:
    """Return the result of a call of the library in the form of a reply."""
    try:
        return in_resp(call())
    except KVStreamError as error:
        return Error(ErrorReply.of(error).line)


def in_resp(value: Any) -> Any:
    """Return a value of the library in the form of a reply."""
    if value is None or isinstance(value, Error | bytes):
        return value
    if isinstance(value, StreamID):
        return bytes(value)
    if type(value) is BareEntry:
        return bytes(value.id)
    if isinstance(value, PendingSummary):
        owners = [[name, b"%d" % count] for name, count in value.consumers.items()]
        return [value.count, in_resp(value.min_id), in_resp(value.max_id), owners]
    if isinstance(value, dict):
        return [[name, in_resp(entries)] for name, entries in value.items()] or None
    if hasattr(value, "fields"):
        extra = [] if getattr(value, "idle_ms", None) is None else [value.idle_ms, value.deliveries]
        return [bytes(value.id), None if value.fields is None else list(value.flat), *extra]
    if isinstance(value, list | tuple):
        return [in_resp(each) for each in value]
    return int(value)


_ONE = (
    *("long_rows", "long_keys", "long_names", "step_rows", "step_keys", "step_names"),
    *("packed_together", "short_rows", "look_rows", "step_items"),
    *("long_loading", "long_read", "few_streams", "short_streams"),
)
SMALLEST_STEPS = Thresholds(steps_s=-1.0, last_step_ids=0, **dict.fromkeys(_ONE, 1))
"""Every incremental operation runs in steps of one item each."""


class Table:
    """A path to a store of its own; this one uses the table of commands."""

    thresholds = DEFAULT

    def __init__(self, directory: Path) -> None:
        self.server = Server(directory, clock=ManualClock(NOW_MS), thresholds=self.thresholds)
        self.table = Dispatcher(self.server.engine)
        self.store = Store(self.server.engine)
        self.begin()

    def begin(self) -> None:
        """Create what the path needs."""

    def command(self, *words: bytes) -> Any:
        reply = flatten(self.table.execute(list(words)))
        return Error(reply.line) if isinstance(reply, ErrorReply) else reply

    def run(self, requests: list[list[bytes]]) -> list[Any]:
        """Run the requests of a case."""
        return [self.command(*words) for words in requests]

    def play(self, case: Case) -> Outcome:
        """Return the replies of a case, and the state after it."""
        self.command(b"FLUSHALL")
        for words in requests_of(SETUP):
            assert not isinstance(self.command(*words), Error)
        replies = self.answers(case)
        assert self.server.engine.run(check) == []
        return replies, [
            [
                self.command(b"DUMP", key),
                self.command(b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"),
            ]
            for key in (b"s", b"t", b"u", b"k", b"w")
        ]

    def answers(self, case: Case) -> list[Any]:
        return self.run(requests_of(case.requests))

    def close(self) -> None:
        self.server.engine.close()


def requests_of(line: str) -> list[list[bytes]]:
    return [words for part in line.split("|") if (words := part.encode().split())]


class Library(Table):
    """Methods of Store, Stream and Group."""

    def answers(self, case: Case) -> list[Any]:
        assert case.calls is not None
        stream = self.store.stream("s")
        names = {"store": self.store, "s": stream, "g": stream.group("g"), "F": {"f": "v"}}
        calls = case.calls.split(" | ")
        found = [attempt(partial(eval, call, names)) for call in calls]
        if len(calls) < len(case.replies):
            (found,) = found
        pairs = zip(found, case.replies, strict=True)
        return [b"OK" if reply is None and wanted == "OK" else reply for reply, wanted in pairs]


class OverServer(Table):
    """Requests in bytes, one after the other."""

    def begin(self) -> None:
        self.client = Talker(self.server, 1)

    def run(self, requests: list[list[bytes]]) -> list[Any]:
        return [answers(self.client.ask(*words))[0] for words in requests]


class InBatch(OverServer):
    """All requests of a case in one packet: plain XADDs are run together."""

    def run(self, requests: list[list[bytes]]) -> list[Any]:
        self.client.send_bytes(b"".join(request(*words) for words in requests))
        self.server.turn()
        return answers(self.client.heard())


class InExec(OverServer):
    """All requests of a case in one MULTI and EXEC."""

    def run(self, requests: list[list[bytes]]) -> list[Any]:
        for words in [[b"MULTI"], *requests, [b"EXEC"]]:
            self.client.send(*words)
        self.server.turn()
        return list(answers(self.client.heard())[-1])


class InSteps(OverServer):
    """Each command in as many steps as possible, each reply in as many pages."""

    thresholds = SMALLEST_STEPS

    def begin(self) -> None:
        self.worker = Worker(self.server, 1)

    def run(self, requests: list[list[bytes]]) -> list[Any]:
        found = []
        for words in requests:
            self.worker.send(*words)
            self.server.turn()
            found += answers(self.worker.heard())
        return found


class InProcess(Table):
    """redis-py on the open store; replies as its parser returns them."""

    def begin(self) -> None:
        self.client: Any = connect(self.store, protocol=2)
        self.connection: Any = self.client.connection_pool.get_connection()

    def run(self, requests: list[list[bytes]]) -> list[Any]:
        found = []
        for words in requests:
            self.connection.send_command(*words)
            try:
                found.append(self.connection.read_response())
            except redis.ResponseError as error:
                found.append(Error(as_line(error)))
        return found

    def close(self) -> None:
        self.client.connection_pool.release(self.connection)
        self.client.close()
        super().close()


def answers(data: bytes) -> list[Any]:
    """Return the replies that a server has sent."""
    reader = hiredis.Reader()
    reader.feed(data)
    found = []
    while (reply := reader.gets()) is not False:
        found.append(in_plain(reply))
    return found


def in_plain(reply: Any) -> Any:
    if isinstance(reply, hiredis.ReplyError):
        return Error(str(reply).encode())
    return [in_plain(each) for each in reply] if isinstance(reply, list) else reply


def as_line(error: redis.ResponseError) -> bytes:
    """Return an error of redis-py as the server sent it: redis-py removes the code ERR."""
    text = str(error).encode()
    return text if text.startswith((b"WRONGTYPE ", b"BUSYGROUP ")) else b"ERR " + text


PATHS = {
    "library": Library,
    "server": OverServer,
    "batch": InBatch,
    "exec": InExec,
    "steps": InSteps,
    "in process": InProcess,
}


@contextmanager
def opened(kind: type[Table]) -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="kvstream-paths-") as directory:
        path = kind(Path(directory, "store"))
        try:
            yield path
        finally:
            path.close()


@pytest.fixture(scope="module", params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[Table]:
    with opened(PATHS[request.param]) as path:
        yield path


@pytest.fixture(scope="module")
def table() -> Iterator[Play]:
    """Play a case by the table of commands, once for all other paths."""
    with opened(Table) as path:
        outcomes: dict[str, Outcome] = {}
        yield (
            lambda case: (
                outcomes.get(case.requests) or outcomes.setdefault(case.requests, path.play(case))
            )
        )


@pytest.mark.parametrize("case", CASES, ids=[case.requests for case in CASES])
def test_a_command_is_the_same_on_every_path(table: Play, path: Table, case: Case) -> None:
    if isinstance(path, Library) and case.calls is None:
        pytest.skip("the library has no such method")
    replies, left = table(case)
    assert replies == as_reply(case.replies)
    assert path.play(case) == (replies, left)


def test_a_command_is_the_same_without_compiled_code() -> None:
    environment = {**os.environ, PURE_VARIABLE: "1"}
    command = [
        sys.executable,
        "-c",
        "from tests.operations.test_paths import print_outcomes; print_outcomes()",
    ]
    pure = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert pure.stdout.splitlines() == all_outcomes()


def all_outcomes() -> list[str]:
    """Return the outcome of every case on the server, and sent as a batch."""
    found = []
    for kind in (OverServer, InBatch):
        with opened(kind) as path:
            found += [repr(path.play(case)) for case in CASES]
    return found


def print_outcomes() -> None:
    print("\n".join(all_outcomes()))
