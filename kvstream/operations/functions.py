"""Libraries of functions in a store: FUNCTION LOAD, DELETE, FLUSH, DUMP and RESTORE.

A library is a text whose first line names its engine and itself. It is stored as it was loaded::

    header       := "#!" engine (" " "name=" name) "\\n"
    function row := "U" library name -> version(u8=1) text

Nothing here runs code. The server compiles a library before it is stored; migrations store what
another server has compiled, and check before whether they compile here. Names of functions are
therefore the server's concern.

The libraries belong to no database: FLUSHALL leaves them. A store without functions has no such
row, so the layout is the same.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from kvstream.errors import Corruption, RequestError
from kvstream.layout.keys import FUNCTION_TAG, function_row, successor
from kvstream.meta.txn import Txn
from kvstream.rdb.payload import dump_functions, restore_functions
from kvstream.rdb.versions import TARGETS
from kvstream.storage.batch import Family

_METADATA = Family.METADATA
_VERSION = b"\x01"
_ENGINE = b"LUA"
_NAME = re.compile(rb"[A-Za-z0-9_]+")
_WORD = re.compile(rb"""\s*((?:[^\s"']+|(?=["']))(?:"[^"]*"|'[^']*')?)(?=\s|$)""")
_QUOTES = re.compile(rb"""["']""")
_ANY_SERVER = TARGETS["redis:7.0"]
"""The oldest format of libraries; it loses nothing."""

Libraries = Mapping[bytes, bytes]
"""The texts of libraries by name. It never changes: a changed library needs a new mapping."""


class Policy(StrEnum):
    """What RESTORE does with the existing libraries."""

    FLUSH = "flush"
    APPEND = "append"
    REPLACE = "replace"


class Header(NamedTuple):
    """The first line of a library."""

    name: bytes
    code: bytes
    """The rest, with the end of the first line: so line numbers of errors are right."""


def check_name(name: bytes) -> None:
    """Raise RequestError unless a name of a library or function is valid."""
    if _NAME.fullmatch(name) is None:
        raise RequestError(
            "Library names can only contain letters, numbers, or underscores(_) and must be at "
            "least one character long"
        )


def parse(text: bytes) -> Header:
    """Return the name and the code of a library; raise RequestError for a wrong header."""
    engine, header = _header(text)
    if engine.upper() != _ENGINE:
        raise RequestError(f"Engine '{_text(engine)}' not found")
    return header


def _header(text: bytes) -> tuple[bytes, Header]:
    """Return the engine, the name and the code of a library of any engine."""
    if not text.startswith(b"#!"):
        raise RequestError("Missing library metadata")
    line, newline, rest = text.partition(b"\n")
    engine, *words = _words(line) if newline else [b""]
    if not engine:
        raise RequestError("Invalid library metadata")
    name: bytes | None = None
    for word in words:
        if word[:5].lower() != b"name=":
            raise RequestError(f"Invalid metadata value given: {_text(word)}")
        if name is not None:
            raise RequestError("Invalid metadata value, name argument was given multiple times")
        name = word[5:]
    if name is None:
        raise RequestError("Library name was not given")
    check_name(name)
    return engine[2:], Header(name, newline + rest)


def name_of(text: bytes) -> bytes:
    """Return the name of a library of any engine; the first line if its header is wrong."""
    try:
        return _header(text)[1].name
    except RequestError:
        return text.partition(b"\n")[0]


def by_name(texts: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return libraries of any engine by name."""
    return {name_of(text): text for text in texts}


def _words(line: bytes) -> list[bytes]:
    """Split a line as a configuration file is split; [b""] if a quote is not closed."""
    words, at, line = [], 0, line.rstrip()
    while at < len(line):
        word = _WORD.match(line, at)
        if word is None:
            return [b""]
        words.append(_QUOTES.sub(b"", word[1]))
        at = word.end()
    return words


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def libraries(txn: Txn) -> Libraries:
    """Return the texts of all libraries by name; raise Corruption if one cannot be read."""
    texts = txn.catalog.libraries
    if texts is None:
        rows = txn.batch.scan(_METADATA, FUNCTION_TAG, successor(FUNCTION_TAG))
        texts = MappingProxyType({row[1:]: decode_library(row, value) for row, value in rows})
        txn.catalog.libraries = texts
    return texts


def decode_library(row: bytes, value: bytes) -> bytes:
    """Return the text of a library; raise Corruption for a damaged row."""
    if len(row) == len(FUNCTION_TAG) or value[:1] != _VERSION:
        raise Corruption(f"the function library {row[1:41]!r} cannot be decoded")
    return value[1:]


def _put(txn: Txn, name: bytes, text: bytes) -> None:
    """Write a library over an existing one of its name."""
    before = libraries(txn)
    txn.batch.put(_METADATA, function_row(name), _VERSION + text)
    txn.catalog.libraries = MappingProxyType({**before, name: text})


def load(txn: Txn, text: bytes, *, replace: bool) -> bytes:
    """Store a library and return its name; raise RequestError if one of its name exists."""
    name = parse(text).name
    if not replace and name in libraries(txn):
        raise RequestError(f"Library '{_text(name)}' already exists")
    _put(txn, name, text)
    return name


def delete(txn: Txn, name: bytes) -> None:
    """Delete a library; raise RequestError if there is none."""
    before = libraries(txn)
    if name not in before:
        raise RequestError("Library not found")
    txn.frees = True
    txn.batch.delete(_METADATA, function_row(name))
    rest = {library: text for library, text in before.items() if library != name}
    txn.catalog.libraries = MappingProxyType(rest)


def flush(txn: Txn) -> None:
    """Delete all libraries."""
    for name in libraries(txn):
        delete(txn, name)


def dump(txn: Txn) -> bytes:
    """Return all libraries as a payload for RESTORE, in the order of their names."""
    target = TARGETS.get(txn.catalog.limits.dump_target, _ANY_SERVER)
    return dump_functions(target, [text for _, text in sorted(libraries(txn).items())])


def parse_payload(payload: bytes) -> dict[bytes, bytes]:
    """Return the libraries of a payload by name; raise BadPayload or RequestError."""
    texts: dict[bytes, bytes] = {}
    for text in restore_functions(payload):
        name = parse(text).name
        if name in texts:
            raise RequestError(f"Library '{_text(name)}' already exists")
        texts[name] = text
    return texts


def merge(txn: Txn, added: Libraries, policy: Policy) -> Libraries:
    """Return the libraries after a RESTORE; raise RequestError if a name is taken."""
    present = {} if policy is Policy.FLUSH else libraries(txn)
    if policy is Policy.APPEND:
        for name in added:
            if name in present:
                raise RequestError(f"Library {_text(name)} already exists")
    return {**present, **added}


def restore(txn: Txn, payload: bytes, policy: Policy = Policy.APPEND) -> None:
    """Store the libraries of a payload."""
    added = parse_payload(payload)
    merge(txn, added, policy)
    if policy is Policy.FLUSH:
        flush(txn)
    for name, text in added.items():
        _put(txn, name, text)
