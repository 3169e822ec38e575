"""The options of ``format("kvstream")``, as Spark gives them: text under names in lower case.

What may be several (paths, URLs, streams, patterns) is separated by commas, or is a JSON array
where a name has a comma. Owns the words that reading and writing share; knows no transport.

What went wrong in a job of Spark, as one error of kvstream without the stacks of two languages.

What our own code raised in a planner or a task comes out of Spark as text in text; the last error
of kvstream in it is what happened. This module knows how Spark words things, and no job.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

from kvstream import errors
from kvstream.engine.coerce import path_of
from kvstream.errors import InvalidArgument, InvalidID, KVStreamError, RequestError, shown
from kvstream.types.ids import MIN_ID, StreamID, range_end, range_start

Options = Mapping[str, str]

PASSWORD_VARIABLE = "KVSTREAM_PASSWORD"
"""Where the password of ``url`` is looked for last: a variable does not stand in any plan."""
MISSING_HINT = "with the option ignoreMissing (--ignore-missing) it would count as empty"
_TRUE, _FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Place:
    """One database that is read or written: of a store in a directory, or behind a server."""

    kind: Literal["path", "url"]
    address: str = field(repr=False)
    """With a password in it where the option ``url`` has one there."""
    db: int | None = None
    """None: the one that the URL names, or 0."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """How columns, plans and messages name the place: never with a password."""
        if self.kind == "path":
            return self.address
        parts = urlsplit(self.address)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}"


def places(options: Options) -> list[Place]:
    """Return the places that ``path`` or ``url`` name; InvalidArgument for both, or neither."""
    paths, urls = listed(options, "path") or listed(options, "paths"), listed(options, "url")
    if bool(paths) == bool(urls):
        raise InvalidArgument("give either the option path (a directory) or url (a server)")
    db = number(options, "db", None)
    user = options.get("user")
    password = options.get("password") or os.environ.get(PASSWORD_VARIABLE)
    if paths:  # user and password are for the server that may hold a store
        found = [os.path.abspath(path_of(path.removeprefix("file:"))) for path in paths]
        return [Place("path", path, db, user, password) for path in found]
    return [Place("url", url, db, user, password) for url in urls]


def listed(options: Options, name: str) -> list[str]:
    """Return the values of an option that may be several; [] where it is not given."""
    text = options.get(name, "").strip()
    if not text.startswith("["):
        return [part for word in text.split(",") if (part := word.strip())]
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"the option {name} is no JSON array: {error}") from None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidArgument(f"the option {name} is no JSON array of texts")
    return values


def number(options: Options, name: str, missing: int | None, least: int = 0) -> int | None:
    """Return a whole number, ``missing`` where the option is not given."""
    text = options.get(name, "").strip()
    if not text:
        return missing
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise InvalidArgument(f"the option {name} is a number from {least} on, not {shown(text)}")
    return int(text)


def flag(options: Options, name: str, missing: bool) -> bool:
    """Return whether an option is true, ``missing`` where it is not given."""
    text = options.get(name, "").strip().lower()
    if not text:
        return missing
    if text not in _TRUE | _FALSE:
        raise InvalidArgument(f"the option {name} is true or false, not {shown(text)}")
    return text in _TRUE


def choice(options: Options, name: str, words: tuple[str, ...]) -> str:
    """Return one of some words, in whatever case it is given; the first where it is not."""
    text = options.get(name, "").strip() or words[0]
    for word in words:
        if word.lower() == text.lower():
            return word
    raise InvalidArgument(f"the option {name} is one of {', '.join(words)}, not {shown(text)}")


def first_id(options: Options) -> StreamID:
    """Return the first ID of the read: the option ``start``, an ID or a time."""
    return range_start(_bound(options.get("start", "-")))


def last_id(options: Options) -> StreamID:
    """Return the last ID of the read: the lesser of the options ``end`` and ``asof``."""
    return min(range_end(_bound(options.get(name, "+"))) for name in ("end", "asof"))


def after_id(options: Options) -> StreamID | None:
    """Return the ID after which a new streaming query begins: ``startingId``; None: what is new.

    A time stands for all that is of its millisecond, or later.
    """
    text = options.get("startingid", "earliest").strip()
    if text.lower() in ("earliest", "-"):
        return MIN_ID
    if text.lower() in ("latest", "$", "+"):
        return None
    with suppress(InvalidID):
        return StreamID.parse(text)
    ms = _milliseconds(text)
    return StreamID(ms, 0).previous() if ms else MIN_ID


def _bound(text: str) -> str:
    """Return an ID as it stands, and a time of ISO 8601 as the ID of its millisecond.

    A time without a zone is of UTC. "(" before either excludes it.
    """
    text = text.strip()
    mark, bare = ("(", text[1:]) if text.startswith("(") else ("", text)
    if bare in ("-", "+"):
        return text
    try:
        StreamID.parse(bare)
    except InvalidID:
        return f"{mark}{_milliseconds(bare)}"
    return text


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"{shown(text)} is neither an ID nor a time") from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return max(0, since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000)


_OURS = re.compile(r"^(?:kvstream\.)[\w.]*?(\w+): (\S.*)$", re.MULTILINE)
_STACKS = "SQLQueryContextLogger"
"""What PySpark logs the JVM's stack to, as JSON of some kilobytes in one line."""
_JAVA = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: (\S.*)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)+[\w$]+: (\S.*)$", re.MULTILINE)
_CONDITION = re.compile(r"^\[([A-Z_.]+)\] ")


class SparkFailed(RequestError):
    """A job of Spark failed; the text is the first line of what Spark says."""


@contextmanager
def plainly() -> Iterator[None]:
    """Raise what Spark raises as an error of kvstream."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(_STACKS)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # the latter where Spark knows no better
        raise error_of(str(error)) from error
    finally:
        logger.disabled = disabled


def error_of(text: str) -> KVStreamError:
    """Return the error that a text of Spark tells of."""
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, KVStreamError):
            return kind(message)
        return SparkFailed(message)
    java = _JAVA.search(text)
    line = _CONDITION.sub("", java[1] if java else text.strip().partition("\n")[0])
    causes = [cause for cause in _CAUSE.findall(text) if cause not in line]
    if causes:
        line += f" ({causes[-1]})"
    return SparkFailed(line or "Spark does not say why")
