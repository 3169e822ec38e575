"""Import reads what export writes: any entries, byte for byte."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream import Store, StreamID
from kvstream.cli.file_formats import CsvRows, CsvWriter, JsonRows, JsonWriter, Source, column_names
from kvstream.cli.importing.batches import Import, RowIDs

names = st.sampled_from([b"a", b"b", b"sku", b"kvstream:id", b"kvstream:fields", b"id", b""])
parts = st.binary(max_size=8) | st.text(max_size=6).map(str.encode)
values = parts | st.sampled_from(
    [b'"', b",", b"\n", b"\r\n", b" ", b"{}", b"\xef\xbb\xbf", b"1.50"]
)
entries = st.lists(st.tuples(names | parts, values), min_size=1, max_size=4)
streams = st.lists(entries, min_size=1, max_size=6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all examples: each uses streams of its own."""
    folder: Path = tmp_path_factory.mktemp("round-trip")
    with Store.open(folder / "store", durability="no") as store:
        yield store
        assert store.check() == []


@pytest.mark.parametrize("delimiter", [None, ",", "\t"])
@given(given_entries=streams)
def test_export_and_import_give_the_same_entries(
    store: Store, delimiter: str | None, given_entries: list[list[tuple[bytes, bytes]]]
) -> None:
    store.delete("source", "target")
    source, target = store.stream("source"), store.stream("target")
    for at, pairs in enumerate(given_entries):
        source.add(pairs, StreamID(at + 1, at))
    found = source.range()

    writer = JsonWriter() if delimiter is None else CsvWriter(column_names(iter(found)), delimiter)
    written = Source(io.BytesIO(writer.header + writer.page(found)), "test")
    rows = JsonRows(written) if delimiter is None else CsvRows(written, delimiter)
    run = Import(Store(store.engine), b"target", written, rows, RowIDs())
    run.run(lambda done, rows: None)

    assert [(entry.id, entry.pairs) for entry in target.range()] == [
        (entry.id, entry.pairs) for entry in found
    ]
    assert [list(entry.pairs) for entry in found] == given_entries
