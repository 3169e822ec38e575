"""What a command answers: bytes, int, None, lists and ``ErrorReply``; maps are flat lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.model.stream import Fields, Id

Reply: TypeAlias = "bytes | int | Sequence[Reply] | ErrorReply | None"


@dataclass(frozen=True)
class ErrorReply:
    text: bytes


def id_text(id: Id) -> bytes:
    return b"%d-%d" % id


def entry(id: Id, fields: Fields | None) -> list[Reply]:
    return [id_text(id), fields]


def flat(**pairs: Reply) -> list[Reply]:
    """Return a map as RESP2 has it; the names of its fields with dashes."""
    named = ((name.replace("_", "-").encode(), value) for name, value in pairs.items())
    return [part for pair in named for part in pair]


def resp_size(reply: Reply) -> int:
    """Return the bytes of a reply in RESP2."""
    if isinstance(reply, bytes):
        return len(b"$%d\r\n" % len(reply)) + len(reply) + 2
    if isinstance(reply, int):
        return len(b":%d\r\n" % reply)
    if reply is None:
        return len(b"*-1\r\n")
    assert not isinstance(reply, ErrorReply)
    return len(b"*%d\r\n" % len(reply)) + sum(map(resp_size, reply))
