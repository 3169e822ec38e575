"""Damage done to files on purpose, with a checksum that is right again."""

import os
from random import Random

from tests.rdb.building import resummed

ROUNDS = int(os.environ.get("KVSTREAM_FUZZ_ROUNDS") or 400)
"""Files that each test damages; hundreds of thousands in a long run."""
SEED = int(os.environ.get("KVSTREAM_FUZZ_SEED") or 0)

_TELLING = bytes((0, 1, 2, 0x3F, 0x40, 0x7F, 0x80, 0x81, 0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xFE, 0xFF))
_HUGE = (b"\x81" + b"\xff" * 8, b"\x80\xff\xff\xff\xff", b"\x81\x7f" + b"\xff" * 7, b"\x7f\xff")


def _flip(data: bytearray, chance: Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _tell(data: bytearray, chance: Random) -> None:
    data[chance.randrange(len(data))] = chance.choice(_TELLING)


def _exaggerate(data: bytearray, chance: Random) -> None:
    at, huge = chance.randrange(len(data)), chance.choice(_HUGE)
    data[at : at + chance.choice((1, len(huge)))] = huge


def _drop(data: bytearray, chance: Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.choice((1, 2, 16, 100))]


def _repeat(data: bytearray, chance: Random) -> None:
    at, size = chance.randrange(len(data)), chance.choice((1, 2, 16, 100))
    data[at:at] = data[at : at + size]


def _move(data: bytearray, chance: Random) -> None:
    at, size = chance.randrange(len(data)), chance.choice((1, 8, 50))
    piece = bytes(data[at : at + size])
    to = chance.randrange(len(data))
    data[to : to + size] = piece


def _cut(data: bytearray, chance: Random) -> None:
    del data[chance.randrange(len(data)) :]


_WAYS = (_flip, _tell, _tell, _exaggerate, _drop, _repeat, _move)


def damaged(body: bytes, chance: Random) -> bytes:
    """Return bytes of which some are others, more or fewer."""
    data = bytearray(body)
    if not chance.randrange(50):
        _cut(data, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        if data:
            chance.choice(_WAYS)(data, chance)
    return bytes(data)


def mutated(data: bytes, chance: Random) -> bytes:
    """Return a file that is damaged behind its header, which is whole."""
    return resummed(data[:9] + damaged(data[9:-8], chance) + bytes(8))
