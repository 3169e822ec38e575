"""XINFO STREAM FULL and DUMP of very many groups: in steps, with the state at their start."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kvstream.types.clock import ManualClock
from tests.server.runtime.test_reply_streaming import Reader
from tests.server.talking import Other, Server, Talker, Worker, parsed, sound

KEYS = ["k0", "k1"]
GROUPS = [f"g{number}" for number in range(9)]
WORKERS = ["ann", "bob", "eve"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    sizes = {"long_groups": 2, "step_nodes": 3, "step_groups": 2, "steps_s": -1.0, "copied_runs": 3}
    with sound(tmp_path / "store", ManualClock(), **sizes) as started:
        yield started


@pytest.fixture
def other(server: Server) -> Other:
    return Other(server, 300)


def change(server: Server, talker: Talker, draw: random.Random) -> None:
    key, group, worker = draw.choice(KEYS), draw.choice(GROUPS), draw.choice(WORKERS)
    ids = [f"{draw.randint(1, 40)}-0" for _ in range(5)]
    read = ("XREADGROUP", "GROUP", group, worker, "COUNT", str(draw.randint(1, 4)), "STREAMS", key)
    request = draw.choice(
        [
            *[("XADD", key, "*", "f", "v")] * 4,
            *[("XGROUP", "CREATE", key, group, "0", "MKSTREAM")] * 4,
            *[(*read, ">")] * 9,
            (*read, "0"),
            ("XGROUP", "CREATECONSUMER", key, group, worker),
            ("XACK", key, group, *ids),
            ("XCLAIM", key, group, worker, "0", *ids),
            ("XNACK", key, group, "SILENT", "IDS", "2", *ids[:2]),
            ("XDEL", key, ids[0]),
            ("XSETID", key, "9000-0"),
            draw.choice(
                [
                    ("XGROUP", "DESTROY", key, group),
                    ("XGROUP", "DELCONSUMER", key, group, worker),
                    ("DEL", key),
                    ("RENAME", key, draw.choice(KEYS)),
                ]
            ),
        ]
    )
    talker.ask(*request)
    clock = server.engine.clock
    assert isinstance(clock, ManualClock)
    clock.advance(draw.randint(0, 1))


@pytest.mark.parametrize("seed", range(6))
def test_the_reply_has_the_groups_at_its_start(
    server: Server, ann: Talker, other: Other, seed: int
) -> None:
    draw, reader = random.Random(seed), Reader(server, 100)
    server.engine.clock.ms = 1  # type: ignore[attr-defined]
    for _ in range(15):
        for _ in range(draw.randint(1, 60)):
            change(server, ann, draw)
        if draw.random() < 0.3:
            server.engine.catalog.forget()
        wanted = draw.choice([(), ("COUNT", "0"), ("COUNT", "2")])
        request = ("XINFO", "STREAM", draw.choice(KEYS), "FULL", *wanted)
        expected = ann.ask(*request)
        reader.send(*request)
        said = reader.page()
        for _ in range(draw.randint(0, 9)):
            change(server, other, draw)
        assert said + reader.rest() == expected


@pytest.mark.parametrize("seed", range(6))
def test_a_payload_has_the_groups_of_the_first_step(
    server: Server, ann: Talker, other: Other, seed: int
) -> None:
    draw, worker = random.Random(seed), Worker(server, 100)
    for _ in range(12):
        for _ in range(draw.randint(1, 60)):
            change(server, ann, draw)
        key = draw.choice(KEYS)
        expected = parsed(ann.ask("DUMP", key))
        if draw.random() < 0.3:
            server.engine.sync()  # writes the seen times of consumers
            server.engine.catalog.forget()
        worker.send("DUMP", key)
        worker.step()
        if draw.random() < 0.05:
            server.engine.reopen()
            found = worker.end()
        else:
            found = worker.end(partial(change, server, other, draw))
        assert found == expected
        if expected is not None:
            ann.ask("DEL", "restored")
            assert ann.ask("RESTORE", "restored", "0", expected) == b"+OK\r\n"
            assert parsed(ann.ask("DUMP", "restored")) == expected


def test_unwritten_seen_times_are_shown(server: Server, ann: Talker) -> None:
    reader = Reader(server, 100)
    for group in GROUPS:
        ann.ask("XGROUP", "CREATE", "k0", group, "$", "MKSTREAM")
        ann.ask("XGROUP", "CREATECONSUMER", "k0", group, "ann")
    server.wait(1)
    assert isinstance(server.engine.clock, ManualClock)
    server.engine.clock.advance(77)
    ann.ask("XREADGROUP", "GROUP", GROUPS[3], "ann", "STREAMS", "k0", ">")
    assert server.engine.catalog.seen
    expected = ann.ask("XINFO", "STREAM", "k0", "FULL")
    assert reader.ask("XINFO", "STREAM", "k0", "FULL") == expected
    assert expected.count(b":%d\r\n" % server.engine.clock.now_ms()) == 1
