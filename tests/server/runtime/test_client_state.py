"""The states of a client: the tables, and the states in which real clients are."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvstream.server.runtime.client import Client, ReplyMode
from kvstream.server.runtime.client_state import (
    CLIENT_TRANSITIONS,
    CLOSED,
    CONNECTION_TRANSITIONS,
    UNFINISHED,
    UNWRITTEN,
    ClientState,
    ConnectionState,
    Event,
    ImpossibleEvent,
    follow,
)
from kvstream.types.thresholds import Thresholds
from tests.server.runtime.test_turn_retries import write_fails
from tests.server.talking import Server, Talker, Worker, request

RUNNABLE = ClientState.RUNNABLE
OPEN = ConnectionState.OPEN


def test_every_event_has_a_row_in_both_tables() -> None:
    assert set(CLIENT_TRANSITIONS) == set(CONNECTION_TRANSITIONS) == set(Event)


@pytest.mark.parametrize("event", Event)
def test_states_follow_the_rules(event: Event) -> None:
    """A walk over all states: the rules at the head of the module, one by one."""
    for state, connection in product(ClientState, ConnectionState):
        try:
            after, later = follow(event, state, connection)
        except ImpossibleEvent:
            assert event not in (Event.ROLL_BACK, Event.CUT_OFF, Event.DISCONNECT)
            continue
        assert later >= connection, "a connection never goes back"
        if event is Event.DISCONNECT:
            assert (after, later) == (RUNNABLE, ConnectionState.GONE)
        if event is Event.ROLL_BACK:
            assert (after, later) == (RUNNABLE, connection)
        if after is not state and after is not RUNNABLE:
            assert state is RUNNABLE, "only a runnable client begins to wait"
        if after is ClientState.BLOCKED and event is Event.BLOCK:
            assert connection is OPEN
        if after is RUNNABLE is not state:
            assert event in (Event.RESUME, Event.ROLL_BACK, Event.DISCONNECT)


def test_a_client_reports_an_impossible_event_and_keeps_its_state(
    server: Server, ann: Talker
) -> None:
    with pytest.raises(ImpossibleEvent, match="RESUME of a client RUNNABLE, OPEN"):
        ann.client.handle(Event.RESUME)
    assert ann.ask("PING") == b"+PONG\r\n"


def test_a_subscribed_client_of_resp2_may_not_add(ann: Talker) -> None:
    ann.ask("SUBSCRIBE", "c")
    assert ann.ask("XADD", "s", "*", "f", "v").startswith(b"-ERR Can't execute 'xadd'")


def test_a_client_that_closes_itself_gets_its_whole_streamed_reply(
    server: Server, worker: Worker
) -> None:
    worker.send_bytes(request("XADD", "s", "*", "f", "v") * 3000)
    server.turn()
    worker.heard()
    heard: list[int] = []
    worker.client.close = lambda: heard.append(len(worker.heard()))
    kill = request("CLIENT", "KILL", "ID", "100", "SKIPME", "NO")
    worker.send_bytes(request("MULTI") + request("XRANGE", "s", "-", "+") + kill + request("EXEC"))
    server.turn()
    assert heard[0] > 100_000
    assert heard[1:] == []


@pytest.mark.parametrize("paused", [False, True])
def test_a_half_closed_client_that_would_block_gets_its_replies(
    server: Server, ann: Talker, bob: Talker, paused: bool
) -> None:
    if paused:
        bob.ask("CLIENT", "PAUSE", "1000", "WRITE")
    last = ("SET", "k", "v") if paused else ("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    ann.send_bytes(request("PING") + request(*last))
    assert server.executor.end_input(ann.client)
    server.turn()
    assert (ann.heard(), ann.closed) == (b"+PONG\r\n", True)
    assert not server.executor.blocked


def expected_path(client: Client) -> tuple[bool, bool]:
    """Return ``is_plain`` and ``on_short_path`` of a client, from all that they depend on."""
    is_plain = (
        client.reply_mode is ReplyMode.ON
        and client.queue is None
        and client.authenticated
        and client.user.free
        and not client.no_touch
        and client.subscriptions is None
    )
    has_all = client.fault is None and not client.unread and client.reader.is_empty
    return is_plain, is_plain and has_all and (client.state, client.connection) == (RUNNABLE, OPEN)


def check(server: Server, client: Client) -> None:
    """Check what follows from a client's states, and who else knows of them."""
    executor, state = server.executor, client.state
    is_plain, on_short_path = expected_path(client)
    assert client.is_plain == is_plain or client.connection is ConnectionState.GONE
    assert not client.on_short_path or on_short_path
    if not client.requests and client not in executor.ready:
        assert client.on_short_path == on_short_path
    assert client.may_run == (state is RUNNABLE and client.connection not in CLOSED)
    assert client.reply_unfinished == (state in UNFINISHED)
    assert client.closing == (client.connection in CLOSED)
    assert client.lost == (client.connection in UNWRITTEN)
    assert (client.block is not None) == (state is ClientState.BLOCKED)
    assert (client in executor.blocked) == (state is ClientState.BLOCKED)
    assert (client in executor.first) == (state is ClientState.PUT_OFF)
    assert (client.id in executor.clients) == (client.connection is not ConnectionState.GONE)
    if client in executor.streaming.under_way:
        assert state is ClientState.STREAMED
    if client.may_run and client.has_work:
        assert client in executor.ready


SIZES = Thresholds(
    **{"short_rows": 4, "look_rows": 4, "long_rows": 4, "step_rows": 2, "packed_together": 2},
    **{"last_step_ids": 1, "long_keys": 2, "step_keys": 1, "keys_together": 1},
    steps_s=-1.0,
)
"""A command of some entries or keys runs in steps, one a turn."""
LONG = 10
REQUESTS: list[tuple[str, ...]] = [
    ("XADD", "s", "*", "f", "v"),
    ("XREAD", "BLOCK", "0", "STREAMS", "s", "$"),
    ("XREAD", "BLOCK", "10", "STREAMS", "none", "$"),
    ("XRANGE", "long", "-", "+"),
    ("DEL", "s"),
    ("DEL", "a", "b", "c", "s"),
    ("XACK", "long", "g", *(f"{number}-1" for number in range(1, LONG))),
    ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "COUNT", "9", "STREAMS", "long", ">"),
    ("XGROUP", "SETID", "long", "g", "0"),
    ("MULTI",),
    ("EXEC",),
    ("DISCARD",),
    ("CLIENT", "REPLY", "SKIP"),
    ("CLIENT", "REPLY", "OFF"),
    ("CLIENT", "REPLY", "ON"),
    ("CLIENT", "NO-TOUCH", "ON"),
    ("CLIENT", "UNBLOCK", "1"),
    ("CLIENT", "KILL", "ID", "1", "SKIPME", "NO"),
    ("CLIENT", "PAUSE", "10", "WRITE"),
    ("CLIENT", "UNPAUSE"),
    ("CLIENT", "TRACKING", "ON"),
    ("SUBSCRIBE", "c"),
    ("UNSUBSCRIBE",),
    ("PUBLISH", "c", "m"),
    ("ACL", "SETUSER", "default", "-info"),
    ("ACL", "SETUSER", "default", "+@all"),
    ("EVAL", "return redis.call('XLEN', 's')", "0"),
    ("RESET",),
    ("PING",),
    ("QUIT",),
]


class Clients(RuleBasedStateMachine):
    """Clients that send, leave, read slowly and meet failed turns, in any order."""

    folder: Path
    count = 0

    def __init__(self) -> None:
        super().__init__()
        Clients.count += 1
        self.server = Server(self.folder / str(Clients.count), thresholds=SIZES)
        self.server.executor.busy.awaits_first = False
        self.talkers: dict[int, Worker] = {}
        self.fails = False
        filler = self.server.client()
        for number in range(1, LONG):
            filler.send("XADD", "long", f"{number}-1", "f", "v")
        filler.send("XGROUP", "CREATE", "long", "g", "0")
        self.server.turn()
        filler.leave()
        for number in (1, 2, 3):
            self.connect(number)

    def connect(self, number: int) -> None:
        self.talkers[number] = Worker(self.server, number)

    @rule(number=st.sampled_from([1, 2, 3]), words=st.lists(st.sampled_from(REQUESTS), max_size=4))
    def send(self, number: int, words: list[tuple[str, ...]]) -> None:
        client = self.talkers[number].client
        if client.id in self.server.executor.clients and words:
            self.server.executor.receive(client, b"".join(request(*each) for each in words))

    @rule(
        number=st.sampled_from([1, 2, 3]), data=st.sampled_from([b"*1\r\n$4", b"*x\r\n", b"\r\n"])
    )
    def send_bytes(self, number: int, data: bytes) -> None:
        client = self.talkers[number].client
        if client.id in self.server.executor.clients:
            self.server.executor.receive(client, data)

    @rule(number=st.sampled_from([1, 2, 3]))
    def end_input(self, number: int) -> None:
        client = self.talkers[number].client
        if client.connection is OPEN and not self.server.executor.end_input(client):
            self.server.executor.forget(client)

    @rule(number=st.sampled_from([1, 2, 3]), event=st.sampled_from(["gone", "drop", "cut off"]))
    def end(self, number: int, event: str) -> None:
        client = self.talkers[number].client
        if event == "cut off":
            client.handle(Event.CUT_OFF)
        elif event == "drop":
            self.server.executor.drop(client)
        else:
            self.server.executor.forget(client)

    @rule(number=st.sampled_from([1, 2, 3]))
    def connect_again(self, number: int) -> None:
        if self.talkers[number].closed or self.talkers[number].client.closing:
            self.talkers[number].leave()
            self.connect(number)

    @rule(fails=st.booleans(), turns=st.integers(1, 3))
    def run(self, fails: bool, turns: int) -> None:
        with write_fails(self.server, 0 if fails else -1):
            for _ in range(turns):
                self.server.executor.run()

    @rule()
    def finish(self) -> None:
        for _ in range(100):
            if not self.server.executor.run():
                break
        else:
            raise AssertionError("a turn is always followed by another one")
        self.server.turn()

    @rule()
    def wait(self) -> None:
        self.server.now += 20
        self.server.executor.expire()

    @invariant()
    def states_are_sound(self) -> None:
        for talker in self.talkers.values():
            check(self.server, talker.client)
            assert b"internal error" not in talker.heard()  # an impossible event

    def teardown(self) -> None:
        for talker in self.talkers.values():
            talker.leave()
        self.server.turn()
        assert not self.server.executor.blocked
        self.server.engine.close()


def test_clients_have_the_states_of_the_tables(tmp_path: Path) -> None:
    Clients.folder = tmp_path
    run_state_machine_as_test(
        Clients, settings=settings(max_examples=30, stateful_step_count=20, deadline=None)
    )
