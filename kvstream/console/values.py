"""Untrusted bytes as HTML: escaped, cut, with control characters visible and bidi isolated.

A cell has a bounded size whatever its bytes are: text is cut, and bytes that are no text, or have
many control characters, are shown as hexadecimal digits.
"""

import json
from contextlib import suppress

from markupsafe import Markup, escape

from kvstream.types.formatting import size

CELL = 200
"""Bytes of a value in a list."""
WHOLE = 48_000
"""Bytes of a value on a page of its own."""
HEX_CELL = 48
_CONTROLS_SHARE = 10
"""Text in which one of so many characters is not printable is shown as hexadecimal digits."""
_JSON_MAX = 32_000
DIGITS_MAX = 18


def text(value: bytes | str, most: int = CELL, *, lines: bool = False) -> Markup:
    """Return a value as an isolated piece of HTML, cut to ``most`` bytes.

    With ``lines`` line ends and tabs stay as they are, for a block of preformatted text.
    """
    raw = raw_of(value) if isinstance(value, str) else value
    cut = raw[:most]
    shown = decoded(cut, is_cut=len(raw) > most)
    if shown is None or _is_wild(shown, lines):
        return _hex(raw, HEX_CELL if most <= CELL else most // 4)
    rest = Markup('<span class="cut">… {}</span>').format(size(len(raw)))
    return Markup("<bdi>{}</bdi>{}").format(_marked(shown, lines), rest if len(raw) > most else "")


def raw_of(value: str) -> bytes:
    """Return a text as bytes; half a surrogate pair, as JSON may have it, becomes an escape."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace")


def whole(value: str) -> int | None:
    """Return a number of the query; None for text, or more digits than a store can have."""
    return int(value) if value.isdecimal() and len(value) <= DIGITS_MAX else None


def decoded(raw: bytes, *, is_cut: bool) -> str | None:
    """Return the text of UTF-8; None for other bytes. A character that was cut is left out."""
    for end in (len(raw), *(range(len(raw) - 1, len(raw) - 4, -1) if is_cut else ())):
        with suppress(UnicodeDecodeError):
            return raw[: max(0, end)].decode()
    return None


def _is_visible(char: str, lines: bool) -> bool:
    return char.isprintable() or (lines and char in "\n\t")


def _is_wild(shown: str, lines: bool) -> bool:
    controls = sum(not _is_visible(char, lines) for char in shown if char not in "\r\n\t")
    return controls > 2 and controls * _CONTROLS_SHARE > len(shown)


def _marked(shown: str, lines: bool) -> Markup:
    """Escape a text; characters that cannot be seen become marked escapes."""
    if shown.isprintable():
        return escape(shown)
    parts: list[Markup] = []
    plain: list[str] = []
    hidden: list[str] = []
    for char in shown + " ":
        if _is_visible(char, lines):
            if hidden:
                parts.append(Markup('<i class="ctl">{}</i>').format("".join(hidden)))
                hidden = []
            plain.append(char)
        else:
            if plain:
                parts.append(escape("".join(plain)))
                plain = []
            hidden.append(char.encode("unicode_escape").decode("ascii"))
    parts.append(escape("".join(plain)[:-1]))
    return Markup("").join(parts)


def _hex(raw: bytes, most: int) -> Markup:
    digits = raw[:most].hex(" ", 2)
    more = "…" if len(raw) > most else ""
    return Markup('<span class="hex" title="bytes">{}{}</span> <span class="cut">{}</span>').format(
        digits, more, size(len(raw))
    )


def pretty_json(value: bytes) -> str | None:
    """Return a JSON object or array with indentation; None for other bytes, or long ones."""
    if len(value) > _JSON_MAX or not value.lstrip().startswith((b"{", b"[")):
        return None
    with suppress(ValueError, RecursionError):
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False)[:WHOLE]
    return None
