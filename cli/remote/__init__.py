"""A server's database with the calls of the library: kvstream's server, or Redis from 7.0 on.

Every call is a command that both servers know, and returns the library's records. A server refuses
what it does not know. redis-py is imported when a connection is made: it comes with
``kvstream[server]``.
"""

from collections.abc import Iterable, Sequence

from kvstream.engine.coerce import trim_of
from kvstream.operations.trim import RefPolicy, Strategy
from kvstream.remote.connection import Word
from kvstream.types.ids import IDLike, StreamID

Words = tuple[Word, ...]


def flag(word: str, given: object) -> Words:
    """Return the word of an option that is a flag."""
    return (word,) if given else ()


def option(word: str, value: Word | None) -> Words:
    """Return the word of an option and its value; nothing for None."""
    return () if value is None else (word, value)


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def duration(word: str, seconds: float | None) -> Words:
    """Return the word of an option and a duration in milliseconds; nothing for None."""
    return () if seconds is None else (word, milliseconds(seconds))


def id_word(value: IDLike) -> str | bytes:
    """Return an ID as text; ``-``, ``+``, ``$`` and exclusive bounds stay as they are."""
    return value if isinstance(value, str | bytes) else str(StreamID.parse(value))


def id_words(ids: Iterable[StreamID]) -> Words:
    return tuple(map(str, ids))


def id_block(ids: Sequence[StreamID]) -> Words:
    """Return the IDs as XACKDEL, XDELEX and XNACK take them."""
    return ("IDS", len(ids), *id_words(ids))


def trim_words(
    maxlen: int | None,
    minid: StreamID | None,
    approximate: bool,
    limit: int | None,
    ref_policy: RefPolicy | str | None,
) -> Words:
    """Return the options of a trim, with the checks of the library."""
    trim = trim_of(maxlen, minid, approximate, limit, RefPolicy(ref_policy) if ref_policy else None)
    if trim is None:
        return ()
    by_length = trim.strategy is Strategy.MAXLEN
    return (
        *flag(str(ref_policy), ref_policy),
        str(trim.strategy),
        "~" if approximate else "=",
        trim.maxlen if by_length else str(trim.minid),
        *option("LIMIT", limit),
    )
