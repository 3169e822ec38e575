"""Keyspace events that Redis lacks: of own commands, the library, and due timers."""

from collections.abc import Callable

import pytest

from kvstream import ManualClock, Store
from kvstream.errors import RequestError
from kvstream.layout.keys import qualified
from kvstream.meta.events.keys import CHANNELS, flags_of
from kvstream.operations import append, keyspace, strings
from kvstream.operations.plans import Stepped
from tests.commands.dispatcher import Dispatcher
from tests.opening import Stores, change_thresholds
from tests.operations.queue_commands import error, ok, opened, step

Heard = Callable[[], list[str]]


def listen(store: Store, letters: str = "KEAnoc") -> Heard:
    """Return a function that returns the events since its last call."""
    flags = flags_of(letters)
    assert flags is not None
    found: list[str] = []
    store.engine.publish_events(
        flags & ~CHANNELS,
        lambda events: found.extend(
            f"{event.name.decode()} {name[2:].decode()}" for event, name in events
        ),
    )

    def heard() -> list[str]:
        some = found[:]
        found.clear()
        return some

    return heard


@pytest.fixture
def quiet(open_store: Stores) -> Store:
    return opened(open_store)


@pytest.fixture
def heard(quiet: Store) -> Heard:
    return listen(quiet)


def test_a_delayed_message_is_added_when_it_is_due(
    quiet: Store, heard: Heard, clock: ManualClock
) -> None:
    ok(quiet, "KVSTREAM.ADD s DELAY 10 n 1")
    ok(quiet, "KVSTREAM.ADD s DELAY 10 n 2")
    ok(quiet, "KVSTREAM.ADD s TTL 20 n 3")
    assert heard() == ["new s", "xadd s"]
    clock.advance(10)
    step(quiet)
    assert heard() == ["xadd s", "xadd s"]
    clock.advance(10)
    step(quiet)
    assert heard() == ["xdel s"]


def test_a_cancelled_message_causes_no_event(quiet: Store, heard: Heard) -> None:
    ticket = ok(quiet, "KVSTREAM.ADD s DELAY 10 n 1").decode()
    heard()
    ok(quiet, f"KVSTREAM.DELAYED CANCEL s {ticket}")
    assert heard() == []


def test_a_schedule_adds(quiet: Store, heard: Heard, clock: ManualClock) -> None:
    ok(quiet, "KVSTREAM.SCHEDULE SET s daily @hourly FIELDS n 1")
    assert heard() == ["new s"]
    ok(quiet, "KVSTREAM.SCHEDULE RUN s daily")
    assert heard() == ["xadd s"]
    clock.advance(3_600_000)
    step(quiet)
    assert heard() == ["xadd s"]


def test_retention_trims(quiet: Store, heard: Heard) -> None:
    for n in range(5):
        ok(quiet, f"XADD s * n {n}")
    ok(quiet, "KVSTREAM.RETENTION SET s MAXLEN 2")
    heard()
    ok(quiet, "KVSTREAM.RETENTION RUN s")
    assert heard() in (["xtrim s"], [])  # SET may have trimmed already
    ok(quiet, "XADD s * n 5")
    ok(quiet, "KVSTREAM.RETENTION RUN s")
    assert heard() == ["xadd s", "xtrim s"]


def test_dead_letters_are_added_and_redriven(
    quiet: Store, heard: Heard, clock: ManualClock
) -> None:
    ok(quiet, "XGROUP CREATE s g 0 MKSTREAM")
    ok(quiet, "KVSTREAM.POLICY SET s g DELIVERIES 1 DEAD dead")
    eid = ok(quiet, "XADD s * n 1").decode()
    heard()
    ok(quiet, "XREADGROUP GROUP g c STREAMS s >")
    ok(quiet, f"KVSTREAM.NACK s g c {eid} 1")
    assert heard() == ["xgroup-createconsumer s", "new dead", "xadd dead", "xdel s"]
    ok(quiet, "KVSTREAM.REDRIVE START dead")
    step(quiet)
    assert heard() == ["xadd s", "xdel dead"]


def test_a_removed_consumer_is_deleted(quiet: Store, heard: Heard) -> None:
    ok(quiet, "XGROUP CREATE s g 0 MKSTREAM")
    ok(quiet, "XGROUP CREATECONSUMER s g c")
    ok(quiet, "KVSTREAM.POLICY SEEK s g 0")
    heard()
    ok(quiet, "KVSTREAM.POLICY REMOVE s g c")
    assert heard() == ["xgroup-delconsumer s"]


def test_a_bulk_append_causes_one_event_per_stream(quiet: Store, heard: Heard) -> None:
    values = [b"\x01\x81\xa1n\xa11"] * 3
    streams = {qualified(0, key): (None, values) for key in (b"a", b"b")}
    quiet.engine.run(append.append_many, streams, (qualified(0, b"mark"), 7))
    assert heard() == ["new a", "xadd a", "new b", "xadd b", "new mark", "set mark"]


def test_the_library_publishes_the_same_events(quiet: Store, heard: Heard) -> None:
    stream = quiet.stream("s")
    stream.add_many([{"n": "1"}, {"n": "2"}], maxlen=1)
    stream.create_group("g")
    with quiet.transaction():
        stream.add({"n": "3"})
        quiet.delete("s")
    made = ["new s", "xadd s", "xadd s", "xtrim s", "xgroup-create s"]
    assert heard() == [*made, "xadd s", "del s"]


def test_an_undone_change_causes_no_event(quiet: Store, heard: Heard) -> None:
    def fail() -> None:
        with quiet.transaction():
            quiet.stream("s").add({"n": "1"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(RequestError):
        quiet.stream("s").group("g").destroy()
    assert heard() == []


def test_a_refused_command_causes_no_event(quiet: Store, heard: Heard) -> None:
    ok(quiet, "SET k 123")
    heard()
    change_thresholds(quiet.engine, string_bytes_max=5)
    for command in ("APPEND k abc", "SETRANGE k 3 abc", "SET k abcdef", "INCRBYFLOAT k x"):
        error(quiet, command)
    assert heard() == []


def test_the_expiry_thread_publishes_expired_keys(
    quiet: Store, heard: Heard, clock: ManualClock
) -> None:
    quiet.engine.expiry.active = False
    ok(quiet, "SET a 1 PX 10")
    ok(quiet, "SET b 1 PX 10")
    heard()
    clock.advance(10)
    quiet.engine.run(keyspace.delete_expired, 100)
    assert sorted(heard()) == ["expired a", "expired b"]


def test_a_swapped_database_has_its_own_events(quiet: Store, heard: Heard) -> None:
    ok(quiet, "SET a 1")
    quiet.engine.run(keyspace.swap, 0, 1)
    names: list[bytes] = []
    wanted = quiet.engine.catalog.wanted_events
    quiet.engine.publish_events(wanted, lambda events: names.extend(name for _, name in events))
    quiet.engine.run(keyspace.delete, qualified(1, b"a"))
    assert names == [qualified(1, b"a")]


def test_incremental_commands_publish_the_events_of_short_ones(quiet: Store, heard: Heard) -> None:
    ok(quiet, "SET k2 old")
    quiet.engine.run(lambda txn: txn.catalog.create_stream(txn, qualified(0, b"k3")))
    heard()
    put = Stepped(strings.plan_put(0, {b"k%d" % n: b"v" for n in range(1, 5)}))
    while quiet.engine.run(put.step) is None:
        pass
    assert sorted(heard()) == sorted(
        [
            *("new k1", "set k1", "overwritten k2", "set k2", "new k4", "set k4"),
            *("overwritten k3", "type_changed k3", "set k3"),
        ]
    )
    delete = Stepped(keyspace.plan_delete(0, [b"k1", b"none", b"k2", b"k1"]))
    while quiet.engine.run(delete.step) is None:
        pass
    assert heard() == ["del k1", "del k2"]


def test_only_enabled_classes_are_published(quiet: Store) -> None:
    heard = listen(quiet, "KE$n")
    Dispatcher(quiet.engine).execute([b"XADD", b"s", b"*", b"n", b"1"])
    ok(quiet, "SET k v EX 10")
    assert heard() == ["new s", "new k", "set k"]
    heard = listen(quiet, "")
    ok(quiet, "SET k w")
    assert heard() == []
