"""The last error of an entry that was given back: its dead letter has it, nothing else keeps it."""

import pytest

from kvstream import Corruption, ManualClock, Store
from kvstream.layout.keys import qualified
from kvstream.meta import timers
from kvstream.operations.delivery import dead, failures
from tests.commands.conftest import Say, speaker
from tests.commands.dispatcher import Dispatcher
from tests.operations.queue_commands import step

NAME = qualified(0, b"s")


@pytest.fixture
def say(store: Store) -> Say:
    """Run one command on the store; stream s has a group g with rules."""
    found = speaker(Dispatcher(store.engine))
    found("XGROUP CREATE s g $ MKSTREAM")
    found("KVSTREAM.POLICY SET s g LEASE 1000 DELIVERIES 3 BACKOFF 100")
    return found


def read(say: Say) -> str:
    """Lease the next entry to consumer a; return its token."""
    ((_, ((eid, *_),)),) = say("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    ((_, _, _, deliveries),) = say(f"XPENDING s g {eid.decode()} {eid.decode()} 1")
    return f"{eid.decode()} {deliveries}"


def rows(store: Store) -> list[bytes]:
    def found(txn: object) -> list[bytes]:
        stream = txn.stream(NAME)  # type: ignore[attr-defined]
        return [suffix for suffix, _ in timers.scan_rows(txn, stream, failures.ROW_TAG)]  # type: ignore[arg-type]

    return store.engine.run(found)


def letters(store: Store) -> list[tuple[bytes, bytes, bytes]]:
    origins = [dead.origin(entry.flat) for entry in store.stream("s:dead").range()]
    return [(row[dead.REASON], row[b"dead:error"], row[b"dead:traceback"]) for row in origins]


@pytest.mark.parametrize("state", ["waiting", "ready", "leased"])
def test_a_message_that_expires_has_its_last_error(
    store: Store, say: Say, clock: ManualClock, state: str
) -> None:
    say("KVSTREAM.ADD s TTL 5000 f v")
    say(f"KVSTREAM.NACK s g a ERROR first TRACEBACK t1 {read(say)}")
    clock.advance(200)
    step(store)
    delay = 60_000 if state == "waiting" else 10
    say(f"KVSTREAM.NACK s g a DELAY {delay} ERROR second TRACEBACK t2 {read(say)}")
    clock.advance(4700)
    step(store)
    if state == "leased":
        read(say)
    clock.advance(200)
    step(store)
    assert letters(store) == [(b"expired", b"second", b"t2")]


def test_a_message_whose_last_consumer_dies_has_its_last_error(
    store: Store, say: Say, clock: ManualClock
) -> None:
    say("XADD s 1-0 f v")
    say("XADD s 2-0 f v")
    say(f"KVSTREAM.NACK s g a DELAY 0 ERROR boom {read(say)}")
    for _ in range(3):
        assert say("XREADGROUP GROUP g a STREAMS s >")
        clock.advance(1001)
    assert say("XREADGROUP GROUP g a STREAMS s >") in (None, [])
    assert letters(store) == [(b"max-deliveries", b"boom", b""), (b"max-deliveries", b"", b"")]


def test_an_error_that_is_said_at_the_end_is_that_of_the_letter(store: Store, say: Say) -> None:
    say("XADD s 1-0 f v")
    say(f"KVSTREAM.NACK s g a DELAY 0 ERROR first TRACEBACK t1 {read(say)}")
    say(f"KVSTREAM.NACK s g a FATAL ERROR last {read(say)}")
    assert letters(store) == [(b"fatal", b"last", b"")]


def test_errors_are_kept_while_their_entries_are_pending(
    store: Store, say: Say, clock: ManualClock
) -> None:
    for number in (1, 2):
        say(f"XADD s {number}-0 f v")
    tokens = [read(say), read(say)]
    for token in tokens:
        say(f"KVSTREAM.NACK s g a DELAY {10**9} ERROR boom {token}")
    clock.advance(failures.CHECK_MS // 2)
    say("KVSTREAM.POLICY SET s g LEASE 1000 DELIVERIES 9")
    assert len(rows(store)) == 2
    say("XACK s g 1-0")
    clock.advance(failures.CHECK_MS)
    step(store)
    assert [row[-16:] for row in rows(store)] == [(2).to_bytes(8, "big") + bytes(8)]
    say("XGROUP DESTROY s g")
    clock.advance(failures.CHECK_MS)
    step(store)
    assert rows(store) == []


def test_a_damaged_row_is_found(store: Store) -> None:
    for rest in (b"", b"\0\0\0\1", failures.rest_of(b"g", bytes(16)) + b"x"):
        with pytest.raises(Corruption, match="the key of a failure is damaged"):
            failures.parse(rest)
    assert failures.parse(failures.rest_of(b"g", bytes(16))) == (b"g", bytes(16))
    for value in (b"", b"\x93\x01\x02\x03", b"\x90"):
        with pytest.raises(Corruption, match="a failure is damaged"):
            failures.decode(value)
