"""XREAD of many streams: by one iterator and in pages, with the result of single reads."""

import random
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.layout.values import encode_fields
from kvstream.storage.batch import Family
from kvstream.types.clock import ManualClock
from tests.server.runtime.test_reply_streaming import Reader
from tests.server.talking import Other, Server, Talker, sound

STREAMS = [f"s{number}" for number in range(12)]
LONG = [f"{'v' * 300}{number}" for number in range(8)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    sizes = {"long_loading": 5, "loaded_together": 2, "long_read": 8, "few_streams": 2}
    sizes |= {"short_streams": 5, "look_rows": 3, "short_rows": 20, "seek_rows": 4}
    sizes |= {"searched_streams": 3, "returned_streams": 2}
    with sound(tmp_path / "store", ManualClock(), steps_s=-1.0, **sizes) as started:
        yield started


@pytest.fixture
def reader(server: Server) -> Reader:
    return Reader(server, 100)


def change(ann: Talker, draw: random.Random) -> None:
    key, low = draw.choice(STREAMS), str(draw.randint(1, 30))
    ann.ask(
        *draw.choice(
            [
                *[("XADD", key, "*", "f", draw.choice(LONG)[draw.choice([0, 299]) :])] * 12,
                ("XTRIM", key, "MAXLEN", low),
                ("XDEL", key, *(f"{low}-{number}" for number in range(9))),
                ("XSETID", key, "9000-0"),
                ("DEL", key),
                ("RENAME", key, draw.choice(STREAMS)),
            ]
        )
    )


@pytest.mark.parametrize("protocol", ["2", "3"])
@pytest.mark.parametrize("seed", range(6))
def test_many_streams_have_the_state_at_the_start_of_the_reply(
    server: Server, ann: Talker, reader: Reader, seed: int, protocol: str
) -> None:
    draw = random.Random(seed)
    for client in (ann, reader):
        client.ask("HELLO", protocol)
    clock = server.engine.clock
    assert isinstance(clock, ManualClock)
    clock.ms = 1
    for _ in range(25):
        for _ in range(draw.randint(1, 60)):
            change(ann, draw)
            clock.advance(draw.randint(0, 1))
        keys = draw.choices(STREAMS, k=draw.randint(2, 14))
        ids = [f"{draw.choice([0, draw.randint(1, 600)])}-{draw.randint(0, 3)}" for _ in keys]
        count = draw.choice([(), ("COUNT", "1"), ("COUNT", "4"), ("COUNT", "9")])
        if draw.random() < 0.3:
            server.engine.catalog.forget()
        expected = ann.ask("XREAD", *count, "STREAMS", *keys, *ids)
        if draw.random() < 0.3:
            server.engine.catalog.forget()
        reader.send("XREAD", *count, "STREAMS", *keys, *ids)
        said = reader.page()
        change(ann, draw)
        while reader.client.reply_unfinished:
            change(ann, draw)
            said += reader.page()
        assert said + reader.rest() == expected


def test_streams_are_loaded_before_the_client_blocks(
    server: Server, ann: Talker, reader: Reader
) -> None:
    for key in STREAMS:
        ann.ask("XADD", key, "1-1", "f", "v")
    ann.ask("SET", "string", "v")
    server.engine.catalog.forget()
    reader.send("XREAD", "BLOCK", "0", "STREAMS", *STREAMS, "none", *["$"] * 13)
    server.executor.run()
    assert len(server.engine.catalog.streams) < len(STREAMS)
    ann.ask("XADD", STREAMS[0], "2-1", "f", "v")
    assert reader.client.block is not None
    ann.ask("XADD", "none", "2-1", "f", "v")
    assert b"none" in reader.rest()
    server.engine.catalog.forget()
    assert b"-WRONGTYPE" in reader.ask("XREAD", "STREAMS", *STREAMS, "string", *["0"] * 13)


def test_the_positions_of_very_many_streams_are_looked_up_in_a_separate_turn(
    server: Server, ann: Talker, reader: Reader
) -> None:
    for key in STREAMS:
        ann.ask("XADD", key, "1-1", "f", "v")
    reader.send("XREAD", "STREAMS", *STREAMS, *["$", "0"] * 6)
    with patch.object(server.executor.incremental, "run"):
        server.executor.run()
        assert reader.client.reply_unfinished
        Other(server, 101).ask("XADD", STREAMS[0], "2-1", "f", "v")
    said = reader.rest()
    assert said.startswith(b"*6\r\n")
    assert b"2-1" not in said


def test_a_lost_first_entry_ends_a_reply(server: Server, ann: Talker, reader: Reader) -> None:
    for key in STREAMS:
        ann.ask("XADD", key, "1-1", "f", "v")
    stream = server.engine.catalog.streams[b"\0\0s7"]
    row = stream.prefix + stream.first.packed
    server.engine.run(lambda txn: txn.batch.delete(Family.MESSAGES, row))
    said = reader.ask("XREAD", "STREAMS", *STREAMS, *["0"] * 12)
    assert b"s8" not in said
    assert reader.closed
    value, _ = encode_fields({"f": "v"})
    server.engine.run(lambda txn: txn.batch.put(Family.MESSAGES, row, value))
