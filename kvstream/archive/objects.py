"""An object store: named bytes. The only module that reaches one.

``file://`` is a folder, such as a second disk or NFS; its objects are durable when they are made.
The others, ``s3://``, ``gs://`` and ``az://``, are reached by obstore, with addresses and
credentials from its environment variables (``AWS_ENDPOINT``, ``AWS_ACCESS_KEY_ID`` ...).

With a key, all bytes are encrypted before they leave this process (``EncryptedObjects``).

obstore must not be used before a fork: a child would wait for threads that it does not have. So a
store is opened in the process that owns it, and a child of a process that has used it is refused.
"""

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from kvstream.archive.encryption import decrypt_parts, encrypt, encrypt_parts
from kvstream.archive.keys import SALT_BYTES, Keys, find_keys
from kvstream.errors import (
    ArchiveUnavailable,
    InvalidArgument,
    KVStreamError,
    StoreError,
    optional_package,
)
from kvstream.storage import files

SCHEMES = ("file", "s3", "gs", "az")
RETRY_S = 10.0
"""How long obstore repeats a request that was not answered."""
TIMEOUT_S = 30.0
"""How long one request may take, its bytes included."""
PATIENT_S = 600.0
"""The same for an object of more than ``LARGE`` bytes."""
LARGE = 4 << 20
_RANGE = 1 << 20
"""Bytes that one request fetches of a table: eight at a time took 140 MB of memory with 4 MB."""
_PART = 8 << 20
"""Bytes of a table that one request puts: S3 takes 10,000 parts of at least 5 MB."""
_PARTS = 2
"""Parts that are put at a time."""
_JOINED = 16
"""Encrypted chunks of 64 KB that are put together."""
PROBES = 8
"""Creations of one key that race when an archive is first used."""
_DELETED = 1000
"""Objects that one request deletes."""
_PARTIAL = ".partial"
_XML = re.compile(r"<\?xml.*<Code>(.*?)</Code>\s*<Message>(.*?)</Message>.*", re.DOTALL)
"""The document with which an S3 server refuses a request."""


class Found(NamedTuple):
    """An object in a listing."""

    key: str
    size: int
    modified_ms: int
    """When it was made, by the clock of the object store, in Unix ms."""


class Objects(Protocol):
    """An object store, below a prefix. Every call raises ArchiveUnavailable if it fails."""

    url: str

    def create(self, key: str, data: bytes) -> bool:
        """Make an object; return False, with nothing changed, if there is one with this key."""
        ...

    def upload(self, key: str, parts: Iterable[bytes]) -> None:
        """Make an object, or replace it by its like; nobody sees a part of it."""
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

    def table_names(self, digest: str) -> tuple[str, ...]:
        """Return the names that a table with this SHA-256 may have; the first is for new ones."""
        return (digest,)


def open_objects(url: str, key: str = "") -> Objects:
    """Return the object store of a URL, encrypted with ``key`` or that of the environment.

    ``key`` has one or more keys (keys.py). Raises InvalidArgument for another URL or key,
    ClientMissing if a package is needed and not installed.
    """
    keys = find_keys(key)
    objects = _open(url)
    return EncryptedObjects(objects, Keys(keys)) if keys else objects


def _open(url: str) -> Objects:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InvalidArgument(
            f"an archive is a URL of {', '.join(scheme + '://' for scheme in SCHEMES)}, such as "
            f"s3://bucket/orders or file:///mnt/disk/orders, not {url!r}"
        )
    optional_package("zstandard", extra="archive")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidArgument(f"give an absolute path: file:///mnt/disk/orders, not {url!r}")
        return Folder(url, Path(unquote(parts.path)))
    if not parts.netloc:
        raise InvalidArgument(f"{url!r} names no bucket")
    return Bucket(url)


class Folder(Objects):
    """A folder as an object store."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self._path = path

    def create(self, key: str, data: bytes) -> bool:
        path = self._path / key
        partial = path.with_name(f"{path.name}.{uuid4().hex}{_PARTIAL}")
        try:
            if path.exists():
                return False
            _make_folder(path.parent)
            try:
                _write(partial, (data,))
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

    def upload(self, key: str, parts: Iterable[bytes]) -> None:
        path = self._path / key
        partial = path.with_name(f"{path.name}.{uuid4().hex}{_PARTIAL}")
        try:
            _make_folder(path.parent)
            try:
                _write(partial, parts)
                partial.replace(path)
            finally:
                with suppress(OSError):
                    partial.unlink()
            files.sync_directory(path.parent)
        except OSError as error:
            raise _unavailable(self.url, f"cannot write {path}", error) from None

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
                    status = entry.stat()
                    modified_ms = status.st_mtime_ns // 1_000_000
                    yield Found(prefix + entry.name, status.st_size, modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        try:
            for key in keys:
                with suppress(FileNotFoundError):
                    (self._path / key).unlink()
        except OSError as error:
            raise _unavailable(self.url, "cannot delete", error) from None


def _make_folder(path: Path) -> None:
    """Make a folder and those above it, durably."""
    if not path.is_dir():
        _make_folder(path.parent)
        with suppress(FileExistsError):
            path.mkdir()
        files.sync_directory(path.parent)


def _write(path: Path, parts: Iterable[bytes]) -> None:
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        files.sync(file.fileno())


_has_used_obstore = False
_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = _has_used_obstore


os.register_at_fork(after_in_child=_note_fork)


class Bucket(Objects):
    """An object store that obstore reaches."""

    def __init__(self, url: str) -> None:
        global _has_used_obstore
        if _is_forked:
            raise StoreError(
                "this process was forked by one that had reached an archive, and lacks the threads "
                "of that: start it with spawn, or reach archives in children only"
            )
        self.url = url
        self._api: Any = optional_package("obstore", extra="archive")
        self._absent = self._api.exceptions.NotFoundError, FileNotFoundError
        _has_used_obstore = True
        try:
            self._store = _open_bucket(url, TIMEOUT_S)
            self._patient = _open_bucket(url, PATIENT_S)
        except Exception as error:
            raise InvalidArgument(f"the archive {url} cannot be opened: {_text(error)}") from None

    def create(self, key: str, data: bytes) -> bool:
        store = self._store if len(data) <= LARGE else self._patient
        try:
            self._api.put(store, key, data, mode="create", use_multipart=False)
        except self._api.exceptions.AlreadyExistsError:
            return False
        except Exception as error:
            raise _unavailable(self.url, f"cannot put {key}", error) from None
        return True

    def upload(self, key: str, parts: Iterable[bytes]) -> None:
        remaining = iter(parts)
        first = _take(remaining, _PART)
        try:
            if len(first) < _PART:
                self._api.put(self._patient, key, first, use_multipart=False)
                return
            self._api.put(
                self._patient,
                key,
                chain((first,), remaining),
                use_multipart=True,
                chunk_size=_PART,
                max_concurrency=_PARTS,
            )
        except KVStreamError:  # of the parts
            raise
        except Exception as error:
            raise _unavailable(self.url, f"cannot put {key}", error) from None

    def get(self, key: str) -> bytes | None:
        try:
            found = self._api.get(self._store, key)
            is_large = found.meta["size"] > LARGE
            return b"".join(self.chunks(key)) if is_large else bytes(found.bytes())
        except self._absent:
            return None
        except Exception as error:
            raise _unavailable(self.url, f"cannot get {key}", error) from None

    def chunks(self, key: str) -> Iterator[bytes]:
        try:
            meta = self._api.head(self._store, key)
        except self._absent:
            return
        except Exception as error:
            raise _unavailable(self.url, f"cannot look at {key}", error) from None
        for start in range(0, meta["size"], _RANGE):  # each is repeated by itself if it fails
            part = start, min(start + _RANGE, meta["size"])
            # an upload that replaces it meanwhile must not be read on in the middle
            options = {"range": part, "if_match": meta["e_tag"]}
            try:
                yield bytes(self._api.get(self._store, key, options=options).bytes())
            except self._absent:
                return
            except Exception as error:
                raise _unavailable(self.url, f"cannot get {key}", error) from None

    def list(self, prefix: str, after: str = "") -> Iterator[Found]:
        try:
            found = [
                Found(each["path"], each["size"], int(each["last_modified"].timestamp() * 1000))
                for page in self._api.list(self._store, prefix, offset=after or None)
                for each in page
            ]
        except Exception as error:
            raise _unavailable(self.url, f"cannot list {prefix}", error) from None
        yield from sorted(found)

    def delete(self, keys: Iterable[str]) -> None:
        names = [*keys]
        try:
            for start in range(0, len(names), _DELETED):
                with suppress(*self._absent):
                    self._api.delete(self._store, names[start : start + _DELETED])
        except Exception as error:
            raise _unavailable(self.url, "cannot delete", error) from None


class _Passing(Objects):
    """Passes all calls on to another object store."""

    def __init__(self, objects: Objects) -> None:
        self.url = objects.url
        self._objects = objects

    def create(self, key: str, data: bytes) -> bool:
        return self._objects.create(key, data)

    def upload(self, key: str, parts: Iterable[bytes]) -> None:
        self._objects.upload(key, parts)

    def get(self, key: str) -> bytes | None:
        return self._objects.get(key)

    def chunks(self, key: str) -> Iterator[bytes]:
        return self._objects.chunks(key)

    def list(self, prefix: str, after: str = "") -> Iterator[Found]:
        return self._objects.list(prefix, after)

    def delete(self, keys: Iterable[str]) -> None:
        self._objects.delete(keys)

    def table_names(self, digest: str) -> tuple[str, ...]:
        return self._objects.table_names(digest)


class KeptObjects(_Passing):
    """An object store of which each object is got once: then it is a file in a folder."""

    def __init__(self, objects: Objects, folder: Path) -> None:
        super().__init__(objects)
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        path = self._folder / key.replace("/", "-")
        with suppress(FileNotFoundError):
            return path.read_bytes()
        data = self._objects.get(key)
        if data is not None:
            path.write_bytes(data)
        return data


class EncryptedObjects(_Passing):
    """An object store with the content of all objects encrypted, and tables under keyed names."""

    def __init__(self, objects: Objects, keys: Keys) -> None:
        super().__init__(objects)
        self.keys = keys

    def create(self, key: str, data: bytes) -> bool:
        return self._objects.create(key, encrypt(self.keys.first, key, data))

    def upload(self, key: str, parts: Iterable[bytes]) -> None:
        salt = os.urandom(SALT_BYTES)  # by content one would need all of it
        self._objects.upload(key, _join(encrypt_parts(self.keys.first, key, salt, parts)))

    def get(self, key: str) -> bytes | None:
        data = self._objects.get(key)
        return None if data is None else b"".join(decrypt_parts(self.keys, key, iter((data,))))

    def chunks(self, key: str) -> Iterator[bytes]:
        parts = self._objects.chunks(key)
        first = next(parts, None)
        if first is not None:
            yield from decrypt_parts(self.keys, key, chain((first,), parts))

    def table_names(self, digest: str) -> tuple[str, ...]:
        return self.keys.names_of(digest)


def _join(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield chunks some at a time: an upload asks for fewer of them."""
    while batch := list(islice(chunks, _JOINED)):
        yield b"".join(batch)


def _take(parts: Iterator[bytes], size: int) -> bytes:
    """Return the next parts, until they have ``size`` bytes or there are no more."""
    taken = bytearray()
    for part in parts:
        taken += part
        if len(taken) >= size:
            break
    return bytes(taken)


def _open_bucket(url: str, timeout_s: float) -> Any:
    retry = {"max_retries": 10, "retry_timeout": timedelta(seconds=RETRY_S)}
    options = {"timeout": timedelta(seconds=timeout_s), "allow_http": True}
    from_url = optional_package("obstore.store").from_url
    return from_url(url, client_options=options, retry_config=retry)


def _text(error: Exception) -> str:
    """Return what an error says, in one line.

    Without obstore's dump of its internals, and of an XML document its code and message alone.
    """
    said = _XML.sub(r"\1: \2", str(error).partition("\n\nDebug source")[0])
    return " ".join(said.split()) or type(error).__name__


def _unavailable(url: str, what: str, error: Exception) -> ArchiveUnavailable:
    return ArchiveUnavailable(f"the archive {url}: {what}: {_text(error)}")


def refuse_overwriting(objects: Objects) -> None:
    """Raise ArchiveUnavailable if two creations of one key can both succeed.

    Some object stores take the condition and ignore it: then two owners would not notice each
    other, and acknowledged writes would be lost.
    """
    key = f"probes/{uuid4().hex}"
    contents = [b"%d" % number for number in range(PROBES)]
    with ThreadPoolExecutor(PROBES) as pool:
        made = [*pool.map(lambda content: objects.create(key, content), contents)]
    made.append(objects.create(key, b"again"))
    kept = objects.get(key)
    objects.delete([key])
    # One may have been made although none says so: its answer was lost, and it was sent again.
    if made.count(True) > 1 or kept not in contents:
        raise ArchiveUnavailable(
            f"the archive {objects.url}: of {len(made)} creations of one object {made.count(True)} "
            "succeeded: this object store does not compare and set (If-None-Match), so it cannot "
            "keep two owners apart; use another one, or a newer version of it"
        )
