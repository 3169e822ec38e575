"""What of two replies must be the same, and in what alone they may differ.

Replies are compared byte for byte first. Where the bytes differ, each is taken apart, and what is
known to differ left out: times, the order of KEYS, and what Redis has changed since 7.0, which is
what tests/semantics/redis7.py lists.
"""

import time
from collections.abc import Callable
from typing import Any

Argv = list[str]
Node = tuple[str, Any]
"""A reply taken apart: the mark of its kind, and its text, number, or parts; maps are flat."""

NEAR_MS = 10 * 86_400_000
INCOMPLETE = -1
_TEXTS = "+-:#_,("
_BULKS = "$="


class Difference(AssertionError):
    """Two servers have not answered the same."""


class Incomparable(Exception):
    """From here on redis-server 7.0 goes a way that later ones do not go: nothing to compare."""


def parsed(data: bytes, at: int = 0) -> tuple[Node | None, int]:
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
        part, end = parsed(data, end)
        if end < 0:
            return None, INCOMPLETE
        parts.append(part)
    return (mark, parts), end


def difference(argv: Argv, ours: bytes, theirs: bytes, queued: list[Argv]) -> str:
    """Tell in what two replies to a request differ that may not; empty: in nothing.

    ``queued`` are the requests whose replies EXEC gives.
    """
    one, other = parsed(ours)[0], parsed(theirs)[0]
    assert one is not None
    assert other is not None
    if argv[0].upper() == "EXEC" and one[0] == other[0] == "*" and one[1] and other[1]:
        pairs = zip(queued, one[1], other[1], strict=True)
        return next((told for each in pairs if (told := _told(*each))), "")
    return _told(argv, one, other)


def _told(argv: Argv, ours: Node, theirs: Node) -> str:
    if ours == theirs or _is_reworded(ours, theirs):
        return ""
    words = [word.upper() for word in argv]
    if words[0] == "XREAD" and "BLOCK" in words and _of_one_key(ours, theirs):
        return ""
    normal = NORMAL.get(" ".join(words[:2])) or NORMAL.get(words[0])
    if normal is None:
        return f"{ours} is not {theirs}"
    ours, theirs = normal(ours), normal(theirs)
    return "" if ours == theirs else f"{ours} is not {theirs}"


REWORDED = {
    b"ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.": (
        b"ERR Unbalanced 'xread",
    ),
    b"UNBLOCKED the stream key no longer exists": (b"NOGROUP ", b"WRONGTYPE "),
    b"NOGROUP the consumer group this client was blocked on no longer exists": (
        *(b"NOGROUP ", b"WRONGTYPE "),
    ),
}
"""Errors of 7.0.15, and how those begin that stand for them since."""
_NOTHING_BEHIND = b", with args beginning with: "
"""What 7.0 says of an unknown command without arguments, and later ones leave out."""


def _is_reworded(ours: Node, theirs: Node) -> bool:
    if ours[0] != "-" or theirs[0] != "-":
        return False
    alone = theirs[1].removesuffix(_NOTHING_BEHIND)
    if alone != theirs[1]:
        return bool(ours[1] == alone)
    return bool(ours[1].startswith(REWORDED.get(theirs[1], b"\n")))


def is_abort(reply: bytes) -> bool:
    """Tell whether EXEC says that a watched key has changed."""
    return reply in (b"*-1\r\n", b"_\r\n")


def is_outdated(reply: bytes) -> bool:
    """Tell whether only 7.0 gives this reply to a read that has waited.

    It answers for a key that was written and emptied again within one EXEC; later versions try the
    command as a whole once more, and wait on.
    """
    node = parsed(reply)[0]
    return node is not None and node[0] in "*%" and _EMPTY in _parts(node)


_EMPTY: Node = ("*", [])


def _parts(node: Node) -> list[Node]:
    """Return the entries that a reply to XREAD tells of each key."""
    pairs = node[1] or []
    if node[0] == "%":
        return list(pairs[1::2])
    return [pair[1][1] for pair in pairs if pair[0] == "*" and len(pair[1] or ()) == 2]


def _of_one_key(ours: Node, theirs: Node) -> bool:
    """Tell whether a read of several keys that has waited tells of one alone, as 7.0 does."""
    kept = _pairs(theirs)
    return theirs[0] in "*%" and len(kept) > 0 and all(pair in _pairs(ours) for pair in kept)


def _pairs(node: Node) -> list[Any]:
    if node[0] == "%":
        return list(zip(node[1][::2], node[1][1::2], strict=True))
    return [tuple(pair[1]) for pair in node[1] or () if pair[0] == "*"]


# --- what is left out of a reply ----------------------------------------------------------------


def _sorted(node: Node) -> Node:
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


LEFT_OUT = {
    *(b"idle", b"inactive", b"seen-time", b"active-time", b"lag", b"entries-read"),
    *(b"radix-tree-nodes", b"idmp-duration", b"idmp-maxsize", b"pids-tracked", b"iids-tracked"),
    *(b"iids-added", b"iids-duplicates", b"nacked-count"),
}


def _plain(node: Node) -> Any:
    """Return a part of XINFO's reply without what is left out of it: maps as pairs."""
    mark, value = node
    if mark == ":":
        return 0 if _is_near(value) else value
    if mark not in "*%" or value is None:
        return value
    names = [part[1] for part in value[::2]]
    if mark == "%" or (b"name" in names[:1] or b"length" in names[:1]):
        rows = dict(zip(names, value[1::2], strict=True))
        return _without_idlers(
            {name: _plain(part) for name, part in rows.items() if name not in LEFT_OUT}
        )
    return [each for part in value if (each := _plain(part)) is not None]


def _without_idlers(row: dict[bytes, Any]) -> Any:
    """Leave out consumers that have nothing pending: 7.0 makes them later; and their number."""
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
    "KEYS": _sorted,
    "TTL": _if_any,
    "PTTL": _if_any,
    "EXPIRETIME": _if_far,
    "PEXPIRETIME": _if_far,
    "XPENDING": _without_idle,
    "XINFO": _plain,
    "XGROUP CREATECONSUMER": _constant,
}
