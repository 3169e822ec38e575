"""The scripts that a server keeps: by the SHA-1 of their text, with the flags of their first line.

Scripts of EVAL are kept as long as they are among the last 500 that ran, as in Redis 7.4; scripts
of SCRIPT LOAD are kept until SCRIPT FLUSH.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvstream.commands.args import text
from kvstream.errors import ProtocolError, RequestError
from kvstream.resp.requests import split_words

EVAL_SCRIPTS_MAX: Final = 500
"""Scripts of EVAL that are kept: Redis 7.4's bound."""
SCRIPT_BYTES: Final = 200
"""Memory of a script beside its text, for INFO."""
SHA_DIGITS: Final = 40


class ScriptFlag(StrEnum):
    """What a script says of itself in its first line."""

    NO_WRITES = "no-writes"
    ALLOW_OOM = "allow-oom"
    ALLOW_STALE = "allow-stale"
    NO_CLUSTER = "no-cluster"
    ALLOW_CROSS_SLOT_KEYS = "allow-cross-slot-keys"


@dataclass(slots=True, eq=False)
class Script:
    """One script."""

    sha: bytes
    source: bytes
    """Its whole text."""
    flags: frozenset[ScriptFlag] = frozenset()
    has_flags: bool = False
    """Its first line names the engine, so that its flags count."""
    body: bytes = b""
    """The text that is compiled: without the first line, but with its line break."""
    stays: bool = False
    """It was loaded by SCRIPT LOAD."""


def script_flags(words: bytes) -> frozenset[ScriptFlag]:
    """Parse flags parted by commas, or raise RequestError."""
    flags = set()
    for word in words.split(b",") if words else []:
        try:
            flags.add(ScriptFlag(text(word)))
        except ValueError:
            raise RequestError(f"Unexpected flag in script shebang: {text(word)}") from None
    return frozenset(flags)


def parse_script(sha: bytes, source: bytes) -> Script:
    """Return a script, or raise RequestError if its first line is wrong."""
    if not source.startswith(b"#!"):
        return Script(sha, source, body=source)
    line, newline, rest = source.partition(b"\n")
    if not newline:
        raise RequestError("Invalid script shebang")
    try:
        engine, *options = split_words(line)
    except ProtocolError:  # a quote does not close
        raise RequestError("Invalid engine in script shebang") from None
    if engine != b"#!lua":
        raise RequestError(f"Unexpected engine in script shebang: {text(engine)}")
    flags: frozenset[ScriptFlag] = frozenset()
    for option in options:
        if not option.startswith(b"flags="):
            raise RequestError(f"Unknown lua shebang option: {text(option)}")
        flags |= script_flags(option.removeprefix(b"flags="))
    return Script(sha, source, flags, has_flags=True, body=newline + rest)


class ScriptCache:
    """The scripts of one server."""

    def __init__(self, on_evict: Callable[[Script], None]) -> None:
        """``on_evict`` is called with each script that leaves because others ran after it."""
        self._on_evict = on_evict
        self.scripts: dict[bytes, Script] = {}
        """By their SHA-1 in small letters."""
        self._by_source: dict[bytes, Script] = {}
        self._recent: dict[bytes, None] = {}
        """Scripts of EVAL by SHA-1, the one that ran last at the end."""
        self.evicted = 0
        self.text_bytes = 0

    def __len__(self) -> int:
        return len(self.scripts)

    @property
    def memory(self) -> int:
        """The bytes that the scripts take, for INFO."""
        return self.text_bytes + SCRIPT_BYTES * len(self.scripts)

    def get(self, sha: bytes) -> Script | None:
        """Return the script of a SHA-1, in letters of any case."""
        script = self.scripts.get(sha)
        if script is None and len(sha) == SHA_DIGITS:
            script = self.scripts.get(sha.lower())
        if script is not None and not script.stays:
            self._use(script)
        return script

    def find(self, source: bytes) -> Script | None:
        """Return the script of a text."""
        script = self._by_source.get(source)
        if script is not None and not script.stays:
            self._use(script)
        return script

    def _use(self, script: Script) -> None:
        recent = self._recent
        if next(reversed(recent)) != script.sha:
            del recent[script.sha]
            recent[script.sha] = None

    def has(self, sha: bytes) -> bool:
        return sha in self.scripts or sha.lower() in self.scripts

    def add(self, script: Script, stays: bool) -> None:
        """Keep a script; ``stays``: until SCRIPT FLUSH."""
        self.scripts[script.sha] = self._by_source[script.source] = script
        self.text_bytes += len(script.source)
        script.stays = stays
        if stays:
            return
        self._recent[script.sha] = None
        if len(self._recent) > EVAL_SCRIPTS_MAX:
            oldest = self.scripts.pop(next(iter(self._recent)))
            del self._recent[oldest.sha], self._by_source[oldest.source]
            self.text_bytes -= len(oldest.source)
            self.evicted += 1
            self._on_evict(oldest)

    def keep(self, script: Script) -> None:
        """Keep a script of EVAL until SCRIPT FLUSH."""
        self._recent.pop(script.sha, None)
        script.stays = True

    def clear(self) -> None:
        """Forget all scripts."""
        self.scripts.clear()
        self._by_source.clear()
        self._recent.clear()
        self.text_bytes = 0


def sha1(data: bytes) -> bytes:
    """Return the SHA-1 of a text in hexadecimal digits."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest().encode()
