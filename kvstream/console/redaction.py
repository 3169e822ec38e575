"""Values that may not be seen: those of fields with secret names, and for viewers all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kvstream.console.access import Role, User
from kvstream.console.values import raw_of
from kvstream.errors import InvalidArgument, show
from kvstream.types.glob import matcher

HIDDEN = "(hidden)"
JSON_MAX = 32_000
"""Characters of JSON that is read for its names; longer JSON is hidden."""
_SPACE = " \t\r\n\ufeff"


class Redaction:
    """Which values are hidden, and from whom."""

    def __init__(self, names: Iterable[str], hides_values: bool) -> None:
        """``names``: patterns of names, such as "card*", in which case does not matter."""
        if isinstance(names, str | bytes):
            raise InvalidArgument(f"redact is a list of patterns of names, not {show(names)}")
        self._matchers = [matcher(raw_of(each.lower())) for each in names]
        self._hides_values = hides_values

    def hides_all(self, user: User) -> bool:
        """Return whether a user sees no value."""
        return self._hides_values and not user.may(Role.OPERATOR)

    def is_secret(self, name: bytes) -> bool:
        lower = name.lower()
        return any(is_one(lower) for is_one in self._matchers)

    def value(self, name: bytes, value: bytes) -> bytes:
        """Return a value of a field as it may be seen.

        In JSON the members with secret names are hidden. What cannot be read, such as binary data
        or very long JSON, is hidden as a whole, since it may have such names.
        """
        if not self._matchers:
            return value
        try:
            return HIDDEN.encode() if self.is_secret(name) else raw_of(self._text(value.decode()))
        except UnicodeDecodeError:
            return HIDDEN.encode()

    def _text(self, value: str) -> str:
        """Return a text as it may be seen: JSON may be in a string of JSON, too."""
        if not value.lstrip(_SPACE).startswith(("{", "[", '"')):
            return value
        try:
            if len(value) > JSON_MAX:
                return HIDDEN
            return json.dumps(self.plain(json.loads(value)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return HIDDEN

    def plain(self, value: Any) -> Any:
        """Return plain data, such as arguments, in which the values of secret names are hidden."""
        if not self._matchers:
            return value
        if isinstance(value, dict):
            return {
                name: HIDDEN if self.is_secret(raw_of(str(name))) else self.plain(each)
                for name, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.plain(each) for each in value]
        return self._text(value) if isinstance(value, str) else value
