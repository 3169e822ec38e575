"""URLs of servers, paths that are none, and how both are shown: without passwords."""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit

from kvstream.errors import InvalidArgument, show

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
SENTINEL = "+sentinel"
"""The end of the schemes of URLs that name Sentinels, which know where the primary is."""
_SERVERS = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
    "redis+sentinel": "redis+sentinel",
    "rediss+sentinel": "rediss+sentinel",
    "valkey+sentinel": "redis+sentinel",
    "valkeys+sentinel": "rediss+sentinel",
}
"""The URL schemes of servers, and redis-py's scheme for each; it has none for Sentinels."""
_MISTYPED = re.compile(
    rf"""(?:[^/]*[\s"'`<(=])?({"|".join(map(re.escape, _SERVERS))})(?:://|\s*(?:[:;]|//).*(?:@|password=))""",
    re.IGNORECASE | re.DOTALL,
)
"""The URL of a server after quotes or other text, or one that lacks slashes or the colon and has a
user or a password."""
_HOST_AND_PORT = re.compile(r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+):[0-9]{4,5}")
"""A host and a port without a scheme, which would make a directory of that name."""
_SHORTENED = re.compile(rf"({'|'.join(map(re.escape, _SERVERS))}|file|https?|s3[an]?|hdfs|gs):/")
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
    """Raise InvalidArgument for a URL, or a HOST:PORT, in place of a path; it names the right call.

    ``./redis://host`` is a folder of that name. The message shows no URL: it may have a password.
    """
    match = _url_match(path)
    if match is None:
        _refuse_address(path)
        return
    scheme = match[1].lower()
    if scheme in _SERVERS:
        theirs = (
            "redis.sentinel.Sentinel"
            if scheme.endswith(SENTINEL)
            else f'redis.Redis.from_url("{_SERVERS[scheme]}://...")'
        )
        right = (
            f'is the URL of a server, not a path: use kvstream.open("{scheme}://..."), or for '
            f"redis-py {theirs}; on the command line --url (KVSTREAM_URL), in Spark the option "
            '"url"'
        )
    elif scheme == "file":
        right = "is a URL: give the path alone, as in /path"
    else:
        right = "is a URL, not a path: give a path on this machine"
    raise InvalidArgument(f"{scheme}://... {right}")


def _refuse_address(path: AnyPath) -> None:
    text = _text_of(path)
    if isinstance(path, str | bytes) and _HOST_AND_PORT.fullmatch(text) is not None:
        raise InvalidArgument(
            f"{text} is the address of a server, not a path: use redis://{text}, on the command "
            f"line with --url; a directory of that name is ./{text}"
        )


def server_url(place: AnyPath) -> str | None:
    """Return the URL for redis-py if a place is the URL of a server or of Sentinels, else None."""
    match = _URL.match(_text_of(place)) if isinstance(place, str | bytes) else None
    scheme = None if match is None else _SERVERS.get(match[1].lower())
    return scheme and f"{scheme}://" + _text_of(place).partition("://")[2]


def with_login(url: str, user: str, password: str) -> str:
    """Return the URL of a server, or of Sentinels, with another user and password for it."""
    scheme, _, rest = url.partition("://")
    address = re.sub(r"^[^/?#]*@", "", rest)
    before, _, query = address.partition("?")
    kept = [each for each in parse_qsl(query, True) if each[0] not in ("username", "password")]
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@"
    return f"{scheme}://{login}{before}" + (f"?{urlencode(kept)}" if kept else "")


def has_login(url: str) -> bool:
    """Return whether the URL of a server, or of Sentinels, has a user or a password for it."""
    address, _, query = url.partition("://")[2].partition("?")
    names = {name for name, _ in parse_qsl(query, True)}
    return "@" in re.split("[/#]", address, maxsplit=1)[0] or bool(names & {"username", "password"})


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


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The parts of a URL that names Sentinels."""

    addresses: tuple[str, ...]
    """Host and port of each, as they stand in a URL."""
    name: str
    """The name under which they watch the primary."""
    db: str
    tls: bool
    login: str = field(repr=False)
    """``user:password@`` of the servers, or empty."""
    own_login: str = field(repr=False)
    """The same of the Sentinels."""
    wait_s: float | None
    options: tuple[tuple[str, str], ...] = field(repr=False)
    """Options of the URLs of servers, such as ``socket_timeout``."""

    def as_user(self, user: str | None, password: str | None) -> "Sentinels":
        """Return the same with a user and password for the servers, where they are given."""
        own_user, _, own_password = self.login.removesuffix("@").partition(":")
        own_user = own_user if user is None else quote(user, safe="")
        own_password = own_password if password is None else quote(password, safe="")
        login = f"{own_user}:{own_password}@" if own_user or own_password else ""
        return replace(self, login=login)

    @property
    def shown(self) -> str:
        """The name and the Sentinels, for messages."""
        return f"{self.name} of the Sentinels {', '.join(self.addresses)}"

    def server(self, host: str, port: int) -> str:
        """Return the URL of a server at an address."""
        options = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self._scheme}://{self.login}{netloc_of(host, port)}/{self.db}{options}"

    def sentinel(self, address: str) -> str:
        """Return the URL of a Sentinel: with TLS if the servers have it."""
        options = [each for each in self.options if each[0].startswith("ssl_")]
        end = f"?{urlencode(options)}" if options else ""
        return f"{self._scheme}://{self.own_login}{address}{end}"

    @property
    def _scheme(self) -> str:
        return "rediss" if self.tls else "redis"


SENTINEL_PORT = 26379
WAIT_S_MAX = 1 << 31
SENTINEL_FORM = (
    "redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/NAME[/DB], or "
    "rediss+sentinel://... with TLS"
)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::([0-9]{1,5}))?")


def netloc_of(host: str, port: int) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def sentinels_start(text: str) -> bool:
    """Return whether a text begins as the URL of Sentinels does."""
    return text.partition("://")[0].strip().lower().endswith(SENTINEL)


def sentinels_of(place: AnyPath) -> Sentinels | None:
    """Return the parts of a URL of Sentinels; None for any other place.

    The options ``sentinel_username`` and ``sentinel_password`` are for the Sentinels, ``wait_s`` is
    how long a call waits for a primary. Raises InvalidArgument, which does not show the URL.
    """
    url = server_url(place)  # first: the scheme says whether there is TLS, in every spelling
    scheme, _, rest = (url or "").partition("://")
    if not scheme.endswith(SENTINEL):
        return None
    try:
        return _sentinels(scheme, rest)
    except ValueError as error:
        raise InvalidArgument(f"not a URL of Sentinels, {error}: {SENTINEL_FORM}") from None


def _sentinels(scheme: str, rest: str) -> Sentinels:
    """Return the parts behind the scheme; the ValueError for wrong ones shows none of them."""
    netloc, _, path = rest.partition("?")[0].partition("/")
    query = rest.partition("?")[2]
    if "@" in path or "@" in query.partition("=")[0] or "#" in rest:
        raise ValueError("a / ? or # in a password is written %2F %3F %23")
    login, at, hosts = netloc.rpartition("@")
    matches = [_ADDRESS.fullmatch(each) for each in hosts.split(",")]
    addresses = [f"{m[1]}:{m[2] or SENTINEL_PORT}" for m in matches if m is not None]
    if len(addresses) < len(matches) or any(_port_of(each) > 65535 for each in addresses):
        raise ValueError("a host or port is wrong")
    name, _, db = path.partition("/")
    options = dict(parse_qsl(query, keep_blank_values=True))
    db = options.pop("db", db) or "0"
    if not name or not db.isdecimal():
        raise ValueError("the path is the name of the primary, and the number of a database")
    user, password = options.pop("sentinel_username", ""), options.pop("sentinel_password", "")
    own = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    wait_s = _seconds(options.pop("wait_s"), "wait_s") if "wait_s" in options else None
    tls = scheme.startswith("rediss")
    return Sentinels(
        tuple(addresses), unquote(name), db, tls, login + at, own, wait_s, tuple(options.items())
    )


def _seconds(text: str, option: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < WAIT_S_MAX:
        raise ValueError(f"{option} is a number of seconds")
    return seconds


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def show_url(url: str) -> str:
    """Return a URL for messages: scheme, host, port, path and ``?db=``, so without a password.

    A password may be in the query too, and one with a ``/``, ``?`` or ``#`` that is not quoted in
    any part: of such a URL the scheme alone is shown.
    """
    scheme = url.partition("://")[0]
    try:
        parts = urlsplit(url)
        named = parse_qs(parts.query).get("db", [""])[-1]
        if sentinels_start(url):  # several hosts
            has_host = bool(parts.netloc.rpartition("@")[2])
        else:
            has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return f"{scheme}://..."
    elsewhere = f"{parts.path}{parts.fragment}{parts.query.partition('=')[0]}"
    if "@" in elsewhere or not (has_host or parts.path):
        return f"{scheme}://..."
    host = parts.netloc.rpartition("@")[2]
    return f"{scheme}://{host}{parts.path}" + (f"?db={named}" if named.isdecimal() else "")
