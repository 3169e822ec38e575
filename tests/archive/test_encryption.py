"""The format of encrypted objects, and where their keys come from."""

import os
import shlex
import sys
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.archive import encryption, keys
from kvstream.archive.encryption import CHUNK, HEAD_BYTES, TAG_BYTES, decrypt_parts, encrypt
from kvstream.archive.keys import COMMAND_VARIABLE, VARIABLE, Key, Keys, find_keys
from kvstream.archive.objects import EncryptedObjects, open_objects
from kvstream.errors import (
    ArchiveUnavailable,
    Corruption,
    InvalidArgument,
    UnknownLayout,
    WrongArchiveKey,
)

SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))
KEYS, OTHERS = Keys(SECRET.hex()), Keys(OTHER.hex())

OBJECT = (
    "4b56435201a0d5ff290dd00a854b558b1c75bf66d2fe3e2b43458433775f5869c9bc6c051eb5"
    "35c24da417b4721a9eab792a1a84c008d74f48401c9e93de0219525a96800842ca"
)


def decrypt(data: bytes, name: str = "log/1", known: Keys = KEYS, step: int = 0) -> bytes:
    """Decrypt an object that comes in parts of ``step`` bytes; 0: whole."""
    step = step or max(len(data), 1)
    parts = iter([data[at : at + step] for at in range(0, len(data), step)])
    return b"".join(decrypt_parts(known, name, parts))


contents = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda chunks, more, seed: (bytes([seed]) * (chunks * CHUNK + more))[: 3 * CHUNK],
        st.integers(0, 3),
        st.integers(-2, 2).map(lambda n: max(n, 0)),
        st.integers(0, 255),
    ),
)
names = st.text(max_size=60)


@given(contents, names, st.integers(1, 100_000))
def test_what_is_encrypted_is_decrypted(content: bytes, name: str, step: int) -> None:
    data = encrypt(KEYS.first, name, content)
    chunks = max(-(-len(content) // CHUNK), 1)
    assert len(data) == HEAD_BYTES + len(content) + chunks * TAG_BYTES
    assert decrypt(data, name, step=step if len(data) < 5000 else max(step, 1000)) == content


@given(contents, st.data())
def test_any_change_is_found(content: bytes, data: st.DataObject) -> None:
    sound = encrypt(KEYS.first, "log/1", content)
    harmed = bytearray(sound)
    at = data.draw(st.integers(0, len(sound) - 1))
    harmed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Corruption, match="log/1"):
        decrypt(bytes(harmed))


@given(contents, st.data())
def test_any_cut_and_any_addition_is_found(content: bytes, data: st.DataObject) -> None:
    sound = encrypt(KEYS.first, "log/1", content)
    cut = data.draw(st.integers(0, len(sound) - 1))
    added = data.draw(st.binary(min_size=1, max_size=100))
    for harmed in (sound[:cut], sound + added):
        with pytest.raises(Corruption, match="log/1"):
            decrypt(harmed)


def test_chunks_that_are_removed_doubled_or_exchanged_are_found() -> None:
    sound = encrypt(KEYS.first, "log/1", os.urandom(4 * CHUNK))
    size = CHUNK + TAG_BYTES
    head = sound[:HEAD_BYTES]
    chunks = [sound[at : at + size] for at in range(HEAD_BYTES, len(sound), size)]
    assert decrypt(b"".join((head, *chunks))) == decrypt(sound)
    for order in ((0, 1, 2), (0, 1), (0, 2, 3), (0, 0, 1, 2, 3), (1, 0, 2, 3), (3,), ()):
        with pytest.raises(Corruption):
            decrypt(b"".join((head, *(chunks[number] for number in order))))


def test_an_object_is_not_taken_for_another_one() -> None:
    sound = encrypt(KEYS.first, "log/1", b"content")
    with pytest.raises(Corruption, match="log/2"):
        decrypt(sound, "log/2")
    other = encrypt(KEYS.first, "log/1", b"another")
    with pytest.raises(Corruption):
        decrypt(sound[:HEAD_BYTES] + other[HEAD_BYTES:])


def test_the_bytes_are_these() -> None:
    """A change of them would make archives unreadable: it needs another version."""
    key = KEYS.first
    assert key.id.hex() == "a0d5ff290dd00a85"
    assert encrypt(key, "log/0000000000000001", b"orders").hex() == OBJECT
    assert (
        key.name_of("00" * 32) == "8c76bdc53edf442c8aa0cb6eee3705a9f9752c279979936779b85b03c1250dd3"
    )


def test_the_same_object_has_the_same_bytes_and_another_one_another_key() -> None:
    key = KEYS.first
    first = encrypt(key, "log/1", b"content")
    assert first == encrypt(key, "log/1", b"content")
    heads = {
        encrypt(each, name, content)[:HEAD_BYTES]
        for each in (key, OTHERS.first)
        for name, content in (("log/1", b"content"), ("log/2", b"content"), ("log/1", b"contenu"))
    }
    # nor can a name be taken for the beginning of a content
    heads.add(encrypt(key, "log/1c", b"ontent")[:HEAD_BYTES])
    assert len(heads) == 7


def test_an_upload_has_another_key_each_time(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    objects, heads = open_objects(url, SECRET.hex()), set()
    for _ in range(3):
        objects.upload("tables/one", iter((b"content",)))
        heads.add((tmp_path / "bucket/tables/one").read_bytes()[:HEAD_BYTES])
        assert b"".join(objects.chunks("tables/one")) == b"content"
    assert len(heads) == 3


def test_nonces_count_and_mark_the_last_chunk() -> None:
    nonces = [
        encryption._nonce(number, last) for number in (0, 1, 255, 256) for last in (False, True)
    ]
    assert len(set(nonces)) == 8
    assert encryption._nonce(258, True).hex() == "0000000000000000000102" + "01"


def test_a_wrong_key_is_said_with_its_id() -> None:
    data = encrypt(OTHERS.first, "log/1", b"content")
    with pytest.raises(WrongArchiveKey) as raised:
        decrypt(data)
    for part in ("log/1", OTHERS.first.id.hex(), KEYS.first.id.hex(), VARIABLE):
        assert part in str(raised.value)
    both = Keys(f"{SECRET.hex()},{OTHER.hex()}")
    assert decrypt(data, known=both) == b"content"
    assert both.used == {OTHERS.first.id.hex(): 1}


def test_a_later_version_is_refused() -> None:
    data = bytearray(encrypt(KEYS.first, "log/1", b"content"))
    data[4] += 1
    with pytest.raises(Corruption):
        decrypt(bytes(data))
    start = bytes(data[: HEAD_BYTES - 4])
    with pytest.raises(UnknownLayout, match="a later version"):
        decrypt(start + crc32(start).to_bytes(4) + data[HEAD_BYTES:])


def test_names_of_tables_do_not_show_their_content() -> None:
    digest = "ab" * 32
    both = Keys(f"{SECRET.hex()} {OTHER.hex()}")
    first, second = both.names_of(digest)
    assert len({digest, first, second}) == 3
    assert KEYS.names_of(digest) == (first,)
    assert OTHERS.names_of(digest) == (second,)


def test_no_error_and_no_text_shows_a_key() -> None:
    assert SECRET.hex() not in repr(KEYS.first)
    wrong = SECRET.hex()[:-2] + "xy"
    with pytest.raises(InvalidArgument) as raised:
        Keys(wrong)
    assert wrong[:8] not in str(raised.value)


# --- where keys come from -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        SECRET.hex(),
        SECRET.hex().upper(),
        f"  {SECRET.hex()}\n",
        b64encode(SECRET).decode(),
        b64encode(SECRET).decode().rstrip("="),
        urlsafe_b64encode(SECRET).decode(),
    ],
)
def test_a_key_may_be_in_hexadecimal_digits_or_base64(text: str) -> None:
    assert Keys(text).first.id == Key(SECRET).id


def test_base64_may_be_that_for_urls() -> None:
    secret = b"\xfb\xff" * 16
    assert Keys(urlsafe_b64encode(secret).decode()).first.id == Key(secret).id


@pytest.mark.parametrize("text", ["secret", "00" * 16, "00" * 33, "=" * 44, "ü" * 64, "x" * 64])
def test_other_keys_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="32 bytes"):
        Keys(text)


def test_no_key_is_no_key() -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        Keys(" , ")


def test_keys_come_from_the_options_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_keys() == ""
    command = f"{shlex.quote(sys.executable)} -c 'print(\"from a command\")'"
    assert find_keys("given") == "given"
    assert find_keys(command=command) == "from a command"
    monkeypatch.setenv(COMMAND_VARIABLE, command)
    assert find_keys() == "from a command"
    assert find_keys("given") == "given"
    monkeypatch.delenv(COMMAND_VARIABLE)
    monkeypatch.setenv(VARIABLE, "from the environment")
    assert find_keys() == "from the environment"
    assert find_keys(command=command) == "from a command"
    with pytest.raises(InvalidArgument, match="not both"):
        find_keys("given", command)


@pytest.mark.parametrize("name", [VARIABLE, COMMAND_VARIABLE])
def test_an_empty_variable_does_not_switch_encryption_off(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, " ")
    with pytest.raises(InvalidArgument, match=f"{name} is empty"):
        find_keys()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import sys; sys.exit('no access to the vault')", "ended with code 1: no access to the"),
        ("", "has written nothing"),
        ("import time; time.sleep(60)", "timed out"),
    ],
)
def test_a_command_that_fails_is_said(
    monkeypatch: pytest.MonkeyPatch, program: str, says: str
) -> None:
    monkeypatch.setattr(keys, "COMMAND_S", 1.0)
    with pytest.raises(ArchiveUnavailable, match=says):
        find_keys(command=shlex.join([sys.executable, "-c", program]))


@pytest.mark.parametrize("command", ["/no/such/program", "'", ""])
def test_a_command_that_cannot_be_run_is_said(command: str) -> None:
    if not command:
        assert find_keys(command=command) == ""
        return
    with pytest.raises(ArchiveUnavailable, match="cannot be run"):
        find_keys(command=command)


def test_the_environment_encrypts_what_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/bucket"
    assert not isinstance(open_objects(url), EncryptedObjects)
    monkeypatch.setenv(VARIABLE, SECRET.hex())
    objects = open_objects(url)
    assert isinstance(objects, EncryptedObjects)
    for content in (b"", b"orders", bytes(CHUNK), bytes(CHUNK + 1)):
        name = f"log/{len(content)}"
        assert objects.create(name, content)
        assert not objects.create(name, content)
        assert objects.get(name) == content
        assert b"".join(objects.chunks(name)) == content
        assert b"orders" not in (tmp_path / "bucket" / name).read_bytes()
    assert objects.get("log/none") is None
    assert list(objects.chunks("log/none")) == []
