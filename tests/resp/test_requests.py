"""Requests are parsed as they were sent, with their bytes cut in any way; errors follow them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstream.errors import KVStreamError, ProtocolError, RequestError
from kvstream.resp.requests import (
    ARGUMENT_BYTES,
    BIG,
    LINE_MAX,
    TAKEN_MAX,
    RequestReader,
)
from tests.resp.conversations import REQUESTS, drain, framed, pieces, read

pytestmark = pytest.mark.usefixtures("way")


EMPTY = [
    *(b"\r\n", b"\n", b" \r\n", b"\t\v\f\r\r\n", b" " * 100 + b"\n"),
    *(b"*0\r\n", b"*-1\r\n", b"*0\rx", b"*-9223372036854775808\r\n"),
]
"""Requests without words, as Redis accepts them."""


def each_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@given(REQUESTS, st.lists(st.integers(0, 1 << 20), max_size=20))
@example([[b"XADD", b"s", b"*", b"f", b"v" * BIG]], [BIG])
@example([[b"v" * BIG] * 3], [20, BIG, BIG + 20, BIG + 40, 2 * BIG + 40, 3 * BIG])
def test_requests_are_parsed_as_they_were_sent(
    requests: list[list[bytes]], cuts: list[int]
) -> None:
    data = b"".join(map(framed, requests))
    assert read([data]) == (requests, "")
    assert read(pieces(data, cuts)) == (requests, "")


@given(st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=12), max_size=6))
def test_requests_cut_after_every_byte_are_parsed_alike(requests: list[list[bytes]]) -> None:
    data = b"PING\r\n*0\r\n".join(map(framed, requests))
    whole = read([data])
    assert read(each_byte(data)) == whole
    assert read(each_byte(data), trusted=False) == read([data], trusted=False)


@given(REQUESTS, st.integers(0, 1 << 20))
@example([[b"PING"]], 4)
def test_only_complete_requests_are_returned_at_once(requests: list[list[bytes]], cut: int) -> None:
    data = b"".join(map(framed, requests))
    plain = all(len(part) <= 1024 for request in requests for part in request)
    assert RequestReader().whole(data) in ([requests] if plain else [requests, []])
    assert RequestReader(trusted=False).whole(data) == []
    for part in (data[: cut % len(data)], data + b"*", b"PING\r\n" + data) if data else ():
        found = RequestReader().whole(part)
        assert b"".join(map(framed, found)) in (b"", part)


@pytest.mark.parametrize("size", [BIG - 1, BIG, BIG + 1, 3 * BIG])
@pytest.mark.parametrize("last", range(6))
def test_a_big_argument_may_be_cut_anywhere_near_its_end(size: int, last: int) -> None:
    request = [b"v" * size, b"after"]
    data = framed(request) + framed([b"PING"])
    end = data.index(b"\r\n$5")
    cuts = [20, size // 2, end - 2 + last, end - 1 + last]
    assert read(pieces(data, cuts)) == ([request, [b"PING"]], "")


def test_an_incomplete_request_returns_none() -> None:
    reader = RequestReader()
    assert reader.take() == []
    reader.feed(b"")
    assert reader.take() == []
    reader.feed(b"*2\r\n$4\r\nPI")
    assert reader.take() == []
    reader.feed(b"NG\r\n$1\r\nx\r\n*1\r\n")
    assert reader.take() == [[b"PING", b"x"]]
    assert reader.take() == []


def test_empty_requests_are_skipped() -> None:
    assert read([b"*0\r\n*-1\r\n\r\n\n   \r\n*-9223372036854775808\r\nPING\r\n"]) == (
        [[b"PING"]],
        "",
    )


@given(st.lists(st.sampled_from(EMPTY), max_size=300), st.lists(st.integers(0, 1 << 20)))
@example([b" " * LINE_MAX + b"\n"], [])
@pytest.mark.parametrize("trusted", [True, False])
def test_any_number_of_empty_requests_is_skipped_in_one_step(
    trusted: bool, empty: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(empty) + framed([b"PING"])
    assert read(pieces(data, cuts), trusted=trusted) == ([[b"PING"]], "")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b" " * (LINE_MAX + 1) + b"\r\n", "too big inline request"),
        (b"*-9223372036854775809\r\n", "invalid multibulk length"),
        (b"*-01\r\n", "invalid multibulk length"),
        (b"*00\r\n", "invalid multibulk length"),
        (b"*-\r\n", "invalid multibulk length"),
    ],
)
def test_almost_empty_requests_are_errors(data: bytes, text: str) -> None:
    assert read([b"\r\n*0\r\n" + data]) == ([], f"Protocol error: {text}")


def test_lines_are_not_all_read_at_once() -> None:
    reader = RequestReader()
    reader.feed(b"PING\r\n" * (2 * TAKEN_MAX + 1))
    for left in (TAKEN_MAX + 1, 1):
        assert reader.take() == [[b"PING"]] * TAKEN_MAX
        assert reader.is_cut
        assert reader.buffered == 6 * left
    assert reader.take() == [[b"PING"]]
    assert not reader.is_cut
    for behind, requests in (([], []), ([[b"ECHO", b"x"]], [[b"ECHO", b"x"]])):
        reader.feed(b"PING\r\n" * TAKEN_MAX + b"".join(map(framed, behind)))
        assert reader.take() == [[b"PING"]] * TAKEN_MAX
        assert reader.is_cut == bool(behind)
        assert reader.take() == requests
        assert not reader.is_cut


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"SET  key\tvalue ", [b"SET", b"key", b"value"]),
        (b'set k "a b\\x41\\n\\"\\\\"', [b"set", b"k", b'a bA\n"\\']),
        (b"set k 'a \\'b\\' \\n \"'", [b"set", b"k", b"a 'b' \\n \""]),
        (b"set k \"\" ''", [b"set", b"k", b"", b""]),
        (b'set k pre"fix ed"', [b"set", b"k", b"prefix ed"]),
        (b'"\\xZZ\\q\\x4"', [b"xZZqx4"]),
        (b"nul\0 in \0it", [b"nul\0", b"in", b"\0it"]),
        (b"caf\xe9 \xff", [b"caf\xe9", b"\xff"]),
    ],
)
def test_words_of_a_line_follow_the_rules_of_quoting(line: bytes, words: list[bytes]) -> None:
    for end in (b"\r\n", b"\n"):
        assert read([line + end]) == ([words], "")
        assert read(each_byte(line + end)) == ([words], "")


FAULTS = [
    (b"*x\r\n", "invalid multibulk length"),
    (b"*2147483648\r\n", "invalid multibulk length"),
    (b"*1\r\n:5\r\n", "expected '$', got ':'"),
    (b"*1\r\n\xe9\r\n", "expected '$', got '\udce9'"),
    (b"*1\r\n$-1\r\n", "invalid bulk length"),
    (b"*1\r\n$536870913\r\n", "invalid bulk length"),
    (b"*" + b"1" * LINE_MAX, "too big mbulk count string"),
    (b"*1\r\n$" + b"1" * LINE_MAX, "too big bulk count string"),
    (b"x" * (LINE_MAX + 1), "too big inline request"),
    (b'say "it\r\n', "unbalanced quotes in request"),
    (b"say 'it'self\r\n", "unbalanced quotes in request"),
]
UNTRUSTED_FAULTS = [
    (b"*11\r\n", "unauthenticated multibulk length"),
    (b"*1\r\n$16385\r\n", "unauthenticated bulk length"),
]


@pytest.mark.parametrize(("data", "text"), FAULTS)
@pytest.mark.parametrize("trusted", [True, False])
def test_an_error_follows_every_earlier_request(data: bytes, text: str, trusted: bool) -> None:
    before = [[b"PING"], [b"ECHO", b"x"]]
    sent = b"".join(map(framed, before)) + data + framed([b"PING"])
    expected = (before, f"Protocol error: {text}")
    assert read([sent], trusted=trusted) == expected
    assert read([sent[:40], sent[40:]], trusted=trusted) == expected
    if len(data) < 100:
        assert read(each_byte(sent), trusted=trusted) == expected


@pytest.mark.parametrize(("data", "text"), UNTRUSTED_FAULTS)
def test_before_auth_a_request_is_small(data: bytes, text: str) -> None:
    assert read([data], trusted=False) == ([], f"Protocol error: {text}")
    assert read([data]) == ([], "")


def test_an_error_is_final() -> None:
    reader = RequestReader()
    reader.feed(framed([b"PING"]) + b"*x\r\n")
    assert reader.take() == [[b"PING"]]
    for _ in range(2):
        with pytest.raises(ProtocolError, match="invalid multibulk length"):
            reader.take()
        reader.feed(framed([b"PING"]))
        assert reader.buffered == 0


def test_a_protocol_error_has_the_code_of_redis() -> None:
    error = ProtocolError("Protocol error: invalid bulk length")
    assert isinstance(error, RequestError | KVStreamError)
    assert error.reply == "ERR Protocol error: invalid bulk length"


def test_before_auth_requests_are_returned_one_by_one() -> None:
    long = [b"XADD", b"s", b"*", *[b"x"] * 20]
    reader = RequestReader(trusted=False)
    reader.feed(framed([b"AUTH", b"secret"]) + b"PING\r\n" + framed(long) * 2)
    assert reader.take() == [[b"AUTH", b"secret"]]
    reader.trusted = True
    assert reader.take() == [[b"PING"], long, long]
    assert (reader.take(), reader.buffered) == ([], 0)


def test_without_auth_the_same_requests_are_refused() -> None:
    reader = RequestReader(trusted=False)
    reader.feed(framed([b"PING"]) + framed([b"x"] * 11))
    assert drain(reader) == ([[b"PING"]], "Protocol error: unauthenticated multibulk length")


def test_the_length_of_an_argument_is_limited() -> None:
    assert read([framed([b"x" * 100])], bulk_max=100) == ([[b"x" * 100]], "")
    for parts in ([framed([b"x" * 101])], each_byte(framed([b"x" * 101]))):
        assert read(parts, bulk_max=100) == ([], "Protocol error: invalid bulk length")


@pytest.mark.parametrize("parts", [2000, 1 << 20])
def test_the_limit_of_a_query_applies_to_its_buffered_part(parts: int) -> None:
    limit = 100_000
    reader = RequestReader(query_max=limit)
    reader.feed(b"*%d\r\n" % parts)
    piece = b"$100\r\n" + b"x" * 100 + b"\r\n"
    for count in range(1, limit // (100 + ARGUMENT_BYTES) + 1):
        reader.feed(piece)
        assert reader.take() == []
        assert reader.buffered == count * (100 + ARGUMENT_BYTES)
    reader.feed(piece)
    with pytest.raises(ProtocolError, match="query buffer limit"):
        reader.take()


def test_the_limit_of_a_query_applies_to_one_big_argument() -> None:
    reader = RequestReader(query_max=5 * BIG)
    reader.feed(b"*1\r\n$%d\r\n" % (100 * BIG))
    for _ in range(5):
        assert reader.take() == []
        reader.feed(b"x" * BIG)
    assert reader.buffered == 5 * BIG
    assert reader.take() == []
    reader.feed(b"x")
    with pytest.raises(ProtocolError, match="query buffer limit"):
        reader.take()


@given(REQUESTS, st.lists(st.integers(0, 1 << 20), max_size=5))
def test_complete_requests_are_not_kept(requests: list[list[bytes]], cuts: list[int]) -> None:
    reader = RequestReader()
    data = b"".join(map(framed, requests))
    seen = 0
    for part in pieces(data, cuts):
        reader.feed(part)
        seen += len(part)
        drain(reader)
        assert reader.buffered <= seen + 12 * ARGUMENT_BYTES
    assert reader.buffered == 0
