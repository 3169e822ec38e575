"""Which parts of two replies must be equal, and which may differ.

Replies are compared byte for byte first. Where the bytes differ, each is taken apart, and what is
known to differ left out: times, the order of KEYS, and what the version that is compared with does
otherwise than Redis 8.10. That is the table VERSIONS.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Argv = list[str]
Node = tuple[str, Any]
"""A reply taken apart: the mark of its kind, and its text, number, or parts; maps are flat."""

NEAR_MS = 10 * 86_400_000
INCOMPLETE = -1
_TEXTS = "+-:#_,("
_BULKS = "$="


class Difference(AssertionError):
    """Two servers have replied differently."""


class Incomparable(Exception):
    """From here on redis-server 7.0 goes a way that later ones do not go: nothing to compare."""


def parse(data: bytes, at: int = 0) -> tuple[Node | None, int]:
    """Return the reply at some place and where it ends; INCOMPLETE where its end has not come."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return None, INCOMPLETE
    mark, text = chr(data[at]), data[at + 1 : end]
    end += 2
    if mark in _TEXTS:
        return (mark, int(text) if mark == ":" else text), end
    size = int(text)
    if size < 0:
        return (mark, None), end
    if mark in _BULKS:
        stop = end + size + 2
        return ((mark, data[end : stop - 2]), stop) if stop <= len(data) else (None, INCOMPLETE)
    parts = []
    for _ in range(2 * size if mark == "%" else size):
        part, end = parse(data, end)
        if end < 0:
            return None, INCOMPLETE
        parts.append(part)
    return (mark, parts), end


def difference(
    argv: Argv, ours: bytes, theirs: bytes, queued: list[Argv], version: "Version"
) -> str:
    """Return the forbidden difference of the replies to a request; empty if there is none.

    ``queued`` are the requests whose replies EXEC gives.
    """
    one, other = parse(ours)[0], parse(theirs)[0]
    assert one is not None
    assert other is not None
    if argv[0].upper() == "EXEC" and one[0] == other[0] == "*" and one[1] and other[1]:
        pairs = zip(queued, one[1], other[1], strict=True)
        return next((found for each in pairs if (found := _difference(*each, version))), "")
    return _difference(argv, one, other, version)


def _difference(argv: Argv, ours: Node, theirs: Node, version: "Version") -> str:
    if ours == theirs or _is_reworded(ours, theirs, version):
        return ""
    words = [word.upper() for word in argv]
    waited = words[0] == "XREAD" and "BLOCK" in words
    if version.serves_one_key and waited and (_is_wrong_type(ours) or _of_one_key(ours, theirs)):
        return ""
    if words[0] == "XINFO":
        ours, theirs = _plain(ours, version), _plain(theirs, version)
        return "" if ours == theirs else f"{ours} is not {theirs}"
    if version.consumers_come_late and words[:2] == ["XGROUP", "CREATECONSUMER"]:
        ours, theirs = _constant(ours), _constant(theirs)
    normal = NORMAL.get(words[0])
    if normal is not None:
        ours, theirs = normal(ours), normal(theirs)
    return "" if ours == theirs else f"{ours} is not {theirs}"


def _is_reworded(ours: Node, theirs: Node, version: "Version") -> bool:
    if ours[0] != "-" or theirs[0] != "-":
        return False
    return bool(ours[1].startswith(version.reworded.get(theirs[1], b"\n")))


def is_abort(reply: bytes) -> bool:
    """Tell whether EXEC says that a watched key has changed."""
    return reply in (b"*-1\r\n", b"_\r\n")


def is_outdated(reply: bytes) -> bool:
    """Tell whether only 7.0 gives this reply to a read that has waited.

    It answers for a key that was written and emptied again within one EXEC; later versions try the
    command as a whole once more, and wait on.
    """
    node = parse(reply)[0]
    return node is not None and node[0] in "*%" and _EMPTY in _parts(node)


_EMPTY: Node = ("*", [])


def _parts(node: Node) -> list[Node]:
    """Return the entries of each key in a reply to XREAD."""
    pairs = node[1] or []
    if node[0] == "%":
        return list(pairs[1::2])
    return [pair[1][1] for pair in pairs if pair[0] == "*" and len(pair[1] or ()) == 2]


def _is_wrong_type(node: Node) -> bool:
    return bool(node[0] == "-" and node[1].startswith(b"WRONGTYPE "))


def _of_one_key(ours: Node, theirs: Node) -> bool:
    """Return whether a woken read of several keys returns only one of them, as 7.0 does."""
    kept = _pairs(theirs)
    return theirs[0] in "*%" and len(kept) > 0 and all(pair in _pairs(ours) for pair in kept)


def _pairs(node: Node) -> list[Any]:
    if node[0] == "%":
        return list(zip(node[1][::2], node[1][1::2], strict=True))
    return [tuple(pair[1]) for pair in node[1] or () if pair[0] == "*"]


# --- what is left out of a reply ----------------------------------------------------------------


def _sort(node: Node) -> Node:
    return (node[0], sorted(node[1])) if node[0] == "*" else node


def _if_any(node: Node) -> Node:
    """Tell of a time that is left no more than that there is some."""
    return (":", min(node[1], 0)) if node[0] == ":" else node


def _is_near(moment: int) -> bool:
    return abs(moment - time.time() * 1000) < NEAR_MS


def _if_far(node: Node) -> Node:
    """Tell of a moment that was given as a distance no more than that it is one."""
    near = node[0] == ":" and (_is_near(node[1]) or _is_near(node[1] * 1000))
    return (":", 0) if near else node


def _without_idle(node: Node) -> Node:
    """Leave the idle times out of the rows of XPENDING."""
    if node[0] != "*" or not node[1]:
        return node
    rows = [
        ("*", [*row[1][:2], None, row[1][3]]) if row[0] == "*" and len(row[1] or ()) == 4 else row
        for row in node[1]
    ]
    return ("*", rows)


def _plain(node: Node, version: "Version") -> Any:
    """Return a part of XINFO's reply without what is left out of it: maps as pairs."""
    mark, value = node
    if mark == ":":
        return 0 if _is_near(value) else value
    if mark not in "*%" or value is None:
        return value
    names = [part[1] for part in value[::2]]
    if mark == "%" or (b"name" in names[:1] or b"length" in names[:1]):
        rows = {
            name: _plain(part, version)
            for name, part in zip(names, value[1::2], strict=True)
            if name not in version.left_out
        }
        return _without_idlers(rows) if version.consumers_come_late else rows
    return [each for part in value if (each := _plain(part, version)) is not None]


def _without_idlers(row: dict[bytes, Any]) -> Any:
    """Leave out consumers that have nothing pending, and their number."""
    pending = row.get(b"pel-count", row.get(b"pending"))
    is_consumer = b"name" in row and b"last-delivered-id" not in row
    if is_consumer and pending == 0:
        return None
    if isinstance(row.get(b"consumers"), int):
        del row[b"consumers"]
    return row


def _constant(node: Node) -> Node:
    return node if node[0] == "-" else (":", 0)


NORMAL: dict[str, Callable[[Node], Any]] = {
    "KEYS": _sort,
    "TTL": _if_any,
    "PTTL": _if_any,
    "EXPIRETIME": _if_far,
    "PEXPIRETIME": _if_far,
    "XPENDING": _without_idle,
}

# --- what versions do otherwise -----------------------------------------------------------------

TIMES = {b"idle", b"inactive", b"seen-time", b"active-time"}
OURS = {b"radix-tree-nodes"}
"""Told otherwise here, as docs/commands.md says."""
SINCE_8_6 = {
    *(b"idmp-duration", b"idmp-maxsize", b"pids-tracked", b"iids-tracked"),
    *(b"iids-added", b"iids-duplicates"),
}
SINCE_8_8 = {b"nacked-count"}
UNBALANCED = b"ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be "
OLD_UNBALANCED = b"ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be "


@dataclass(frozen=True)
class Version:
    """What a server does otherwise than Redis 8.10."""

    left_out: set[bytes]
    """Pairs of XINFO that are not compared."""
    reworded: dict[bytes, tuple[bytes, ...]]
    """Its errors, and how those begin that stand for them."""
    unknown: set[str]
    """Words of a request that it does not know, or takes for something else."""
    parting: set[bytes] = field(default_factory=set)
    """How errors begin after which it goes another way: nothing more can be compared."""
    reads_last: bool = False
    """It takes "+" in XREAD for the last entry that is there."""
    is_7_0: bool = False

    def parts(self, reply: bytes) -> bool:
        """Tell whether after a reply nothing more can be compared."""
        return any(map(reply.startswith, self.parting))

    @property
    def consumers_come_late(self) -> bool:
        """Before 7.2 a consumer is made when it is given something, not when it asks."""
        return self.is_7_0

    @property
    def serves_one_key(self) -> bool:
        """Before 7.2 an XREAD that has waited looks at one key alone: it tells nothing of others,
        not even that they have become another kind.
        """
        return self.is_7_0


_NEWER = {"IDMP", "IDMPAUTO", "CLAIM", "MAXCOUNT", "MAXSIZE"}
"""Since 8.4, 8.6 and 8.10."""
VERSIONS = {
    "redis-7.0": Version(
        # Since 7.2 lag and entries-read are known in more cases.
        TIMES | OURS | SINCE_8_6 | SINCE_8_8 | {b"lag", b"entries-read"},
        {
            OLD_UNBALANCED + b"specified.": (b"ERR Unbalanced 'xread",),
            b"UNBLOCKED the stream key no longer exists": (b"NOGROUP ", b"WRONGTYPE "),
            b"NOGROUP the consumer group this client was blocked on no longer exists": (
                *(b"NOGROUP ", b"WRONGTYPE "),
            ),
        },
        # The policies are of 8.2. XSETID below the greatest deleted ID is refused since 7.2.
        _NEWER | {"ACKED", "KEEPREF", "DELREF", "XSETID", "XDELEX", "XACKDEL"},
        is_7_0=True,
    ),
    # With ~ and a policy 8.2.3 removes whole nodes or nothing, later ones entry by entry: the
    # grammar has no such trims for it.
    "redis-8.2": Version(TIMES | OURS | SINCE_8_6 | SINCE_8_8, {}, _NEWER, reads_last=True),
    # Valkey has left Redis at 7.2. "+" in XREAD it has as 7.4: where the last entry was deleted it
    # answers none.
    # Lag and entries-read it knows as 7.2 does.
    "valkey-9.1": Version(
        TIMES | OURS | SINCE_8_6 | SINCE_8_8 | {b"lag", b"entries-read"},
        {
            UNBALANCED + b"specified.": (b"ERR Unbalanced 'xread' list of streams",),
        },
        _NEWER | {"ACKED", "KEEPREF", "DELREF", "XDELEX", "XACKDEL"},
        # MULTI or WATCH inside MULTI is the end of the transaction there.
        {b"-ERR Command 'multi' not allowed inside", b"-ERR Command 'watch' not allowed inside"},
    ),
}
"""By the name of what tests/peers.py starts."""
