"""The reader of RocksDB's log, in both of its forms, beside RocksDB itself."""

import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvstream.errors import Corruption
from kvstream.storage import log
from kvstream.storage.log import BLOCK, DELETE, DELETE_RANGE, PUT, LogReader, Record, Row
from tests.storage import log_bytes
from tests.storage.log_bytes import HEAD, encode_record, encode_row, fragment, written

FORMS = {"python": None, "compiled": log.twin}


@pytest.fixture(autouse=True, params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run each test on both twins."""
    with using(request.param):
        yield request.param


class using:
    """Use one of the forms in a block."""

    def __init__(self, form: str) -> None:
        self._twin = FORMS[form]
        if form == "compiled" and self._twin is None:
            if os.environ.get("KVSTREAM_REQUIRE_ALL") and os.environ.get("KVSTREAM_PURE") != "1":
                pytest.fail("the compiled twins are not installed", pytrace=False)
            pytest.skip("the compiled twins are not installed")

    def __enter__(self) -> None:
        self._before, log.twin = log.twin, self._twin  # type: ignore

    def __exit__(self, *_: object) -> None:
        log.twin = self._before


several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

KEYS = st.binary(max_size=12)
VALUES = st.binary(max_size=40) | st.integers(0, 3 * BLOCK).map(lambda size: b"v" * size)
FAMILIES = st.integers(0, 1)
ROWS: st.SearchStrategy[Row] = st.one_of(
    st.tuples(FAMILIES, st.just(PUT), KEYS, VALUES),
    st.tuples(FAMILIES, st.just(DELETE), KEYS, st.none()),
    # RocksDB fails on a range that ends before it begins, and an empty one has a number that a
    # recovery does not count. A batch has neither.
    st.tuples(FAMILIES, st.just(DELETE_RANGE), KEYS, KEYS).map(
        lambda row: (*row[:2], min(row[2:]), max(row[2:]) + b"\0")
    ),
)
COMMITS = st.lists(st.lists(ROWS, max_size=8), max_size=12)


def read(data: bytes, position: int = 0) -> list[Record]:
    """Read a whole log."""
    reader = LogReader(position)
    records = reader.feed(data)
    assert reader.unread == 0
    assert reader.position == position + len(data)
    return records


def outcome(data: bytes, size: int = 1 << 30) -> tuple[list[Record], int, int, str]:
    """Return all that a reader finds: records, position, bytes behind it, and an error.

    After an error the records are those up to the position.
    """
    reader, found, error = LogReader(), [], ""
    try:
        for start in range(0, len(data), size):
            found += reader.feed(data[start : start + size])
    except Corruption as raised:
        error = str(raised)
        again = LogReader()
        found = again.feed(data[: reader.position])
        assert again.unread == 0
    return found, reader.position, 0 if error else reader.unread, error


def some_log(seed: int = 1, size: int = 2 * BLOCK) -> bytes:
    """Return a log with records of many sizes, from one of no row to one of several blocks."""
    chance, sequence = random.Random(seed), 1
    payloads: list[bytes] = []
    while sum(len(payload) for payload in payloads) < size:
        rows: list[Row] = [
            (chance.randrange(3), PUT, b"k%d" % number, b"v" * chance.choice([0, 3, 200]))
            for number in range(chance.choice([0, 1, 1, 2, 9]))
        ]
        if chance.random() < 0.1:
            rows += [(0, DELETE, b"key", None), (2, DELETE_RANGE, b"a", b"c")]
        if chance.random() < 0.03:
            rows.append((1, PUT, b"large", bytes(chance.randrange(2 * BLOCK))))
        payloads.append(encode_record(sequence, rows))
        sequence += len(rows)
    return written(payloads)


@given(st.binary(max_size=300))
def test_all_forms_have_the_same_checksum(data: bytes) -> None:
    """The compiled one has an instruction of the processor, if there is one, and tables."""
    expected = log.crc32c_in_python(data)
    assert log.crc32c(data) == expected
    if log.twin is not None:
        assert log.twin.crc32c_by_tables(data) == expected


def test_the_checksum_is_that_of_castagnoli() -> None:
    assert log.crc32c(b"123456789") == 0xE3069283  # of RFC 3720, as the next
    assert log.crc32c(bytes(32)) == 0x8A9136AA
    assert log.crc32c(bytes(range(32))) == 0x46DD794E


@several
@given(COMMITS)
@example([[(0, PUT, b"k", b"v")], [], [(1, PUT, b"", b"v" * 2 * BLOCK), (1, DELETE, b"", None)]])
def test_it_reads_what_rocksdb_wrote(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[Row]]
) -> None:
    path = tmp_path_factory.mktemp("log")
    database = log_bytes.opened(path)
    for rows in commits:
        log_bytes.write(database, rows)
    latest = database.latest_sequence_number()
    data = log_bytes.log_of(path)
    records = read(data)
    database.close()
    assert [record.rows() for record in records] == commits
    assert [record.row_count for record in records] == [len(rows) for rows in commits]
    number = 1
    for record in records:
        assert record.sequence == number
        number = record.last + 1
    assert number == latest + 1
    assert data == written([encode_record(r.sequence, r.rows()) for r in records])
    shutil.rmtree(path)


def test_each_byte_may_be_the_last_one_so_far() -> None:
    data = some_log()
    whole = read(data)
    reader, found = LogReader(), []
    for at in range(len(data)):
        found += reader.feed(data[at : at + 1])
        complete = len(found) < len(whole) and whole[len(found)].end <= at + 1
        assert not complete
        assert reader.position == (found[-1].end if found else 0)
        assert reader.unread == at + 1 - reader.position
    assert found == whole


@pytest.mark.parametrize("size", [1, 7, 100, BLOCK - 1, BLOCK, BLOCK + 1, 1 << 20])
def test_pieces_of_any_size_give_the_same_records(size: int) -> None:
    data = some_log(2)
    assert outcome(data, size) == outcome(data)


def test_reading_goes_on_from_the_end_of_each_record() -> None:
    data = some_log(3)
    whole = read(data)
    for number, record in enumerate(whole[:: max(1, len(whole) // 20)]):
        number *= max(1, len(whole) // 20)
        assert read(data[record.end :], record.end) == whole[number + 1 :]


@pytest.mark.parametrize("room", range(20))
def test_the_head_of_a_record_may_be_divided(tmp_path: Path, room: int) -> None:
    """Room in the block for a first part of fewer than twelve bytes, of none, or for no part."""
    database = log_bytes.opened(tmp_path)
    overhead = len(encode_record(1, [(0, PUT, b"k", bytes(BLOCK - 100))])) - (BLOCK - 100)
    first: Row = (0, PUT, b"k", bytes(BLOCK - HEAD - overhead - room))
    second: Row = (1, PUT, b"key", b"value")
    log_bytes.write(database, [first])
    log_bytes.write(database, [second])
    data = log_bytes.log_of(tmp_path)
    database.close()
    kinds = log_bytes.fragments(data)
    if room >= HEAD:
        assert (2, room - HEAD) == kinds[1]
    else:
        assert [kind for kind, _ in kinds] == [1, 1]
    records = read(data)
    assert [record.rows() for record in records] == [[first], [second]]
    assert records[0].end == BLOCK - room
    assert read(data[records[0].end :], records[0].end) == records[1:]
    for end in range(records[0].end, len(data)):
        assert outcome(data[:end]) == (records[:1], BLOCK - room, end - (BLOCK - room), "")


def test_a_compaction_leaves_an_empty_record(database: Any) -> None:
    from tests.storage.stores import put

    put(database, {b"key": b"value"})
    database.compact()
    put(database, {b"other": b"value"})
    directory = database.directory
    records = [record for path in log_bytes.logs(directory) for record in read(path.read_bytes())]
    counts = [record.row_count for record in records]
    assert counts == [0, 1]
    assert records[0].rows() == []
    assert records[0].sequence == records[1].sequence == records[0].last + 1


def test_any_flipped_bit_is_found() -> None:
    """Only records from before the damage are returned."""
    payloads = [encode_record(n, [(1, PUT, b"k%d" % n, b"v" * n)]) for n in range(1, 9)]
    data = written(payloads)
    whole = read(data)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        records, position, unread, error = outcome(bytes(flipped))
        sound = [record for record in whole if record.end <= bit // 8]
        assert records == sound
        assert position == (sound[-1].end if sound else 0)
        assert error or unread == len(data) - position
        if not error:  # a length that reaches beyond the end of the file
            beginning = bit // 8 - position
            assert beginning in (4, 5)


@given(st.data())
def test_damage_is_found_in_both_forms_alike(data: st.DataObject) -> None:
    sound = some_log(data.draw(st.integers(0, 3)), BLOCK)
    whole = read(sound)
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(sound) - 1))] ^= data.draw(st.integers(1, 255))
    first = next((at for at, byte in enumerate(sound) if damaged[at] != byte), len(sound))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    found = outcome(bytes(damaged))
    assert found == outcome(bytes(damaged), 5000)
    assert [record for record in found[0] if record.end <= first] == found[0]
    assert found[0] == whole[: len(found[0])]
    for other in FORMS:
        if FORMS[other] is not None or other == "python":
            with using(other):
                assert outcome(bytes(damaged)) == found


@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_are_records_a_torn_end_or_damage(data: bytes, before: int) -> None:
    head = written([encode_record(1, [(0, PUT, b"k", b"v" * before)])])
    records, position, unread, error = outcome(head + data)
    assert len(records) == 1
    assert error or position + unread == len(head + data)


SOUND = written([encode_record(7, [(0, PUT, b"k", b"v")])])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes(20), "byte 0: 0 is not a known type of a fragment"),
        (SOUND + bytes(7), f"byte {len(SOUND)}: 0 is not a known type"),
        (fragment(5, b"recycled"), "5 is not a known type"),
        (fragment(9, b"compression"), "9 is not a known type"),
        (fragment(130, b"log"), "130 is not a known type"),
        (pack("<IHB", 0, BLOCK - HEAD + 1, 1), "of 32762 bytes exceeds its block"),
        (SOUND + fragment(3, b"x" * 20), "a payload lacks its first or last part"),
        (SOUND + fragment(4, b"x" * 20), "a payload lacks its first or last part"),
        (fragment(2, b"x" * 20) + fragment(2, b"x"), "a payload lacks its first or last part"),
        (fragment(2, b"x" * 20) + fragment(1, b"x"), "a payload lacks its first or last part"),
        (fragment(1, b"x" * 11), "byte 18: a record of 11 bytes ends here"),
        (fragment(1, b""), "a record of 0 bytes ends here"),
        (SOUND + SOUND, "record 7, which ends here, follows 7"),
        (fragment(1, b"x" * (BLOCK - 13)) + b"\0\0\1", "the end of the block is not zero"),
    ],
)
def test_what_rocksdb_does_not_write_is_damage(data: bytes, reason: str) -> None:
    error = outcome(data)[3]
    assert reason in error
    assert error == outcome(data, 1)[3]


def test_a_reader_that_met_damage_goes_no_further() -> None:
    reader = LogReader()
    for data in (SOUND + bytes(9), b"", written([encode_record(8, [])], len(SOUND))):
        with pytest.raises(Corruption, match=f"damaged at byte {len(SOUND)}"):
            reader.feed(data)
        assert reader.position == len(SOUND)


FIELDS = st.lists(ROWS, max_size=6)


@given(FIELDS, st.data())
def test_damaged_rows_are_found_in_both_forms_alike(rows: list[Row], data: st.DataObject) -> None:
    payload = bytearray(encode_record(5, rows))
    for _ in range(data.draw(st.integers(0, 2))):
        payload[data.draw(st.integers(8, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(12, len(payload)))]
    record = Record(5, int.from_bytes(payload[8:12], "little"), bytes(payload), 100)
    found = [_rows(record, form) for form in FORMS if FORMS[form] is not None or form == "python"]
    assert found[0] == found[-1]
    if payload == encode_record(5, rows):
        assert found[0] == rows


def _rows(record: Record, form: str) -> object:
    with using(form):
        try:
            return record.rows()
        except Corruption as error:
            return str(error)


@pytest.mark.parametrize(
    ("rows", "count", "reason"),
    [
        (b"\x02\x01k\x01v", 1, "a record with rows of tag 2 ends here"),
        (b"\x07\x01k", 1, "tag 7"),
        (b"\x03\x01k", 0, "tag 3"),
        (b"\x11\x01k\x01v", 1, "tag 17"),
        (b"\x01\x01k", 1, "an unfinished number"),
        (b"\x01\x05k\x01v", 1, "5 bytes where 3 are left"),
        (b"\x05", 1, "an unfinished number"),
        (b"\x05" + b"\xff" * 5 + b"\x01", 1, "an unfinished number"),
        (b"\x00\x01k", 2, "a record of 2 rows that has 1 ends here"),
        (b"\x00\x01k", 0, "a record of 0 rows that has 1 ends here"),
    ],
)
def test_rows_of_an_unknown_form_are_damage(rows: bytes, count: int, reason: str) -> None:
    (record,) = read(written([pack("<QI", 3, count) + rows]))
    with pytest.raises(Corruption, match=reason) as raised:
        record.rows()
    assert f"byte {record.end}:" in str(raised.value)


@pytest.mark.parametrize("family", [0, 1, 127, 128, 300, 1 << 28, (1 << 32) - 1])
def test_families_and_lengths_of_any_size(family: int) -> None:
    rows: list[Row] = [
        (family, PUT, b"k" * 127, b"v" * 128),
        (family, DELETE, b"", None),
        (family, DELETE_RANGE, b"", b"k" * 20_000),
    ]
    (record,) = read(written([encode_record(1 << 55, rows)]))
    assert record.rows() == rows
    assert record[:2] == (1 << 55, 3)
    assert record.data == pack("<QI", 1 << 55, 3) + b"".join(map(encode_row, rows))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(COMMITS.filter(any), st.data())
def test_rocksdb_opens_a_cut_log_at_that_moment(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[Row]], data: st.DataObject
) -> None:
    """And one that is torn anywhere with all records that the reader finds."""
    path = tmp_path_factory.mktemp("log")
    database = log_bytes.opened(path / "store")
    for rows in commits:
        log_bytes.write(database, rows)
    content, latest = log_bytes.log_of(path / "store"), database.latest_sequence_number()
    number = data.draw(st.integers(1, latest))
    holder = next(each for each in read(content) if each.sequence <= number <= each.last)
    kept = content[: holder.end]
    torn = content[: data.draw(st.integers(0, len(content)))]
    for name, end in (("cut", kept), ("torn", torn)):
        shutil.copytree(path / "store", path / name)
        log_bytes.logs(path / name)[-1].write_bytes(end)
        records = outcome(end)[0]
        reopened = log_bytes.opened(path / name)
        assert reopened.latest_sequence_number() == (records[-1].last if records else 0)
        reopened.close()
    database.close()
    shutil.rmtree(path)


def test_records_are_read_while_they_are_written(tmp_path: Path) -> None:
    """As a follower reads: whatever is in the file is records and the beginning of one."""
    database = log_bytes.opened(tmp_path)

    def commit() -> None:
        for number in range(1500):
            rows: list[Row] = [(1, PUT, b"%d" % number, b"v" * (number % 99))] * (number % 9)
            log_bytes.write(database, rows)

    thread = threading.Thread(target=commit)
    reader = LogReader()
    found: list[Record] = []
    with open(log_bytes.logs(tmp_path)[-1], "rb", buffering=0) as file:
        thread.start()
        while thread.is_alive():
            found += reader.feed(file.read(500) or b"")
        thread.join()
        found += reader.feed(file.read())
    assert reader.unread == 0
    assert len(found) == 1500
    assert found[-1].last == database.latest_sequence_number()
    database.close()


def test_a_finished_log_may_have_a_torn_end() -> None:
    torn = SOUND + written([encode_record(8, [(0, PUT, b"k", bytes(3 * BLOCK))])], len(SOUND))
    for end in (len(SOUND) + 1, len(SOUND) + 40, 2 * BLOCK, len(torn) - 1):
        reader = LogReader()
        assert [record.sequence for record in reader.feed(torn[:end])] == [7]
        assert reader.unread == end - len(SOUND)
        assert reader.position == len(SOUND)


def test_the_end_of_the_records_up_to_a_number_is_found() -> None:
    data = some_log()
    records = read(data)
    for until in range(-1, records[-1].last + 2):
        passed = [record for record in records if record.last <= until]
        end, last = (passed[-1].end, passed[-1].last) if passed else (0, -1)
        state = log.MORE if len(passed) == len(records) else log.OVER
        assert log.find_end(data, 0, 0, -1, until) == (end, last, state)
    whole = log.find_end(data, 0, 0, -1, 1 << 40)
    for record in records:  # from each on, with the bytes from there, and with those before
        assert log.find_end(data, record.end, 0, record.last, 1 << 40) == whole
        found = log.find_end(data[record.end :], 0, record.end, record.last, 1 << 40)
        assert found == (whole[0] - record.end, *whole[1:])


def test_records_that_do_not_follow_each_other_end_the_search() -> None:
    data = written([encode_record(n, [(1, PUT, b"k", b"v")]) for n in (1, 2, 4, 5)])
    records = read(data)
    assert log.find_end(data, 0, 0, -1, 9) == (records[1].end, 2, log.UNSOUND)
    assert log.find_end(data, 0, 0, 3, 9) == (0, 3, log.UNSOUND)
    assert log.find_end(data, records[1].end, 0, -1, 9) == (len(data), 5, log.MORE)


@given(st.data())
def test_the_end_is_found_alike_in_both_forms(data: st.DataObject) -> None:
    sound = some_log(data.draw(st.integers(0, 3)), BLOCK)
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(sound) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    until = data.draw(st.integers(0, 300))
    found = log.find_end_in_python(bytes(damaged), 0, 0, -1, until)
    assert log.find_end(bytes(damaged), 0, 0, -1, until) == found
    if until == 300:
        records, position, _, error = outcome(bytes(damaged))
        assert (found[0], found[2]) == (position, log.UNSOUND if error else log.MORE)
        assert found[1] == (records[-1].last if records else -1)
