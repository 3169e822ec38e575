r"""Redis's glob patterns: ``*``, ``?``, ``[a-c]``, ``[^a]`` and ``\x``; which keys a pattern lists.

A pattern is compiled to steps. Matching keeps only the last star to backtrack to, so its time is at
most pattern times text, and no pattern exhausts the stack (CVE-2024-31228).
"""

from collections.abc import Callable

OWN_PREFIX = b"kvstream:"
"""The beginning of the keys that kvstream keeps for itself: the audit and the samples of the
console, the progress of imports, migrations and queries of Spark."""
_STAR = None
_Step = frozenset[int] | None
"""The bytes that match, or None for any run of bytes."""
_ANY_BYTE = frozenset(range(256))
_STARS_MAX = 1000
"""Most stars of a pattern: one with more matches nothing, as in Redis."""


def is_own_key(key: bytes) -> bool:
    """Return whether a key is one that kvstream keeps for itself."""
    return key.startswith(OWN_PREFIX)


def is_listed(key: bytes, pattern: bytes | None = None) -> bool:
    """Return whether a list shows a key that fits its pattern: kvstream's own need their prefix."""
    return not is_own_key(key) or (pattern is not None and is_own_key(pattern))


def matcher(pattern: bytes, ignore_case: bool = False) -> Callable[[bytes], bool]:
    """Return a function that tells whether a whole text matches."""
    if ignore_case:
        steps = _steps(pattern.lower())
        return lambda text: _matches(steps, text.lower())
    if pattern == b"*":
        return lambda text: True
    if not any(sign in pattern for sign in b"*?[\\"):
        return pattern.__eq__
    steps = _steps(pattern)
    if sum(step is _STAR for step in steps[:-1]) > _STARS_MAX:
        return lambda text: False
    begin, end = _literals(steps), _literals(steps[::-1])[::-1]
    # Of thousands of patterns a text matches few: most differ at their ends.
    return lambda text: text.startswith(begin) and text.endswith(end) and _matches(steps, text)


def _literals(steps: list[_Step]) -> bytes:
    """Return the bytes with which every matching text begins."""
    literals = bytearray()
    for step in steps:
        if step is _STAR or len(step) != 1:
            break
        literals += bytes(step)
    return bytes(literals)


def _steps(pattern: bytes) -> list[_Step]:
    steps: list[_Step] = []
    at = 0
    while at < len(pattern):
        sign = pattern[at : at + 1]
        if sign == b"*":
            if not steps or steps[-1] is not _STAR:
                steps.append(_STAR)
        elif sign == b"?":
            steps.append(_ANY_BYTE)
        elif sign == b"[":
            allowed, at = _class(pattern, at + 1)
            steps.append(allowed)
            continue
        else:
            if sign == b"\\" and at + 1 < len(pattern):
                at += 1
            steps.append(frozenset(pattern[at : at + 1]))
        at += 1
    return steps


def _class(pattern: bytes, at: int) -> tuple[frozenset[int], int]:
    """Return the bytes of the class that begins at ``at``, after its ``[``, and its end."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    allowed: set[int] = set()
    while at < len(pattern) and pattern[at] != ord("]"):
        if pattern[at] == ord("\\") and at + 1 < len(pattern):
            allowed.add(pattern[at + 1])
            at += 2
        elif at + 2 < len(pattern) and pattern[at + 1] == ord("-"):
            low, high = sorted((pattern[at], pattern[at + 2]))
            allowed.update(range(low, high + 1))
            at += 3
        else:
            allowed.add(pattern[at])
            at += 1
    return _ANY_BYTE - allowed if negated else frozenset(allowed), at + 1


def _matches(steps: list[_Step], text: bytes) -> bool:
    step = at = 0
    star, resume = -1, 0
    while at < len(text):
        allowed = steps[step] if step < len(steps) else frozenset[int]()
        if allowed is _STAR:
            star, resume = step, at
            step += 1
        elif text[at] in allowed:
            step += 1
            at += 1
        elif star >= 0:  # let the last star take one more
            resume += 1
            step, at = star + 1, resume
        else:
            return False
    return all(rest is _STAR for rest in steps[step:])
