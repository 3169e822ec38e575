"""Rows as tasks stage them."""

from collections.abc import Sequence

from kvstream.layout.keys import U64
from kvstream.layout.values import encode_fields
from kvstream.spark.write.commit import Share, Spilled
from kvstream.spark.write.stage import StagedRows, Transaction, pack_page
from kvstream.types.ids import StreamID, parse_add_id

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
