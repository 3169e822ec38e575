"""Manifests of append-only directories."""

import os
from pathlib import Path

import pytest

from kvstream.errors import BadPayload
from kvstream.migration import aof_source


def test_files_come_in_order_without_notes_and_history(tmp_path: Path) -> None:
    path = tmp_path / "x.manifest"
    path.write_bytes(
        b"# a note\n"
        b"file one seq 7 type i startoffset 1 endoffset 2\n"
        b'file "a \\"b\\".base" seq 4 type b later 5\n'
        b"file old seq 3 type h\n"
        b"file \xff seq 9 type i\n"
    )
    names = [b'a "b".base', b"one", b"\xff"]
    assert aof_source.files(path) == [tmp_path / os.fsdecode(name) for name in names]


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (b"", None),
        (b"# nothing\n", None),
        (b"file a seq 1 type b", 0),
        (b"# a\nfile a seq 1\n", 4),
        (b"file a seq 1 type x\n", 0),
        (b"file a seq one type b\n", 0),
        (b'file "a seq 1 type b\n', 0),
        (b"\n", 0),
        (b"file a seq 1 type b\nfile a seq 2 type b\n", None),
        (b"file a seq 2 type i\nfile a seq 2 type i\n", 20),
        (b"file ../a seq 1 type b\n", 0),
        (b"file /etc/passwd seq 1 type b\n", 0),
        (b"file .. seq 1 type b\n", 0),
        (b"file a seq 1 type h\n", None),
        (b"#" * (1 << 21), None),
    ],
)
def test_a_malformed_manifest_is_refused(tmp_path: Path, text: bytes, offset: int | None) -> None:
    path = tmp_path / "x.manifest"
    path.write_bytes(text)
    with pytest.raises(BadPayload) as caught:
        aof_source.files(path)
    assert caught.value.offset == offset
