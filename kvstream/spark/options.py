"""What kvstream exchanges with Spark as text: options going in, errors coming out.

Spark passes the options of ``format("kvstream")`` as strings, with names in lower case. Options
that take several values (paths, URLs, streams, patterns) separate them by commas, or are a JSON
array if a name contains a comma.

An exception raised in a planner or a task comes back as text inside the stack traces of Python and
Java. ``error_of`` finds the last kvstream error in such a text.
"""

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote as percent_encode
from urllib.parse import urlsplit

from kvstream import errors
from kvstream.engine.coerce import path_of
from kvstream.errors import (
    InvalidArgument,
    InvalidID,
    KVStreamError,
    RequestError,
    WrongType,
    nearest,
    quote,
    show,
)
from kvstream.types.ids import (
    BOUNDS,
    MIN_ID,
    StreamID,
    duration_ms,
    position,
    range_end,
    range_start,
    time_ms,
)
from kvstream.types.urls import sentinels_start, show_url

Options = Mapping[str, str]

PASSWORD_VARIABLE = "KVSTREAM_PASSWORD"
"""The variable read if neither the option nor the URL has a password: plans do not show it."""
PATTERN_RENAMED = "pattern is now called match; the old name will go in a later version"
MISSING_HINT = "the option ignoreMissing (--ignore-missing) treats it as empty"
OPTIONS = (
    *("path", "paths", "url", "user", "password", "db", "ignoreMissing", "metaPrefix"),
    *("archive", "at", "preferReplica"),
    *("stream", "match", "pattern", "table"),
    *("start", "end", "asof", "partitions", "mode", "columnNameOfCorruptRecord", "failOnDataLoss"),
    *("startingId", "maxEntriesPerTrigger", "minEntriesPerTrigger", "maxTriggerDelay", "group"),
    *("txnAppId", "txnVersion", "skipExisting", "wait", "stagingPath", "delivery"),
)
"""Every option; one that an operation does not need is accepted there, so one dict fits several."""
_OF_SPARK = frozenset(
    {"checkpointlocation", "queryname"}  # of a query
    | {"collation", "comment", "external", "is_managed_location", "location", "owner", "provider"}
)
"""Names under which Spark passes its own settings and the properties of tables, in lower case."""
_OF_KAFKA = {
    "kafka.bootstrap.servers": "url (a server) or path (the directory of a store)",
    "kafka.group.id": "group",
    "groupIdPrefix": "group",
    "subscribe": "stream",
    "assign": "stream",
    "topic": "stream",
    "subscribePattern": "match (a pattern as KEYS takes it, not a regular expression)",
    "startingOffsets": "startingId in a streaming read, start in a batch read",
    "startingTimestamp": "startingId in a streaming read, start in a batch read",
    "startingOffsetsByTimestamp": "startingId in a streaming read, start in a batch read",
    "endingOffsets": "end",
    "endingTimestamp": "end",
    "endingOffsetsByTimestamp": "end",
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger",
    "minOffsetsPerTrigger": "minEntriesPerTrigger",
    "minPartitions": "partitions",
    "maxRecordsPerPartition": "partitions",
}
"""The options of Spark's source for Kafka, and ours for the same purpose."""
_WITHOUT_EQUAL = ("includeheaders", "startingoffsetsbytimestampstrategy")
_KAFKA_PREFIXES = ("kafka.", "kafkaconsumer.", "fetchoffset.")
_ONLY_BATCH = {
    "start": "a streaming read begins at startingId",
    "end": "a streaming read has no end",
    "asof": "a streaming read has no end",
    "table": "the metadata tables are read by spark.read",
    "archive": "a streaming read follows a store (path) or a server (url)",
    "at": "a streaming read begins at startingId",
}
_TABLE_HINT = (
    "Spark passes none of the options with which CREATE TABLE made a table: use CREATE TEMPORARY "
    "VIEW ... USING kvstream OPTIONS (...), or name them in each query, as in SELECT * FROM t WITH "
    "(path '/data', stream 'orders')"
)
_TRUE, _FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})


def check_names(options: Options) -> None:
    """Raise InvalidArgument for an option that does not exist; warn about a renamed one."""
    known = {name.lower() for name in OPTIONS} | _OF_SPARK
    of_kafka = {name.lower(): (name, ours) for name, ours in _OF_KAFKA.items()}
    for name in map(str.lower, options):
        if name in known or name.startswith("option."):  # Spark repeats those of a table so
            continue
        if name in of_kafka:
            theirs, ours = of_kafka[name]
            raise InvalidArgument(f"the option {theirs} is of Spark's Kafka source: use {ours}")
        if name in _WITHOUT_EQUAL or name.startswith(_KAFKA_PREFIXES):
            raise InvalidArgument(
                f"the option {name} is of Spark's Kafka source, and has no equal here: leave it out"
            )
        raise InvalidArgument(
            f"there is no option {show(name)}"
            + (nearest(name, OPTIONS) or ": docs/spark.md lists all")
        )
    if "pattern" in options:
        warnings.warn(PATTERN_RENAMED, FutureWarning, stacklevel=2)


def refuse_options_of_batches(options: Options) -> None:
    """Raise InvalidArgument for an option that would be without effect in a streaming read."""
    for name, instead in _ONLY_BATCH.items():
        if name in options:
            raise InvalidArgument(f"the option {name} is for batch reads: {instead}")


@dataclass(frozen=True, slots=True)
class Place:
    """One database that is read or written: of a directory, a server, or a moment of an archive."""

    kind: Literal["path", "url", "archive"]
    address: str = field(repr=False)
    """The path or URL; that of a server may contain a password."""
    db: int | None = None
    """None: the database in the URL, or 0."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The address without a password, for columns, plans, messages and checkpoints.

        A database is shown as the URL has it, or as ``?db=`` if the option ``db`` is not 0.
        """
        shown, db = self.address, str(self.db or "")
        if self.kind == "url":
            shown, _, named = show_url(self.address).partition("?db=")
            db = db or named
        return f"{shown}?db={db}" if db else shown

    @property
    def url(self) -> str:
        """The URL of a server, with the user and password of the options."""
        if self.user is None and self.password is None:
            return self.address
        scheme, _, rest = self.address.partition("://")
        netloc = urlsplit(self.address).netloc
        named, _, host = netloc.rpartition("@")
        user, _, password = named.partition(":")
        user = user if self.user is None else percent_encode(self.user, safe="")
        password = password if self.password is None else percent_encode(self.password, safe="")
        return f"{scheme}://{user}:{password}@{host}{rest[len(netloc) :]}"


def places(options: Options, *, with_archives: bool = False) -> list[Place]:
    """Return the places in ``path``, ``url`` or ``archive``, which only batch reads take.

    Raises InvalidArgument unless one of them is given.
    """
    archives = split_list(options, "archive")
    if archives and not with_archives:
        raise InvalidArgument("an archive can only be read, by spark.read: give path or url here")
    paths, urls = (
        split_list(options, "path") or split_list(options, "paths"),
        _urls(options),
    )
    if [bool(paths), bool(urls), bool(archives)].count(True) != 1:
        hint = "" if options else f". {_TABLE_HINT}"
        third = ", or archive (its URL)" if with_archives else ""
        raise InvalidArgument(
            f"give either the option path (a directory) or url (a server){third}{hint}"
        )
    if "at" in options and not archives:
        raise InvalidArgument("the option at is for archives: with path or url, use asof")
    db = number(options, "db", None)
    user = options.get("user")
    password = options.get("password") or os.environ.get(PASSWORD_VARIABLE)
    if paths:  # a server may hold the store: user and password are for that server
        paths = [os.path.abspath(path_of(path.removeprefix("file:"))) for path in paths]
    kind: Literal["path", "url", "archive"]
    kind = "path" if paths else "url" if urls else "archive"
    found = [Place(kind, address, db, user, password) for address in paths or urls or archives]
    repeated = [place.shown for place in found if found.count(place) > 1]
    if repeated:
        raise InvalidArgument(f"the option {kind} names {show(repeated[0])} twice")
    return found


def _urls(options: Options) -> list[str]:
    """Return the URLs of the option ``url``; one of Sentinels names several hosts by commas."""
    urls: list[str] = []
    for part in split_list(options, "url"):
        if "://" not in part and urls and sentinels_start(urls[-1]):
            urls[-1] += f",{part}"
        else:
            urls.append(part)
    return urls


def split_list(options: Options, name: str) -> list[str]:
    """Return the values of an option that takes several; [] if it is not given."""
    text = options.get(name, "").strip()
    if not text.startswith("["):
        return [part for word in text.split(",") if (part := word.strip())]
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(
            f"the option {name} begins with '[' but is not a JSON array: {error} (a name that "
            f"begins with '[' is given in an array: {json.dumps([text])})"
        ) from None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidArgument(f"the option {name} is not a JSON array of strings")
    return values


def patterns(options: Options) -> list[str]:
    """Return the values of the option ``match``, or of its old name ``pattern``."""
    return split_list(options, "match") or split_list(options, "pattern")


def duration_s(options: Options, name: str, missing: str) -> float:
    """Return a duration such as ``500ms``, ``10s``, ``15m``, ``15min`` or ``1h`` in seconds.

    A number without a unit is refused: Spark would take milliseconds, kvstream seconds.
    """
    text = options.get(name.lower(), "").strip() or missing
    ms = None if text[-1:].isdigit() else duration_ms(re.sub("min$", "m", text))
    if ms is None:
        raise InvalidArgument(
            f"the option {name} must be a number with ms, s, m, h or d, not {show(text)}"
        )
    return ms / 1000


def number(options: Options, name: str, missing: int | None, least: int = 0) -> int | None:
    """Return an integer option; ``missing`` if it is not given."""
    text = options.get(name, "").strip()
    if not text:
        return missing
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise InvalidArgument(
            f"the option {_spell(name)} must be an integer of at least {least}, not {show(text)}"
        )
    return int(text)


def flag(options: Options, name: str, missing: bool) -> bool:
    """Return a boolean option; ``missing`` if it is not given."""
    text = options.get(name, "").strip().lower()
    if not text:
        return missing
    if text not in _TRUE | _FALSE:
        raise InvalidArgument(f"the option {_spell(name)} must be true or false, not {show(text)}")
    return text in _TRUE


def _spell(name: str) -> str:
    """Return an option's name as the documentation spells it."""
    return next((known for known in OPTIONS if known.lower() == name), name)


def choice(options: Options, name: str, words: tuple[str, ...]) -> str:
    """Return the one of ``words`` that an option names, in any case; by default the first."""
    text = options.get(name, "").strip() or words[0]
    for word in words:
        if word.lower() == text.lower():
            return word
    raise InvalidArgument(f"the option {name} must be one of {', '.join(words)}, not {show(text)}")


def first_id(options: Options) -> StreamID:
    """Return the first ID of a read: the option ``start``, an ID or a time."""
    with _naming("start"):
        return range_start(options.get("start", "-").strip())


def last_id(options: Options) -> StreamID:
    """Return the last ID of a read: the lower of the options ``end`` and ``asof``."""
    ids = []
    for name in ("end", "asof"):
        with _naming(name):
            ids.append(range_end(options.get(name, "+").strip()))
    return min(ids)


def moment_ms(options: Options) -> int | None:
    """Return the option ``at``, a time, in Unix milliseconds; None, the end, if it is missing."""
    text = options.get("at", "").strip()
    if not text:
        return None
    ms = time_ms(text)
    if ms is None or ms < 0:
        raise InvalidArgument(
            f"the option at must be a time such as 2026-11-29T12:00:03.5Z or 1h ago, not "
            f"{show(text)}"
        )
    return ms


def after_id(options: Options) -> StreamID | None:
    """Return the ID after which a new streaming query begins, from ``startingId``.

    None means "latest". A time includes the entries of its own millisecond.
    """
    text = options.get("startingid", "earliest").strip()
    if text.lower() in ("earliest", "-"):
        return MIN_ID
    if text.lower() in ("latest", "$", "+"):
        return None
    with _naming("startingId"):
        return position(text, wanted=BOUNDS)


def is_stream(key: bytes, kind: str) -> bool:
    """Return whether a key exists, by its TYPE. Raises WrongType for a key that is no stream."""
    if kind not in ("stream", "none"):
        raise WrongType(f"{quote(key)} is a {kind}, not a stream")
    return kind == "stream"


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name an option in the error of its value."""
    try:
        yield
    except InvalidID as error:
        raise InvalidArgument(f"the option {name}: {error}") from None


_OURS = re.compile(r"^(?:kvstream\.)[\w.]*?(\w+): (\S.*)$", re.MULTILINE)
_STACKS = "SQLQueryContextLogger"
"""PySpark's logger for the JVM's stack trace: kilobytes of JSON in one line."""
_JAVA = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: (\S.*)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)+[\w$]+: (\S.*)$", re.MULTILINE)
_CONDITION = re.compile(r"^\[([A-Z_.]+)\] ")


class SparkFailed(RequestError):
    """A Spark job failed; the message is the first line of Spark's error."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the exceptions of Spark into kvstream errors."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(_STACKS)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # py4j's if Spark does not convert it
        raise error_of(str(error)) from error
    finally:
        logger.disabled = disabled


def error_of(text: str) -> KVStreamError:
    """Return the error described by the text of a Spark exception."""
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
    return SparkFailed(line or "the Spark job failed without a message")
