"""Arguments of the library as words of commands. It knows no connection."""

from collections.abc import Iterable, Sequence

from kvstream.engine.coerce import trim_of
from kvstream.operations.trim import RefPolicy, Strategy
from kvstream.remote.connection import Word
from kvstream.types.ids import IDLike, StreamID

Words = tuple[Word, ...]


def flag(word: str, given: object) -> Words:
    """Return a word where its option was given."""
    return (word,) if given else ()


def option(word: str, value: Word | None) -> Words:
    """Return a word and its value, where there is one."""
    return () if value is None else (word, value)


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def duration(word: str, seconds: float | None) -> Words:
    """Return a word and milliseconds, where a duration was given."""
    return () if seconds is None else (word, milliseconds(seconds))


def id_word(value: IDLike) -> str | bytes:
    """Return an ID as a command has it; signs and open bounds stay."""
    return value if isinstance(value, str | bytes) else str(StreamID.parse(value))


def id_words(ids: Iterable[StreamID]) -> Words:
    return tuple(map(str, ids))


def id_block(ids: Sequence[StreamID]) -> Words:
    """Return the block of IDs that the newer commands take."""
    return ("IDS", len(ids), *id_words(ids))


def trim_words(
    maxlen: int | None,
    minid: StreamID | None,
    approximate: bool,
    limit: int | None,
    ref_policy: RefPolicy | str | None,
) -> Words:
    """Return the options of a trim, which are checked as those of a store are."""
    how = trim_of(maxlen, minid, approximate, limit, RefPolicy(ref_policy) if ref_policy else None)
    if how is None:
        return ()
    by_length = how.strategy is Strategy.MAXLEN
    return (
        *flag(str(ref_policy), ref_policy),
        str(how.strategy),
        "~" if approximate else "=",
        how.maxlen if by_length else str(how.minid),
        *option("LIMIT", limit),
    )
