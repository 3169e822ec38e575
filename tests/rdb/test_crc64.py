"""CRC64 as Redis computes it: of whole texts, of parts, and of joined parts."""

from hypothesis import given
from hypothesis import strategies as st

from kvstream.rdb.primitives import crc64, crc64_in_python, join_crcs

CHECK = 0xE9C6D914C4B8D9CA
"""What the catalogues of CRCs say of the nine digits."""


def test_the_check_value_is_that_of_redis() -> None:
    assert crc64(b"123456789") == crc64_in_python(b"123456789") == CHECK
    assert crc64(b"") == 0


@given(st.binary(max_size=300), st.integers(0, 300))
def test_parts_sum_up_to_the_whole(data: bytes, at: int) -> None:
    whole = crc64(data)
    assert whole == crc64_in_python(data)
    assert crc64(memoryview(data)[at:], crc64(data[:at])) == whole
    assert join_crcs(crc64(data[:at]), crc64(data[at:]), len(data[at:])) == whole
