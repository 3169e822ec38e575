"""A recorded conversation, replayed in the bytes of both protocols."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import ManualClock
from kvstream.commands.replies import RESP2, RESP3
from tests.commands.dispatcher import Dispatcher
from tests.commands.wire import wire

CONVERSATION = Path(__file__).with_name("conversation.txt")


def steps(protocol: int) -> Iterator[tuple[str, str]]:
    """Yield (command, answer) of the protocol, and ("~", milliseconds)."""
    command = ""
    for line in CONVERSATION.read_text().splitlines():
        if line.startswith("> "):
            command = line[2:]
        elif line.startswith("~ "):
            yield "~", line[2:]
        elif line[:2] in ("2 ", "3 "):
            if line[0] == str(protocol):
                yield command, line[2:]
        elif line and not line.startswith("#"):
            yield command, line


@pytest.mark.parametrize("protocol", [RESP2, RESP3])
def test_every_reply_of_the_recorded_conversation_is_the_same(
    protocol: int, dispatcher: Dispatcher, clock: ManualClock
) -> None:
    found = 0
    for command, answer in steps(protocol):
        if command == "~":
            clock.advance(int(answer))
            continue
        reply = wire(dispatcher.execute(command.encode().split()), protocol)
        assert reply.decode().replace("\r\n", " ").strip() == answer, command
        found += 1
    assert found == 86
