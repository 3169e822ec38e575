"""Compare what the catalog holds in memory with the rows on disk.

The disk is the truth: a repair drops what differs, so that it is read again.
"""

from typing import Any

from kvstream.layout.keys import ID_BYTES, stream_row, tree_prefix
from kvstream.layout.rows import TEXT_BYTES_MAX, Rows, below
from kvstream.meta import catalog
from kvstream.meta.filling import catch_up
from kvstream.meta.nodes import measure, open_node
from kvstream.meta.records import ConsumerMeta, GroupMeta, Node, StreamMeta
from kvstream.meta.runs import RunIndex
from kvstream.meta.strings import StringMeta
from kvstream.meta.trees import Tree
from kvstream.meta.txn import Txn
from kvstream.operations.checks.survey import (
    DECODING_ERRORS,
    STORE,
    Survey,
    consumer_place,
    group_place,
)
from kvstream.operations.reads.rows import read_rows
from kvstream.storage.batch import Family
from kvstream.types.ids import MAX_ID

_MESSAGES, _METADATA, _TREES = Family.MESSAGES, Family.METADATA, Family.TREES
_RECORD = "the record in memory is another than on disk"
_ROWS = "the tree in memory is another than on disk"
_INDEX = "the index in memory is another than the runs make"
_AHEAD = "what was read ahead is not what follows"
_HOT = "what was shown lately is not what is there"


def check_memory(survey: Survey, txn: Txn) -> None:
    """Compare every loaded object with its row, and every readahead with the next entries."""
    if not txn.catalog.index.has_true_expiries(txn):
        survey.findings.fault(STORE, "the keys that expire are miscounted in memory")
    for name, string in txn.catalog.strings.items():
        stored = txn.catalog.databases.stored_name(txn, name)
        if survey.rows.get(_METADATA, stream_row(stored)) != _record_of(string):
            survey.findings.fault(survey.key_place(stored, "string"), _RECORD)
    for stream in txn.catalog.streams.values():
        place = survey.stream_place(stream.name)
        if not _is_as_recorded(survey, stream):
            survey.findings.fault(place, _RECORD)
            continue
        _check_nodes(survey, place, stream)
        _check_first_ids(survey, place, txn, stream)
        _check_hot(survey, place, txn, stream)
        for group in stream.groups.values():
            own = group_place(place, group.name)
            _check_group(survey, own, group)
            _check_read_ahead(survey, own, txn, stream, group)


def _record_of(string: StringMeta | bytes) -> bytes:
    return string if isinstance(string, bytes) else string.encode()


def _is_as_recorded(survey: Survey, stream: StreamMeta) -> bool:
    """Return whether a stream equals its record and the rows that are ahead of it."""
    stored = survey.key(stream.name)
    if not isinstance(stored, StreamMeta):
        return False
    catch_up(survey.rows, stored)
    try:
        for compared in (stored, stream):
            measure(survey.rows, compared)
    except DECODING_ERRORS:
        return True  # reported where the entries are checked
    return stored.encode() == stream.encode()


def _check_nodes(survey: Survey, place: str, stream: StreamMeta) -> None:
    for node in stream.cached_nodes:
        value = survey.rows.get(_TREES, tree_prefix(stream.nodes_tree) + node.first.packed)
        if value is None or node.first < stream.head or Node.decode(node.first, value) != node:
            survey.findings.fault(place, "a node in memory is another than on disk")
        _check_ids(survey, place, stream, node)
    if stream.open_live:  # it was measured when it was compared with its record
        _check_ids(survey, place, stream, open_node(stream))


def _check_ids(survey: Survey, place: str, stream: StreamMeta, node: Node) -> None:
    """Compare the live IDs of a node that are in memory with the rows."""
    if node.ids is None:
        return
    lower, upper = max(node.first, stream.first).packed, node.last.packed + b"\x00"
    rows = survey.rows.page(_MESSAGES, stream.prefix + lower, stream.prefix + upper, node.appended)
    if b"".join([key[-ID_BYTES:] for key, _ in rows]) != node.ids:
        survey.findings.fault(place, "the IDs of a node in memory are not those on disk")


def _check_first_ids(survey: Survey, place: str, txn: Txn, stream: StreamMeta) -> None:
    known = list(stream.first_ids)
    if stream.length == 0 or not known or known[0] != stream.first:
        return  # it will not be used
    rows = read_rows(txn, stream, stream.first, MAX_ID, len(known))
    if [key[-ID_BYTES:] for key, _ in rows] != [eid.packed for eid in known]:
        survey.findings.fault(place, _AHEAD)


def _check_hot(survey: Survey, place: str, txn: Txn, stream: StreamMeta) -> None:
    """Compare the reply cache with the rows; trimmed entries in it are not used."""
    cache, prefix = txn.catalog.reply_cache, stream.prefix
    for stretch in cache.of(prefix):
        text, lower = stretch.text, max(stretch.lower, stream.first.packed)
        rows = survey.rows.page(_MESSAGES, prefix + lower, prefix + stretch.until, text.length + 1)
        written = cache.write(rows, len(prefix), TEXT_BYTES_MAX)
        start = below(text.ids, lower)
        if written is None:
            continue  # reported where the entries are checked
        ids, data = text.ids[ID_BYTES * start :], text.part(start, text.length)
        if (written.ids, written.data) != (ids, data):
            survey.findings.fault(place, _HOT)


def _check_read_ahead(
    survey: Survey, place: str, txn: Txn, stream: StreamMeta, group: GroupMeta
) -> None:
    readahead = group.readahead
    if readahead is None or not stream.keeps(readahead) or readahead.after != group.last_delivered:
        return  # it will not be used
    try:
        after = readahead.after.next()
        rows = Rows(read_rows(txn, stream, after, MAX_ID, len(readahead.rows)), len(stream.prefix))
        rows.entries()
    except DECODING_ERRORS:
        return  # reported where the entries are checked
    if rows.page != list(readahead.rows):
        survey.findings.fault(place, _AHEAD)


def _check_group(survey: Survey, place: str, group: GroupMeta) -> None:
    if survey.rows.get(_TREES, group.row) != group.encode():
        survey.findings.fault(place, _RECORD)
    _check_tree(survey, place, group.runs)
    if group.keyed is not None:
        _check_tree(survey, place, group.keyed.tree)
    if group.indexed:
        _check_tree(survey, place, group.times)
    elif group.index is not None and group.index != RunIndex.of(
        group.index.sizes, group.runs.scan(survey.rows), group.index.is_ordered
    ):
        survey.findings.fault(place, _INDEX)
    for consumer in group.consumers.values():
        own = consumer_place(place, consumer.name)
        if not _is_recorded(survey, group, consumer):
            survey.findings.fault(own, _RECORD)
        if group.indexed:
            _check_tree(survey, own, consumer.runs)


def _is_recorded(survey: Survey, group: GroupMeta, consumer: ConsumerMeta) -> bool:
    """Return whether a consumer equals its record, apart from a seen time not yet written."""
    record = survey.rows.get(_TREES, consumer.row)
    if record is None:
        return False
    stored = ConsumerMeta.decode(consumer.name, consumer.row, record)
    catalog.recall_activity(group, stored)
    if consumer.row in survey.seen:
        stored.seen_ms = consumer.seen_ms
    return stored.encode() == consumer.encode()


def _check_tree(survey: Survey, place: str, tree: Tree[Any]) -> None:
    if tree.memory is not None and not tree.agrees(list(survey.tree(tree.id))):
        survey.findings.fault(place, _ROWS)
