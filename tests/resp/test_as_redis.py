"""The same bytes, valid and damaged, parsed here and by redis-server 7.0.15.

No command of these conversations exists: Redis's error then quotes the parsed request.
NUL is left out: Redis looks for the end of a line with C's string functions, and waits for more.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.resp.conftest import Converse
from tests.resp.conversations import framed, read

SHOWN = 128
"""Bytes of a name, and of all arguments, that Redis quotes."""
LENGTHS = [
    *("-1", "-5", "0", "00", "-0", "1", "3", "05", "+5", " 5", "5 ", "", "-", "x", "0x5", "1e3"),
    *("1025", "2147483647", "2147483648", "4294967296", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551616", "-9223372036854775808"),
    *("-9223372036854775809", "1" * 30, "536870912", "536870913"),
]


def answer(request: list[bytes], trusted: bool) -> bytes:
    """Return the reply of redis-server to an unknown command."""
    if request == [b"PING"]:
        return b"+PONG\r\n" if trusted else b"-NOAUTH Authentication required.\r\n"
    quoted = b""
    for part in request[1:]:
        if len(quoted) >= SHOWN:
            break
        quoted += b"'%b' " % part[: SHOWN - len(quoted)]
    line = b"unknown command '%b', with args beginning with: %b" % (request[0][:SHOWN], quoted)
    return b"-ERR " + line.replace(b"\r", b" ").replace(b"\n", b" ") + b"\r\n"


def expected(data: bytes, trusted: bool = True) -> bytes:
    requests, fault = read([data], trusted=trusted)
    line = fault.encode("utf-8", "surrogateescape").replace(b"\r", b" ").replace(b"\n", b" ")
    said = b"-ERR " + line + b"\r\n" if fault else b""
    return b"".join(answer(request, trusted) for request in requests) + said


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\rX", ""])
@pytest.mark.parametrize("form", ["*{}", "*1\r\n${}", "*2\r\n$3\r\nzap\r\n${}", "*3\r\n$1\r\nz{}"])
def test_each_length_is_parsed_as_by_redis(
    redis_bytes: Converse, length: str, end: str, form: str
) -> None:
    for rest in ("", "abc\r\n", "$3\r\nzap\r\n*1\r\n$4\r\nPING\r\n"):
        data = f"zap before\r\n{form.format(length)}{end}{rest}".encode()
        assert redis_bytes(data) == expected(data)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("form", ["*{}", "*1\r\n${}", "*2\r\n$3\r\nzap\r\n${}"])
def test_each_length_before_auth_is_refused_as_by_redis(
    locked_redis_bytes: Converse, length: str, form: str
) -> None:
    data = f"*1\r\n$3\r\nzap\r\n{form.format(length)}\r\n".encode()
    assert locked_redis_bytes(data) == expected(data, trusted=False)


@pytest.mark.parametrize(
    "data",
    [framed([b"x" * 16384] * 10), framed([b"x"] * 11), b"*2\r\n$16385\r\nx", b"zap" + b" x" * 20],
    ids=["just fits", "too many", "too long", "inline"],
)
def test_the_limits_before_auth_are_those_of_redis(
    locked_redis_bytes: Converse, data: bytes
) -> None:
    data += b"\r\n" + framed([b"PING"])
    assert locked_redis_bytes(data) == expected(data, trusted=False)


LONG = 64 << 10


@pytest.mark.parametrize(
    "data",
    [
        b"z" * (LONG + 1),
        b"*" + b"1" * LONG,
        b"*1\r\n$" + b"1" * LONG,
        b"*1\r\n" + b"x" * (LONG + 1),
        b"z" * (LONG - 1) + b"\r\n",
    ],
    ids=["inline", "count", "length", "no length", "inline that just fits"],
)
def test_long_lines_are_parsed_as_by_redis(redis_bytes: Converse, data: bytes) -> None:
    assert redis_bytes(data) == expected(data)


WORDS = st.lists(
    st.sampled_from([*"zap \t\v\f\"'\\nrtbax41\r", "\\x4", "\\xff", "\xe9", "''", '""']),
    max_size=25,
).map("".join)


@given(st.lists(WORDS, max_size=4))
@example(['zap "a\\x41\\n\\q" \'b\\\'c\\n\' d"e f"'])
@example(["zap 'open", "PING"])
@example(['zap "end\\'])
@example(["\vzap\vx \fy"])
def test_quotes_of_inline_requests_are_parsed_as_by_redis(
    redis_bytes: Converse, lines: list[str]
) -> None:
    data = "\n".join([*lines, "PING", ""]).encode()
    if data[:1] != b"*":
        assert redis_bytes(data) == expected(data)


# Damage may make any argument a command: none may be the name of a Redis command.
NAMELESS = bytes(b"z"[0] if chr(byte).isalpha() and byte < 128 else byte for byte in range(256))
ZAPS = st.lists(
    st.lists(st.binary(max_size=12).map(lambda data: data.translate(NAMELESS)), max_size=4).map(
        lambda parts: framed([b"zap", *parts])
    )
    | st.sampled_from([b"zap 'a b' c\r\n", b"\r\n", b"*0\r\n", b"*-1\r\n", framed([b"PING"])]),
    max_size=6,
)
DAMAGE = st.tuples(
    st.sampled_from(["replace", "insert", "drop", "cut", "double"]),
    st.integers(0, 400),
    st.sampled_from([bytes([byte]) for byte in b"*$\r\n-+0129ax \"'\\:\xff"]),
)


def damaged(data: bytes, kind: str, at: int, byte: bytes) -> bytes:
    """Return ``data`` with one mutation."""
    at %= len(data) + 1
    return {
        "replace": data[:at] + byte + data[at + 1 :],
        "insert": data[:at] + byte + data[at:],
        "drop": data[:at] + data[at + 1 :],
        "cut": data[:at],
        "double": data[:at] + data[at // 2 : at] + data[at:],
    }[kind]


@given(ZAPS, st.lists(DAMAGE, max_size=4))
def test_damaged_conversations_get_the_replies_of_redis(
    redis_bytes: Converse, requests: list[bytes], faults: list[tuple[str, int, bytes]]
) -> None:
    data = b"".join(requests).replace(b"\0", b"0")
    for kind, at, byte in faults:
        data = damaged(data, kind, at, byte)
    assert redis_bytes(data) == expected(data)


@pytest.mark.parametrize("size", [32_766, 32_768, 40_000, 1 << 20])
def test_big_arguments_are_parsed_as_by_redis(redis_bytes: Converse, size: int) -> None:
    data = framed([b"zap", b"x" * size, b"y"]) + framed([b"PING"])
    assert redis_bytes(data) == expected(data)
