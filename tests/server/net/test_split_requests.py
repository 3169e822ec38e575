"""The recorded conversation gets the same replies with each request cut in two at any place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Durability, ManualClock
from tests.commands.test_conversation import steps
from tests.server.talking import Server, Talker, request


class Replay:
    """A client that sends a recorded conversation to an empty server."""

    def __init__(self, server: Server, clock: ManualClock) -> None:
        self.clock = clock
        self.server = server
        self.talker: Talker = server.client()
        self.ask(request("FLUSHALL"))
        clock.advance(BEGINNING_MS - clock.now_ms())

    def ask(self, *parts: bytes) -> bytes:
        """Send a request in parts; no reply may arrive before the last one."""
        for part in parts:
            assert self.talker.heard() == b""
            self.talker.send_bytes(part)
            self.server.turn()
        if self.talker.client.block is not None:
            self.server.wait(3600)
        return self.talker.heard()

    def run(self, protocol: int, cut: int) -> Iterator[tuple[str, str, str]]:
        """Yield each command, its reply and the recorded one; 0: no cut, -1: every byte alone."""
        if protocol == 3:
            self.ask(request("HELLO", "3"))
        for command, answer in steps(protocol):
            if command == "~":
                self.clock.advance(int(answer))
                continue
            data = request(*command.split())
            parts = [data[at : at + 1] for at in range(len(data))] if cut < 0 else halves(data, cut)
            reply = self.ask(*parts)
            yield command, reply.decode().replace("\r\n", " ").strip(), answer


def halves(data: bytes, cut: int) -> list[bytes]:
    at = cut % len(data)
    return [data[:at], data[at:]] if at else [data]


BEGINNING_MS = ManualClock().now_ms()
LONGEST = max(len(request(*command.split())) for command, _ in steps(2))


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
def test_every_request_may_be_cut_at_every_byte(tmp_path: Path, protocol: int) -> None:
    clock = ManualClock()
    server = Server(tmp_path / "store", Durability.NO, clock)
    # The other protocol does not change the parsing: a few cuts suffice there.
    for cut in (-1, *range(0, LONGEST, 1 if protocol == 2 else 10)):
        found = list(Replay(server, clock).run(protocol, cut))
        assert len(found) == 86
        for command, reply, answer in found:
            assert (cut, command, reply) == (cut, command, answer)
    server.engine.close()
