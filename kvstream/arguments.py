"""What callers of the library may pass, turned into what operations take."""

import math
from collections.abc import Iterable
from typing import Literal

from kvstream.errors import InvalidArgument
from kvstream.ids import IDLike, StreamID
from kvstream.layout.values import to_bytes
from kvstream.operations.budget import Budget
from kvstream.operations.references import RefPolicy
from kvstream.operations.trim import Strategy, Trim
from kvstream.options import KEY_BYTES_MAX
from kvstream.records import Entry, PendingEntry

Name = bytes | str
Seconds = float
Policy = RefPolicy | Literal["KEEPREF", "DELREF", "ACKED"]
HasID = Entry | PendingEntry
IDs = IDLike | HasID | Iterable[IDLike | HasID]


def name_bytes(name: Name) -> bytes:
    """Return the bytes of a key, group or consumer name."""
    encoded = to_bytes(name)
    if len(encoded) > KEY_BYTES_MAX:
        raise InvalidArgument(f"a name is longer than {KEY_BYTES_MAX} bytes")
    return encoded


def id_list(parts: Iterable[IDs]) -> list[StreamID]:
    """Return the IDs in ``parts``: IDs, entries, pending ones, and lists or generators of them."""
    ids: list[StreamID] = []
    for part in parts:
        if type(part) is StreamID:
            ids.append(part)
        elif isinstance(part, Entry | PendingEntry):
            ids.append(part.id)
        elif isinstance(part, Iterable) and not isinstance(part, str | bytes | tuple):
            ids += id_list(part)
        else:
            ids.append(StreamID.parse(part))
    return ids


def milliseconds(seconds: Seconds, what: str) -> int:
    """Return a duration in milliseconds; InvalidArgument below zero or without end."""
    if not 0 <= seconds < math.inf:
        raise InvalidArgument(f"{what} is {'negative' if seconds < 0 else 'not a number'}")
    return round(seconds * 1000)


def trim_of(
    maxlen: int | None,
    minid: IDLike | None,
    approximate: bool,
    limit: int | None,
    ref_policy: Policy | None,
) -> Trim | None:
    """Return the trim that the arguments describe, or None where they describe none."""
    policy = RefPolicy(ref_policy or RefPolicy.KEEPREF)
    if maxlen is not None and minid is not None:
        raise InvalidArgument(
            "syntax error, MAXLEN and MINID options at the same time are not compatible"
        )
    if maxlen is not None:
        return Trim(
            Strategy.MAXLEN, maxlen=maxlen, approximate=approximate, limit=limit, policy=policy
        )
    if minid is not None:
        bound = StreamID.parse(minid)
        return Trim(
            Strategy.MINID, minid=bound, approximate=approximate, limit=limit, policy=policy
        )
    if limit is not None:
        raise InvalidArgument(
            "syntax error, LIMIT cannot be used without specifying a trimming strategy"
        )
    return None


def budget_of(max_count: int | None, max_size: int | None) -> Budget | None:
    """Return the bounds of one reply, fresh for each attempt; None where there are none."""
    if max_count is None and max_size is None:
        return None
    return Budget(max_count, max_size)
