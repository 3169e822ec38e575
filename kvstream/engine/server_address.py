"""The address of the server that holds a store: a file in the store, for clients on this machine.

::

    <store>/loads/server      JSON: {"url": "redis://127.0.0.1:6379", "run_id": "..."}

The file has no password. A killed server leaves its file behind, so a reader compares the
``run_id`` with that of the server before it uses it. This module only knows files.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from kvstream.storage import files
from kvstream.storage.files import DIRECTORY_MODE

FOLDER = "loads"
"""The folder in the store for bulk loads through its server."""
_FILE = "server"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Address(NamedTuple):
    """The URL of a server, and the ID of this run of it: another server may get the port later."""

    url: str
    run_id: str


def reachable(host: str) -> str:
    """Return the host by which clients on this machine reach a server that listens on ``host``."""
    return _ANYWHERE.get(host, host)


def url_of(host: str, port: int, tls: bool) -> str:
    """Return the URL of a server that listens on ``host`` for clients on the same machine."""
    host = reachable(host)
    shown = f"[{host}]" if ":" in host else host
    return f"{'rediss' if tls else 'redis'}://{shown}:{port}"


def url_of_socket(path: Path) -> str:
    """Return the URL of a server that listens on a Unix socket alone."""
    return "unix://" + quote(str(path.resolve()))


def folder_of(store: Path) -> Path:
    """Return the folder for bulk loads; create it if it is missing."""
    folder = store / FOLDER
    with suppress(FileExistsError):
        folder.mkdir(DIRECTORY_MODE)
    return folder


def write(store: Path, address: Address) -> None:
    """Write down the address of the server of a store."""
    text = json.dumps(address._asdict())
    files.write(folder_of(store) / _FILE, text.encode())


def remove(store: Path) -> None:
    """Remove the address of a store's server."""
    with suppress(OSError):
        (store / FOLDER / _FILE).unlink()


def read(store: Path) -> Address | None:
    """Return the last address of a store's server, or None."""
    path = store / FOLDER / _FILE
    try:
        fields = json.loads(files.read(path))
        return Address(str(fields["url"]), str(fields["run_id"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
