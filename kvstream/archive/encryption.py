"""The objects of an encrypted archive, as bytes.

::

    object := head chunk* last
    head := magic version(u8) key salt check
      magic  "KVCR"
      key    the ID of the key: 8 bytes
      salt   32 bytes
      check  CRC-32 of all before it: a damaged ID is no wrong key (u32, big-endian)
    chunk := 65,536 bytes by AES-256-GCM, and its tag: 16 bytes
    last := the same of at most 65,536 bytes; of none only in an object that is empty
    key of AES := HKDF-SHA-256(key, salt, "kvstream archive object")
    nonce of a chunk := its number, from 0 (11 bytes, big-endian) and 1 in the last chunk, else 0
    authenticated with each chunk := head, and the name of the object

This is STREAM (Hoang, Reyhanitabar, Rogaway, Vizar: Online Authenticated-Encryption and its
Nonce-Reuse Misuse-Resistance, 2015) in the form of Tink's AES-GCM-HKDF streaming: a chunk that is
removed, moved, or added, and an object that is cut, exchanged or renamed fail to decrypt.

**No nonce is used twice with one key.** 96 random bits would do for 2^32 chunks of one key (NIST
SP 800-38D, 8.3), which a large archive exceeds. So each object has a key of its own, by a salt of
256 bits, and its nonces count. The salt of an upload is random. That of an object in memory is
HMAC-SHA-256 of its name and content with a derived key (a synthetic one, as in RFC 5297): the same
object has the same bytes, so a put that is repeated sends what the first one sent, and another
object has another key even where randomness fails, as in two copies of a virtual machine.

Tables are named by HMAC-SHA-256 of the SHA-256 of their content: a name says nothing to somebody
who has the content.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from struct import Struct
from typing import Any
from zlib import crc32

from kvstream.archive.format import ENCRYPTED, damaged, is_plain
from kvstream.archive.keys import ID_BYTES, SALT_BYTES, WHERE, Key, Keys
from kvstream.errors import UnknownLayout, WrongArchiveKey, optional_package

VERSION = 1
CHUNK = 1 << 16
TAG_BYTES = 16
_START = Struct(f">4sB{ID_BYTES}s{SALT_BYTES}s")
_CHECK = Struct(">I")
HEAD_BYTES = _START.size + _CHECK.size


def encrypt(key: Key, name: str, data: bytes) -> bytes:
    """Return an object; the same one for the same name and content."""
    return b"".join(encrypt_parts(key, name, key.salt_of(name, data), (data,)))


def encrypt_parts(key: Key, name: str, salt: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield an object in parts. A salt must not be used for another content."""
    start = _START.pack(ENCRYPTED, VERSION, key.id, salt)
    head = start + _CHECK.pack(crc32(start))
    cipher, known = _cipher(key, salt), head + name.encode()
    yield head
    for number, (chunk, is_last) in enumerate(_divide(parts, CHUNK)):
        yield cipher.encrypt(_nonce(number, is_last), chunk, known)


def decrypt_parts(keys: Keys, name: str, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of an object in parts.

    Raises WrongArchiveKey if its key is not among ``keys`` or it is not encrypted; UnknownLayout
    for a later version; Corruption for all other bytes, at the end if it was cut.
    """
    head, rest = _take_head(name, parts)
    _, version, key_id, salt = _START.unpack_from(head)
    if version > VERSION:
        raise UnknownLayout(
            f"{name} was encrypted by a later version of kvstream (format {version}, this one "
            f"reads up to {VERSION}): use that version"
        )
    cipher, known = _cipher(keys.find(key_id, name), salt), head + name.encode()
    invalid = optional_package("cryptography.exceptions").InvalidTag
    for number, (chunk, is_last) in enumerate(_divide(chain((rest,), parts), CHUNK + TAG_BYTES)):
        try:
            yield cipher.decrypt(_nonce(number, is_last), chunk, known)
        except invalid:
            raise damaged(
                name, "it was changed, cut, exchanged or renamed since it was encrypted"
            ) from None


def _take_head(name: str, parts: Iterator[bytes]) -> tuple[bytes, bytes]:
    """Return the head of an object, and what was read with it."""
    data = b""
    while len(data) < HEAD_BYTES and (part := next(parts, None)) is not None:
        data += part
    if is_plain(data):
        raise WrongArchiveKey(
            f"the archive is not encrypted (its object {name} is not), and a key was given: leave "
            f"the key out ({WHERE}), or begin an encrypted archive at another URL"
        )
    if len(data) < HEAD_BYTES or not data.startswith(ENCRYPTED):
        raise damaged(name, "it is no encrypted object, or cut short")
    head, rest = data[:HEAD_BYTES], data[HEAD_BYTES:]
    if _CHECK.unpack_from(head, _START.size)[0] != crc32(head[: _START.size]):
        raise damaged(name, "its head does not have its checksum")
    return head, rest


def _cipher(key: Key, salt: bytes) -> Any:
    aead: Any = optional_package("cryptography.hazmat.primitives.ciphers.aead", extra="archive")
    return aead.AESGCM(key.of_object(salt))


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11) + bytes((is_last,))


def _divide(parts: Iterable[bytes], size: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the bytes of all parts in chunks of a size, each with whether it is the last one."""
    held = b""
    for part in parts:
        at = size - len(held)
        if len(part) <= at:  # at least one byte is left for the last one
            held += part
            continue
        yield held + part[:at], False
        while len(part) - at > size:
            yield part[at : at + size], False
            at += size
        held = part[at:]
    yield held, True
