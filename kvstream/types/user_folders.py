"""The folders of the user's own files, by the rules of the XDG base directories.

A process may have no home folder: in a container that runs as a bare number (``docker run -u
12345``), ``HOME`` may be missing, and the number has no line in /etc/passwd.
"""

import os
from contextlib import suppress
from pathlib import Path
from pwd import getpwuid

from kvstream.errors import InvalidArgument


def home_folder() -> Path | None:
    """Return the user's home folder; None if the user has none."""
    if given := os.environ.get("HOME"):
        return Path(given) if os.path.isabs(given) else None
    try:
        return Path(getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def expand(path: str) -> Path:
    """Return a path with the home folder for ``~`` or ``~user``; InvalidArgument without one."""
    first, _, rest = path.partition("/")
    with suppress(RuntimeError):
        if first != "~":
            return Path(path).expanduser()
        if (home := home_folder()) is not None:
            return home / rest
    advice = "set HOME, or write the path without ~"
    raise InvalidArgument(f"{path}: there is no home folder for {first}: {advice}")


def user_folder(variable: str, default: str, remedy: str) -> Path:
    """Return the folder ``kvstream`` in the one that ``variable`` names, or in ``default``.

    ``default`` lies in the home folder. If there is none, InvalidArgument says so, and what to do
    instead: ``remedy``.
    """
    if given := os.environ.get(variable):
        return expand(given) / "kvstream"
    if (home := home_folder()) is None:
        raise InvalidArgument(f"this user has no home folder: set HOME or {variable}, or {remedy}")
    return home / default / "kvstream"
