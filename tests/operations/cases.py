"""Cases: a title, then commands and the reply that each must get.

A command is a line of words, or a list of arguments if a word is empty or contains blanks. Replies
are written with str for bytes. ``Has`` equals a map with at least those pairs, ``ANY`` any reply,
``Refused`` an error reply that begins with its text. ``wait(ms)`` moves the clock.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from kvstream.layout import PURE_VARIABLE
from tests.operations.implementations import Subject
from tests.operations.replies import Argument, Error, Reply

SMALLER = Error(b"ERR The ID specified in XADD is equal or smaller than the target stream top item")
INVALID_ID = Error(b"ERR Invalid stream ID specified as stream command argument")
NOT_INT = Error(b"ERR value is not an integer or out of range")
SYNTAX = Error(b"ERR syntax error")
NO_KEY = Error(b"ERR no such key")
WRONGTYPE = Error(b"WRONGTYPE Operation against a key holding the wrong kind of value")


class Any_:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "ANY"

    __hash__ = None  # type: ignore[assignment]


ANY = Any_()


class Has:
    """Equal to a map, as a flat list, that holds these pairs; underscores stand for dashes."""

    def __init__(self, **pairs: Any) -> None:
        self.pairs = {name.replace("_", "-").encode(): as_reply(v) for name, v in pairs.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list):
            return False
        found = dict(zip(other[::2], other[1::2], strict=True))
        return all(name in found and found[name] == v for name, v in self.pairs.items())

    def __repr__(self) -> str:
        return f"Has({self.pairs})"

    __hash__ = None  # type: ignore[assignment]


class Fields:
    """Equal to a map with exactly these names in this order, with any values."""

    def __init__(self, names: str) -> None:
        self.names = names.encode().split()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and other[::2] == self.names

    def __repr__(self) -> str:
        return f"Fields({self.names})"

    __hash__ = None  # type: ignore[assignment]


class Refused:
    """Equal to any error reply that begins with the text, its code first."""

    def __init__(self, text: str = "") -> None:
        self.text = text.encode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Error) and other.text.startswith(self.text)

    def __repr__(self) -> str:
        return f"Refused({self.text!r})"

    __hash__ = None  # type: ignore[assignment]


class UpTo:
    """Equal to an integer from 0 to this one, for example seconds that a test does not control."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and 0 <= other <= self.most

    def __repr__(self) -> str:
        return f"UpTo({self.most})"

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Wait:
    ms: int


def wait(ms: int) -> Wait:
    """Move the clock by so many milliseconds, backwards when negative."""
    return Wait(ms)


def e(id: str, *flat: str) -> list[Any]:
    """Return an entry as replies hold it."""
    return [id, list(flat)]


def err(text: str) -> Error:
    """Return the error reply of that text, with the code ERR."""
    return Error(f"ERR {text}".encode())


def wrong_arity(command: str) -> Error:
    return err(f"wrong number of arguments for '{command}' command")


def many(form: str, numbers: Iterable[int]) -> list[Any]:
    """Return steps that run ``form`` with each number in place of {}, and accept any reply."""
    return [step for n in numbers for step in (form.format(n), ANY)]


def as_reply(reply: Any) -> Reply:
    """Return an expected value of a case in the form of a reply."""
    if isinstance(reply, str):
        return reply.encode()
    if isinstance(reply, list | tuple):
        return [as_reply(item) for item in reply]
    return reply


@dataclass(frozen=True)
class Case:
    title: str
    steps: tuple[Any, ...]
    on: tuple[str, ...]
    """The implementations that the case runs on: redis only where version 7.0.15 agrees."""

    def play(self, subject: Subject) -> None:
        steps = iter(self.steps)
        for step in steps:
            if isinstance(step, Wait):
                subject.clock.advance(step.ms)
                continue
            argv: Sequence[Argument] = step.split() if isinstance(step, str) else step
            wanted, found = as_reply(next(steps)), subject(*argv)
            assert wanted == found, f"{step} answered {found!r}, not {wanted!r}"


def case(title: str, *steps: Any) -> Case:
    """A case that Redis 7.0.15 agrees with."""
    return Case(title, steps, ("model", "kvstream", "redis"))


def newer(title: str, *steps: Any) -> Case:
    """A case that only newer versions support, or that needs a manual clock."""
    return Case(title, steps, ("model", "kvstream"))


def on_keys(title: str, *steps: Any) -> Case:
    """A case of commands on whole keys, which the model mostly lacks: Redis 7.0.15 agrees."""
    return Case(title, steps, ("kvstream", "redis"))


def ours(title: str, *steps: Any) -> Case:
    """A case that needs what the model lacks and, on kvstream, a manual clock."""
    return Case(title, steps, ("kvstream",))


def on_each(*cases: Case) -> pytest.MarkDecorator:
    """Parametrise a test over the cases and, for each, the implementations that it runs on."""
    is_pure = os.environ.get(PURE_VARIABLE) == "1"  # changes kvstream only
    pairs = [
        (name, case) for case in cases for name in case.on if name == "kvstream" or not is_pure
    ]
    ids = [f"{case.title} ({name})" for name, case in pairs]
    return pytest.mark.parametrize(("subject", "case"), pairs, ids=ids, indirect=["subject"])
