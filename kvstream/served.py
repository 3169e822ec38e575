"""Where the server that holds a store is reached: a file beside its rows, for those on the machine.

::

    <store>/loads/server      JSON: {"url": "redis://127.0.0.1:6379", "run_id": "..."}

Without a password: who wants in must know it. A server that was killed leaves the file, so whoever
reads it asks the server for its ``run_id`` before believing it. This module knows files alone.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvstream.storage import durable_files
from kvstream.storage.private_files import DIRECTORY_MODE

FOLDER = "loads"
"""The folder in the store's own for what concerns loading through its server."""
_FILE = "server"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Address(NamedTuple):
    """A server, and what tells it from others that have its port later."""

    url: str
    run_id: str


def url_of(host: str, port: int, tls: bool) -> str:
    """Return the URL under which a server that listens there is reached from its own machine."""
    host = _ANYWHERE.get(host, host)
    shown = f"[{host}]" if ":" in host else host
    return f"{'rediss' if tls else 'redis'}://{shown}:{port}"


def folder_of(store: Path) -> Path:
    """Return the folder for loads, made where it is not there."""
    folder = store / FOLDER
    with suppress(FileExistsError):
        folder.mkdir(DIRECTORY_MODE)
    return folder


def note(store: Path, address: Address) -> None:
    """Say where the store is served."""
    text = json.dumps(address._asdict())
    durable_files.write(folder_of(store) / _FILE, text.encode())


def forget(store: Path) -> None:
    """Say that it is served no more."""
    with suppress(OSError):
        (store / FOLDER / _FILE).unlink()


def address_of(store: Path) -> Address | None:
    """Return where a store is, or was, served; None where nobody says."""
    path = store / FOLDER / _FILE
    try:
        told = json.loads(durable_files.read(path))
        return Address(str(told["url"]), str(told["run_id"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
