"""The commands of append-only files: units with their databases, truncation and damage."""

import io
from collections.abc import Iterable

import pytest

from kvstream.errors import BadPayload
from kvstream.migration.aof_source import Command, CommandsFile, Unit
from tests.rdb.building import EXEC, MULTI, SELECTED, SET, STAMP, encoded

SAMPLE = b"".join(
    (
        SELECTED,
        SET,
        STAMP,
        MULTI,
        encoded(b"DEL", b"a"),
        encoded(b"select", b"0"),
        encoded(b"XADD", b"s", b"1-1", b"f", b""),
        EXEC,
        encoded(b"SET", b"\r\n*3", b"$-1\r\n"),
        encoded(b"SET", b"large", b"x" * 3000),
        encoded(b"MSET", *(b"%d" % number for number in range(1200))),
    )
)
SAMPLE_UNITS = [
    Unit([Command(3, [b"SET", b"a", b"1"])]),
    Unit([Command(3, [b"DEL", b"a"]), Command(0, [b"XADD", b"s", b"1-1", b"f", b""])]),
    Unit([Command(0, [b"SET", b"\r\n*3", b"$-1\r\n"])]),
    Unit([Command(0, [b"SET", b"large", b"x" * 3000])]),
    Unit([Command(0, [b"MSET", *(b"%d" % number for number in range(1200))])]),
]


class Dripping(io.BytesIO):
    """A file that returns few bytes at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 5))


def read(data: bytes) -> tuple[list[Unit], int]:
    """Return the units in the bytes, and the number of truncated bytes."""
    file = CommandsFile(io.BytesIO(data))
    units = list(file)
    dripping = CommandsFile(Dripping(data))
    assert (list(dripping), dripping.cut) == (units, file.cut)
    return units, file.cut


def test_commands_come_with_their_database_and_transactions_whole() -> None:
    assert read(SAMPLE) == (SAMPLE_UNITS, 0)


def test_a_truncated_file_is_read_and_its_lost_bytes_are_counted() -> None:
    ends = [len(b"".join(parts)) for parts in _whole_parts()]
    for size in (*range(1000), *range(1000, len(SAMPLE), 97)):
        units, cut = read(SAMPLE[:size])
        assert units == SAMPLE_UNITS[: len(units)]
        assert size - cut == max(end for end in ends if end <= size)


def _whole_parts() -> Iterable[list[bytes]]:
    """Return the lengths at which SAMPLE may end without a truncated unit."""
    unit = b"".join(
        (encoded(b"DEL", b"a"), encoded(b"select", b"0"), encoded(b"XADD", b"s", b"1-1", b"f", b""))
    )
    parts = [SELECTED, SET, STAMP, MULTI + unit + EXEC]
    parts += [encoded(*unit.commands[0].argv) for unit in SAMPLE_UNITS[2:]]
    return (parts[:count] for count in range(len(parts) + 1))


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"\0" * 10, 0),
        (b"x", 0),
        (b"*0\r\n", 0),
        (b"*-1\r\n", 0),
        (b"*+1\r\n", 0),
        (b"*01234567890\r\n", 0),
        (b"*2147483648\r\n", 0),
        (b"*1\r\n:4\r\nPING\r\n", 4),
        (b"*1\r\n$-1\r\n", 4),
        (b"*1\r\n$536870913\r\n", 4),
        (b"*1\r\n$4\r\nPINGPING", 14 - 0),
        (b"#" + b"x" * (1 << 17), 0),
        (encoded(b"SELECT", b"-1"), 0),
        (encoded(b"SELECT", b"65536"), 0),
        (encoded(b"SELECT"), 0),
        (EXEC, 0),
        (MULTI + SET + MULTI, len(MULTI + SET)),
        (encoded(b"MULTI", b"x"), 0),
    ],
)
@pytest.mark.parametrize("before", [b"", SET, STAMP, SELECTED + SET + SET])
def test_bytes_that_are_no_command_are_refused_with_their_offset(
    data: bytes, offset: int, before: bytes
) -> None:
    if data.endswith(b"PINGPING"):
        data += b"\r\n"
    with pytest.raises(BadPayload) as caught:
        list(CommandsFile(io.BytesIO(before + data + SET)))
    assert caught.value.offset == len(before) + offset


def test_offsets_count_from_where_the_commands_begin() -> None:
    file = io.BytesIO(b"12345" + SET + b"?" + SET)
    file.seek(5)
    with pytest.raises(BadPayload) as caught:
        list(CommandsFile(file, 5))
    assert caught.value.offset == 5 + len(SET)
