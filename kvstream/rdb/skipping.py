"""Skipping of objects that are not streams: a file does not tell how long an object is.

::

    list      := STRING* | STRING ziplist | STRING ziplist* | (LEN container, STRING)*
    set       := STRING* | STRING intset | STRING listpack
    zset      := (STRING, text double)* | (STRING, f64)* | STRING ziplist or listpack
    hash      := (STRING, STRING)* | STRING zipmap, ziplist or listpack
               | i64 least expiry?, (LEN expiry, STRING, STRING)*      fields with an expiry: Redis
               | i64 least expiry?, STRING listpack
               | (STRING, STRING, i64 expiry)*                         and Valkey
               | STRING listpack | LEN template, STRING*               Redis 8.10
    array     := LEN n, LEN flag, LEN cursor?, n (LEN index, LEN tag, STRING or 8 bytes)
    module    := LEN module, value*, 0
    value     := 1 LEN | 2 LEN | 3 f32 | 4 f64 | 5 STRING
    x*        := LEN n, n times x
    text double := u8 n, n bytes; 253, 254 and 255 stand alone

A packed STRING, such as a ziplist, is not decoded.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvstream.rdb.primitives import Reader
from kvstream.rdb.versions import Dialect

TEMPLATES_MAX = 1 << 20
"""Most hash templates of a file."""

_TEXT_ALONE = 253
_ARRAY_CURSOR = 1
_ARRAY_NUMBERS = (1, 2)
_ARRAY_STRINGS = (0, 3)
_MODULE_END = 0
_MODULE_NAME_BITS = 6
_MODULE_NAME_CHARS = 9
_MODULE_VERSION_BITS = 10
_MODULE_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

Rule = Callable[[Reader], object]


class ObjectType(NamedTuple):
    """The type of an object."""

    name: str
    """As TYPE names it."""
    encoding: str
    """As OBJECT ENCODING names it."""
    skip: Rule | None
    """Skips an object; None if its end cannot be found."""


_string: Rule = Reader.skip_string
_length: Rule = Reader.length


def _four(reader: Reader) -> None:
    reader.skip(4)


def _eight(reader: Reader) -> None:
    reader.skip(8)


def _text_double(reader: Reader) -> None:
    size = reader.byte()
    if size < _TEXT_ALONE:
        reader.skip(size)


def _in_turn(*rules: Rule) -> Rule:
    def skip(reader: Reader) -> None:
        for rule in rules:
            rule(reader)

    return skip


def _each(*rules: Rule) -> Rule:
    def skip(reader: Reader) -> None:
        # Each rule takes at least one byte, so a wrong count ends with the input.
        for _ in range(reader.length()):
            for rule in rules:
                rule(reader)

    return skip


def module_name(number: int) -> str:
    """Return the name and version that the number of a module type encodes."""
    letters = number >> _MODULE_VERSION_BITS
    name = "".join(
        _MODULE_CHARS[letters >> _MODULE_NAME_BITS * place & 63]
        for place in reversed(range(_MODULE_NAME_CHARS))
    )
    return f"{name} {number & (1 << _MODULE_VERSION_BITS) - 1}"


_MODULE_VALUES: dict[int, Rule] = {1: _length, 2: _length, 3: _four, 4: _eight, 5: _string}


def skip_module_values(reader: Reader) -> None:
    """Skip the values of a module and their end."""
    while (code := reader.length()) != _MODULE_END:
        rule = _MODULE_VALUES.get(code)
        if rule is None:
            raise reader.bad(f"{code} is not a code of a module value")
        rule(reader)


def skip_module(reader: Reader) -> str:
    """Skip the number and the values of a module; return its name and version."""
    name = module_name(reader.length())
    skip_module_values(reader)
    return name


def skip_lengths(reader: Reader, count: int) -> None:
    """Skip ``count`` LENs."""
    for _ in range(count):
        reader.length()


def skip_key_metadata(reader: Reader) -> None:
    """Skip the metadata that modules attach to the next key."""
    for _ in range(reader.length()):
        _four(reader)
        skip_module_values(reader)


def skip_slot_import(reader: Reader) -> None:
    """Skip the name and the slots of an unfinished import."""
    _string(reader)
    _each(_length, _length)(reader)


def _array(reader: Reader) -> None:
    count = reader.length()
    if reader.length() == _ARRAY_CURSOR:
        _length(reader)
    for _ in range(count):
        _length(reader)
        tag = reader.length()
        if tag in _ARRAY_STRINGS:
            _string(reader)
        elif tag in _ARRAY_NUMBERS:
            _eight(reader)
        else:
            raise reader.bad(f"{tag} is not a kind of array element")


STRING = 0
MODULE = 7
HASH_BY_TEMPLATE = 32

_SHARED = {
    STRING: ObjectType("string", "raw", _string),
    1: ObjectType("list", "linkedlist", _each(_string)),
    2: ObjectType("set", "hashtable", _each(_string)),
    3: ObjectType("zset", "skiplist", _each(_string, _text_double)),
    4: ObjectType("hash", "hashtable", _each(_string, _string)),
    5: ObjectType("zset", "skiplist", _each(_string, _eight)),
    6: ObjectType("module", "of release candidates of Redis 4.0", None),
    MODULE: ObjectType("module", "module", skip_module),
    9: ObjectType("hash", "zipmap", _string),
    10: ObjectType("list", "ziplist", _string),
    11: ObjectType("set", "intset", _string),
    12: ObjectType("zset", "ziplist", _string),
    13: ObjectType("hash", "ziplist", _string),
    14: ObjectType("list", "quicklist", _each(_string)),
    16: ObjectType("hash", "listpack", _string),
    17: ObjectType("zset", "listpack", _string),
    18: ObjectType("list", "quicklist", _each(_length, _string)),
    20: ObjectType("set", "listpack", _string),
}
_FIELD_EXPIRY = _each(_length, _string, _string)
_REDIS = {
    22: ObjectType("hash", "hashtable", _FIELD_EXPIRY),
    23: ObjectType("hash", "listpackex", _string),
    24: ObjectType("hash", "hashtable", _in_turn(_eight, _FIELD_EXPIRY)),
    25: ObjectType("hash", "listpackex", _in_turn(_eight, _string)),
    28: ObjectType("array", "array", _array),
    30: ObjectType("hash", "template-listpack", _string),
    HASH_BY_TEMPLATE: ObjectType("hash", "template-array", None),
}
_VALKEY = {22: ObjectType("hash", "hashtable", _each(_string, _string, _eight))}

OBJECT_TYPES: dict[Dialect, dict[int, ObjectType]] = {
    Dialect.SHARED: _SHARED,
    Dialect.REDIS: _SHARED | _REDIS,
    Dialect.VALKEY: _SHARED | _VALKEY,
}
"""By dialect and type, without the types of streams."""


class Templates:
    """The number of fields of each hash template of a file; hashes refer to templates."""

    def __init__(self) -> None:
        self._fields: dict[int, int] = {}

    def learn(self, reader: Reader) -> None:
        """Read a template."""
        number, fields = reader.length(), reader.length()
        for _ in range(fields):
            _string(reader)
        if len(self._fields) == TEMPLATES_MAX:
            raise reader.bad(f"the file has more than {TEMPLATES_MAX} hash templates")
        self._fields[number] = fields

    def skip_hash(self, reader: Reader) -> None:
        """Skip a hash that refers to a template."""
        number = reader.length()
        fields = self._fields.get(number)
        if fields is None:
            raise reader.bad(f"hash template {number} is not defined")
        for _ in range(fields):
            _string(reader)
