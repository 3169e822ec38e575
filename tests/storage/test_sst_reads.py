"""Tables read without RocksDB: the rows that it finds there, or none of them."""

from itertools import pairwise
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch

from kvstream.layout.packing import unpack_rows
from kvstream.storage import sst_reads
from kvstream.storage.sst import TableWriter, reading, twins
from kvstream.storage.sst_reads import NotPlain, Stretch, Table, Zstd, packed_pages, stretches

if reading is None:
    pytest.skip("the compiled reader is not installed", allow_module_level=True)

XXH64, XXH3, LZ4, ZSTD = 3, 4, 4, 7
VALUES = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 60_000).map(lambda n: b"v" * n),
    st.integers(0, 9000).map(lambda n: b"%06d sku and quantity " % n * (n % 90)),
    st.integers(0, 255).map(lambda n: bytes((n * i * i >> 3) & 255 for i in range(700))),
)
PREFIXES = st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=4, unique=True)
Rows = list[tuple[bytes, bytes]]


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def made(path: Path, rows: dict[bytes, Rows]) -> Table:
    """Write a table of the rows of several prefixes, which are in order."""
    table = TableWriter(path)
    for prefix, each in rows.items():
        table.put(prefix, [eid for eid, _ in each], [value for _, value in each])
    table.finish()
    keys = [prefix + eid for prefix, each in rows.items() for eid, _ in each]
    return Table(path, path.stat().st_size, keys[0], keys[-1])


def unpacked(data: bytes, size: int) -> bytes | None:
    """Decompress with pyarrow, which Spark's readers do it with."""
    pa = pytest.importorskip("pyarrow")
    try:
        return bytes(pa.decompress(data, size, codec="zstd", asbytes=True))
    except OSError:
        return None


def read(
    table: Table, prefix: bytes, first: bytes, last: bytes, zstd: Zstd | None = unpacked
) -> Rows:
    found: Rows = []
    for packed in packed_pages(Stretch(prefix + first, prefix + last, table), prefix, zstd):
        found += zip(*unpack_rows(packed), strict=True)
    return found


@settings(max_examples=40)
@given(
    prefixes=PREFIXES.map(sorted),
    values=st.lists(VALUES, min_size=1, max_size=90),
    bounds=st.tuples(st.integers(0, 100), st.integers(0, 100)),
)
def test_a_range_of_a_table_is_what_was_put_there(
    tmp_path_factory: pytest.TempPathFactory,
    prefixes: list[bytes],
    values: list[bytes],
    bounds: tuple[int, int],
) -> None:
    path = tmp_path_factory.mktemp("table") / "made.sst"
    rows = [(id_of(number), value) for number, value in enumerate(values, 1)]
    table = made(path, dict.fromkeys(prefixes, rows))
    first, last = map(id_of, bounds)
    for prefix in prefixes:
        expected = [row for row in rows if first <= row[0] <= last]
        assert read(table, prefix, first, last) == expected


def test_a_long_table_is_read_by_pages(tmp_path: Path) -> None:
    rows = [(id_of(n * 7), b"value %d of so many" % (n**4)) for n in range(60_000)]
    table = made(tmp_path / "made.sst", {b"a": rows[:9], b"p": rows, b"q": rows[:9]})
    stretch = Stretch(b"p" + rows[0][0], b"p" + rows[-1][0], table)
    pages = [unpack_rows(packed) for packed in packed_pages(stretch, b"p")]
    assert 2 < len(pages) < 20
    assert [row for ids, values in pages for row in zip(ids, values, strict=True)] == rows
    assert read(table, b"p", id_of(7 * 30_000), id_of(7 * 30_002)) == rows[30_000:30_003]
    assert read(table, b"o", id_of(0), id_of(1 << 40)) == []


def test_no_flipped_byte_changes_a_row(tmp_path: Path) -> None:
    rows = [(id_of(n), b"value %d" % (n**5)) for n in range(1, 2000)]
    table = made(tmp_path / "made.sst", {b"p": rows})
    whole = table.path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 41):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        table.path.write_bytes(damaged)
        try:
            assert read(table, b"p", id_of(0), id_of(1 << 40)) == rows
        except NotPlain:
            refused += 1
    assert refused > 0.9 * len(range(0, len(whole), 41))


@pytest.mark.parametrize("size", [0, 20, 53, 4000])
def test_a_table_that_was_cut_is_not_plain(tmp_path: Path, size: int) -> None:
    table = made(tmp_path / "made.sst", {b"p": [(id_of(n), b"%d" % n**3) for n in range(3000)]})
    table.path.write_bytes(table.path.read_bytes()[:size])
    for told in (table, table._replace(size=size)):
        with pytest.raises(NotPlain):
            read(told, b"p", id_of(0), id_of(1 << 40))
    table.path.unlink()
    with pytest.raises(NotPlain):
        read(table, b"p", id_of(0), id_of(1))


def test_rows_that_are_not_of_ids_are_not_plain(tmp_path: Path) -> None:
    table = made(tmp_path / "made.sst", {b"pre": [(id_of(1), b"one"), (id_of(2), b"two")]})
    with pytest.raises(NotPlain):
        read(table, b"pr", id_of(0), b"\xff" * 16)


def tables_in(database: Rdict, folder: Path) -> list[Table]:
    found = sst_reads.tables_of(database, folder)
    assert found is not None
    return found


def test_the_tables_of_a_family_are_those_that_rocksdb_lists(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(tmp_path), options)
    other = database.create_column_family("other", options)
    database[b"in memory"] = b"1"
    assert sst_reads.tables_of(database, tmp_path) is None
    other[b"not ours"] = b"1"
    other.flush()
    database.flush()
    (table,) = tables_in(database, tmp_path)
    assert (table.first, table.last) == (b"in memory", b"in memory")
    assert table.size == table.path.stat().st_size
    database[b"\xff'] .. [\n"] = b"2"
    database.flush()
    assert {each.last for each in tables_in(database, tmp_path)} == {
        b"in memory",
        b"\xff'] .. [\n",
    }
    del other
    database.close()
    with pytest.raises(Exception, match="closed"):
        sst_reads.tables_of(database, tmp_path)


class Telling:
    """A family with one table, which is listed in another way."""

    def property_int_value(self, name: str) -> int:
        return 0

    def property_value(self, name: str) -> str:
        return "1" if name.endswith("level6") else "table 9, 100 bytes\n" * ("sst" in name)


def test_a_table_that_is_not_understood_leaves_all_to_rocksdb(tmp_path: Path) -> None:
    assert sst_reads.tables_of(Telling(), tmp_path) is None


def test_deleted_rows_are_left_to_rocksdb(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(tmp_path), options)
    for n in range(100):
        database[b"p" + id_of(n)] = b"value"
    batch = WriteBatch(True)
    batch.delete_range(b"p" + id_of(4), b"p" + id_of(9))
    database.write(batch)
    del database[b"p" + id_of(50)]
    database.flush()
    (table,) = tables_in(database, tmp_path)
    database.close()
    with pytest.raises(NotPlain):
        read(table, b"p", id_of(0), id_of(1000))


def table_of(first: bytes, last: bytes) -> Table:
    return Table(Path(), 0, first, last)


def test_tables_that_reach_into_each_other_are_one_stretch_without_a_table() -> None:
    a, b, c = table_of(b"b", b"d"), table_of(b"d", b"f"), table_of(b"h", b"k")
    assert stretches([c, b, a], b"a", b"z") == [
        Stretch(b"b", b"f", None),
        Stretch(b"h", b"k", c),
    ]
    assert stretches([a, c], b"c", b"i") == [Stretch(b"c", b"d", a), Stretch(b"h", b"i", c)]
    assert stretches([a, b, c, table_of(b"a", b"z")], b"e", b"g") == [Stretch(b"e", b"g", None)]
    assert stretches([a, c], b"e", b"g") == []


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=2, max_size=2).map(sorted), max_size=6),
    st.lists(st.integers(0, 30), min_size=2, max_size=2).map(sorted),
)
def test_every_key_of_a_table_is_in_one_stretch(
    reaches: list[list[int]], bounds: list[int]
) -> None:
    tables = [table_of(bytes([first]), bytes([last])) for first, last in reaches]
    lower, upper = (bytes([bound]) for bound in bounds)
    found = stretches(tables, lower, upper)
    assert all(one.last < next_.first for one, next_ in pairwise(found))
    for number in range(bounds[0], bounds[1] + 1):
        key = bytes([number])
        holders = [table for table in tables if table.first <= key <= table.last]
        within = [each for each in found if each.first <= key <= each.last]
        assert len(within) == bool(holders) or (not holders and within[0].table is None)
        if within and within[0].table is not None:
            assert holders == [within[0].table]


# --- tables that RocksDB has written --------------------------------------------------------------


@settings(max_examples=25)
@given(
    values=st.lists(VALUES, min_size=1, max_size=90),
    bounds=st.tuples(st.integers(0, 100), st.integers(0, 100)),
    compression=st.sampled_from([DBCompressionType.lz4(), DBCompressionType.zstd()]),
)
def test_a_table_of_rocksdb_is_read_as_rocksdb_reads_it(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[bytes],
    bounds: tuple[int, int],
    compression: DBCompressionType,
) -> None:
    folder = tmp_path_factory.mktemp("database")
    options = written_with(compression)
    rows = [(id_of(number), value) for number, value in enumerate(values, 1)]
    table = made_by_rocksdb(folder, options, rows)
    first, last = map(id_of, bounds)
    assert read(table, b"p", first, last) == [row for row in rows if first <= row[0] <= last]


COMPRESSIBLE = [(id_of(n), b"value of %d and of much else" % n * 9) for n in range(4000)]


def test_what_zstd_has_compressed_is_left_to_rocksdb_without_it(tmp_path: Path) -> None:
    options = written_with(DBCompressionType.zstd())
    table = made_by_rocksdb(tmp_path, options, COMPRESSIBLE)
    assert read(table, b"p", id_of(0), id_of(9000)) == COMPRESSIBLE
    for zstd in (None, lambda data, size: None, lambda data, size: bytes(size + 1)):
        with pytest.raises(NotPlain):
            read(table, b"p", id_of(0), id_of(9000), zstd)


def test_blocks_with_a_dictionary_are_left_to_rocksdb(tmp_path: Path) -> None:
    options = written_with(DBCompressionType.zstd())
    options.set_compression_options(-14, 3, 0, 4096)
    table = made_by_rocksdb(tmp_path, options, COMPRESSIBLE)
    assert b"compression_dict" in table.path.read_bytes()
    with pytest.raises(NotPlain):
        read(table, b"p", id_of(0), id_of(9000))


def written_with(compression: DBCompressionType) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(compression)
    blocks = BlockBasedOptions()
    blocks.set_format_version(6)
    options.set_block_based_table_factory(blocks)
    return options


def made_by_rocksdb(folder: Path, options: Options, rows: Rows) -> Table:
    """Have RocksDB write a table of the rows of three prefixes."""
    database = Rdict(str(folder), options)
    for prefix in (b"other", b"p", b"q"):
        for eid, value in rows:
            database[prefix + eid] = value
    database.flush()
    (table,) = tables_in(database, folder)
    database.close()
    return table


@given(st.binary(min_size=17, max_size=3000), st.integers(0, 255))
def test_the_sums_of_rocksdb_are_those_of_xxh3(data: bytes, kind: int) -> None:
    """The last byte stands apart; what compression it says is known is another matter."""
    sum_ = (xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF) ^ (kind * 0x6B9083D9 & 0xFFFFFFFF)
    block = data + bytes([kind]) + sum_.to_bytes(4, "little")
    found = reading.plain(block, XXH3)
    assert found == data if kind == 0 else found is None or kind == LZ4
    assert reading.plain(block, XXH3, 77, 5) is None
    moved = (sum_ + (77 ^ (5 + 1))) & 0xFFFFFFFF
    placed = data + bytes([kind]) + moved.to_bytes(4, "little")
    assert reading.plain(placed, XXH3, 77, 5 | 1 << 32) == found


# --- what looks sound to its sum, and is none -----------------------------------------------------


def with_trailer(data: bytes, compression: int) -> bytes:
    plain = data + bytes([compression])
    return plain + twins.sum_of(plain).to_bytes(4, "little")


@given(st.binary(max_size=3000), st.integers(0, 40))
def test_what_is_compressed_comes_back(piece: bytes, times: int) -> None:
    data = piece * times
    size = len(data)
    head = bytearray()
    while size >= 128:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    block = bytes(head) + twins.compress(data)
    assert reading.plain(with_trailer(block, LZ4), XXH64) == data
    assert reading.plain(with_trailer(data, 0), XXH64) == data
    assert reading.plain(with_trailer(data, 9), XXH64) is None


@settings(max_examples=400)
@given(st.binary(max_size=300), st.sampled_from([0, LZ4, ZSTD]))
def test_any_bytes_with_a_sum_are_rows_or_not_plain(data: bytes, compression: int) -> None:
    block = with_trailer(data, compression)
    reader = reading.Reader(b"", bytes(16), b"\xff" * 16, unpacked)
    packed = reader.read(block, [len(data)], XXH64)
    assert packed is None or len(unpack_rows(packed)[0]) == reader.count
    reading.plain(block, XXH64, 0, 0, unpacked)


@settings(max_examples=300)
@given(st.lists(VALUES, min_size=1, max_size=20), st.data())
def test_altered_rows_with_a_sum_are_rows_or_not_plain(
    values: list[bytes], given_data: st.DataObject
) -> None:
    builder = twins.Builder(1 << 20)
    builder.put(b"", [twins.pack_rows([id_of(n) for n in range(len(values))], values)])
    builder.end()
    block = bytearray(builder.take())[:-5]
    compression = LZ4 if len(block) < sum(map(len, values)) else 0
    for _ in range(3):
        at = given_data.draw(st.integers(0, len(block) - 1))
        block[at] = given_data.draw(st.integers(0, 255))
    reader = reading.Reader(b"", bytes(16), b"\xff" * 16)
    packed = reader.read(with_trailer(bytes(block), compression), [len(block)], XXH64)
    assert packed is None or len(unpack_rows(packed)[0]) == reader.count


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_an_index_or_none(data: bytes, by_deltas: bool) -> None:
    found = reading.blocks(data, by_deltas)
    assert found is None or all(size >= 0 and len(key) <= len(data) for key, _, size in found)


def test_a_reader_takes_ids_as_bounds_alone() -> None:
    with pytest.raises(ValueError, match="IDs"):
        reading.Reader(b"p", b"1", b"2")
    with pytest.raises(TypeError):
        reading.Reader(b"p", None, bytes(16))  # type: ignore[arg-type]


def test_a_chunk_shorter_than_its_blocks_is_not_plain() -> None:
    reader = reading.Reader(b"", bytes(16), b"\xff" * 16)
    assert reader.read(b"12345", [1], XXH64) is None
    assert reader.read(b"12345", [-1], XXH64) is None
    assert reader.read(with_trailer(b"\0" * 8, 0), [8], 1) is None
