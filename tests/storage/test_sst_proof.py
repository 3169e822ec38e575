"""A table is taken for proved where it is what our own writer makes of the rows, and never else."""

from pathlib import Path
from struct import Struct
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.errors import Corruption
from kvstream.layout.values import encode_fields
from kvstream.storage import sst
from kvstream.storage.sst import TableWriter, proofs
from kvstream.storage.sst_proof import Streams, is_proved

if proofs is None:
    pytest.skip("what looks into tables is not installed", allow_module_level=True)

NODE = Struct("<16s16sQ")
TEXTS = st.one_of(
    st.text(max_size=40),
    st.integers(0, 70_000).map(lambda n: "v" * n),
    st.integers(0, 5000).map(lambda n: "".join(chr(32 + (n * i * i >> 3) % 90) for i in range(n))),
)
SESSION = sst.session_of(b"a table")
NODES = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def ids_of(count: int) -> list[bytes]:
    return [(n * 7).to_bytes(16, "big") for n in range(1, count + 1)]


def written(path: Path, prefixes: list[bytes], nodes: list[int], values: list[bytes]) -> Streams:
    """Write so many nodes under each prefix; return what they are."""
    table, count = TableWriter(path, SESSION), sum(nodes)
    rows, streams = ids_of(count), []
    given = [values[at % len(values)] for at in range(count)]
    for prefix in prefixes:
        table.put(prefix, rows, given)
        told, at = b"", 0
        for live in nodes:
            told += NODE.pack(rows[at], rows[at + live - 1], live)
            at += live
        streams.append((prefix, told))
    table.finish()
    return streams


def value(*texts: str) -> bytes:
    return encode_fields({f"f{at}": text for at, text in enumerate(texts)})[0]


def proved(path: Path, streams: Streams) -> bool:
    """Tell whether a table is proved; what is refused is not."""
    try:
        return is_proved(path, streams, SESSION)
    except Corruption:
        return False


@settings(max_examples=30, deadline=None)
@given(nodes=NODES, texts=st.lists(TEXTS, min_size=1, max_size=30), streams=st.integers(1, 4))
def test_what_our_writer_makes_is_proved(
    tmp_path_factory: pytest.TempPathFactory, nodes: list[int], texts: list[str], streams: int
) -> None:
    path = tmp_path_factory.mktemp("proof") / "t.sst"
    prefixes = [b"p%d" % at for at in range(streams)]
    told = written(path, prefixes, nodes, [value(text) for text in texts])
    assert is_proved(path, told, SESSION)
    assert not proved(path, told[1:])
    assert not proved(path, [*told, (b"q", told[0][1])])
    fewer = [(prefix, nodes[NODE.size :]) for prefix, nodes in told]
    assert not proved(path, [each for each in fewer if each[1]])


def test_a_table_of_which_a_byte_was_changed_is_not_proved(tmp_path: Path) -> None:
    path = tmp_path / "t.sst"
    streams = written(
        path, [b"a", b"b"], [100, 60], [value("x" * 30, str(n**7)) for n in range(99)]
    )
    whole = path.read_bytes()
    for at in [*range(0, len(whole) - 1400, 61), *range(len(whole) - 1400, len(whole))]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        assert not proved(path, streams), at
    for size in (*range(0, len(whole), 501), len(whole) - 1):
        path.write_bytes(whole[:size])
        assert not proved(path, streams), size
    path.write_bytes(whole)
    assert is_proved(path, streams, SESSION)


@pytest.mark.parametrize(
    ("first", "last", "live"),
    [(1, 7, 3), (7, 20, 3), (7, 21, 2), (7, 21, 4), (8, 21, 3), (7, 22, 3), (0, 21, 3)],
)
def test_nodes_are_those_of_the_rows(tmp_path: Path, first: int, last: int, live: int) -> None:
    path = tmp_path / "t.sst"
    written(path, [b"a"], [3], [value("x")])
    told = NODE.pack(first.to_bytes(16, "big"), last.to_bytes(16, "big"), live)
    with pytest.raises(Corruption, match="not those that it is said to have"):
        is_proved(path, [(b"a", told)], SESSION)


@pytest.mark.parametrize(
    "odd", [b"", b"\x01", b"\x01\x80", b"\x01\x81\xa1a", b"\x01\x81\xa1a\x05", value("x") + b"\0"]
)
def test_an_entry_of_another_form_is_left_to_python(tmp_path: Path, odd: bytes) -> None:
    path = tmp_path / "t.sst"
    streams = written(path, [b"a"], [3], [value("x"), odd])
    assert not is_proved(path, streams, SESSION)


def test_a_table_by_rocksdb_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "t.sst"
    with patch.object(sst, "twins", None):
        streams = written(path, [b"a"], [3], [value("x")])
    assert not is_proved(path, streams, SESSION)


def test_properties_of_other_rows_are_refused(tmp_path: Path) -> None:
    path, tail = tmp_path / "t.sst", sst.tail

    def lying(filled: sst.Filled, *rest: object) -> bytes:
        return tail(filled._replace(rows=filled.rows + 1), *rest)  # type: ignore[arg-type]

    with patch.object(sst, "tail", lying):
        streams = written(path, [b"a"], [3], [value("x")])
    with pytest.raises(Corruption, match="other rows than it says"):
        is_proved(path, streams, SESSION)


def test_a_table_by_the_name_of_another_is_not_proved(tmp_path: Path) -> None:
    path = tmp_path / "t.sst"
    streams = written(path, [b"a"], [3], [value("x")])
    assert is_proved(path, streams, SESSION)
    assert not is_proved(path, streams, sst.session_of(b"another"))
