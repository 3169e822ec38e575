"""Places that streams come from and go to, parsed from text.

::

    place := redis://... | rediss://... | unix://...      a server: Redis, Valkey or kvstream
           | redis+sentinel://HOST,HOST/NAME              the primary that Sentinels name
           | ["store:" | "rdb:" | "aof:"] path            without a prefix the content decides
           | s3://... | gs://... | az://... | file://...  an archive, where one can be read

A path that does not exist is an RDB file if it ends in ``.rdb``, else the directory of a store. The
text of a place shows no password. Nothing is opened here.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from kvstream.archive.objects import SCHEMES
from kvstream.errors import InvalidArgument, NoSuchStore
from kvstream.storage.directory import LAYOUT_FILE
from kvstream.storage.files import kind_of
from kvstream.types.urls import refuse_url, sentinels_of, server_url, show_url

MANIFEST_SUFFIX = ".manifest"
LOG_FOLDER = "appendonlydir"
"""Where Redis keeps its append-only files, inside its own directory."""
_MAGICS = (b"REDIS0", b"VALKEY")
_RDB_SUFFIX, _AOF_SUFFIX = ".rdb", ".aof"


class PlaceKind(StrEnum):
    """The kind of a place."""

    STORE = "store"
    SERVER = "server"
    RDB = "rdb"
    AOF = "aof"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class Place:
    """A place; ``address`` is a path, or a URL that may contain a password."""

    kind: PlaceKind
    """What it is: a store, a server, a file or an archive."""
    address: str = field(repr=False)
    """Its path or URL."""
    user: str | None = field(default=None, repr=False)
    """The user of the server; None: the one in the URL, or none."""
    password: str | None = field(default=None, repr=False)
    """Credentials that the URL does not contain."""
    at_ms: int | None = None
    """The moment of an archive, in Unix milliseconds; None is its end."""

    @property
    def path(self) -> Path:
        """The directory or file of the place."""
        return Path(self.address)

    def __str__(self) -> str:
        """Return the text that users see and that identifies the place, without a password."""
        if self.kind is PlaceKind.ARCHIVE:
            return self.address + ("" if self.at_ms is None else f" at {self.at_ms}")
        if self.kind is not PlaceKind.SERVER:
            return os.path.realpath(self.address)
        parts = urlsplit(show_url(self.address))
        database = self.database
        where = parts.netloc + (parts.path if parts.scheme == "unix" else "")
        if (sentinels := sentinels_of(self.address)) is not None:
            where += f"/{sentinels.name}"
        return f"{parts.scheme}://{where}" + (f"/{database}" if database is not None else "")

    @property
    def database(self) -> int | None:
        """The database in a URL; None if it has none."""
        if self.kind is not PlaceKind.SERVER:
            return None
        if (sentinels := sentinels_of(self.address)) is not None:
            return int(sentinels.db)
        parts = urlsplit(self.address)
        named = parse_qs(parts.query).get("db", [""])[-1]
        if parts.scheme != "unix":
            named = named or parts.path.strip("/")
        return int(named) if named.isdecimal() else None

    @property
    def has_password(self) -> bool:
        """Whether the address contains a password, which other users may see."""
        if self.kind is not PlaceKind.SERVER:
            return False
        parts = urlsplit(self.address)
        options = parse_qs(parts.query)
        return parts.password is not None or bool({"password", "sentinel_password"} & {*options})


def parse_place(
    text: str | os.PathLike[str], *, create: bool = False, archives: bool = False
) -> Place:
    """Return the place that a text names; with ``create`` it need not exist.

    With ``archives`` it may be the URL of an archive. Raises InvalidArgument for a text that names
    no place, NoSuchStore if nothing is there.
    """
    if archives and isinstance(text, str) and text.partition("://")[0] in SCHEMES and "://" in text:
        return Place(PlaceKind.ARCHIVE, text)
    url = server_url(text)
    if url is not None:
        _check_url(url)
        return Place(PlaceKind.SERVER, url)
    refuse_url(text)
    text = os.fspath(text)
    for kind in (PlaceKind.STORE, PlaceKind.RDB, PlaceKind.AOF):
        if text.startswith(f"{kind}:"):
            return _existing(kind, text.removeprefix(f"{kind}:"), create)
    return _existing(_kind_of(Path(text)), text, create)


def _check_url(url: str) -> None:
    """Raise InvalidArgument, which does not show the URL, if it has no parts."""
    if sentinels_of(url) is not None:
        return
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        scheme = url.partition("://")[0]
        raise InvalidArgument(f"a {scheme}:// URL has a wrong host or port") from None


def _existing(kind: PlaceKind, text: str, create: bool) -> Place:
    refuse_url(text)  # again, without the prefix
    if not create:
        if not os.path.lexists(text):
            raise NoSuchStore(f"there is nothing at {text}")
        _refuse_special(Path(text))
    return Place(kind, text)


def _refuse_special(path: Path) -> None:
    """Raise InvalidArgument for pipes and devices: files of Redis are read several times."""
    with suppress(FileNotFoundError):  # a dangling link: opening it fails
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InvalidArgument(
                f"{path} is {kind_of(mode)}, but must be read several times: copy it to a file"
            )


def _kind_of(path: Path) -> PlaceKind:
    if path.is_dir():
        is_log = (path / LOG_FOLDER).is_dir() or any(path.glob(f"*{MANIFEST_SUFFIX}"))
        is_store = (path / LAYOUT_FILE).exists() or not is_log
        return PlaceKind.STORE if is_store else PlaceKind.AOF
    if path.suffix in (_AOF_SUFFIX, MANIFEST_SUFFIX):
        return PlaceKind.AOF
    if path.suffix == _RDB_SUFFIX:
        return PlaceKind.RDB
    if path.is_file():
        return _kind_of_file(path)
    return PlaceKind.STORE


def _kind_of_file(path: Path) -> PlaceKind:
    """Return the kind of a file by its first bytes.

    An append-only file may begin as an RDB file does: its suffix is checked before.
    """
    with path.open("rb") as file:
        start = file.read(len(_MAGICS[0]))
    if start in _MAGICS:
        return PlaceKind.RDB
    if start.startswith(b"*"):
        return PlaceKind.AOF
    raise InvalidArgument(f"{path} is not a store, RDB file or append-only file")
