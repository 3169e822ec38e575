"""The Lua state that runs scripts: compiled by PUC Lua 5.1, without a way out of it.

``lua/sandbox.lua`` takes everything away that a script may not have, and wraps what is left. It
loads ``tables.lua``, ``replies.lua``, ``calls.lua`` and ``libraries.lua``. Python gives it six
functions that take and return strings, numbers, booleans and nil, and never raise.

Memory is bounded by Lua's allocator. An allocation that fails inside a Python function would jump
over it, so a function returns nothing large while little memory is left, and the first bytes beyond
the limit are reserved for that.

The libraries of scripts, ``bit``, ``struct``, ``cjson`` and ``cmsgpack``, are written in Lua too: a
script's instructions are counted inside them, and their memory is that of the Lua state.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from kvstream.commands.args import text
from kvstream.errors import RequestError, install_command

SPARE: Final = 1 << 20
"""Bytes below the limit of memory: with less left, a script gets no more replies."""
SMALL: Final = 1 << 16
"""Bytes of a reply that always fit into ``SPARE``."""
ARGUMENTS_MAX: Final = 4000
"""Values that go over to Lua in one call: its stack has room for 8000."""
FULL: Final = (False, 5)
"""A function's answer if there is not enough memory: it needs none."""
_SINGLE = (
    rb"(?:(?:redis|server)\s*\.\s*(?:p?call|error_reply|status_reply|sha1hex|log|setresp|set_repl|acl_check_cmd)"
    rb"|bit\s*\.\s*[a-z]+|cjson\s*\.\s*(?:en|de)code|cmsgpack\s*\.\s*pack"
    rb"|struct\s*\.\s*(?:pack|size)|string\s*\.\s*(?:rep|gmatch))"
)
"""Calls of functions that return one value."""
SPARE_REFERENCES: Final = 16
"""References to Lua objects that are made and freed at the start, so that Lua needs no memory to
free a reference later: a full state has none."""
KILLED: Final = 1
STOPPED: Final = 2
INTERNAL_ERROR: Final = 3
LOAD_TIMEOUT: Final = 4
"""The errors that end a script, as ``sandbox.lua`` has them."""
_NO_MEMORY = b"ERR not enough memory"
_FOLDER = Path(__file__).parent / "lua"
LIBRARIES: Final = ("bit", "struct", "cjson", "cmsgpack")
_SHARED = ("arguments", "ieee754")
_SANDBOX = "sandbox", "tables", "replies", "calls", "libraries"
"""The files of the sandbox; the first one loads the others, which are given to it."""
_PRIVATE = "varargs"
"""A global that the sandbox takes away."""
# Each file is a function of all globals and of what the files before it returned; it copies what it
# needs into local variables. Its environment is empty: getfenv of its functions reaches nothing.
_LOADER = b"""
local shared = {}
return function(name, text, is_shared)
  local load = assert(loadstring(text, "=" .. name))
  setfenv(load, {})
  local result = load(_G, shared.arguments, shared.ieee754)
  if is_shared then
    shared[name] = result
  else
    _G[name] = result
  end
end
"""
# A long bracket that is not closed takes all the rest, and a string that is not closed the rest of
# its line: looking for the end again and again would take long.
_RETURNED_CALL = re.compile(rb"\breturn\s+" + _SINGLE + rb"\s*\(")
_TOKEN = re.compile(
    rb"--\[(?P<c>=*)\[.*?(?:\](?P=c)\]|\Z)|--[^\n]*|\[(?P<s>=*)\[.*?(?:\](?P=s)\]|\Z)"
    rb"|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?"
    rb"|(?P<call>\breturn\s+)" + _SINGLE + rb"\s*(?P<first>\()|(?P<open>\()|(?P<close>\))",
    re.DOTALL,
)


class Host(Protocol):
    """What scripts call. No method may raise."""

    def command(self, *argv: Any) -> Any:
        """Run a command; return its reply as the sandbox takes it."""
        ...

    def may_run(self, *argv: Any) -> bool | None:
        """Return whether the user may run a command; None if there is no such command."""
        ...

    def sha1hex(self, data: bytes) -> bytes | None:
        """Return the SHA-1 of a text; None if there is not enough memory."""
        ...

    def log(self, level: int, text: bytes) -> None: ...

    def set_resp(self, protocol: int) -> None: ...

    def tick(self) -> int | None:
        """Return the number of the error that ends the script now; None: it goes on."""
        ...


class Failure(NamedTuple):
    """The error that has ended a script."""

    message: bytes
    counted: bool = False
    """The statistics of errors include it already."""
    position: bytes | None = None
    """``@user_script:1``; None: the error has no position."""


class Wire(NamedTuple):
    """The result of a script, encoded for its client."""

    data: bytes


Result = bytes | int | float | bool | Wire | Failure | None


class Function(NamedTuple):
    """What a library says of a function that it registers."""

    name: bytes
    description: bytes | bool
    """False: none."""
    flags: bytes
    """Names of ``ScriptFlag``, parted by commas."""


class Imitated(NamedTuple):
    """The server that libraries see while they are loaded, in ``redis`` and ``server``."""

    valkey_version: bytes | None = None
    """None: Redis, which has no ``server``."""
    valkey_number: int | None = None


class NotCompiled(RequestError):
    """The text of a script is not Lua."""


class NoLua(RequestError):
    """The package lupa is not installed."""

    def __init__(self) -> None:
        super().__init__(f"scripts need the package lupa: {install_command('server')}")


class Interpreter:
    """One Lua state and the scripts that it has compiled."""

    __slots__ = (
        "_end_loading",
        "_feed",
        "_forget",
        "_host",
        "_imitated",
        "_load",
        "_load_library",
        "_lua",
        "_runtime",
        "_version",
        "call",
        "error",
        "loaded",
        "memory_max",
        "nearly",
        "used",
    )

    def __init__(
        self,
        host: Host,
        memory_max: int,
        version: bytes,
        number: int,
        imitated: Imitated | None = None,
    ) -> None:
        """Raise NoLua if lupa is not installed; without ``imitated``, libraries see kvstream."""
        self._host, self.memory_max = host, max(memory_max, 4 * SPARE)
        self.nearly = self.memory_max - SPARE
        """Bytes beyond which Lua gets no more replies."""
        self._version = version, number
        self._imitated = imitated
        try:
            self._lua = import_module("lupa.lua51")
        except ImportError:
            raise NoLua from None
        self.error: type[Exception] = self._lua.LuaError
        self._runtime: Any = None
        self.loaded: set[bytes] = set()
        """The keys of the scripts that are compiled."""
        self._start()

    def _start(self) -> None:
        """Make a new Lua state."""
        if self._runtime is not None:
            self._runtime.set_max_memory(2 * self.memory_max)  # to take it down
        host = self._host
        runtime = self._lua.LuaRuntime(
            encoding=None,
            source_encoding="latin-1",
            attribute_filter=_refuse_attribute,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
            max_memory=self.memory_max,
        )
        functions = host.tick, host.command, host.may_run, host.sha1hex, host.log, host.set_resp
        install_libraries(runtime)
        spare = [runtime.table() for _ in range(SPARE_REFERENCES)]
        first, *parts = [
            runtime.compile((_FOLDER / f"{name}.lua").read_bytes(), name=_SANDBOX[0])
            for name in _SANDBOX
        ]
        made_functions = first(*parts, *functions, *self._version)
        self._load, self._forget, self._feed, self.call, *rest = made_functions
        self._load_library, self._end_loading, imitate = rest
        if self._imitated is not None:
            imitate(*self._imitated)
        del spare, first, parts
        self._runtime = runtime
        self.used: Callable[[], int] = runtime.get_memory_used
        """Returns the bytes that the Lua state takes."""
        self.loaded.clear()

    @property
    def memory(self) -> int:
        """The bytes that the Lua state takes."""
        return self.used()

    def has_room(self, size: int = SMALL) -> bool:
        """Return whether ``size`` bytes may be given to Lua now."""
        return self.used() + size + SPARE - SMALL <= self.memory_max

    def is_full(self) -> bool:
        """Return whether not even a small reply may be given to Lua now."""
        return self.used() > self.nearly

    def make_room(self, size: int) -> None:
        """Make room in Lua for ``size`` bytes, or raise RequestError.

        A new Lua state, the last resort, has no compiled scripts.
        """
        if self.has_room(size):
            return
        self._runtime.gccollect()
        if not self.has_room(size):
            self._start()
        if not self.has_room(size):
            raise RequestError("the script and its arguments exceed the setting script-memory")

    # --- scripts --------------------------------------------------------------------------------

    def load(self, key: bytes, source: bytes, name: bytes = b"@user_script") -> None:
        """Compile a script, if it is not, and keep it under its key; NotCompiled if it is wrong."""
        if key in self.loaded:
            return
        self.make_room(3 * len(source))
        try:
            message = self._load(key, without_tail_calls(source), name)
        except self.error:
            self._start()
            message = _NO_MEMORY
        if message is not None:
            raise NotCompiled(f"Error compiling script (new function): {text(message)}")
        self.loaded.add(key)

    def load_library(self, code: bytes) -> list[Function]:
        """Run a library of functions, and return the functions that it registers.

        They can be run by their names after ``use_libraries``. Raises NotCompiled.
        """
        self.make_room(3 * len(code))
        try:
            result = self._load_library(without_tail_calls(code))
        except self.error as error:
            self._start()
            raise NotCompiled(f"Error registering functions: ERR {error}") from None
        if type(result) is bytes:
            raise NotCompiled(text(result))
        if isinstance(result, BaseException):
            raise result
        values = result[1:] if type(result) is tuple else ()
        return [Function(*values[at : at + 3]) for at in range(0, len(values), 3)]

    def use_libraries(self, names: Iterable[bytes]) -> None:
        """Make the functions of the libraries that were loaded callable; they have these names."""
        self._end_loading(True)
        self.loaded.update(names)

    def drop_libraries(self) -> None:
        """Forget the libraries that were loaded and are not used."""
        self._end_loading(False)

    def forget(self, key: bytes) -> None:
        """Forget a script or a function."""
        if key in self.loaded:
            self.loaded.discard(key)
            self._forget(key)

    def has(self, key: bytes) -> bool:
        """Return whether a script is compiled."""
        return key in self.loaded

    def run(
        self, key: bytes, values: Sequence[bytes], keys: int, protocol: int, reply_max: int
    ) -> Result:
        """Run a compiled script; the first ``keys`` of its arguments are keys.

        There must be room for the arguments. A table that the script returns is encoded in
        ``protocol``, up to ``reply_max`` bytes.
        """
        try:
            if len(values) <= ARGUMENTS_MAX:
                result = self.call(key, protocol, reply_max, keys, *values)
            else:
                for at in range(0, len(values), ARGUMENTS_MAX):
                    self._feed(*values[at : at + ARGUMENTS_MAX])
                result = self.call(key, protocol, reply_max, keys)
        except self.error as error:
            return self.failure_of(error)
        return self.result_of(result)

    def failure_of(self, error: Exception) -> Failure:
        """Begin anew after an error that Lua itself has raised, and return it."""
        self._start()
        return Failure(b"ERR " + str(error).encode() if str(error) else _NO_MEMORY)

    def result_of(self, result: Any) -> Result:
        """Return the result of what ``call`` has returned."""
        if type(result) is not tuple:
            if isinstance(result, BaseException):  # an interrupt
                raise result
            return result  # type: ignore[no-any-return]
        if result[1] == 1:
            return Wire(result[0])
        if result[0] == _NO_MEMORY:
            self._start()
        return Failure(*result[:1], *result[2:])


def install_libraries(lua: Any) -> None:
    """Define the libraries as globals of a Lua state that still has all globals of Lua 5.1."""
    load = lua.execute(_LOADER)
    for name in (*_SHARED, *LIBRARIES, _PRIVATE):
        load(name.encode(), (_FOLDER / f"{name}.lua").read_bytes(), name in _SHARED)


def _refuse_attribute(_object: object, _name: object, _is_setting: bool) -> object:
    raise AttributeError("scripts reach no attribute")


def without_tail_calls(source: bytes) -> bytes:
    """Put parentheses around calls of redis.call and the like that are returned.

    A tail call has no frame, and errors would have no line number. These functions return one
    value, so nothing else changes.
    """
    if _RETURNED_CALL.search(source) is None:
        return source
    parts: list[bytes] = []
    depths: list[int] = []
    depth = at = 0
    for token in _TOKEN.finditer(source):
        if token["call"] is not None:
            parts += source[at : token.end("call")], b"("
            at = token.end("call")
            depths.append(depth)
            depth += 1
        elif token["open"] is not None:
            depth += 1
        elif token["close"] is not None:
            depth -= 1
            if depths and depths[-1] == depth:
                depths.pop()
                parts += source[at : token.end()], b")"
                at = token.end()
    return source if depths else b"".join((*parts, source[at:]))
