"""The TOML file that a server was started with, and CONFIG REWRITE: its settings as they are now.

Settings that are options of ``kvstream serve`` stand at the top under the option's name, all others
in the table ``[config]`` under the name that CONFIG has for them. Whatever was not changed stays
as it was written, comments included.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstream.errors import RequestError
from kvstream.storage import durable_files

TABLE = "config"
_HEADER = re.compile(r"\s*\[")
_OWN_HEADER = re.compile(rf"\s*\[\s*{TABLE}\s*\]\s*(#.*)?")
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^#"'\s]+)"""
_LINE = r"""(?P<head>\s*["']?%s["']?\s*=\s*)%s(?P<tail>\s*(#.*)?)"""
"""A setting of one line: whatever is written in several is not understood, and left alone."""


class RewriteFailed(RequestError):
    """The file was not rewritten, and is as it was."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file of settings."""

    path: Path
    options: frozenset[str] = frozenset()
    """The settings that stand at its top."""
    settings: Mapping[bytes, bytes] = field(default_factory=dict)
    """The others, as CONFIG SET would be given them."""

    def rewrite(self, changed: Mapping[str, str]) -> None:
        """Write the settings that have changed into the file, at once or not at all."""
        path = self.path.resolve()
        try:
            mode = path.stat().st_mode & 0o777
            text = rewritten(path.read_text(), changed, self.options)
            durable_files.write(path, text.encode())
            path.chmod(mode)
        except OSError as error:
            raise RewriteFailed(f"Rewriting config file: {error.strerror}") from None
        except UnicodeError:
            raise RewriteFailed("Rewriting config file: not UTF-8") from None


def rewritten(text: str, changed: Mapping[str, str], options: frozenset[str]) -> str:
    """Return a TOML text with settings changed; RewriteFailed where that goes beyond us."""
    lines = text.splitlines()
    wanted: dict[str, Any] = _parsed(text)
    for name, value in changed.items():
        at_top = name in options
        table = wanted if at_top else wanted.setdefault(TABLE, {})
        if not isinstance(table, dict):
            raise RewriteFailed(f"Rewriting config file: {TABLE} is no table")
        table[name] = _typed(value) if at_top else value
        _put(lines, name, _written(table[name]), at_top)
    result = "\n".join(lines) + "\n"
    if _parsed(result) != wanted:
        raise RewriteFailed("Rewriting config file: its settings are not one a line")
    return result


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RewriteFailed(f"Rewriting config file: {error}") from None


def _typed(value: str) -> Any:
    """Return a value as options are written: numbers and truths without quotes."""
    if value in ("yes", "no"):
        return value == "yes"
    return int(value) if re.fullmatch("-?[0-9]{1,18}", value) else value


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _put(lines: list[str], name: str, value: str, at_top: bool) -> None:
    """Give a setting its value, in the line that it has or in a new one."""
    start, end = _section(lines, at_top)
    pattern = re.compile(_LINE % (re.escape(name), _VALUE))
    for at in range(start, end):
        found = pattern.fullmatch(lines[at])
        if found is not None:
            lines[at] = found["head"] + value + found["tail"]
            return
    while end > start and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, f"{name} = {value}")


def _section(lines: list[str], at_top: bool) -> tuple[int, int]:
    """Return where the lines of the top begin and end, or those of our table, which is made."""
    headers = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    if at_top:
        return 0, headers[0] if headers else len(lines)
    for place, at in enumerate(headers):
        if _OWN_HEADER.fullmatch(lines[at]):
            return at + 1, headers[place + 1] if place + 1 < len(headers) else len(lines)
    lines += ["", f"[{TABLE}]"]
    return len(lines), len(lines)
