"""A call: the commands of one operation of the library, and how their replies are read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvstream.layout.keys import database_of, key_of
from kvstream.remote.connection import Word

Words = tuple[Word, ...]

REQUIRED = object()


@dataclass(slots=True)
class Call:
    """The commands of an operation, which run as one transaction if there are several."""

    db: int | None
    """None: they concern no database."""
    keys: tuple[bytes, ...]
    """The keys that they read or write; none: all."""
    commands: Sequence[Words]
    result: Callable[[list[Any]], Any]
    """Makes the operation's result of the replies."""
    writes: bool = False
    immediate: bool = False
    """A write whose result is needed at once: it cannot wait for the end of a transaction."""
    repeatable: bool = False
    """A write that may be sent again if its outcome is unknown."""
    needs: tuple[str, ...] = ()
    """The commands and options of ``SINCE`` that it uses."""
    missing: Any = REQUIRED
    """The result if the key does not exist; REQUIRED: an error."""
    part: Callable[[int], str] | None = None
    """Names the part of the operation that one of several commands does, for an error."""
    guards: bool = False
    """In a transaction it is sent at once, and makes EXEC do nothing if a lease is lost by then."""


def same(reply: Any) -> Any:
    return reply


def nothing(reply: Any) -> None:
    return None


def ask(
    name: bytes,
    *words: Word,
    result: Callable[[Any], Any] = same,
    missing: Any = REQUIRED,
    needs: tuple[str, ...] = (),
) -> Call:
    """Return the call of a command that changes nothing."""
    db, keys = database_of(name), (key_of(name),)
    return Call(
        db, keys, (words,), lambda replies: result(replies[0]), missing=missing, needs=needs
    )


def do(
    name: bytes,
    *words: Word,
    result: Callable[[Any], Any] = same,
    needs: tuple[str, ...] = (),
    immediate: bool = False,
    repeatable: bool = False,
) -> Call:
    """Return the call of a command that changes something."""
    return Call(
        database_of(name),
        (key_of(name),),
        (words,),
        lambda replies: result(replies[0]),
        writes=True,
        immediate=immediate,
        repeatable=repeatable,
        needs=needs,
    )


def known(result: Any) -> Call:
    """Return the call of an operation that needs no command."""
    return Call(None, (), (), lambda replies: result)


def flag(word: str, given: object) -> Words:
    return (word,) if given else ()


def option(word: str, value: Word | None) -> Words:
    return () if value is None else (word, value)


_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def count_word(count: int) -> int:
    """Return a count or bound as a server takes it, in 64 bits: beyond them it means the same."""
    return max(_INT64_MIN, min(count, _INT64_MAX))


def count_option(word: str, count: int | None) -> Words:
    return () if count is None else (word, count_word(count))
