"""RDB files built by hand, with types that no redis-server writes today, and commands in files."""

import struct

from kvstream.rdb.primitives import crc64, encode_length, encode_string

EOF = b"\xff"
length, string = encode_length, encode_string


def built(*records: bytes, magic: bytes = b"REDIS0009", crc: bool = True) -> bytes:
    """Return a file of records."""
    body = magic + b"".join(records) + EOF
    if magic < b"REDIS0005":
        return body
    return body + (crc64(body) if crc else 0).to_bytes(8, "little")


def resummed(data: bytes) -> bytes:
    """Return a file that was changed with a checksum that is right again."""
    return data[:-8] + crc64(data[:-8]).to_bytes(8, "little")


def record(type_: int, value: bytes, key: bytes = b"k") -> bytes:
    """Return a key of a type."""
    return bytes((type_,)) + string(key) + value


def each(*items: bytes) -> bytes:
    """Return items behind their count."""
    return length(len(items)) + b"".join(items)


def text_double(number: str) -> bytes:
    """Return a score as old files have it."""
    alone = {"nan": b"\xfd", "inf": b"\xfe", "-inf": b"\xff"}
    return alone.get(number) or bytes((len(number),)) + number.encode()


def f64(number: float) -> bytes:
    return struct.pack("<d", number)


def i64(number: int) -> bytes:
    return struct.pack("<q", number)


def module_number(name: str, version: int) -> int:
    """Return the number of a module type."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    number = 0
    for letter in name:
        number = number << 6 | letters.index(letter)
    return number << 10 | version


MODULE_VALUES = b"".join(
    (
        length(2) + length(1 << 40),
        length(1) + length((1 << 64) - 5),
        length(3) + b"\x00\x00\x80\x3f",
        length(4) + f64(2.5),
        length(5) + string(b"text of a module, long enough" * 9, compress=True),
        length(0),
    )
)
STRINGS = (b"", b"a", b"12345", b"-7", b"x" * 100, b"repeated " * 2000)
PACKED = string(b"what is packed is not looked at " * 40, compress=True)
PAIRS = [string(s, compress=True) + string(s) for s in STRINGS]

OBJECTS: list[tuple[bytes, int, bytes, str, str]] = [
    (b"REDIS0002", 1, each(*map(string, STRINGS)), "list", "linkedlist"),
    (b"REDIS0009", 2, each(*map(string, STRINGS)), "set", "hashtable"),
    (
        b"REDIS0006",
        3,
        each(*(string(n.encode()) + text_double(n) for n in ("1.5", "-3", "inf", "-inf", "nan"))),
        "zset",
        "skiplist",
    ),
    (b"REDIS0009", 4, each(*PAIRS), "hash", "hashtable"),
    (
        b"REDIS0008",
        5,
        each(string(b"a") + f64(1.5), string(b"b") + f64(-9e300)),
        "zset",
        "skiplist",
    ),
    (
        b"REDIS0009",
        7,
        length(module_number("ReJSON-RL", 3)) + MODULE_VALUES,
        "module",
        "ReJSON-RL 3",
    ),
    (b"REDIS0002", 9, PACKED, "hash", "zipmap"),
    (b"REDIS0006", 10, PACKED, "list", "ziplist"),
    (b"REDIS0006", 11, PACKED, "set", "intset"),
    (b"REDIS0006", 12, PACKED, "zset", "ziplist"),
    (b"REDIS0006", 13, PACKED, "hash", "ziplist"),
    (b"REDIS0007", 14, each(PACKED, PACKED, PACKED), "list", "quicklist"),
    (b"REDIS0010", 16, PACKED, "hash", "listpack"),
    (b"REDIS0010", 17, PACKED, "zset", "listpack"),
    (b"REDIS0010", 18, each(length(2) + PACKED, length(1) + string(b"plain")), "list", "quicklist"),
    (b"REDIS0011", 20, PACKED, "set", "listpack"),
    (b"REDIS0012", 22, each(*(length(1 << 41) + pair for pair in PAIRS)), "hash", "hashtable"),
    (b"REDIS0012", 23, PACKED, "hash", "listpackex"),
    (
        b"REDIS0012",
        24,
        i64(1 << 41) + each(*(length(n) + pair for n, pair in enumerate(PAIRS))),
        "hash",
        "hashtable",
    ),
    (b"REDIS0012", 25, i64(1 << 41) + PACKED, "hash", "listpackex"),
    (
        b"REDIS0014",
        28,
        length(4)
        + length(1)
        + length(1 << 50)
        + length(0)
        + (length(0) + string(b"text"))
        + length(7)
        + (length(1) + i64(-5))
        + length(300)
        + (length(2) + f64(1.5))
        + length(1 << 40)
        + (length(3) + string(b"s")),
        "array",
        "array",
    ),
    (
        b"REDIS0014",
        28,
        length(1) + length(0) + length(9) + length(3) + string(b"s"),
        "array",
        "array",
    ),
    (b"REDIS0015", 30, PACKED, "hash", "template-listpack"),
    (b"VALKEY080", 22, each(*(pair + i64(-1) for pair in PAIRS)), "hash", "hashtable"),
    (b"VALKEY080", 20, PACKED, "set", "listpack"),
]
"""Magic, type, object, and its kind and encoding."""


def encoded(*words: bytes) -> bytes:
    """Return a command as it stands in a file."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


SELECTED = encoded(b"SELECT", b"3")
SET = encoded(b"SET", b"a", b"1")
MULTI, EXEC = encoded(b"MULTI"), encoded(b"EXEC")
STAMP = b"#TS:1700000000\r\n"
