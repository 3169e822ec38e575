"""A call: the commands of one operation of the library, and how their replies are read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvstream.layout.keys import database_of, key_of
from kvstream.remote.connection import Word

Words = tuple[Word, ...]

REQUIRED = object()


class Effect(Enum):
    """What an operation does to the store, and so whether it is repeated after a lost connection.

    A shared store repeats any call that did not reach its owner.
    """

    READ = 1
    """It changes nothing: it is repeated."""
    GUARD = 2
    """It changes nothing. In a transaction it is sent at once, and makes EXEC do nothing if a lease
    is lost by then."""
    SAME_RESULT = 3
    """A second call leaves the same state, and has the same result: it is repeated."""
    SAME_STATE = 4
    """A second call leaves the same state, but returns only what the first one has not done. Only a
    shared store repeats it."""
    WRITE = 5
    """A second call changes more: it is not repeated, and raises UnknownOutcome."""


@dataclass(slots=True)
class Call:
    """The commands of an operation, which run as one transaction if there are several."""

    db: int | None
    """None: they concern no database."""
    keys: tuple[bytes, ...]
    """The keys that the commands read or write; empty: all keys."""
    commands: Sequence[Words]
    result: Callable[[list[Any]], Any]
    """Makes the operation's result of the replies."""
    effect: Effect | None = None
    """None: the effect in the record of the operation."""
    missing: Any = REQUIRED
    """The result if the key does not exist; REQUIRED: an error."""
    part: Callable[[int], str] | None = None
    """Names the part of the operation that one of several commands does, for an error."""
    immediate: bool = False
    """See Operation."""


@dataclass(frozen=True, slots=True)
class Operation:
    """How an operation of the library is done on a server."""

    effect: Effect
    call: Callable[..., Call] | None = None
    """Returns its commands for its arguments."""
    steps: Callable[..., Any] | None = None
    """Runs it in several round trips; the first argument is the engine. None: one is enough."""
    shares_steps: bool = False
    """A shared store runs these steps itself, and repeats each one where that is safe."""
    immediate: bool = False
    """Its result is needed at once: it cannot wait for the end of a transaction."""

    def call_of(self, *args: Any, **kwargs: Any) -> Call:
        """Return the call of an operation that takes one round trip."""
        assert self.call is not None
        call = self.call(*args, **kwargs)
        if call.effect is None:
            call.effect, call.immediate = self.effect, self.immediate
        return call


def same(reply: Any) -> Any:
    return reply


def nothing(reply: Any) -> None:
    return None


def say(
    name: bytes,
    *words: Word,
    result: Callable[[Any], Any] = same,
    effect: Effect | None = None,
) -> Call:
    """Return the call of one command about the key of a name."""
    db, keys = database_of(name), (key_of(name),)
    return Call(db, keys, (words,), lambda replies: result(replies[0]), effect)


def plain(*command: str, result: Callable[[Any], Any] = same) -> Callable[..., Call]:
    """Return the function for a command that takes the key and the arguments of its operation."""

    def call(name: bytes, *arguments: Any) -> Call:
        words = [str(each) if isinstance(each, tuple) else each for each in arguments]  # IDs
        return say(name, *command, key_of(name), *words, result=result)

    return call


def answer(result: Any) -> Call:
    """Return a call that sends nothing and has this result."""
    return Call(None, (), (), lambda replies: result)


def flag(word: str, given: object) -> Words:
    return (word,) if given else ()


def option(word: str, value: Word | None) -> Words:
    return () if value is None else (word, value)


_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def count_word(count: int) -> int:
    """Clamp a count or bound to 64 bits, which servers take; beyond them it means the same."""
    return max(_INT64_MIN, min(count, _INT64_MAX))


def count_option(word: str, count: int | None) -> Words:
    return () if count is None else (word, count_word(count))
