"""Damaged files are read or raise our errors; KVSTREAM_FUZZ_ROUNDS sets the number of rounds."""

import io
from collections.abc import Callable
from random import Random

import pytest

from kvstream.errors import BadPayload
from kvstream.migration.aof_source import CommandsFile
from kvstream.rdb.file_reader import FileReader, StreamRecord, StringRecord
from tests.rdb.building import OBJECTS, built, record
from tests.rdb.conftest import Start
from tests.rdb.filling import fill_streams
from tests.rdb.mutating import ROUNDS, SEED, mutated


def read_all(data: bytes) -> int:
    """Read a file with all its streams; return the number of its keys."""
    keys = 0
    for found in FileReader(io.BytesIO(data)):
        if isinstance(found, StreamRecord):
            for node in found.stream.nodes():
                assert len(node.ids) == len(node.values) > 0
            found.stream.state()
        elif isinstance(found, StringRecord):
            found.value()
        keys += 1
    return keys


def refusal(read: Callable[[bytes], object], data: bytes, seed: int) -> BadPayload | None:
    """Return our error for damaged bytes, which must name the place; None if they were read."""
    try:
        read(data)
    except BadPayload as error:
        found = error
    except Exception as error:
        raise AssertionError(f"seed {seed}") from error
    else:
        return None
    assert found.offset is not None, seed
    assert 0 <= found.offset <= len(data), seed
    return found


def damage(data: bytes, rounds: int = ROUNDS) -> int:
    """Read damaged forms of a file; return how many were refused."""
    damaged = ((mutated(data, Random(seed)), seed) for seed in range(SEED, SEED + rounds))
    return sum(refusal(read_all, data, seed) is not None for data, seed in damaged)


@pytest.mark.parametrize("compression", ["yes", "no"])
def test_damaged_files_of_a_server_are_refused_or_read(
    redis_files: Start, compression: str
) -> None:
    with redis_files(rdbcompression=compression) as server:
        fill_streams(server.client())
        data = server.saved().read_bytes()
    assert read_all(data) > 5
    assert damage(data) > ROUNDS / 4


def test_damaged_objects_of_all_kinds_are_refused_or_read() -> None:
    for magic in {magic for magic, *_ in OBJECTS}:
        kept = [(type_, value) for m, type_, value, *_ in OBJECTS if m == magic]
        damage(built(*(record(type_, value) for type_, value in kept), magic=magic), ROUNDS // 5)


def test_damaged_command_files_are_refused_or_read() -> None:
    words = (b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n12\r\n", b"*1\r\n$5\r\nMULTI\r\n", b"#TS:1\r\n")
    end = b"*1\r\n$4\r\nEXEC\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n"
    data = words[0] + words[2] + words[1] + words[0] * 3 + end + words[0]
    for seed in range(SEED, SEED + 4 * ROUNDS):
        refusal(read_commands, mutated(bytes(9) + data + bytes(8), Random(seed))[9:-8], seed)


def read_commands(data: bytes) -> None:
    file = CommandsFile(io.BytesIO(data))
    assert all(command.argv for unit in file for command in unit.commands)
    assert 0 <= file.cut <= len(data)
