"""The words of an inline request: a line that somebody typed, split by Redis's rules of quoting.

Words are parted by blanks. ``"..."`` knows the escapes below, ``'...'`` only ``\\'``; a quote may
open inside a word, and must be the end of it where it closes.
"""

import re

from kvstream.errors import ProtocolError

_BLANKS = rb"[ \t\n\v\f\r]*"
# Vertical tabs and form feeds part words where blanks are skipped, but do not end a bare word.
_WORD = re.compile(
    rb"""
    (?P<bare> [^ \t\n\r"']*+ )
    (?: "(?P<double> (?: \\. | [^"\\] )*+ )"  (?= [ \t\n\v\f\r] | \Z )
      | '(?P<single> (?: \\' | [^'] )*+ )'    (?= [ \t\n\v\f\r] | \Z )
      | (?= [ \t\n\r] | \Z )
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_ODD = re.compile(rb"[\"'\v\f]")
_SKIPPED = re.compile(_BLANKS)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_words(line: bytes) -> list[bytes]:
    """Return the words of a line without its end; ProtocolError where a quote does not close."""
    if not _ODD.search(line):
        return line.split()
    words = []
    at = _after_blanks(line, 0)
    while at < len(line):
        match = _WORD.match(line, at)
        if match is None:
            raise ProtocolError("Protocol error: unbalanced quotes in request")
        bare, double, single = match["bare"], match["double"], match["single"]
        if double is not None:
            bare += _ESCAPE.sub(_unescaped, double)
        elif single is not None:
            bare += single.replace(b"\\'", b"'")
        words.append(bare)
        at = _after_blanks(line, match.end())
    return words


def _after_blanks(line: bytes, at: int) -> int:
    match = _SKIPPED.match(line, at)
    return match.end() if match else at


def _unescaped(match: re.Match[bytes]) -> bytes:
    if match[1] is not None:
        return bytes.fromhex(match[1].decode())
    return _ESCAPED.get(match[2], match[2])
