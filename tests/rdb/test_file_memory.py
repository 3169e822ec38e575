"""Files far larger than the memory that reading and writing them takes."""

import io
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat

import pytest

from kvstream.layout.values import encode_flat
from kvstream.migration.aof_source import CommandsFile
from kvstream.rdb.file_reader import FileReader, OtherRecord, StreamRecord, StringRecord
from kvstream.rdb.file_writer import BUFFER_BYTES, FileWriter
from kvstream.rdb.versions import target
from kvstream.types.ids import StreamID
from kvstream.types.images import NodeImage, StreamState
from tests.rdb.building import EOF, SET, encoded, length, record, string

MEGABYTE = 1 << 20


class Made(io.RawIOBase):
    """A file whose bytes are generated as they are read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        data = self._rest or next(self._pieces, b"")
        self._rest = data[size:]
        return data[:size]


class Sink(io.BytesIO):
    """A file that discards its bytes and keeps its size."""

    size = 0

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        self.size += len(data)
        return len(data)

    def seek(self, at: int, whence: int = 0) -> int:
        return at


def peak(work: Callable[[], object]) -> int:
    """Return the peak of allocated bytes while a function runs."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def nodes(count: int) -> Iterator[NodeImage]:
    """Make nodes of 400 KB each."""
    value, _ = encode_flat([b"field", b"x" * 4000])
    for number in range(count):
        ids = [StreamID(number + 1, seq).packed for seq in range(100)]
        yield NodeImage(ids[0], (b"field",), ids, [value] * 100, 100, 0)


@pytest.mark.usefixtures("twins")  # checksums of so much take minutes in Python
def test_skipped_large_values_are_not_kept_in_memory() -> None:
    zeros = bytes(MEGABYTE)
    file = Made(
        chain(
            [b"REDIS0011", record(0, length(64 * MEGABYTE), b"string")],
            repeat(zeros, 64),
            [record(1, length(1000), b"list")],
            repeat(string(b"y" * 40_000), 1000),
            [b"\xfa" + string(b"note") + string(b"1"), EOF + bytes(8)],
        )
    )
    found = []

    def walk() -> None:
        for each in FileReader(file):  # type: ignore[arg-type]
            if isinstance(each, OtherRecord | StringRecord):
                found.append(each.key)

    assert peak(walk) < 4 * MEGABYTE
    assert found == [b"string", b"list"]


@pytest.mark.usefixtures("twins")
def test_a_stream_of_any_length_takes_the_memory_of_a_few_nodes() -> None:
    count = 100
    sink = Sink()
    state = StreamState(100 * count, StreamID(count, 99))

    def write() -> None:
        writer = FileWriter(sink, target("redis:7.2"), compress=False)
        writer.stream(0, b"large", nodes(count), state)
        writer.finish()

    assert peak(write) < 3 * BUFFER_BYTES + 3 * MEGABYTE
    assert sink.size > 38 * MEGABYTE

    out = io.BytesIO()
    writer = FileWriter(out, target("redis:7.2"), compress=False)
    writer.stream(0, b"large", nodes(count), state)
    writer.finish()
    out.seek(0)
    read = []

    def walk() -> None:
        for each in FileReader(out):
            if isinstance(each, StreamRecord):
                read.append(sum(len(node.ids) for node in each.stream.nodes()))

    assert peak(walk) < 5 * MEGABYTE
    assert read == [100 * count]


def test_commands_of_a_large_file_are_not_kept_in_memory() -> None:
    large = encoded(b"SET", b"a", b"x" * MEGABYTE)
    file = CommandsFile(Made(chain(repeat(SET * 100, 200), repeat(large, 20))))  # type: ignore[arg-type]
    counted = []
    assert peak(lambda: counted.append(sum(len(unit.commands) for unit in file))) < 6 * MEGABYTE
    assert counted == [20_020]
    assert file.cut == 0
