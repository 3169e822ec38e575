"""XINFO GROUPS and CONSUMERS of very many: loaded in steps, and sent in pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.types.clock import ManualClock
from tests.server.talking import Other, Server, Talker, Worker, request, sound

GROUPS, CONSUMERS = ("XINFO", "GROUPS", "s"), ("XINFO", "CONSUMERS", "s", "g00")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    sizes = {"long_members": 8, "step_members": 3, "steps_s": -1.0}
    with sound(tmp_path / "store", ManualClock(), **sizes) as started:
        yield started


@pytest.fixture
def ann(server: Server) -> Talker:
    """A client whose commands run in one step."""
    talker = Other(server, 1)
    for number in range(30):
        talker.ask("XADD", "s", f"{number + 1}-1", "f", "v")
        talker.ask("XGROUP", "CREATE", "s", f"g{number:02}", f"{number}-1")
    for number in range(20):
        words = ("GROUP", "g00", f"c{number:02}", "COUNT", str(number % 3), "STREAMS", "s", ">")
        talker.ask("XREADGROUP", *words)
    return talker


@pytest.mark.parametrize("protocol", ["2", "3"])
@pytest.mark.parametrize("asked", [GROUPS, CONSUMERS])
def test_many_have_the_same_reply_as_few(
    server: Server, worker: Worker, ann: Talker, protocol: str, asked: tuple[str, ...]
) -> None:
    for client in (worker, ann):
        client.send("HELLO", protocol)
        server.turn()
        client.heard()
    expected = ann.ask(*asked)
    assert worker.ask(*asked) == expected
    server.engine.catalog.forget()
    worker.begin(*asked)
    server.turn()
    assert worker.heard() == expected


@pytest.mark.parametrize("asked", [GROUPS, CONSUMERS])
def test_changes_by_other_clients_are_shown(
    server: Server, worker: Worker, ann: Talker, asked: tuple[str, ...]
) -> None:
    server.engine.catalog.forget()
    worker.begin(*asked)
    ann.ask("XGROUP", "DESTROY", "s", "g07")
    ann.ask("XGROUP", "CREATE", "s", "g99", "5-1")
    ann.ask("XGROUP", "DELCONSUMER", "s", "g00", "c04")
    ann.ask("XGROUP", "CREATECONSUMER", "s", "g00", "c99")
    server.turn()
    assert worker.heard() == ann.ask(*asked)
    server.engine.catalog.forget()
    worker.begin(*asked)
    ann.ask("DEL", "s")
    server.turn()
    assert worker.heard() == b"-ERR no such key\r\n"
    assert worker.ask(*asked) == b"-ERR no such key\r\n"


def test_changes_of_the_same_turn_are_shown(server: Server, worker: Worker, ann: Talker) -> None:
    server.engine.catalog.forget()
    worker.send_bytes(request("XGROUP", "CREATE", "s", "g99", "$") + request(*GROUPS))
    server.turn()
    assert worker.heard() == b"+OK\r\n" + ann.ask(*GROUPS)
    assert b"NOGROUP" in worker.ask("XINFO", "CONSUMERS", "s", "none")
