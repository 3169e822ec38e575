"""Rows as tasks stage them."""

from collections.abc import Sequence

from kvstream.ids import StreamID, parse_add_id
from kvstream.layout.keys import U64
from kvstream.layout.values import encode_fields
from kvstream.spark.writing.gathering import Share, Spilled
from kvstream.spark.writing.marks import Transaction
from kvstream.spark.writing.pages import StagedRows, pack_page

QUERY = Transaction("query", 7)


def staged(eid: str) -> bytes:
    given = parse_add_id(eid)
    if given is None:
        return b""
    return given.packed if isinstance(given, StreamID) else U64.pack(given)


def rows(key: bytes, *values: str, ids: Sequence[str] = ()) -> StagedRows:
    packed = [encode_fields({"v": value}) for value in values]
    return StagedRows(key, packed, [staged(eid) for eid in ids])


def share(*streams: StagedRows) -> Share:
    return Share(sum(len(each.rows) for each in streams), Spilled(), pack_page(streams))
