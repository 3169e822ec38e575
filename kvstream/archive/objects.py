"""An object store: named bytes, each created once. The only module that reaches one.

``file://`` is a folder, such as a second disk or NFS; its objects are durable when they are made.
The others, ``s3://``, ``gs://`` and ``az://``, are reached by obstore, with addresses and
credentials from its environment variables (``AWS_ENDPOINT``, ``AWS_ACCESS_KEY_ID`` ...).

obstore must not be used before a fork, so a store is opened in the process that owns it.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from kvstream.errors import ArchiveUnavailable, InvalidArgument, optional_package
from kvstream.storage import files

SCHEMES = ("file", "s3", "gs", "az")
RETRY_S = 10.0
"""How long obstore repeats a request that was not answered."""
PROBES = 8
"""Creations of one key that race when an archive is first used."""
_PARTIAL = ".partial"


class Found(NamedTuple):
    """An object in a listing."""

    key: str
    size: int


class Objects(Protocol):
    """An object store, below a prefix. Every call raises ArchiveUnavailable if it fails."""

    url: str

    def create(self, key: str, data: bytes) -> bool:
        """Make an object; return False, with nothing changed, if there is one with this key."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return an object; None if there is none."""
        ...

    def chunks(self, key: str) -> Iterator[bytes]:
        """Yield an object in parts; nothing if there is none."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[Found]:
        """Yield the objects whose keys begin with ``prefix`` and are above ``after``, in order."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; one that is not there is no error."""
        ...


def open_objects(url: str) -> Objects:
    """Return the object store of a URL.

    Raises InvalidArgument for another URL, ClientMissing if obstore is needed and not installed.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InvalidArgument(
            f"an archive is a URL of {', '.join(scheme + '://' for scheme in SCHEMES)}, such as "
            f"s3://bucket/orders or file:///mnt/disk/orders, not {url!r}"
        )
    optional_package("zstandard", "'kvstream[archive]'")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidArgument(f"give an absolute path: file:///mnt/disk/orders, not {url!r}")
        return Folder(url, Path(unquote(parts.path)))
    if not parts.netloc:
        raise InvalidArgument(f"{url!r} names no bucket")
    return Bucket(url)


class Folder:
    """A folder as an object store."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self._path = path

    def create(self, key: str, data: bytes) -> bool:
        path = self._path / key
        partial = path.with_name(f"{path.name}.{uuid4().hex}{_PARTIAL}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                return False
            try:
                _write(partial, data)
                os.link(partial, path)  # fails if it is there: then another was first
            except FileExistsError:
                return False
            finally:
                with suppress(OSError):
                    partial.unlink()
            files.sync_directory(path.parent)
        except OSError as error:
            raise _unavailable(self.url, f"cannot write {path}", error) from None
        return True

    def get(self, key: str) -> bytes | None:
        try:
            return (self._path / key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable(self.url, f"cannot read {self._path / key}", error) from None

    def chunks(self, key: str) -> Iterator[bytes]:
        try:
            with (self._path / key).open("rb") as file:
                while data := file.read(1 << 20):
                    yield data
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unavailable(self.url, f"cannot read {self._path / key}", error) from None

    def list(self, prefix: str, after: str = "") -> Iterator[Found]:
        try:
            entries = sorted(os.scandir(self._path / prefix), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unavailable(self.url, f"cannot list {self._path / prefix}", error) from None
        for entry in entries:
            if not entry.name.endswith(_PARTIAL) and prefix + entry.name > after:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    yield Found(prefix + entry.name, entry.stat().st_size)

    def delete(self, keys: Iterable[str]) -> None:
        try:
            for key in keys:
                with suppress(FileNotFoundError):
                    (self._path / key).unlink()
        except OSError as error:
            raise _unavailable(self.url, "cannot delete", error) from None


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class Bucket:
    """An object store that obstore reaches."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._api: Any = optional_package("obstore", "'kvstream[archive]'")
        from_url = optional_package("obstore.store").from_url
        self._absent = self._api.exceptions.NotFoundError, FileNotFoundError
        retry = {"max_retries": 10, "retry_timeout": timedelta(seconds=RETRY_S)}
        options = {"timeout": timedelta(seconds=30), "allow_http": True}
        try:
            self._store: Any = from_url(url, client_options=options, retry_config=retry)
        except Exception as error:
            raise InvalidArgument(f"the archive {url} cannot be opened: {_text(error)}") from None

    def create(self, key: str, data: bytes) -> bool:
        try:
            self._api.put(self._store, key, data, mode="create", use_multipart=False)
        except self._api.exceptions.AlreadyExistsError:
            return False
        except Exception as error:
            raise _unavailable(self.url, f"cannot put {key}", error) from None
        return True

    def get(self, key: str) -> bytes | None:
        try:
            return bytes(self._api.get(self._store, key).bytes())
        except self._absent:
            return None
        except Exception as error:
            raise _unavailable(self.url, f"cannot get {key}", error) from None

    def chunks(self, key: str) -> Iterator[bytes]:
        try:
            for data in self._api.get(self._store, key).stream(min_chunk_size=1 << 20):
                yield bytes(data)
        except self._absent:
            return
        except Exception as error:
            raise _unavailable(self.url, f"cannot get {key}", error) from None

    def list(self, prefix: str, after: str = "") -> Iterator[Found]:
        try:
            found = [
                Found(each["path"], each["size"])
                for page in self._api.list(self._store, prefix, offset=after or None)
                for each in page
            ]
        except Exception as error:
            raise _unavailable(self.url, f"cannot list {prefix}", error) from None
        yield from sorted(found)

    def delete(self, keys: Iterable[str]) -> None:
        try:
            for key in keys:
                with suppress(*self._absent):
                    self._api.delete(self._store, key)
        except Exception as error:
            raise _unavailable(self.url, "cannot delete", error) from None


def _text(error: Exception) -> str:
    """Return what an error says, in one line: obstore's have a dump of its internals below it."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _unavailable(url: str, what: str, error: Exception) -> ArchiveUnavailable:
    return ArchiveUnavailable(f"the archive {url}: {what}: {_text(error)}")


def refuse_overwriting(objects: Objects) -> None:
    """Raise ArchiveUnavailable if two creations of one key can both succeed.

    Some object stores take the condition and ignore it: then two owners would not notice each
    other, and acknowledged writes would be lost.
    """
    key = f"probes/{uuid4().hex}"
    tries: list[Callable[[], bool]] = [
        lambda number=number: objects.create(key, b"%d" % number)  # type: ignore[misc]
        for number in range(PROBES)
    ]
    with ThreadPoolExecutor(PROBES) as pool:
        made = [each.result() for each in [pool.submit(call) for call in tries]]
    made.append(objects.create(key, b"again"))
    objects.delete([key])
    if made.count(True) != 1:
        raise ArchiveUnavailable(
            f"the archive {objects.url}: of {len(made)} creations of one object {made.count(True)} "
            "succeeded: this object store does not compare and set (If-None-Match), so it cannot "
            "keep two owners apart; use another one, or a newer version of it"
        )
