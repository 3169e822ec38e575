"""LZF, compressed and decompressed by both twins."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstream.rdb import lzf

TEXTS = st.binary(max_size=600) | st.lists(
    st.sampled_from([b"abc", b"abcabc", b"x", b"\0" * 50, b"field", b"123"]), max_size=80
).map(b"".join)
IN_BOTH = pytest.mark.parametrize("decompress", [lzf.decompress, lzf.decompress_in_python])


@given(TEXTS)
@example(b"a" * 5000)
@example(bytes(range(256)) * 40)
def test_both_twins_compress_alike_and_restore_the_text(data: bytes) -> None:
    made = lzf.compress(data)
    assert made == lzf.compress_in_python(data)
    assert lzf.decompress(made, len(data)) == lzf.decompress_in_python(made, len(data)) == data


def test_repetition_shrinks_to_the_ratio_that_readers_allow() -> None:
    data = bytes(264 * 1000 + 1)
    made = lzf.compress(data)
    assert len(data) // lzf.RATIO_MAX <= len(made) < len(data) // 80
    assert lzf.decompress(made, len(data)) == data


@IN_BOTH
@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"\x00", 1),  # a literal of one byte that is not there
        (b"\x05abc", 6),
        (b"\x00a\x20", 4),  # a copy without its offset
        (b"\x00a\xe0", 4),
        (b"\x00a\xe0\x01", 11),
        (b"\x00a\x20\x01", 4),  # of what stands before the first byte
        (b"\x20\x00", 3),
        (b"\x00a\x20\x00", 3),  # one byte more than was said
        (b"\x00a\x20\x00", 5),
        (b"\x01ab", 1),
        (b"", 1),
        (b"\x00a", 0),
    ],
)
def test_damage_is_refused(decompress: object, data: bytes, size: int) -> None:
    with pytest.raises(lzf.BadCompression):
        decompress(data, size)  # type: ignore[operator]


@IN_BOTH
def test_a_copy_may_overlap_its_own_output(decompress: object) -> None:
    assert decompress(b"\x01ab\xe0\x03\x01", 14) == b"ab" * 7  # type: ignore[operator]


@given(st.binary(max_size=60), st.integers(0, 200))
def test_the_twins_accept_and_refuse_the_same(data: bytes, size: int) -> None:
    found: list[bytes | None] = []
    for decompress in (lzf.decompress, lzf.decompress_in_python):
        try:
            found.append(decompress(data, size))
        except lzf.BadCompression:
            found.append(None)
    assert found[0] == found[1]
