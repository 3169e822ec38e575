"""Check the rows of the entries that a group delivers in order by key.

The runs tell which entries are pending and which of them are held; an entry row tells the key. The
other rows follow from these. The key of a held entry without a row is that of its message.
"""

from collections.abc import Iterator

from kvstream.errors import KVStreamError
from kvstream.layout.keys import ID_BYTES, tree_prefix
from kvstream.layout.values import decode_fields
from kvstream.meta.keyed import (
    ENTRY,
    HELD,
    IS_BUSY,
    IS_HELD,
    KEY,
    KEY_BYTES,
    Counts,
    Key,
    key_of_value,
)
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS, PackedID, Run
from kvstream.operations.checks.survey import DECODING_ERRORS, Survey
from kvstream.storage.batch import Family

_TREES = Family.TREES
_STUCK = "a key has held entries although it has room"
_WRONG = "a row of the order by key is wrong"
_MISSING = "a row of the order by key is missing"
_STRAY = "a row of the order by key belongs to no entry"
_UNORDERED = "entries are held in a group without order"


def check_keyed(survey: Survey, stream: StreamMeta, group: GroupMeta, place: str) -> None:
    """Check that each held entry can become ready, and that no key is busy for nothing."""
    policy = group.policy
    if policy is None or not policy.keyed_tree:
        _check_none_held(survey, group, place)
        return
    rows = dict(survey.tree(policy.keyed_tree))
    expected, counts = _expected(survey, stream, group, policy, rows)
    for key, each in counts.items():
        if each.held and each.busy < policy.max_per_key:
            survey.findings.fault(place, _STUCK, key.hex(), mended=False)
        known = _known(rows.get(KEY + key))
        if known is not None and (known.busy, known.held) == (each.busy, each.held):
            each.first = min(each.first, known.first)
        expected[KEY + key] = each.encode()
    for suffix, value in rows.items():
        if suffix not in expected:
            survey.findings.fault(place, _STRAY, suffix[:40].hex())
            survey.findings.delete(_TREES, tree_prefix(policy.keyed_tree) + suffix)
        elif not _is_same(suffix, value, expected[suffix]):
            survey.findings.fault(place, _WRONG, suffix.hex())
            survey.findings.put(_TREES, tree_prefix(policy.keyed_tree) + suffix, expected[suffix])
    for suffix in expected.keys() - rows.keys():
        survey.findings.fault(place, _MISSING, suffix.hex())
        survey.findings.put(_TREES, tree_prefix(policy.keyed_tree) + suffix, expected[suffix])


def _expected(
    survey: Survey,
    stream: StreamMeta,
    group: GroupMeta,
    policy: GroupPolicy,
    rows: dict[bytes, bytes],
) -> tuple[dict[bytes, bytes], dict[Key, Counts]]:
    """Return the rows of the pending entries, without those of keys, and the counts of these."""
    expected: dict[bytes, bytes] = {}
    counts: dict[Key, Counts] = {}
    for run in _runs(survey, group):
        held = run.time_ms == HELD_MS
        for eid in run.ids:
            value = rows.get(ENTRY + eid)
            if value is not None and len(value) == 1 + KEY_BYTES:
                key = value[1:]
            elif held or value is not None:
                key = _key_of_message(survey, stream, eid, policy.order_by)
            else:
                continue
            of_key = counts.setdefault(key, Counts())
            expected[ENTRY + eid] = (IS_HELD if held else IS_BUSY) + key
            of_key.busy += not held
            of_key.held += held
            if held:
                of_key.first = min(of_key.first, eid)
                expected[HELD + key + eid] = key + eid
    return expected, counts


def _is_same(suffix: bytes, value: bytes, true: bytes) -> bool:
    """Return whether a row is as it must be; the start of a key without held entries is free."""
    if suffix[:1] != KEY:
        return value == true
    known, counts = _known(value), Counts.decode(true)
    if known is None or (known.busy, known.held) != (counts.busy, counts.held):
        return False
    return not counts.held or known.first <= counts.first


def _known(value: bytes | None) -> Counts | None:
    try:
        return None if value is None else Counts.decode(value)
    except DECODING_ERRORS:
        return None


def _runs(survey: Survey, group: GroupMeta) -> Iterator[Run]:
    for suffix, value in survey.tree(group.runs.id):
        try:
            if len(suffix) == ID_BYTES:
                yield Run.decode(suffix, value)
        except DECODING_ERRORS:
            continue  # reported where the runs are checked


def _key_of_message(survey: Survey, stream: StreamMeta, eid: PackedID, field: bytes) -> Key:
    try:
        value = survey.rows.get(Family.MESSAGES, stream.prefix + eid)
        return key_of_value(b"" if value is None else decode_fields(value).get(field, b""))
    except KVStreamError:  # reported where the entries are checked
        return key_of_value(b"")


def _check_none_held(survey: Survey, group: GroupMeta, place: str) -> None:
    """Make held entries ready that no key would make so."""
    findings = survey.findings
    for run in _runs(survey, group):
        if not run.rank or run.time_ms != HELD_MS:
            continue
        findings.fault(place, _UNORDERED, run.anchor.hex())
        ready = run._replace(time_ms=0)
        findings.put(_TREES, group.runs.prefix + run.anchor, ready.encode())
        if group.indexed:
            findings.delete(_TREES, group.times.prefix + run.times_suffix)
            findings.put(_TREES, group.times.prefix + ready.times_suffix, b"")
