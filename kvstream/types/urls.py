"""URLs of servers, and paths that are none."""

import os
import re
from pathlib import PurePath

from kvstream.errors import InvalidArgument

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SERVERS = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
}
"""The URL schemes of servers, and redis-py's scheme for each."""
_SHORTENED = re.compile(rf"({'|'.join(_SERVERS)}|file|https?|s3[an]?|hdfs|gs):/")
"""The start of a ``Path`` made from a URL, which has one slash instead of two."""


def refuse_url(path: AnyPath) -> None:
    """Raise InvalidArgument for a URL in place of a path; the message names the right call.

    ``./redis://host`` is a folder of that name. The message shows no URL: it may have a password.
    """
    form = _SHORTENED if isinstance(path, PurePath) else _URL
    match = form.match(os.fsdecode(path))
    if match is None:
        return
    scheme = match[1].lower()
    if scheme in _SERVERS:
        right = (
            f'is the URL of a server, not a path: use kvstream.open("{scheme}://..."), or for '
            f'redis-py redis.Redis.from_url("{_SERVERS[scheme]}://..."); on the command line --url '
            '(KVSTREAM_URL), in Spark the option "url"'
        )
    elif scheme == "file":
        right = "is a URL: give the path alone, as in /path"
    else:
        right = "is a URL, not a path: give a path on this machine"
    raise InvalidArgument(f"{scheme}://... {right}")


def server_url(place: AnyPath) -> str | None:
    """Return the URL for redis-py if a place is the URL of a server, else None."""
    match = _URL.match(os.fsdecode(place)) if isinstance(place, str | bytes) else None
    scheme = None if match is None else _SERVERS.get(match[1].lower())
    return scheme and f"{scheme}://" + os.fsdecode(place).partition("://")[2]
