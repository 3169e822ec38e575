"""Keys of encrypted archives: where they come from, and what is derived from each.

A key is 32 random bytes, written in hexadecimal digits or base64. Several are separated by commas
or white space: the first encrypts, the others only decrypt what was written before it was first.
They are options, or in the environment: ``KVSTREAM_ARCHIVE_KEY`` has the keys themselves,
``KVSTREAM_ARCHIVE_KEY_COMMAND`` a command that writes them to its standard output.

All that is derived from a key comes from HKDF-SHA-256 (RFC 5869), each with a purpose of its own,
so that none says anything about the key or another one. The ID names the key in an object's head.
"""

import os
import shlex
import subprocess
import threading
from base64 import b64decode
from collections import Counter
from hmac import digest as hmac
from typing import Any

from kvstream.errors import ArchiveUnavailable, InvalidArgument, WrongArchiveKey, optional_package

KEY_BYTES = 32
ID_BYTES = 8
SALT_BYTES = 32
VARIABLE = "KVSTREAM_ARCHIVE_KEY"
COMMAND_VARIABLE = f"{VARIABLE}_COMMAND"
COMMAND_S = 60.0
"""How long a command may take to give the keys."""
WHERE = f"{VARIABLE}, {COMMAND_VARIABLE} or the options archive_key and archive_key_command"
_NEW = "make one with: openssl rand -base64 32"


class Key:
    """One key, and what is derived from it."""

    __slots__ = ("_names", "_salts", "_secret", "id")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id = self._derive(b"id")[:ID_BYTES]
        self._names, self._salts = self._derive(b"names"), self._derive(b"salts")

    def __repr__(self) -> str:
        return f"<Key {self.id.hex()}>"

    def of_object(self, salt: bytes) -> bytes:
        """Return the key of the object with this salt."""
        return self._derive(b"object", salt)

    def salt_of(self, name: str, content: bytes) -> bytes:
        """Return the salt of an object of this name and content."""
        raw = name.encode()
        return hmac(self._salts, len(raw).to_bytes(4) + raw + content, "sha256")

    def name_of(self, digest: str) -> str:
        """Return the name of a table by its SHA-256, both in hexadecimal digits."""
        return hmac(self._names, bytes.fromhex(digest), "sha256").hex()

    def _derive(self, purpose: bytes, salt: bytes | None = None) -> bytes:
        kdf: Any = optional_package("cryptography.hazmat.primitives.kdf.hkdf", extra="archive")
        hashes: Any = optional_package("cryptography.hazmat.primitives.hashes", extra="archive")
        info = b"kvstream archive " + purpose
        derived: bytes = kdf.HKDF(hashes.SHA256(), KEY_BYTES, salt, info).derive(self._secret)
        return derived


class Keys:
    """The keys of an archive, by their IDs."""

    def __init__(self, text: str) -> None:
        """Read the keys; InvalidArgument if one has not 32 bytes."""
        keys = [Key(_decode(word)) for word in text.replace(",", " ").split()]
        if not keys:
            raise InvalidArgument(f"the key of the archive is empty: {_NEW}")
        self.first = keys[0]
        self._by_id = {key.id: key for key in keys}
        self._counting = threading.Lock()
        self.used: Counter[str] = Counter()
        """How many objects were read with each key, by its ID."""

    def find(self, key_id: bytes, name: str) -> Key:
        """Return the key of an object; raise WrongArchiveKey if it was not given."""
        key = self._by_id.get(key_id)
        if key is None:
            given = ", ".join(each.hex() for each in self._by_id)
            raise WrongArchiveKey(
                f"the object {name} of the archive is encrypted with the key {key_id.hex()}, and "
                f"the keys that were given are {given}: add it behind the first one ({WHERE})"
            )
        with self._counting:
            self.used[key_id.hex()] += 1
        return key

    def names_of(self, digest: str) -> tuple[str, ...]:
        """Return the names that a table may have, first that of new ones."""
        return tuple(key.name_of(digest) for key in self._by_id.values())


def find_keys(text: str = "", command: str = "") -> str:
    """Return keys as text: those given, what a command writes, or those of the environment.

    Returns "" if there are none. Raises InvalidArgument if a variable is empty, since an archive
    would not be encrypted whose owner believes that it is; ArchiveUnavailable if a command fails.
    """
    for name in (VARIABLE, COMMAND_VARIABLE):
        if not os.environ.get(name, "unset").strip():
            raise InvalidArgument(f"{name} is empty: give it a value, or unset it")
    if not text and not command:
        text, command = os.environ.get(VARIABLE, ""), os.environ.get(COMMAND_VARIABLE, "")
    if text and command:
        raise InvalidArgument(f"give the key of the archive, or a command, not both ({WHERE})")
    return text or (_run(command) if command else "")


def _run(command: str) -> str:
    """Return what a command writes; it has no shell, and nothing to read."""
    what = "the command that gives the key of the archive"
    try:
        done = subprocess.run(
            shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ArchiveUnavailable(f"{what} cannot be run: {error}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-200:]
        raise ArchiveUnavailable(f"{what} ended with code {done.returncode}: {said}")
    text = done.stdout.decode(errors="replace").strip()
    if not text:
        raise ArchiveUnavailable(f"{what} has written nothing")
    return text


def _decode(word: str) -> bytes:
    """Return the bytes of a key. No error shows it."""
    try:
        if len(word) == 2 * KEY_BYTES:
            return bytes.fromhex(word)
        plain = word.replace("-", "+").replace("_", "/").rstrip("=")
        secret = b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise InvalidArgument(
            f"a key of an archive is {KEY_BYTES} bytes in hexadecimal digits or base64, not "
            f"{len(word)} characters like these; {_NEW}"
        )
    return secret
