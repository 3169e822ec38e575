"""The value of a message row: its fields in msgpack.

::

    value := 0x01 map      each field name once, in the order of the entry
           | 0x02 array    some name repeats: field value field value ...

The first byte is the format version. It is itself a msgpack number, so the joined values of a page
of rows are one msgpack array. All strings have msgpack's raw type: bytes are stored unchanged, text
as UTF-8, numbers as redis-py writes them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from operator import index
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

import msgpack

from kvstream.errors import Corruption, InvalidArgument, show
from kvstream.layout import twins
from kvstream.types.options import ENTRY_BYTES_MAX
from kvstream.types.records import EntryFields, Fields, RepeatedFields

UNIQUE = b"\x01"
REPEATED = b"\x02"
_UNIQUE_MARK, _REPEATED_MARK = UNIQUE[0], REPEATED[0]

if TYPE_CHECKING:

    class PlainInt(Protocol):
        """An int but not a bool: with the setter type checkers compare the class exactly."""

        @property  # type: ignore[override]
        def __class__(self) -> type[int]: ...
        @__class__.setter
        def __class__(self, value: type[int], /) -> None: ...  # pyright: ignore

    class PlainFloat(Protocol):
        """A float; ``float`` itself would accept int, and so bool."""

        @property  # type: ignore[override]
        def __class__(self) -> type[float]: ...
        @__class__.setter
        def __class__(self, value: type[float], /) -> None: ...  # pyright: ignore

else:
    PlainInt, PlainFloat = int, float

FieldPart = bytes | str | PlainInt | PlainFloat | bytearray | memoryview
_Pair = tuple[FieldPart, FieldPart]
FieldsLike = Mapping[Any, FieldPart] | Sequence[_Pair] | Set[_Pair] | Iterator[_Pair]
"""A mapping of FieldParts to FieldParts, or pairs of them.

The key type is Any, since that of a Mapping is invariant. Pairs are not an ``Iterable``: a mapping
is one too, and mypy would infer ``object`` for a literal that mixes text and numbers."""

_pack = msgpack.Packer(use_bin_type=False, buf_size=1 << 16).pack
_ARRAY_HEAD = Struct(">BI")
_ARRAY32 = 0xDD
_UNPACK_ERRORS = (ValueError, TypeError)  # all errors of msgpack are among them


Names = tuple[str, ...] | tuple[bytes, ...]
"""The field names of an entry in order, with repeats."""


_NO_FIELD = object()
_INSTEAD = {
    "NoneType": 'leave it out, or give ""',
    "bool": "give int(value) or str(value)",
    "UUID": "give str(value) or value.bytes",
    "Decimal": "give str(value)",
    "datetime": "give value.isoformat()",
    "date": "give value.isoformat()",
    "time": "give value.isoformat()",
    "timedelta": "give value.total_seconds()",
    "dict": "give json.dumps(value)",
    "list": "give json.dumps(value)",
}
"""What to store in place of a value, by the name of its type."""


def to_bytes(part: FieldPart, what: str = "a value", field: object = _NO_FIELD) -> bytes:
    """Return ``part`` as redis-py sends it; raise InvalidArgument for None, bool and the like.

    The error calls it ``what``, or the value of ``field`` if that is given.
    """
    if isinstance(part, bytes):
        return part if type(part) is bytes else bytes(part)  # a subclass may have code of its own
    if isinstance(part, str):
        try:
            return part.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"text that is not valid Unicode: {error}") from None
    if isinstance(part, bytearray | memoryview):
        return bytes(part)
    if isinstance(part, bool) or not isinstance(part, int | float):
        where = what if field is _NO_FIELD else f"the value of field {show(field)}"
        kind = type(part).__name__
        instead = _INSTEAD.get(kind, "give bytes, str, int or float")
        value = "None" if part is None else f"{show(part)}, a {kind}"
        raise InvalidArgument(f"{where} cannot be {value}: {instead}")
    try:  # a subclass, such as an IntEnum or numpy's float64, is its number
        return repr(index(part) if isinstance(part, int) else float(part)).encode()
    except ValueError as error:  # an int of thousands of digits
        raise InvalidArgument(f"{what} is too long a number: {error}") from None


def encode_fields(fields: FieldsLike) -> tuple[bytes, Names]:
    """Return the row value and the names of ``fields``, a mapping or pairs.

    Raises InvalidArgument if there are none, or if one cannot be stored.
    """
    if type(fields) is EntryFields:
        fields = dict(fields)  # the compiled function takes no subclass
    if type(fields) is dict:
        packed = _pack_fields(fields, ENTRY_BYTES_MAX)
        if packed is not None:
            return packed
    flat = flat_bytes(fields)
    if not flat:
        raise InvalidArgument("an entry needs at least one field: fields must not be empty")
    return encode_flat(flat)


def encode_many(entries: Iterable[FieldsLike]) -> list[tuple[bytes, Names]]:
    """Return the result of ``encode_fields`` for each of many entries."""
    listed: list[Any] = list(entries)
    packed = _pack_many(listed, ENTRY_BYTES_MAX)
    if None not in packed:
        return packed  # type: ignore[return-value]
    for at, done in enumerate(packed):
        if done is None:
            try:
                packed[at] = encode_fields(listed[at])
            except InvalidArgument as error:
                raise InvalidArgument(f"entry {at}: {error}") from None
    return packed  # type: ignore[return-value]


def pack_text(fields: dict[Any, Any], limit: int) -> tuple[bytes, Names] | None:
    """Return (row value, names) if all fields and values are text, else None."""
    try:  # joining fails for other types, without Python code for each part
        "".join(fields)
        "".join(fields.values())
        value = UNIQUE + _pack(fields)
    except (TypeError, UnicodeEncodeError):
        return None
    return (value, tuple(fields)) if fields and len(value) <= limit else None


def pack_texts(entries: list[Any], limit: int) -> Sequence[tuple[bytes, Names] | None]:
    """Return the result of ``pack_text`` for each of many entries."""
    return [pack_text(fields, limit) if type(fields) is dict else None for fields in entries]


_pack_fields = pack_text if twins is None else twins.pack_fields
_pack_many = pack_texts if twins is None else twins.pack_many


def encode_flat(flat: Sequence[bytes], most: int | None = None) -> tuple[bytes, Names]:
    """Return the row value and the names of ``flat``: field, value, field, value ... as bytes.

    Raises InvalidArgument before packing if they have more than ``most`` bytes.
    """
    most = ENTRY_BYTES_MAX if most is None else min(most, ENTRY_BYTES_MAX)
    if twins is not None and type(flat) is list:
        packed = twins.pack_flat(flat, most)
        if packed is not None:
            return packed
    return pack_any(flat, most)


def pack_any(flat: Sequence[bytes], most: int = ENTRY_BYTES_MAX) -> tuple[bytes, Names]:
    """Do ``encode_flat`` in Python."""
    names = tuple(flat[::2])
    if not names or len(flat) % 2:
        raise InvalidArgument("wrong number of arguments for 'xadd' command")
    size = sum(map(len, flat))
    if size > most:
        raise _too_large(size, most)
    unique = dict(zip(names, flat[1::2], strict=True))
    if len(unique) == len(names):
        return UNIQUE + _pack(unique), names
    return REPEATED + _pack(list(flat)), names


def _too_large(size: int, most: int) -> InvalidArgument:
    if most >= ENTRY_BYTES_MAX:
        return InvalidArgument("Elements are too large to be stored")
    return InvalidArgument(
        f"an entry of {size} bytes is larger than the stream-entry-max-bytes of {most}: make it "
        "smaller, or set more by CONFIG SET"
    )


def decode_fields(value: bytes) -> Fields:
    """Return the fields of one row value."""
    return decode_checked([value])[0]


def decode_checked(values: Sequence[bytes]) -> list[Fields]:
    """Return the fields of row values; raise Corruption if a part is not bytes or none is there."""
    page = decode_page(values)
    try:
        b"".join(chain.from_iterable(map(dict.values, page)))
    except TypeError as error:
        raise Corruption(f"a message's value holds more than bytes: {error}") from None
    if not all(page):
        raise Corruption("a message's value holds no fields")
    return page


def decode_page(values: Sequence[bytes]) -> list[Fields]:
    """Return the fields of many row values by one call of msgpack.

    Refuses what msgpack detects by itself: names that are not strings, and unknown types. A number
    in place of a field's value is left to ``decode_checked``.
    """
    if twins is not None:
        page = twins.decode_page(values)
        if page is not None:
            return page
    return unpack_page(values)


def unpack_page(values: Sequence[bytes]) -> list[Fields]:
    """Do ``decode_page`` in Python."""
    count = len(values)
    try:
        marked = msgpack.unpackb(
            _ARRAY_HEAD.pack(_ARRAY32, 2 * count) + b"".join(values),
            raw=True,
            use_list=False,
            strict_map_key=True,
            max_bin_len=0,
            max_ext_len=0,
        )
    except _UNPACK_ERRORS as error:
        raise Corruption(f"a message's value is not msgpack: {type(error).__name__}") from None
    marks, contents = marked[::2], marked[1::2]
    if marks.count(_UNIQUE_MARK) == count == list(map(type, contents)).count(dict):
        return list(map(EntryFields, contents))
    return [_fields_of(mark, content) for mark, content in zip(marks, contents, strict=True)]


def _fields_of(mark: object, content: object) -> Fields:
    if mark == _UNIQUE_MARK and type(content) is dict:
        return EntryFields(content)
    if mark == _REPEATED_MARK and type(content) is tuple and len(content) % 2 == 0:
        try:
            b"".join(content)
        except TypeError as error:
            raise Corruption(f"a message's value holds more than bytes: {error}") from None
        return RepeatedFields(content)
    raise Corruption("a message's value has an unknown format")


def flat_bytes(fields: FieldsLike) -> list[bytes]:
    """Return ``fields`` as bytes: field, value, field, value ..."""
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    if isinstance(fields, RepeatedFields):
        listed = [*zip(fields.flat[::2], fields.flat[1::2], strict=True)]
        if fields == dict(listed):  # the fields of an entry, unchanged
            pairs = listed
    try:
        return [
            part
            for field, value in pairs
            for part in (to_bytes(field, "a field name"), to_bytes(value, field=field))
        ]
    except InvalidArgument:
        raise
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"fields are a mapping or (field, value) pairs, not {show(fields)}"
        ) from None
