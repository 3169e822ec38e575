"""The streams of the least server: entries, groups and pending entries, with their rows.

Memory has the IDs, in order, and the pending entries; the fields of an entry are only in its row.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from struct import Struct

import msgpack

from bench.least.rows import EMPTY, NIL, Handler, Rows, Words, array, bulk, integer

ID = tuple[int, int]
_HIGHEST = (1 << 64) - 1
_PACK = Struct(">QQ").pack


def parse_id(word: bytes, sequence: int) -> ID:
    """Return the two numbers of an ID; ``sequence`` stands for a missing second one."""
    ms, _, found = word.partition(b"-")
    return int(ms), int(found) if found else sequence


class Group:
    """A group: its position in the stream, its pending entries, and how many each consumer has."""

    __slots__ = ("consumers", "pending", "read")

    def __init__(self) -> None:
        self.read = 0
        self.pending: dict[bytes, bytes] = {}
        self.consumers: dict[bytes, int] = {}


class Stream:
    """A stream: the IDs that were ever added, and the keys of the rows that still exist."""

    __slots__ = ("groups", "ids", "numbers", "rows")

    def __init__(self) -> None:
        self.numbers: list[ID] = []
        self.ids: list[bytes] = []
        self.rows: dict[bytes, bytes] = {}
        self.groups: dict[bytes, Group] = {}

    def existing(self, first: int, end: int, count: int) -> list[bytes]:
        """Return the first IDs of entries between two positions that are not deleted."""
        rows, wanted = self.rows, min(first + count, end)
        found = [entry_id for entry_id in self.ids[first:wanted] if entry_id in rows]
        if wanted < end and len(found) < count:  # some are deleted
            found = [entry_id for entry_id in self.ids[first:end] if entry_id in rows][:count]
        return found


class Streams:
    """The handlers of the commands of streams."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._streams: dict[bytes, Stream] = {}
        self.handlers: dict[bytes, Handler] = {
            b"XADD": self._xadd,
            b"XDEL": self._xdel,
            b"XLEN": lambda words: integer(len(self._stream(words[1]).rows)),
            b"XRANGE": self._xrange,
            b"XREAD": self._xread,
            b"XGROUP": self._xgroup,
            b"XREADGROUP": self._xreadgroup,
            b"XACK": self._xack,
            b"XPENDING": self._xpending,
            b"XINFO": self._xinfo,
        }

    def clear(self) -> None:
        self._streams.clear()

    def _stream(self, key: bytes) -> Stream:
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream()
        return stream

    def _entry(self, stream: Stream, entry_id: bytes) -> bytes:
        """Read an entry and encode it."""
        words = msgpack.unpackb(self._rows.get(stream.rows[entry_id]))
        # One operator for all that is known: each costs as much as three calls.
        body = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
        parts = (len(entry_id), entry_id, len(words), body)
        return b"*2\r\n$%d\r\n%b\r\n*%d\r\n%b" % parts

    def _read(self, key: bytes, stream: Stream, ids: Sequence[bytes]) -> bytes:
        """Encode what was read from one stream."""
        if not ids:
            return EMPTY
        entries = b"".join([self._entry(stream, entry_id) for entry_id in ids])
        return b"*1\r\n*2\r\n$%d\r\n%b\r\n*%d\r\n%b" % (len(key), key, len(ids), entries)

    def _xadd(self, words: Words) -> bytes:
        """Run XADD key id field value ..., with any number of fields."""
        key, changed = words[1], self._rows.changed
        stream = self._stream(key)
        numbers = stream.numbers
        if words[2] == b"*":
            ms, seq = time.time_ns() // 1_000_000, 0
            if numbers and ms <= numbers[-1][0]:
                ms, last = numbers[-1]
                seq = last + 1
        else:
            ms, seq = parse_id(words[2], 0)
        entry_id = b"%d-%d" % (ms, seq)
        row = b"\0m%b%b" % (key, _PACK(ms, seq))
        numbers.append((ms, seq))
        stream.ids.append(entry_id)
        stream.rows[entry_id] = row
        changed[row] = msgpack.packb(words[3:])
        changed[b"\0s" + key] = entry_id
        return bulk(entry_id)

    def _xdel(self, words: Words) -> bytes:
        """Run XDEL key id ..."""
        rows, deleted = self._stream(words[1]).rows, 0
        for entry_id in words[2:]:
            if row := rows.pop(entry_id, None):
                self._rows.changed[row] = None
                deleted += 1
        return integer(deleted)

    def _xrange(self, words: Words) -> bytes:
        """Run XRANGE key start end, with COUNT n or without."""
        stream = self._stream(words[1])
        low, high, numbers = words[2], words[3], stream.numbers
        first = 0 if low == b"-" else bisect_left(numbers, parse_id(low, 0))
        end = len(numbers) if high == b"+" else bisect_right(numbers, parse_id(high, _HIGHEST))
        ids = stream.existing(first, end, int(words[5]) if len(words) > 4 else end - first)
        return array(*[self._entry(stream, entry_id) for entry_id in ids])

    def _xread(self, words: Words) -> bytes:
        """Run XREAD COUNT n STREAMS key id."""
        key = words[4]
        stream = self._stream(key)
        first = bisect_right(stream.numbers, parse_id(words[5], 0))
        return self._read(key, stream, stream.existing(first, len(stream.ids), int(words[2])))

    def _xgroup(self, words: Words) -> bytes:
        """Run XGROUP CREATE key group 0."""
        self._stream(words[2]).groups[words[3]] = Group()
        return b"+OK\r\n"

    def _xreadgroup(self, words: Words) -> bytes:
        """Run XREADGROUP GROUP group consumer COUNT n STREAMS key >."""
        consumer, key, changed = words[3], words[7], self._rows.changed
        stream = self._stream(key)
        group = stream.groups[words[2]]
        read = group.read
        ids = stream.existing(read, len(stream.ids), int(words[5]))
        if not ids:
            return EMPTY
        for entry_id in ids:
            group.pending[entry_id] = consumer
            changed[b"\0p" + key + entry_id] = consumer
        read += len(ids)
        if ids[-1] != stream.ids[read - 1]:  # some are deleted
            read = bisect_right(stream.numbers, parse_id(ids[-1], 0))
        group.read = read
        group.consumers[consumer] = group.consumers.get(consumer, 0) + len(ids)
        changed[b"\0g" + key] = ids[-1]
        return self._read(key, stream, ids)

    def _xack(self, words: Words) -> bytes:
        """Run XACK key group id ..."""
        key, acknowledged = words[1], 0
        group = self._stream(key).groups[words[2]]
        for entry_id in words[3:]:
            if consumer := group.pending.pop(entry_id, None):
                group.consumers[consumer] -= 1
                self._rows.changed[b"\0p" + key + entry_id] = None
                acknowledged += 1
        return integer(acknowledged)

    def _xpending(self, words: Words) -> bytes:
        """Run XPENDING key group."""
        group = self._stream(words[1]).groups[words[2]]
        if not group.pending:
            return array(integer(0), NIL, NIL, EMPTY)
        ends = bulk(next(iter(group.pending))), bulk(next(reversed(group.pending)))
        held = [array(bulk(name), bulk(b"%d" % n)) for name, n in group.consumers.items() if n]
        return array(integer(len(group.pending)), *ends, array(*held))

    def _xinfo(self, words: Words) -> bytes:
        """Run XINFO STREAM key and XINFO GROUPS key."""
        stream = self._stream(words[2])
        if words[1].upper() == b"GROUPS":
            return array(*[_group_info(stream, *named) for named in stream.groups.items()])
        ids = stream.rows
        return _pairs(
            (b"length", integer(len(ids))),
            (b"last-generated-id", bulk(stream.ids[-1])),
            (b"entries-added", integer(len(stream.ids))),
            (b"groups", integer(len(stream.groups))),
            (b"first-entry", self._entry(stream, next(iter(ids))) if ids else NIL),
            (b"last-entry", self._entry(stream, next(reversed(ids))) if ids else NIL),
        )


def _pairs(*fields: tuple[bytes, bytes]) -> bytes:
    """Encode names with their encoded values."""
    return array(*[part for name, value in fields for part in (bulk(name), value)])


def _group_info(stream: Stream, name: bytes, group: Group) -> bytes:
    return _pairs(
        (b"name", bulk(name)),
        (b"consumers", integer(len(group.consumers))),
        (b"pending", integer(len(group.pending))),
        (b"last-delivered-id", bulk(stream.ids[group.read - 1] if group.read else b"0-0")),
        (b"entries-read", integer(group.read)),
        (b"lag", integer(len(stream.ids) - group.read)),
    )
