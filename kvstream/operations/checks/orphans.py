"""Rows that belong to nothing: messages of no stream, and tree rows of no known tree.

Both families are crossed by leaps, from one prefix to the next. Where a record cannot be read, the
rows that nobody owns may be its own: they are told and stay.
"""

from kvstream.layout.keys import U16, U64, is_shared, qualified, scan_row, successor
from kvstream.operations.checks.keyspace import EVERYTHING
from kvstream.operations.checks.survey import STORE, Survey
from kvstream.storage.batch import Family

_MESSAGES, _METADATA, _TREES = Family.MESSAGES, Family.METADATA, Family.TREES
_LENGTH_END = 6
"""Where the length of the key in a message row's own key ends."""


def check_messages(survey: Survey) -> None:
    """Look for message rows of no stream."""
    lower = b""
    while row := survey.rows.page(_MESSAGES, lower, EVERYTHING[1], 1):
        key = row[0][0]
        prefix = _prefix_of(key)
        if prefix is None:
            survey.findings.fault(STORE, "unknown message row", key[:40].hex())
            survey.findings.delete(_MESSAGES, key)
            lower = key + b"\0"
            continue
        lower = successor(prefix)
        if not _is_known(survey, prefix):
            _drop(survey, _MESSAGES, prefix, "entries of no stream")


def check_trees(survey: Survey) -> None:
    """Look for tree rows of no known tree."""
    lower = b""
    while row := survey.rows.page(_TREES, lower, EVERYTHING[1], 1):
        key = row[0][0]
        if len(key) < U64.size:
            survey.findings.fault(STORE, "unknown tree row", key.hex())
            survey.findings.delete(_TREES, key)
            lower = key + b"\0"
            continue
        prefix = key[: U64.size]
        lower = successor(prefix)
        if U64.unpack(prefix)[0] not in survey.trees:
            _drop(survey, _TREES, prefix, "rows of no known tree")


def _drop(survey: Survey, family: Family, prefix: bytes, kind: str) -> None:
    upper = successor(prefix)
    count = sum(1 for _ in survey.rows.scan(family, prefix, upper))
    detail = f"{count} under {prefix[-40:].hex()}"
    survey.findings.fault(STORE, kind, detail, mended=not survey.owner_lost)
    if not survey.owner_lost:
        survey.findings.delete_range(family, prefix, upper)


def _prefix_of(key: bytes) -> bytes | None:
    """Return the prefix in a message row's key; None for a key of no known form."""
    if len(key) < _LENGTH_END:
        return None
    end = _LENGTH_END + int.from_bytes(key[U16.size : _LENGTH_END]) + U64.size
    return key[:end] if len(key) >= end else None


def _is_known(survey: Survey, prefix: bytes) -> bool:
    """Tell whether a stream, or a large string, has this prefix."""
    if prefix in survey.staged or is_shared(prefix):
        return prefix in survey.staged or prefix in survey.shared
    generation = U64.unpack(prefix[-U64.size :])[0]
    if generation not in survey.generations:
        return False
    name = survey.unlisted.get(generation)
    if name is None:
        db = U16.unpack_from(prefix)[0]
        key = survey.rows.get(_METADATA, scan_row(db, generation))
        if key is None:
            return False
        name = qualified(db, key)
    found = survey.key(name)
    return found is not None and found.prefix == prefix
