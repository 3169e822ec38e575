"""Numbers, IDs, bounds and options as Redis reads them from the words of a command."""

import re
from collections.abc import Iterator, Mapping, Sequence

from tests.model.listpack import CANONICAL, INT64
from tests.model.stream import MAX64, TOP, ZERO, Id, after, before

Args = Sequence[bytes]

NOT_INT = "value is not an integer or out of range"
SYNTAX = "syntax error"
BAD_ID = "Invalid stream ID specified as stream command argument"
POLICIES = (b"KEEPREF", b"DELREF", b"ACKED")
U64_TEXT = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)")


class Failure(Exception):
    """Ends a command with an error reply."""


def fail(message: str, code: str = "ERR") -> Failure:
    return Failure(f"{code} {message}")


def text(raw: bytes) -> str:
    return raw.decode("latin-1")


def integer(raw: bytes, error: str = NOT_INT) -> int:
    number = int(raw) if len(raw) <= 20 and CANONICAL.fullmatch(raw) else None
    if number is None or number not in INT64:
        raise fail(error)
    return number


def at_least(least: int, raw: bytes, error: str, unreadable: str = NOT_INT) -> int:
    number = integer(raw, unreadable)
    if number < least:
        raise fail(error)
    return number


def u64(raw: bytes) -> int:
    """Read one half of an ID as strtoull does: ``007``, ``+7`` and `` 7`` pass, ``-07`` wraps."""
    found = U64_TEXT.fullmatch(raw)
    if found is None or int(found[2]) > MAX64 or (found[1] == b"-" and CANONICAL.fullmatch(raw)):
        raise fail(BAD_ID)
    return int(found[2]) if found[1] != b"-" else -int(found[2]) & MAX64


def parse_id(raw: bytes, seq: int = 0) -> Id:
    ms, dash, rest = raw.partition(b"-")
    if len(raw) > 127:
        raise fail(BAD_ID)
    return u64(ms), u64(rest) if dash else seq


def loose_id(raw: bytes, seq: int = 0) -> Id:
    """Read an ID, ``-`` or ``+``."""
    return ZERO if raw == b"-" else TOP if raw == b"+" else parse_id(raw, seq)


def low_bound(raw: bytes) -> Id:
    if raw[:1] != b"(" or len(raw) == 1:
        return loose_id(raw)
    if (id := parse_id(raw[1:])) == TOP:
        raise fail("invalid start ID for the interval")
    return after(id)


def high_bound(raw: bytes) -> Id:
    if raw[:1] != b"(" or len(raw) == 1:
        return loose_id(raw, MAX64)
    if (id := parse_id(raw[1:], MAX64)) == ZERO:
        raise fail("invalid end ID for the interval")
    return before(id)


def options(
    argv: Args, i: int, sizes: Mapping[bytes, int], unknown: str = SYNTAX
) -> Iterator[tuple[bytes, Args]]:
    """Yield each option with its arguments, whose number is in ``sizes``.

    Anything else ends the command with ``unknown``, in which {} stands for the word. It is a
    generator so that the faults of earlier options are found first.
    """
    while i < len(argv):
        word = argv[i].upper()
        if word not in sizes or i + sizes[word] >= len(argv):
            raise fail(unknown.format(text(argv[i])))
        yield word, argv[i + 1 : i + 1 + sizes[word]]
        i += 1 + sizes[word]


def ids_block(argv: Args, i: int) -> tuple[bytes, list[bytes]]:
    """Read ``[KEEPREF|DELREF|ACKED] IDS numids id ...`` of XDELEX and XACKDEL."""
    policy, ids = b"", None
    positive = "Number of IDs must be a positive integer"
    while i < len(argv):
        word, more = argv[i].upper(), len(argv) - i - 1
        if word in POLICIES and not policy:
            policy = word
            i += 1
        elif word == b"IDS" and more:
            count = at_least(1, argv[i + 1], positive, positive)
            if count > more - 1:
                raise fail("The `numids` parameter must match the number of arguments")
            ids = list(argv[i + 2 : i + 2 + count])
            i += 2 + count
        else:
            raise fail(SYNTAX)
    if ids is None:
        raise fail("IDS option is required")
    return policy or b"KEEPREF", ids
