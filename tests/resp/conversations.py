"""Requests as clients send them, possible faults in them, and how a reader is driven."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from hypothesis import strategies as st

from kvstream.errors import ProtocolError
from kvstream.resp.requests import RequestReader

PARTS = (
    st.binary(max_size=40)
    | st.sampled_from([b"", b"\r\n", b"$1\r\nx\r\n", b"*1\r\n"])
    | st.integers(0, 40_000).map(lambda size: b"x" * size)
)
REQUESTS = st.lists(st.lists(PARTS, min_size=1, max_size=12), max_size=6)


def framed(request: Iterable[bytes]) -> bytes:
    parts = list(request)
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def pieces(data: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    """Yield ``data`` cut at each of some places."""
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in pairwise(bounds):
        yield data[start:stop]


def drain(reader: RequestReader) -> tuple[list[list[bytes]], str]:
    """Take all requests; return them and the text of the error that ended them."""
    requests: list[list[bytes]] = []
    try:
        while taken := reader.take():
            requests += taken
    except ProtocolError as error:
        return requests, str(error)
    return requests, ""


def read(parts: Iterable[bytes], **options: object) -> tuple[list[list[bytes]], str]:
    """Feed the parts to a new reader; return all requests, and the text of the error."""
    reader = RequestReader(**options)  # type: ignore[arg-type]
    requests: list[list[bytes]] = []
    fault = ""
    for part in parts:
        reader.feed(part)
        taken, fault = drain(reader)
        requests += taken
        if fault:
            break
    return requests, fault
