"""Libraries of functions: what each registers when its text runs, and whether the names are free.

The server does this for FUNCTION LOAD, a migration to learn whether a target can load a library. So
both refuse the same libraries with the same errors. Nothing is stored here, and a function is
callable only after ``Interpreter.use_libraries``.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kvstream.commands.args import text
from kvstream.errors import RequestError
from kvstream.operations.functions import parse
from kvstream.server.scripting.sandbox import Interpreter
from kvstream.server.scripting.script import ScriptFlag, script_flags

LOAD_S: Final = 0.5
"""Time in which FUNCTION LOAD must have run a library: Redis's."""
START_S: Final = 10.0
"""The same limit for libraries of the store, which were loaded before."""


class Function(NamedTuple):
    """One function."""

    name: bytes
    library: bytes
    description: bytes | None
    flags: frozenset[ScriptFlag]


def register(interpreter: Interpreter, source: bytes) -> list[Function]:
    """Run a library, and return the functions that it registers; RequestError if it fails.

    The interpreter's host ends a library that runs for too long.
    """
    header = parse(source)
    registered = interpreter.load_library(header.code)
    if not registered:
        raise RequestError("No functions registered")
    return [
        Function(
            each.name,
            header.name,
            None if isinstance(each.description, bool) else each.description,
            script_flags(each.flags),
        )
        for each in registered
    ]


class Names:
    """The names of functions that are taken, in letters of any case."""

    def __init__(self, functions: Iterable[Function]) -> None:
        self._taken = {each.name.lower() for each in functions}

    def take(self, added: Iterable[Function]) -> None:
        """Take the names of a library's functions; raise RequestError if one is taken."""
        names = [each.name for each in added]
        for name in names:
            if name.lower() in self._taken:
                raise RequestError(f"Function {text(name)} already exists")
        self._taken.update(name.lower() for name in names)
