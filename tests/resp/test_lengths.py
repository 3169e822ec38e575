"""An announced length costs nothing before its bytes arrive; these are copied about once."""

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.errors import ProtocolError
from kvstream.resp.requests import ARGUMENT_BYTES, LINE_MAX, RequestReader
from tests.patience import tries
from tests.resp.conversations import drain, framed

pytestmark = pytest.mark.usefixtures("way")

MEGABYTE = 1 << 20
SECONDS_MAX = 0.05
PAGE = 4096
LENGTHS = [
    *("-1", "-5", "0", "2147483647", "4294967296", "9223372036854775807"),
    *("18446744073709551616", "+5", "05", "5x", "", " 5", "9" * 5000),
]
ENDS = ["\r\n", "\n", "\r", "", "\rX", "\r\n\r\n"]
PROMISES = [
    f"{before}{mark}{length}{end}".encode()
    for before, mark in [
        ("", "*"),
        ("*1\r\n", "$"),
        ("*2147483647\r\n", "$"),
        ("*3\r\n$1\r\nx\r\n", "$"),
    ]
    for length in LENGTHS
    for end in ENDS
] + [b"x" * LINE_MAX, b"*" * LINE_MAX, b"*1\r\n" + b"$" * LINE_MAX, b"'" * LINE_MAX]


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "before AUTH"])
def test_no_length_costs_memory_or_time(trusted: bool) -> None:
    for each in tries():  # the collector or another thread may run in any of them
        readers = []  # all are kept, so that their memory adds up
        before = resident()
        with each:
            for promise in PROMISES:
                reader = RequestReader(trusted=trusted)
                began = time.thread_time()
                reader.feed(promise)
                drain(reader)
                assert time.thread_time() - began < SECONDS_MAX
                assert reader.buffered <= len(promise) + 2 * ARGUMENT_BYTES
                readers.append(reader)
            assert resident() - before < MEGABYTE


@pytest.fixture
def peak() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("peak")
@pytest.mark.parametrize("sent", ["*1\r\n$536870912\r\n", "*2147483647\r\n$536870912\r\nx"])
def test_an_announced_half_gigabyte_allocates_nothing(sent: str) -> None:
    reader = RequestReader()
    before, _ = tracemalloc.get_traced_memory()
    reader.feed(sent.encode())
    reader.take()
    took = tracemalloc.get_traced_memory()[1] - before
    assert took < 100_000  # other threads of this process may have allocated some


@pytest.mark.usefixtures("peak")
def test_a_big_argument_in_pieces_is_stored_once() -> None:
    size = 32 * MEGABYTE
    piece = b"x" * LINE_MAX
    reader = RequestReader()
    before, _ = tracemalloc.get_traced_memory()
    reader.feed(b"*2\r\n$3\r\nSET\r\n$%d\r\n" % size)
    for _ in range(size // LINE_MAX):
        assert reader.take() == []
        reader.feed(piece)
    reader.feed(b"\r\n")
    ((name, argument),) = reader.take()
    assert (name, len(argument)) == (b"SET", size)
    assert tracemalloc.get_traced_memory()[1] - before < 1.3 * size


@pytest.mark.parametrize(
    "request_",
    [[b"x" * 100_000], [b"x" * 10_000] * 10, [b"f"] * 15_000, [b""] * 15_000],
    ids=["one argument", "middling ones", "small ones", "empty ones"],
)
def test_single_bytes_take_linear_time(request_: list[bytes]) -> None:
    data = framed(request_)
    reader = RequestReader()
    found, costs = feed_by_byte(reader, data)
    assert found == [request_]
    assert_flat(costs)


def feed_by_byte(reader: RequestReader, data: bytes) -> tuple[list[list[bytes]], list[float]]:
    """Return the requests, and the processor time of each tenth of the bytes."""
    found: list[list[bytes]] = []
    costs = []
    tenth = len(data) // 10
    for start in range(0, 10 * tenth, tenth):
        began = time.thread_time()
        end = start + tenth if start < 9 * tenth else len(data)
        for at in range(start, end):
            reader.feed(data[at : at + 1])
            found += reader.take()
        costs.append(time.thread_time() - began)
    return found, costs


def assert_flat(costs: list[float]) -> None:
    """A byte costs the same early and late; copying all bytes each time would cost far more."""
    early, late = sum(costs[:2]), sum(costs[-2:])
    assert late < 5 * early + 0.02


@pytest.mark.parametrize("mark", [b"x", b"*1", b"*1\r\n$1"])
def test_a_long_line_in_single_bytes_takes_linear_time(mark: bytes) -> None:
    reader = RequestReader()
    reader.feed(mark)
    found, costs = feed_by_byte(reader, b"1" * (LINE_MAX - len(mark)))
    assert found == []
    reader.feed(b"1" * 10)
    with pytest.raises(ProtocolError, match="too big"):
        reader.take()
    assert_flat(costs)
