"""Every row of a command does what it says on both servers, and notices what was not done."""

import pytest
from redis import Redis

from bench.__main__ import COMMAND_GROUPS
from bench.commands import COMMANDS, Command
from bench.load import GROUP, WrongReply, dealt, deliver, exchanges, fill_numbered, run_scripts
from bench.processes import framed, port_of
from bench.server import KEY, ServerRow, run_round

COUNT = 150
ROWS = [row for rows in COMMAND_GROUPS.values() for row in rows]


@pytest.fixture(autouse=True)
def few_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand streams that a row prepares, some: each round would add one to each."""
    monkeypatch.setattr("bench.commands.STREAMS", 300)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_round_does_what_it_says(row: ServerRow, client: Redis) -> None:
    used = run_round(row, client, COUNT)
    assert used.seconds > 0
    assert used.processor >= 0


@pytest.mark.parametrize(
    "command",
    [command for command in COMMANDS if command.check is not None],
    ids=lambda command: command.name,
)
def test_a_round_that_was_not_run_is_noticed(command: Command, client: Redis) -> None:
    command.prepare(client, COUNT)
    assert command.check is not None
    with pytest.raises(WrongReply):
        command.check(client, COUNT)


@pytest.mark.parametrize(
    "row",
    [row for group in ("cycle", "reading", "mixed") for row in COMMAND_GROUPS[group]],
    ids=lambda row: row.key,
)
def test_a_queue_that_was_not_worked_off_is_noticed(row: ServerRow, client: Redis) -> None:
    row.prepare(client, COUNT)
    with pytest.raises(WrongReply):
        row.check(client, COUNT)


def test_a_reply_that_is_not_the_expected_one_is_noticed(client: Redis) -> None:
    fill_numbered(port_of(client), KEY, 3)
    deliver(port_of(client), KEY, 3)
    request = framed("XACK", KEY, GROUP, "1000000-0")
    with pytest.raises(WrongReply, match="XACK"):
        run_scripts(port_of(client), [exchanges([(request, b":1\r\n")] * 2)])


def test_an_error_is_noticed(client: Redis) -> None:
    with pytest.raises(WrongReply, match="ERR"):
        run_scripts(port_of(client), [exchanges([(framed("XACK"), b":1\r\n")])])


def test_requests_are_dealt_to_the_clients_in_batches(client: Redis) -> None:
    requests = [framed("INCR", "counter") for _ in range(23)]
    scripts = dealt(requests, [b":%d\r\n" % n for n in range(1, 24)], 1, 5)
    assert run_scripts(port_of(client), scripts) > 0
    assert client.get("counter") == b"23"
    assert len(dealt(requests, [b""] * 23, 50, 5)) == 5
