"""URLs of servers, paths that are none, and how both are shown: without passwords."""

import os
import re
from pathlib import PurePath
from urllib.parse import parse_qs, urlsplit

from kvstream.errors import InvalidArgument, show

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
_MISTYPED = re.compile(
    rf"""(?:[^/]*[\s"'`<(=])?({"|".join(_SERVERS)})(?:://|\s*(?:[:;]|//).*(?:@|password=))""",
    re.IGNORECASE | re.DOTALL,
)
"""The URL of a server after quotes or other text, or one that lacks slashes or the colon and has a
user or a password."""
_SHORTENED = re.compile(rf"({'|'.join(_SERVERS)}|file|https?|s3[an]?|hdfs|gs):/")
"""The start of a ``Path`` made from a URL, which has one slash instead of two."""


def _text_of(place: AnyPath) -> str:
    """Return a place as text, without the white space that is left around a copied URL."""
    return os.fsdecode(place).strip()


def _url_match(path: AnyPath) -> re.Match[str] | None:
    """Match the scheme of a URL, of a URL in a ``Path``, or of a mistyped URL of a server."""
    text = _text_of(path)
    whole = _SHORTENED if isinstance(path, PurePath) else _URL
    return whole.match(text) or _MISTYPED.match(text)


def refuse_url(path: AnyPath) -> None:
    """Raise InvalidArgument for a URL in place of a path; the message names the right call.

    ``./redis://host`` is a folder of that name. The message shows no URL: it may have a password.
    """
    match = _url_match(path)
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
    match = _URL.match(_text_of(place)) if isinstance(place, str | bytes) else None
    scheme = None if match is None else _SERVERS.get(match[1].lower())
    return scheme and f"{scheme}://" + _text_of(place).partition("://")[2]


def show_place(place: AnyPath) -> str:
    """Return a path as it is, or a URL as ``show_url`` does."""
    text = _text_of(place)
    if _URL.match(text):
        return show_url(text)
    match = _url_match(place)
    return os.fsdecode(place) if match is None else f"{match[1]}://..."


def show_instead(value: object) -> str:
    """Return a value given in place of a store for a message, a URL without its password."""
    if isinstance(value, str | bytes | os.PathLike) and _url_match(value) is not None:
        return show(show_place(value))
    return show(value)


def show_url(url: str) -> str:
    """Return a URL for messages: scheme, host, port, path and ``?db=``, so without a password.

    A password may be in the query too, and one with a ``/``, ``?`` or ``#`` that is not quoted in
    any part: of such a URL the scheme alone is shown.
    """
    scheme = url.partition("://")[0]
    try:
        parts = urlsplit(url)
        named = parse_qs(parts.query).get("db", [""])[-1]
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return f"{scheme}://..."
    elsewhere = f"{parts.path}{parts.fragment}{parts.query.partition('=')[0]}"
    if "@" in elsewhere or not (has_host or parts.path):
        return f"{scheme}://..."
    host = parts.netloc.rpartition("@")[2]
    return f"{scheme}://{host}{parts.path}" + (f"?db={named}" if named.isdecimal() else "")
