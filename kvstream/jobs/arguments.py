"""Arguments and results of tasks as plain data, by the type hints of the function.

Plain data is what JSON and msgpack hold. A hint says how a value becomes plain, and plain data the
same value again: dataclasses, pydantic models, NamedTuple, TypedDict, Enum, UUID, datetime, date,
time, timedelta, Decimal, Path, bytes, and containers and unions of these. A value without a hint
must be plain already. Whatever would come back as something else is a TypeError when the job is
enqueued. Pickle is never used.
"""

import base64
import collections.abc
import enum
import functools
import hashlib
import inspect
import json
import re
import types
import typing
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property, lru_cache
from pathlib import Path, PurePath
from string import Formatter
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgpack

from kvstream.errors import InvalidArgument, describe, show

FORMATS = ("json", "msgpack")
VERSION_LENGTH = 8
Convert: TypeAlias = Callable[[Any], Any]


class Codec(NamedTuple):
    """How values of one type become plain data and come back, or raise TypeError or ValueError."""

    name: str
    dump: Convert
    load: Convert


# --- plain data as bytes ------------------------------------------------------------------------


def pack(plain: Any, form: str) -> bytes:
    """Return plain data as JSON or msgpack; raise TypeError if that cannot hold it."""
    try:
        if form == "msgpack":
            packed: bytes = msgpack.packb(plain)
            return packed
        return _to_json(plain).encode()
    except (ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"{form} cannot hold the value: {error}") from None


def unpack(data: bytes, form: str) -> Any:
    """Return the plain data that ``pack`` has made bytes; raise ValueError for other bytes."""
    check_format(form)
    try:
        return msgpack.unpackb(data) if form == "msgpack" else _from_json(data.decode())
    except RecursionError:
        raise ValueError(f"the {form} is nested too deeply") from None
    except MemoryError:
        raise ValueError(
            f"the {form} of {len(data)} bytes needs more memory than there is"
        ) from None


def digest(plain: Any) -> str:
    """Return a short text that is the same for equal plain data."""
    return hashlib.blake2s(_sorted_json(plain).encode(), digest_size=16).hexdigest()


def _sorted_json(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, default=_base64)


def _base64(value: object) -> str:
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()


_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_base64).encode
_from_json = json.JSONDecoder().decode


# --- codecs of types ----------------------------------------------------------------------------


def codec_of(hint: Any) -> Codec:
    """Return the codec of a type hint; raise TypeError if values of that type cannot be stored."""
    try:
        return _cached(hint)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _build(hint)


def _build(hint: Any) -> Codec:
    hint = _bare(hint)
    if hint in (Any, object, inspect.Parameter.empty):
        return Codec("plain data", _plain, _same)
    if hint is None or hint is type(None):
        return _plain_type(type(None), "None")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if origin is typing.Literal:
        return _literal(args)
    container = _container(origin or hint, args)
    if container is not None:
        return container
    codec = _SIMPLE.get(hint)
    if codec is not None:
        return codec
    if isinstance(origin or hint, type):
        return _class(hint, origin or hint)
    raise TypeError(f"values of type {_name(hint)} cannot be stored")


_cached = lru_cache(maxsize=1024)(_build)


def _bare(hint: Any) -> Any:
    """Return a hint without Annotated, NewType, type aliases and type variables."""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif isinstance(hint, typing.TypeVar):
            hint = hint.__bound__ or Any
        elif type(hint).__name__ == "TypeAliasType":  # Python 3.12
            hint = hint.__value__
        else:
            return hint


def _name(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _same(value: Any) -> Any:
    return value


def _wrong(value: object, name: str) -> TypeError:
    return TypeError(f"{show(value)} is not {name}")


def _plain(value: Any) -> Any:
    """Check that a value without a type hint comes back as it is."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_plain(each) for each in value]
    if kind is dict and all(type(key) is str for key in value):
        return {key: _plain(each) for key, each in value.items()}
    raise TypeError(
        f"{show(value)} ({kind.__name__}) would not come back as it is: give it a type hint that "
        "says what it holds"
    )


def _plain_type(kind: type | tuple[type, ...], name: str) -> Codec:
    """Return the codec of a type that is plain data itself."""

    def check(value: Any) -> Any:
        if not isinstance(value, kind) or (type(value) is bool and name in ("int", "float")):
            raise _wrong(value, name)
        return value

    return Codec(name, check, check)


def _text(kind: type, dump: Convert, load: Convert) -> Codec:
    """Return the codec of a type that is stored as text or a number."""

    def check_and_dump(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _wrong(value, f"a {kind.__name__}")
        return dump(value)

    return Codec(kind.__name__, check_and_dump, load)


def _isoformat(value: Any) -> str:
    text: str = value.isoformat()
    return text


def _load_bytes(plain: Any) -> bytes:
    return plain if isinstance(plain, bytes) else base64.b64decode(plain, validate=True)


def _duration(days_seconds_microseconds: list[int]) -> timedelta:
    return timedelta(*days_seconds_microseconds)


def _float(value: Any) -> float:
    if isinstance(value, int | float) and type(value) is not bool:
        return float(value)
    raise _wrong(value, "a float")


def _date(value: Any) -> str:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise _wrong(value, "a date")
    return value.isoformat()


_SIMPLE: dict[Any, Codec] = {
    bool: _plain_type(bool, "bool"),
    int: _plain_type(int, "int"),
    str: _plain_type(str, "str"),
    float: Codec("float", _float, _float),
    bytes: _text(bytes, _same, _load_bytes),
    bytearray: _text(bytearray, bytes, lambda plain: bytearray(_load_bytes(plain))),
    UUID: _text(UUID, str, UUID),
    datetime: _text(datetime, _isoformat, datetime.fromisoformat),
    date: Codec("date", _date, date.fromisoformat),
    time: _text(time, _isoformat, time.fromisoformat),
    timedelta: _text(timedelta, lambda d: [d.days, d.seconds, d.microseconds], _duration),
    Decimal: _text(Decimal, str, Decimal),
    Path: _text(PurePath, str, Path),
    PurePath: _text(PurePath, str, PurePath),
}


def _literal(values: tuple[Any, ...]) -> Codec:
    def check(value: Any) -> Any:
        if not any(value == each and type(value) is type(each) for each in values):
            raise _wrong(value, f"one of {', '.join(map(repr, values))}")
        return value

    return Codec(f"Literal{list(values)}", check, check)


def _union(members: tuple[Any, ...]) -> Codec:
    """Return the codec of a union: a value is stored as the first member that restores it."""
    codecs = [codec_of(each) for each in members]
    name = " | ".join(codec.name for codec in codecs)

    def load(plain: Any) -> Any:
        for codec in codecs:
            try:
                return codec.load(plain)
            except (TypeError, ValueError, KeyError, ArithmeticError):
                continue
        raise _wrong(plain, name)

    def dump(value: Any) -> Any:
        for codec in codecs:
            try:
                plain = codec.dump(value)
            except (TypeError, ValueError):
                continue
            again = load(plain)
            if type(again) is type(value) and again == value:
                return plain
        raise TypeError(f"{show(value)} is not {name}, or would come back as another of these")

    return Codec(name, dump, load)


# --- containers ---------------------------------------------------------------------------------

_LISTS: dict[Any, type] = {
    list: list,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    set: set,
    collections.abc.Set: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
}
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _container(origin: Any, args: tuple[Any, ...]) -> Codec | None:
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis) and args:
        return _record("tuple", [codec_of(each) for each in args], tuple)
    if origin is tuple or origin in _LISTS:
        item = codec_of(args[0] if args else Any)
        return _series(tuple if origin is tuple else _LISTS[origin], item)
    if origin in _MAPPINGS:
        key, value = (codec_of(each) for each in args or (Any, Any))
        return _mapping(key, value)
    return None


def _series(kind: Any, item: Codec) -> Codec:
    def dump(values: Any) -> list[Any]:
        if not isinstance(values, kind):
            raise _wrong(values, f"a {kind.__name__}")
        dumped = [item.dump(each) for each in values]
        return dumped if isinstance(values, Sequence) else sorted(dumped, key=_to_json)

    return Codec(
        f"{kind.__name__}[{item.name}]",
        dump,
        lambda plain: kind(map(item.load, _check_list(plain))),
    )


def _check_list(plain: Any) -> list[Any]:
    if not isinstance(plain, list):
        raise _wrong(plain, "a list")
    return plain


def _record(name: str, items: list[Codec], make: Convert) -> Codec:
    """Return the codec of a tuple of fixed length."""

    def dump(values: Any) -> list[Any]:
        if not isinstance(values, tuple) or len(values) != len(items):
            raise _wrong(values, f"a {name} of {len(items)}")
        return [item.dump(each) for item, each in zip(items, values, strict=True)]

    def load(plain: Any) -> Any:
        return make([item.load(each) for item, each in zip(items, _check_list(plain), strict=True)])

    return Codec(name, dump, load)


def _mapping(key: Codec, value: Codec) -> Codec:
    """Return the codec of a mapping: an object if its keys are text, else a list of pairs."""
    by_text = key.name in ("str", "plain data")

    def dump(values: Any) -> Any:
        if not isinstance(values, collections.abc.Mapping):
            raise _wrong(values, "a mapping")
        if not by_text:
            return [[key.dump(name), value.dump(each)] for name, each in values.items()]
        for name in values:
            if not isinstance(name, str):
                raise _wrong(name, "a str: give the keys of the mapping a type hint")
        return {name: value.dump(each) for name, each in values.items()}

    def load(plain: Any) -> dict[Any, Any]:
        if isinstance(plain, dict):
            return {name: value.load(each) for name, each in plain.items()}
        return {key.load(name): value.load(each) for name, each in _check_list(plain)}

    return Codec(f"dict[{key.name}, {value.name}]", dump, load)


# --- classes ------------------------------------------------------------------------------------


def _class(hint: Any, kind: type) -> Codec:
    if issubclass(kind, enum.Enum):
        return _text(kind, lambda member: _plain(member.value), kind)
    if hasattr(kind, "model_validate") and hasattr(kind, "model_dump"):  # pydantic 2
        return _model(kind)
    if typing.is_typeddict(kind):
        return _members(kind, dict, _same)
    if is_dataclass(kind):
        names = [each.name for each in fields(kind) if each.init]
        return _members(kind, kind, lambda value: {name: getattr(value, name) for name in names})
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        items = [codec_of(hints.get(name, Any)) for name in kind._fields]
        codec = _record(kind.__name__, items, lambda values: kind(*values))
        return _text(kind, codec.dump, codec.load)
    raise TypeError(
        f"values of type {_name(hint)} cannot be stored: use a dataclass, a pydantic model, or "
        "plain data"
    )


def _model(kind: Any) -> Codec:
    """Return the codec of a pydantic model, whose fields are stored by their names.

    Before pydantic 2.11 a model with aliases is validated by these alone.
    """
    by_name = "by_name" in inspect.signature(kind.model_validate).parameters
    how = {"by_name": True, "by_alias": True} if by_name else {}

    def dump(model: Any) -> Any:
        if type(model) is not kind:  # one of a subclass would come back as this class
            raise _wrong(model, f"a {kind.__name__}")
        return model.model_dump(mode="json", round_trip=True, by_alias=not by_name)

    return Codec(kind.__name__, dump, lambda plain: kind.model_validate(plain, **how))


def _members(kind: Any, needed: type, members_of: Callable[[Any], Mapping[str, Any]]) -> Codec:
    """Return the codec of a class with named members, each with a hint of its own."""
    codecs: dict[str, Codec] = {}

    def ready() -> dict[str, Codec]:
        if not codecs:  # at the first use: a class may name itself
            hints = typing.get_type_hints(kind)
            codecs.update((name, codec_of(each)) for name, each in hints.items())
        return codecs

    def dump(value: Any) -> dict[str, Any]:
        if type(value) is not needed:  # one of a subclass would come back as this class
            raise _wrong(value, f"a {kind.__name__}")
        by_name = ready()
        try:
            return {name: by_name[name].dump(each) for name, each in members_of(value).items()}
        except KeyError as error:
            raise TypeError(f"{kind.__name__} has no member {error}") from None

    def load(plain: Any) -> Any:
        if not isinstance(plain, dict):
            raise _wrong(plain, f"a {kind.__name__}")
        by_name = ready()
        if unknown := plain.keys() - by_name.keys():
            raise TypeError(f"{kind.__name__} has no member {min(unknown)!r}")
        return kind(**{name: by_name[name].load(each) for name, each in plain.items()})

    return Codec(kind.__name__, dump, load)


# --- signatures ---------------------------------------------------------------------------------


class Signature:
    """The parameters of a task, and the version that travels with each job.

    The version changes with the names, kinds and hints of the parameters, and with whether they
    have a default.
    """

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        """``name`` is the name of the task in errors, by default that of the function."""
        self._function = function
        self._name = name or getattr(function, "__qualname__", type(function).__name__)
        self._signature = inspect.signature(function)
        self.names = tuple(self._signature.parameters)
        self.by_name = tuple(
            name
            for name, each in self._signature.parameters.items()
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        )
        """The parameters that a call may name."""
        kinds = {each.kind for each in self._signature.parameters.values()}
        self._is_plain = kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}
        self._needed = {
            name for name, each in self._signature.parameters.items() if each.default is each.empty
        }

    @cached_property
    def version(self) -> str:
        """A short digest of the parameters."""
        parameters = self._signature.parameters.values()
        text = "\n".join(
            f"{each.name} {each.kind} {each.default is not each.empty} "
            f"{inspect.formatannotation(each.annotation)}"
            for each in parameters
        )
        return hashlib.blake2s(text.encode()).hexdigest()[:VERSION_LENGTH]

    @cached_property
    def _codecs(self) -> dict[str, Codec]:
        try:
            hints = typing.get_type_hints(function_of(self._function), include_extras=False)
        except NameError as error:
            raise TypeError(f"a type hint of {self._name}: {error}") from None
        return {name: codec_of(hints.get(name, Any)) for name in (*self.names, "return")}

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a call as plain data; raise TypeError if they do not fit.

        Arguments travel by name where the function takes them by name.
        """
        if (given := self._plain_call(args, kwargs)) is not None:
            return [[], {name: self._dump_argument(name, value) for name, value in given.items()}]
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"the arguments do not fit {self._name}: {error}") from None
        placed: list[Any] = []
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                if value:  # then the parameters before it are positional, too
                    placed += [
                        *named.values(),
                        *(self._dump_argument(name, each) for each in value),
                    ]
                    named.clear()
            elif kind is inspect.Parameter.VAR_KEYWORD:
                named |= {key: self._dump_argument(name, each) for key, each in value.items()}
            elif kind is inspect.Parameter.POSITIONAL_ONLY:
                placed.append(self._dump_argument(name, value))
            else:
                named[name] = self._dump_argument(name, value)
        return [placed, named]

    def dump_some(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], skip: int
    ) -> dict[str, Any]:
        """Return arguments by name as plain data; the first ``skip`` parameters get theirs later.

        TypeError if they do not fit.
        """
        later, names = self.names[:skip], self.names[skip:]
        if not self._is_plain:
            raise TypeError(f"{self._name} has parameters that cannot be named, or takes any")
        if len(later) < skip:
            raise TypeError(f"{self._name} has no parameter for a result: use si() in place of s()")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        missing = sorted(self._needed.difference(given, later))
        unknown = sorted(given.keys() - {*names})
        if missing or unknown or len(given) < len(args) + len(kwargs):
            which = f"missing: {', '.join(missing)}" if missing else f"too many: {unknown or args}"
            raise TypeError(f"the arguments do not fit {self._name}: {which}")
        return {name: self._dump_argument(name, value) for name, value in given.items()}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError if the arguments of a call do not fit."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"the arguments do not fit {self._name}: {error}") from None

    def without_defaults(self, plain: Any) -> Any:
        """Return plain arguments in one form for equal calls: by name, without defaults.

        So ``f(1)``, ``f(x=1)`` and ``f(1, z=3)``, if 3 is the default of z, are the same.
        """
        placed, named = plain
        try:
            bound = self._signature.bind(*placed, **named)
        except TypeError:  # a middleware has changed them
            return plain
        rest: Any = []
        given: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                rest = value
            elif kind is inspect.Parameter.VAR_KEYWORD:
                others = value
            elif self._defaults.get(name) != _sorted_json(value):
                given[name] = value
        return [rest, given, others] if others else [rest, given]

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The defaults of the parameters as JSON, without those that cannot be stored."""
        found = {}
        for name, each in self._signature.parameters.items():
            if each.default is not each.empty:
                with suppress(TypeError, ValueError, RecursionError):
                    found[name] = _sorted_json(self._codecs[name].dump(each.default))
        return found

    def _plain_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of a usual call by name, in order; None if inspect must bind them.

        inspect takes ten times as long.
        """
        names = self.names
        if not self._is_plain or len(args) > len(names):
            return None
        if not kwargs and len(args) == len(names):
            return dict(zip(names, args, strict=True))
        if not args and tuple(kwargs) == names:
            return dict(kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(given) < len(args) + len(kwargs) or not self._needed <= given.keys():
            return None
        if not kwargs or tuple(given) == names:
            return given
        ordered = {name: given[name] for name in names if name in given}
        return ordered if len(ordered) == len(given) else None

    def check_template(self, template: str) -> None:
        """Raise InvalidArgument if a template names something else than parameters."""
        if not _has_braces(template):
            return
        try:
            named = list(_names_in(template))
        except ValueError as error:
            raise InvalidArgument(
                f"unique={show(template)} is no template: {error}; a brace is written twice"
            ) from None
        for name in named:
            if re.split(r"[.\[]", name)[0] not in self.names:
                known = ", ".join(self.names) or "none"
                raise InvalidArgument(
                    f"unique={show(template)} names no parameter; there are: {known}; a brace "
                    "is written twice"
                )

    def fill_template(self, template: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return a template with the arguments of a call in place of their names.

        TypeError if an argument has no such part or form.
        """
        if not _has_braces(template):
            return template
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            return template.format(**bound.arguments)
        except (LookupError, AttributeError, ValueError, TypeError) as error:
            raise TypeError(f"unique={template!r} does not fit the arguments: {error}") from None

    def _dump_argument(self, name: str, value: Any) -> Any:
        try:
            return self._codecs[name].dump(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"argument {name!r} of {self._name}: {error}") from None

    def load(self, plain: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments in plain data; raise TypeError if they do not fit the function."""
        match plain:
            case [list() as placed, dict() as named]:
                given = self._plain_call(placed, named)
            case _:
                raise TypeError(f"{show(plain)} is not a list and a mapping of arguments")
        if given is not None and tuple(given) == self.names:
            return tuple([self._load_argument(name, value) for name, value in given.items()]), {}
        bound = self._signature.bind(*placed, **named)
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(self._load_argument(name, each) for each in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {
                    key: self._load_argument(name, each) for key, each in value.items()
                }
            else:
                bound.arguments[name] = self._load_argument(name, value)
        return bound.args, bound.kwargs

    def _load_argument(self, name: str, plain: Any) -> Any:
        try:
            return self._codecs[name].load(plain)
        except (TypeError, ValueError, KeyError, ArithmeticError) as error:
            raise TypeError(f"argument {name!r}: {error}") from None

    def dump_result(self, value: Any) -> Any:
        """Return the result of the function as plain data.

        None is always a result: a task without a ``return`` has done its work, whatever its hint.
        """
        if value is None:
            return None
        try:
            return self._codecs["return"].dump(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"the result of {self._name}: {error}") from None
        except (Exception, SystemExit, GeneratorExit, CancelledError) as error:  # its type's code
            raise TypeError(f"the result of {self._name}: {describe(error)}") from None

    def load_result(self, plain: Any) -> Any:
        """Return the result in plain data; the reverse of ``dump_result``."""
        return None if plain is None else self._codecs["return"].load(plain)


def _has_braces(template: str) -> bool:
    return "{" in template or "}" in template


def _names_in(template: str) -> Iterator[str]:
    """Yield the names in a template, those in its formats too; ValueError if it is none."""
    for _, name, form, _ in Formatter().parse(template):
        if name is not None:
            yield name
        if form:
            yield from _names_in(form)


def function_of(function: Callable[..., Any]) -> Any:
    """Return the function that a callable runs: that of a partial, or the method of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    is_own = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_own else type(function).__call__


def check_format(form: str) -> str:
    """Return a format; raise InvalidArgument for an unknown one."""
    if form not in FORMATS:
        raise InvalidArgument(f"format must be one of {', '.join(FORMATS)}, not {show(form)}")
    return form
