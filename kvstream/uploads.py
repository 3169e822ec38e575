"""Tickets and parts as bytes: on their way between a server and those who make parts for it.

::

    ticket := [db, stored_db, shared, base_ms, node_max_entries, node_max_bytes, prefixes, fresh,
               load]
    part   := name table_digest pieces_digest rows size ("GIVEN" | "ALLOTTED")

The ticket is a msgpack array, a part six words of a request. A part's files are ``name.sst`` and
``name.pieces``; which folder they are in the server alone knows.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import msgpack

from kvstream.errors import Corruption, InvalidArgument
from kvstream.parts import BulkTicket, Part

PART_WORDS = 6
_NAME = re.compile(rb"[0-9A-Za-z_-]{1,128}")
_DIGEST = re.compile(rb"[0-9a-f]{32}")
_NUMBER = re.compile(rb"[0-9]{1,18}")
_KINDS = {b"GIVEN": True, b"ALLOTTED": False}
_ENDINGS = (b".sst", b".pieces")


def pack_ticket(ticket: BulkTicket) -> bytes:
    """Return a ticket as bytes."""
    packed: bytes = msgpack.packb(
        (
            *(ticket.db, ticket.stored_db, ticket.shared, ticket.base_ms),
            *(ticket.node_max_entries, ticket.node_max_bytes),
            *(ticket.prefixes, sorted(ticket.fresh), ticket.load.encode()),
        )
    )
    return packed


def unpack_ticket(packed: bytes) -> BulkTicket:
    """Return the ticket of some bytes; Corruption where they are none."""
    try:
        *numbers, prefixes, fresh, load = msgpack.unpackb(
            packed, use_list=False, strict_map_key=False
        )
        db, stored_db, shared, base_ms, entries, size = map(int, numbers)
        return BulkTicket(
            db,
            stored_db,
            shared,
            base_ms,
            entries,
            size,
            dict(prefixes),
            frozenset(fresh),
            load.decode(),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise Corruption(f"the ticket is damaged: {error!r}") from error


def name_of(part: Part) -> str:
    """Return what the names of a part's files begin with."""
    return Path(part.table).stem


def words_of(part: Part) -> list[bytes]:
    """Return a part as words of a request."""
    kind = b"GIVEN" if part.given else b"ALLOTTED"
    texts = (name_of(part), part.table_digest, part.pieces_digest, str(part.rows), str(part.size))
    return [*map(str.encode, texts), kind]


def part_of(words: Sequence[bytes], folder: Path) -> Part:
    """Return the part that words tell of, whose files lie in a folder; else InvalidArgument."""
    name, table, pieces, rows, size, kind = words
    given = _KINDS.get(kind.upper())
    told = _NAME.fullmatch(name), _DIGEST.fullmatch(table), _DIGEST.fullmatch(pieces)
    counts = _NUMBER.fullmatch(rows), _NUMBER.fullmatch(size)
    if given is None or not all(told) or not all(counts):
        raise InvalidArgument("a part is: name, digest, digest, rows, bytes, GIVEN or ALLOTTED")
    base = folder / name.decode()
    files = str(base.with_suffix(".sst")), str(base.with_suffix(".pieces"))
    return Part(*files, table.decode(), pieces.decode(), int(rows), int(size), given)


def file_of(name: bytes, folder: Path) -> Path:
    """Return the place of a part's file: in the folder itself, whatever the name says."""
    for ending in _ENDINGS:
        if name.endswith(ending) and _NAME.fullmatch(name[: -len(ending)]):
            return folder / name.decode()
    raise InvalidArgument("a file's name is of letters, digits, - and _, and ends in .sst, .pieces")
