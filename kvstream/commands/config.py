"""CONFIG GET and SET of the stream settings, which last until the store is closed."""

import re
from collections.abc import Callable
from typing import TypeAlias

from kvstream.commands.args import I64_MAX, Argv, integer, syntax_error, text
from kvstream.commands.command import OPERATE, Family, Session
from kvstream.commands.replies import OK, Map, Reply
from kvstream.errors import InvalidArgument
from kvstream.meta.filling import Limits
from kvstream.meta.txn import Txn
from kvstream.operations.append import IDMP_DURATION_MAX_S, IDMP_MAXSIZE_MAX
from kvstream.operations.dump import checked_target
from kvstream.types.glob import matcher
from kvstream.types.options import ENTRY_BYTES_MAX, MEGABYTE

COMMANDS = Family("server")
COMMANDS.add_help("config", since="5.0.0")
_MEMORY = re.compile(rb"([0-9]{0,127})(b|k|kb|m|mb|g|gb)?", re.IGNORECASE)
_UNITS = {
    b"": 1,
    b"b": 1,
    b"k": 1000,
    b"kb": 1 << 10,
    b"m": 1000**2,
    b"mb": 1 << 20,
    b"g": 1000**3,
    b"gb": 1 << 30,
}

Parse: TypeAlias = Callable[[bytes], object]
"""Parses the value of a setting, or raises InvalidArgument with the reason."""


def memory_size(raw: bytes) -> int:
    """Parse ``100``, ``4kb`` or ``1g`` into bytes; no digits are 0."""
    match = _MEMORY.fullmatch(raw)
    if match is None:
        raise InvalidArgument("argument must be a memory value")
    return int(match[1] or 0) * _UNITS[(match[2] or b"").lower()]


def within(value: int, least: int, most: int) -> int:
    """Return a value within its bounds, or raise InvalidArgument with the reason."""
    if not least <= value <= most:
        raise InvalidArgument(f"argument must be between {least} and {most} inclusive")
    return value


def count(least: int, most: int = I64_MAX) -> Parse:
    """Return a parser of numbers."""

    def parse(raw: bytes) -> int:
        number = integer(raw, "argument couldn't be parsed into an integer")
        return within(number, least, most)

    return parse


def memory(least: int, most: int = I64_MAX) -> Parse:
    """Return a parser of bytes, also as ``4kb`` or ``1g``."""

    def parse(raw: bytes) -> int:
        return within(memory_size(raw), least, most)

    return parse


def _dump_target(raw: bytes) -> str:
    return checked_target(text(raw).lower())


SETTINGS: dict[bytes, tuple[str, Parse]] = {
    b"dump-target": ("dump_target", _dump_target),
    b"stream-entry-max-bytes": ("entry_max_bytes", memory(MEGABYTE, ENTRY_BYTES_MAX)),
    b"stream-node-max-bytes": ("node_max_bytes", memory(0)),
    b"stream-node-max-entries": ("node_max_entries", count(0)),
    b"stream-idmp-duration": ("idmp_duration_s", count(1, IDMP_DURATION_MAX_S)),
    b"stream-idmp-maxsize": ("idmp_maxsize", count(1, IDMP_MAXSIZE_MAX)),
}
"""By name: the attribute of the catalog's limits, and the parser. 0 bytes or entries of a node: no
limit."""


def shown(limits: Limits, attribute: str) -> bytes:
    """Return a value as CONFIG GET shows it."""
    return str(getattr(limits, attribute)).encode()


@COMMANDS.command("config|get", "pattern [pattern ...]", OPERATE, since="2.0.0")
def config_get(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the settings whose names match any of the patterns."""
    limits = txn.catalog.limits
    tests = [matcher(pattern, ignore_case=True) for pattern in argv[2:]]
    return Map(
        [
            (name, shown(limits, attribute))
            for name, (attribute, _) in SETTINGS.items()
            if any(test(name) for test in tests)
        ]
    )


@COMMANDS.command(
    *("config|set", "setting value [setting value ...]", OPERATE),
    since="2.0.0",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def config_set(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Change settings until the store is closed, all of them or none."""
    if len(argv) % 2:
        raise syntax_error()
    asked: dict[bytes, bytes] = {}
    for raw_name, raw in zip(argv[2::2], argv[3::2], strict=True):
        name = raw_name.lower()
        if name not in SETTINGS:
            raise unknown_setting(raw_name)
        if name in asked:
            raise failure(raw_name, "duplicate parameter")
        asked[name] = raw
    values: dict[str, object] = {}
    for name, raw in asked.items():
        attribute, parse = SETTINGS[name]
        values[attribute] = parsed(name, raw, parse)
    for attribute, value in values.items():
        setattr(txn.catalog.limits, attribute, value)
    return OK


def parsed(name: bytes, raw: bytes, parse: Parse) -> object:
    """Return the value that a setting would have; InvalidArgument with its name if it cannot."""
    try:
        return parse(raw)
    except InvalidArgument as error:
        raise failure(name, str(error)) from None


def unknown_setting(name: bytes) -> InvalidArgument:
    return InvalidArgument(f"Unknown option or number of arguments for CONFIG SET - '{text(name)}'")


def failure(name: bytes, reason: str) -> InvalidArgument:
    """Return the error of a setting that cannot be set."""
    return InvalidArgument(
        f"CONFIG SET failed (possibly related to argument '{text(name)}') - {reason}"
    )
