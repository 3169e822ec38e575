"""A stream's image has the state of its queue; a stream loaded from it is the same queue."""

from typing import Any

import pytest

from kvstream import ManualClock, Store
from kvstream.commands.replies import ErrorReply
from kvstream.layout.keys import U64, qualified
from kvstream.operations.delivery import dead
from kvstream.operations.queues import image
from kvstream.types.ids import Ticket
from kvstream.types.images import QUEUE_PARTS, QueueRow
from tests.commands.dispatcher import Dispatcher
from tests.opening import Stores
from tests.operations.queue_commands import ok, opened, step

START_MS = 1_700_000_000_000
LATER_MS = START_MS + 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


def fill(store: Store, key: str = "s", second: int = 1000) -> None:
    """Create a stream with every part of a queue; ``second`` is the unit of its times."""

    def say(command: str) -> None:
        ok(store, command)

    say(f"XGROUP CREATE {key} g 0 MKSTREAM")
    for n in range(6):
        say(f"XADD {key} {n + 1}-0 n {n} user u{n % 2}")
    say(f"XGROUP CREATE {key} waits 0")
    rules = f"LEASE {30 * second} DELIVERIES 3 BACKOFF {5 * second},60000 ORDERBY user INFLIGHT 9"
    say(f"KVSTREAM.POLICY SET {key} g {rules} RATE 50 60000 REAP 86400000")
    say(f"XREADGROUP GROUP g w COUNT 4 STREAMS {key} >")
    say(f"KVSTREAM.NACK {key} g w 1-0 1")
    say(f"XREADGROUP GROUP waits w COUNT 3 STREAMS {key} >")
    say(f"KVSTREAM.NACK {key} waits w DELAY {7 * second} 1-0 1")
    say(f"XNACK {key} waits FAIL IDS 1 2-0")
    unique = "UNIQUE later WINDOW 0 SKIP"
    say(f"KVSTREAM.ADD {key} DELAY {9 * second} TTL 50000 {unique} * n delayed user u7")
    say(f"KVSTREAM.ADD {key} DELAY {9 * second} * n second user u7")
    say(f"KVSTREAM.ADD {key} TTL {70 * second} UNIQUE now WINDOW 80000 SKIP * n timed user u8")
    say(f"XGROUP CREATE {key} late $")
    say(f"KVSTREAM.SCHEDULE SET {key} yearly @yearly MISFIRE ALL 3 FIELDS n cron")
    say(f"KVSTREAM.RETENTION SET {key} ACKED MAXLEN 9000")
    for _ in range(3):
        block = zip([name.decode() for name in dead.BLOCK], [f"{key}x", *"-" * 8], strict=True)
        say(f"XADD {key} * n x {' '.join(word for pair in block for word in pair)}")
    say(f"KVSTREAM.REDRIVE START {key} WHERE n x RATE 1 {60 * second}")


def rows(store: Store, key: str = "s") -> list[QueueRow]:
    found, cursor = store.engine.run(lambda txn: image.page(txn, qualified(0, key.encode())))
    assert cursor == b""
    return found


def description(store: Store, key: str = "s") -> Any:
    """Return the replies of all commands that describe a stream."""
    words = [f"KVSTREAM.INFO {key}", f"XINFO STREAM {key} FULL", f"KVSTREAM.SCHEDULE LIST {key}"]
    words += [f"KVSTREAM.DELAYED LIST {key}", f"KVSTREAM.REDRIVE STATUS {key}"]
    return [ok(store, command) for command in words]


def run_down(store: Store, clock: ManualClock, key: str = "s") -> list[Any]:
    """Run two hours of workers that acknowledge half of their messages; return what they see."""
    got: list[Any] = []
    clock.ms = LATER_MS
    for turn in range(40):
        clock.advance(180_000)
        step(store)
        for group in ("g", "waits"):
            ids = [entry.id for entry in store.stream(key).group(group).consumer("w").read(count=4)]
            got.append((group, ids))
            store.stream(key).group(group).ack(*ids[turn % 2 :])
        got.append(description(store, key))
    return got


def test_an_image_has_every_part(open_store: Stores) -> None:
    store = opened(open_store)
    fill(store)
    found = rows(store)
    assert {key[:1] for key, _ in found} == set(QUEUE_PARTS)
    assert found == sorted(found)
    name, behind, pages = qualified(0, b"s"), b"", []
    while True:
        page, behind = store.engine.run(lambda txn: image.page(txn, name, behind, 1))  # noqa: B023
        pages += page
        if not behind:
            break
    assert pages == found


@pytest.mark.parametrize("entries", [0, 30_000])
def test_a_stream_loaded_from_an_image_is_the_same_queue(
    open_store: Stores, clock: ManualClock, entries: int
) -> None:
    store, other = opened(open_store), open_store("other")
    other.engine.timers.paused = True
    fill(store)
    store.stream("s").add_many([{"n": n} for n in range(entries)])
    source = store.image("s")
    assert source is not None
    assert other.load("s", source).corrections == []
    assert rows(other) == rows(store)
    assert description(other) == description(store)
    if not entries:
        assert run_down(other, clock) == run_down(store, clock)


def test_a_ticket_stays_valid(open_store: Stores) -> None:
    store = opened(open_store)
    ticket = store.stream("s").add({"n": 1}, delay=60)
    assert isinstance(ticket, Ticket)
    source = store.image("s")
    assert source is not None
    other = open_store("other")
    other.load("s", source)
    assert other.stream("s").add({"n": 2}, at=ticket.at_ms / 1000) != ticket
    assert other.stream("s").cancel(ticket)
    assert [each.fields for each in other.stream("s").delayed()] == [{b"n": b"2"}]


@pytest.mark.parametrize("command", ["COPY s t", "MOVE s 1", "RENAME s t"])
@pytest.mark.parametrize("long", [False, True])
def test_copies_and_moves_keep_the_queue(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch, command: str, long: bool
) -> None:
    store = opened(open_store)
    fill(store)
    before, all_replies = rows(store), description(store)
    ok(store, command)
    there, key = (store.select(1), "s") if command[0] == "M" else (store, "t")
    if command[0] == "C":  # a redrive keeps its place
        assert rows(store) == before
        before = [row for row in before if row[0] != b"x"]
        all_replies[-1] = None
    name = qualified(there.db, key.encode())
    assert store.engine.run(lambda txn: image.page(txn, name))[0] == before
    if there is store:
        assert description(there, key)[1:] == all_replies[1:]


def test_a_policy_whose_dead_letters_go_to_the_copy_has_its_own(open_store: Stores) -> None:
    store = opened(open_store)
    ok(store, "XGROUP CREATE s g 0 MKSTREAM")
    ok(store, "KVSTREAM.POLICY SET s g DEAD t DELIVERIES 2")
    ok(store, "COPY s t")
    assert ok(store, "KVSTREAM.POLICY GET t g")["dead_letter"] == b""


def send(store: Store, key: str, found: list[QueueRow]) -> Any:
    parts = [b"KVSTREAM.QUEUE", b"IMPORT", key.encode(), *[part for row in found for part in row]]
    return Dispatcher(store.engine).execute(parts)


def test_rows_can_arrive_in_parts_and_repeatedly(open_store: Stores) -> None:
    store, other = opened(open_store), open_store("other")
    other.engine.timers.paused = True
    fill(store)
    cursor, flat = ok(store, "KVSTREAM.QUEUE EXPORT s COUNT 3")
    assert len(flat) == 6
    assert cursor == flat[4]
    payload = store.dump("s")
    assert payload is not None
    other.restore("s", payload)
    for row in [*rows(store), *rows(store)]:
        assert send(other, "s", [row]) == 0
    assert rows(other) == rows(store)
    assert description(other) == description(store)


def test_rows_without_a_place_are_left_out(open_store: Stores) -> None:
    store = opened(open_store)
    fill(store)
    found = rows(store)
    ok(store, "XADD empty * n 1")
    of_groups = [row for row in found if row[0][:1] in (b"a", b"b", b"c", b"e")]
    assert send(store, "empty", found) == len(of_groups)


DAMAGED: list[tuple[bytes, bytes]] = [
    (b"", b""),
    (b"?", b""),
    (b"ag", b"\xff"),
    (b"ag", b"\x81\xa5delay\x01"),
    (b"bg", b"short"),
    (b"cg", b"short"),
    (b"d" + bytes(15), b""),
    (b"d" + bytes(16), b"short"),
    (b"d" + b"\xff" * 16, bytes(12) + b"\x01\x80"),
    (b"e\0\0\0\1g" + bytes(16), b"short"),
    (b"e\0\0\0\1g" + bytes(16), b"\x7f" + b"\xff" * 7),
    (b"e\0\0\0\x09g" + bytes(16), bytes(8)),
    (b"l" + bytes(9), b""),
    (b"r", b"\x80"),
    (b"sname", b"\x90"),
    (b"u", bytes(33)),
    (b"uid", b"short"),
    (b"x", b"\x92\xc4\x00\xc4\x00"),
]


@pytest.mark.parametrize("row", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_row_is_refused(open_store: Stores, row: QueueRow) -> None:
    store = opened(open_store)
    ok(store, "XGROUP CREATE s g 0 MKSTREAM")
    ticket = U64.pack(START_MS) + U64.pack(1), bytes(12) + b"\x01\x80"
    sound = (b"d" + ticket[0], ticket[1])
    assert isinstance(send(store, "s", [sound, row]), ErrorReply)
    assert rows(store) == []
    assert isinstance(send(store, "missing", [sound]), ErrorReply)
