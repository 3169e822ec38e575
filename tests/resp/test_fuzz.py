"""Any bytes, cut in any way, are requests or raise ProtocolError.

KVSTREAM_FUZZ_INPUTS is the number of inputs, KVSTREAM_FUZZ_SEED the seed, which a failure names.
"""

import os
import random

import pytest

from kvstream.resp import requests, twins
from kvstream.resp.requests import ARGUMENT_BYTES, RequestReader
from tests.commands.test_conversation import CONVERSATION
from tests.resp.conversations import drain, framed, read

INPUTS = int(os.environ.get("KVSTREAM_FUZZ_INPUTS", "30000"))
SEED = int(os.environ.get("KVSTREAM_FUZZ_SEED", "20261121"))
RECORDED = [
    line[2:].encode().split()
    for line in CONVERSATION.read_text().splitlines()
    if line.startswith("> ")
]
SNIPPETS = [
    *(
        b"\r\n",
        b"\r",
        b"\n",
        b"*",
        b"$",
        b"*0\r\n",
        b"*-1\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*1\r\n",
    ),
    *(b"\0", b"'", b'"', b"\\x4", b"-", b"+", b"0", b"9", b"2147483648", b"18446744073709551616"),
    *(
        b"PING\r\n",
        b"$5\r\nhello\r\n",
        b"*2\r\n$1\r\nx\r\n",
        b"\xff",
        b" ",
        b"$40000\r\n",
        b"x" * 200,
    ),
]


def conversation(chance: random.Random) -> bytes:
    """Return a few recorded requests, some inline, with up to four mutations."""
    data = bytearray()
    for request in chance.choices(RECORDED, k=chance.randint(1, 4)):
        data += b" ".join(request) + b"\r\n" if chance.random() < 0.2 else framed(request)
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(data) + 1)
        until = at + chance.choice((0, 0, 1, 1, 2, 10))
        data[at:until] = chance.choice(SNIPPETS) if chance.random() < 0.8 else b""
    return bytes(data)


def cut(chance: random.Random, data: bytes) -> list[bytes]:
    if chance.random() < 0.1:
        return [data[at : at + 1] for at in range(len(data))]
    at = chance.randrange(len(data) + 1)
    return [data[:at], data[at:]]


def bounded(data: bytes, trusted: bool) -> None:
    reader = RequestReader(trusted=trusted)
    reader.feed(data)
    drain(reader)
    assert reader.buffered <= len(data) * (1 + ARGUMENT_BYTES // 6)  # "$0\r\n\r\n" is the shortest


@pytest.mark.timeout(3600)
def test_any_bytes_are_requests_or_a_protocol_error(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(SEED)
    takers = [requests] if twins is None else [requests, twins]
    for number in range(INPUTS):
        data = conversation(chance)
        trusted = chance.random() < 0.8
        parts = cut(chance, data)
        found = []
        for take, way in zip(takers * 2, (parts, [data]), strict=False):
            monkeypatch.setattr(requests, "_take_plain", take.take_plain)
            found.append(read(way, trusted=trusted))
        assert found[0] == found[1], (SEED, number, data, parts)
        bounded(data, trusted)
