"""Commands of kvstream that do what a page does, as words of a shell: they work as copied.

A name that is no printable text is quoted as ``$'\\xff'``, as bash and zsh read it. Names that
begin like an option are behind ``--``. Passwords are left out of URLs: who copies a command adds
one, or has it in KVSTREAM_URL.
"""

from __future__ import annotations

import os
import shlex
from typing import TypeAlias

from kvstream.types.ids import StreamID
from kvstream.types.urls import server_url

Part: TypeAlias = "str | bytes | StreamID | tuple[str, bytes]"
"""Text is a command or a flag, and stays as it is; bytes are a name; a pair is an option with its
value."""


def word(value: bytes) -> str:
    """Return any bytes as one word of a shell."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not value):
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, value)) + "'"


def _escaped(byte: int) -> str:
    char = chr(byte)
    return char if " " <= char <= "~" and char not in "'\\" else f"\\x{byte:02x}"


def program_of(place: str, db: int) -> str:
    """Return the program with the options for a place, which is a path or a URL as it is shown."""
    if place.endswith("://..."):  # a URL that has its password where none should be
        return "kvstream"
    if server_url(place) is not None:
        option, path = "--url", os.fsencode(place)
        is_told = f"db={db}" in place or place.rstrip("/").endswith(f"/{db}")
    else:
        option, path, is_told = "--store", os.fsencode(os.path.abspath(place)), False
    return f"kvstream {option} {word(path)}" + (f" --db {db}" if db and not is_told else "")


def line(*parts: Part) -> str:
    """Return a command without the program: options before names."""
    options: list[str] = []
    names: list[str] = []
    behind: list[str] = []
    for part in parts:
        if isinstance(part, str):
            options.append(part)
        elif isinstance(part, bytes):
            names.append(word(part))
            behind = ["--"] if part.startswith(b"-") else behind
        elif isinstance(part, StreamID):
            names.append(str(part))
        else:
            options += [part[0], word(part[1])]
    return " ".join([*options, *behind, *names])
