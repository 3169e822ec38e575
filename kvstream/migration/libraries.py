"""Libraries of functions: which of them a place can load, and copying them.

A store and the servers that an RDB file is for are represented by the sandbox of scripts, which
runs each library as FUNCTION LOAD does. A server is asked: FUNCTION RESTORE stores all libraries of
its payload or none, so a payload whose last library cannot be compiled is a trial.

A library that loads may still fail when it is called: Redis has no ``server`` object, which Valkey
and kvstream have, and a function may use it in its body alone. That is a note and not a loss: the
function may test which server it runs on. The names of the globals that a library uses come from
the bytecode of Lua 5.1::

    chunk     := header(12 bytes) prototype
    prototype := STRING(source) first(i32) last(i32) upvalues(u8) parameters(u8) is_vararg(u8)
                 registers(u8) COUNT u32(instruction)* COUNT constant* COUNT prototype*
                 COUNT line(i32)* COUNT (STRING name, i32 start, i32 end)* COUNT (STRING upvalue)*
    constant  := type(u8) (nil: - | boolean: u8 | number: f64 | string: STRING)
    STRING    := size(u64), with a zero byte at the end; size 0: none
    COUNT     := i32
"""

import struct
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, NamedTuple

from kvstream.errors import RequestError, install_command, show
from kvstream.migration.copy import CopyOptions, Outcome
from kvstream.migration.items import PlannedTarget, Source, Target
from kvstream.migration.server import Server, Version, is_refused
from kvstream.operations.functions import by_name, name_of, parse
from kvstream.rdb.payload import dump_functions
from kvstream.rdb.versions import FUNCTIONS_SINCE, NEWEST, Loss
from kvstream.rdb.versions import Target as ServerVersion
from kvstream.remote.connection import Connection
from kvstream.server.options import SCRIPT_MEMORY
from kvstream.server.scripting.libraries import START_S, Names, register
from kvstream.server.scripting.sandbox import LOAD_TIMEOUT, Imitated, Interpreter, NoLua
from kvstream.types.clock import monotonic

HAS_FUNCTIONS: Version = (7, 0)
"""The first version of Redis with functions."""
Refusals = dict[bytes, str]
"""The texts of libraries that a place cannot load, each with the reason."""


def find_refused(
    libraries: Sequence[bytes], others: Iterable[bytes] = (), target: ServerVersion | None = None
) -> Refusals:
    """Return the libraries that this program's stores cannot load, or the server ``target``.

    ``others`` are libraries of the place, whose functions have names that are taken.
    """
    if not libraries:
        return {}
    if target is not None and target.version < FUNCTIONS_SINCE:
        return dict.fromkeys(libraries, f"{target.name} has no functions")
    try:
        trial = _Trial(target)
    except NoLua:
        why = f"it cannot be checked without the package lupa: {install_command('server')}"
        return dict.fromkeys(libraries, why)
    return _try_all(libraries, others, trial.refusal)


def _try_all(
    libraries: Sequence[bytes], others: Iterable[bytes], refusal: Callable[[bytes], str | None]
) -> Refusals:
    """Try libraries in order, after those of the place that stay."""
    for text in _staying(libraries, others):
        refusal(text)
    reasons = [(text, refusal(text)) for text in libraries]
    return {text: why for text, why in reasons if why is not None}


def _staying(libraries: Iterable[bytes], others: Iterable[bytes]) -> list[bytes]:
    """Return the libraries of a place that those of a migration do not replace."""
    replaced = set(map(name_of, libraries))
    return [text for text in others if name_of(text) not in replaced]


_REDIS = "redis:"
_AS_VALKEY = "7.2.4"
"""The version of Redis that Valkey reports to scripts."""
_VALKEY = Imitated(b"9.0.0", 9 << 16)


def is_redis(target: ServerVersion) -> bool:
    return target.name.startswith(_REDIS)


class _Trial:
    """Loads libraries one after another, as a server does, and keeps nothing."""

    def __init__(self, target: ServerVersion | None) -> None:
        name = (NEWEST if target is None else target).name
        version = f"{name.removeprefix(_REDIS)}.0" if name.startswith(_REDIS) else _AS_VALKEY
        major, minor, patch = map(int, version.split("."))
        number = major << 16 | minor << 8 | patch
        self._host = _Host()
        imitated = None
        if target is not None:
            imitated = Imitated() if is_redis(target) else _VALKEY
        self._interpreter = Interpreter(
            self._host, SCRIPT_MEMORY, version.encode(), number, imitated
        )
        self._names = Names(())

    def refusal(self, text: bytes) -> str | None:
        """Return why a library cannot be loaded after those before it; None if it can."""
        self._host.until = monotonic() + START_S
        try:
            functions = register(self._interpreter, text)
            self._names.take(functions)
        except RequestError as error:
            return str(error)
        return None


class _Host:
    """What a library that is loaded may call: nothing but the clock that ends it."""

    until: float = 0.0

    def command(self, *argv: Any) -> Any:
        return None

    def may_run(self, *argv: Any) -> bool | None:
        return None

    def sha1hex(self, data: bytes) -> bytes | None:
        return None

    def log(self, level: int, text: bytes) -> None:
        pass

    def set_resp(self, protocol: int) -> None:
        pass

    def tick(self) -> int | None:
        return LOAD_TIMEOUT if monotonic() > self.until else None


# --- a server -------------------------------------------------------------------------------------

_UNCOMPILED = b"#!lua name=kvstream_trial\nkvstream kvstream_trial"
_UNCOMPILED_NAME = "kvstream_trial"
"""A library that no server compiles, and a word of the error."""


class _ServerTrial:
    """Loads libraries one after another at a server, which stores none."""

    def __init__(self, connection: Connection, target: ServerVersion) -> None:
        self._connection = connection
        self._target = target
        self._loaded: list[bytes] = []

    def refusal(self, *texts: bytes) -> str | None:
        """Return why libraries cannot be loaded after those before them; None if they can."""
        payload = dump_functions(self._target, [*self._loaded, *texts, _UNCOMPILED])
        try:
            self._connection.do("FUNCTION", "RESTORE", payload, "REPLACE")
        except RequestError as error:
            if _UNCOMPILED_NAME in str(error):
                self._loaded += texts
                return None
            if is_refused(error):
                raise
            return str(error)
        raise RequestError("the server has stored a library that cannot be compiled")


def find_refused_by(
    server: Server, libraries: Sequence[bytes], others: Iterable[bytes]
) -> Refusals:
    """Return the libraries that a server cannot load; ``others`` are those that it has.

    If this user may not try them, they are tried here as its version would load them.
    """
    about = server.about
    if not libraries:
        return {}
    if about.version < HAS_FUNCTIONS:
        return dict.fromkeys(libraries, f"{about.shown} has no functions")
    trial = _ServerTrial(server.connection(0), about.target)
    try:
        staying = _staying(libraries, others)
        whole = trial.refusal(*staying, *libraries)  # one request, if none is refused
        return {} if whole is None else _try_all(libraries, staying, trial.refusal)
    except RequestError as error:
        if not is_refused(error):
            raise
        return find_refused(libraries, others, None if about.name == "kvstream" else about.target)


# --- copying --------------------------------------------------------------------------------------


class PlannedLibrary(NamedTuple):
    """What ``run`` would do with a library."""

    name: bytes
    text: bytes
    present: bytes | None
    """The text of the library of that name at the target."""
    loss: Loss | None
    """Why the target cannot load it."""


@dataclass(slots=True)
class CarriedFunctions:
    """The libraries of functions of a source, and what was done with them."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reported: list[str] = field(default_factory=list)
    """Why some are not at the target."""


def plan_functions(source: Source, target: PlannedTarget | None) -> list[PlannedLibrary]:
    """Return the libraries of a source, with what a target would do with each."""
    texts = source.functions()
    refused: Mapping[bytes, str] = {}
    present: Mapping[bytes, bytes] = {}
    if texts and target is not None:
        refused = target.refused_functions(texts)
        present = {} if target.existing is None else by_name(target.existing.functions())
    planned: dict[bytes, PlannedLibrary] = {}
    for text in texts:
        name = name_of(text)
        why = "the source has two libraries of this name" if name in planned else refused.get(text)
        loss = None if why is None else _loss(name, why)
        planned[text if name in planned else name] = PlannedLibrary(
            name, text, present.get(name), loss
        )
    return [*planned.values()]


def _loss(name: bytes, why: str) -> Loss:
    return Loss("functions", 1, not_loaded(name, why))


def not_loaded(name: bytes, why: str) -> str:
    """Return the text about a library that cannot be loaded."""
    return f"the library {show(name)} cannot be loaded: {why}"


def copy_functions(
    planned: Iterable[PlannedLibrary], target: Target, options: CopyOptions
) -> CarriedFunctions:
    """Copy libraries, without those that the target cannot load.

    Raises LossRefused for one that a target refuses now, unless that is allowed.
    """
    carried = CarriedFunctions()
    for each in planned:
        outcome, loss = _outcome(each, options.replace), each.loss
        if outcome in (Outcome.COPIED, Outcome.REPLACED):
            try:
                target.put_function(each.text, replace=options.replace)
            except RequestError as error:
                outcome, loss = Outcome.SKIPPED, _loss(each.name, str(error))
        if loss is not None:
            options.consent(each.name, [loss])
            carried.reported.append(f"left out: {loss.name}: {loss.text}")
        elif outcome is Outcome.DIFFERENT:
            carried.reported.append(f"function library {show(each.name)} differs at the target")
        carried.outcomes[outcome] += 1
    return carried


def _outcome(planned: PlannedLibrary, replace: bool) -> Outcome:
    if planned.loss is not None:
        return Outcome.SKIPPED
    if planned.present == planned.text:
        return Outcome.SAME
    if planned.present is None:
        return Outcome.COPIED
    return Outcome.REPLACED if replace else Outcome.DIFFERENT


# --- what a library uses --------------------------------------------------------------------------

REDIS_GLOBAL, SERVER_GLOBAL = b"redis", b"server"
REDIS_MEMBERS: Final = frozenset(
    b"call pcall error_reply status_reply sha1hex log setresp set_repl replicate_commands "
    b"breakpoint debug acl_check_cmd register_function REDIS_VERSION REDIS_VERSION_NUM LOG_DEBUG "
    b"LOG_VERBOSE LOG_NOTICE LOG_WARNING REPL_NONE REPL_AOF REPL_SLAVE REPL_REPLICA "
    b"REPL_ALL".split()
)
"""What ``redis`` has in every Redis from 7.0 to 8.10."""


def notes_for_redis(libraries: Iterable[bytes], refused: Container[bytes]) -> list[str]:
    """Return what users of a Redis should know of the libraries that it can load."""
    missing = {text: missing_in_redis(text) for text in libraries if text not in refused}
    return [
        f"the library {show(name_of(text))} uses {what}, which Redis does not have: a function "
        "that needs it fails when it is called"
        for text, what in missing.items()
        if what is not None
    ]


def missing_in_redis(text: bytes) -> str | None:
    """Return what a library names that no Redis has; None if there is nothing, or no lupa."""
    try:
        lua = import_module("lupa.lua51").LuaRuntime(encoding=None, max_memory=SCRIPT_MEMORY)
        compiled = lua.execute(b"return string.dump(assert(loadstring(...)))", parse(text).code)
    except Exception:  # without lupa, or not a library of Lua: LuaError is lupa's
        return None
    used = list(_Bytecode(compiled).iter_globals())
    if any(name == SERVER_GLOBAL for name, _ in used):
        return "the object server"
    unknown = sorted(
        {member for name, member in used if name == REDIS_GLOBAL and member} - REDIS_MEMBERS
    )
    return ", ".join(f"redis.{name.decode(errors='replace')}" for name in unknown) or None


_GETGLOBAL, _GETTABLE = 5, 6
_HEADER_BYTES = 12
_CONSTANT = 256
"""The bit of an operand that says that it is a constant."""
_FIXED = {0: 0, 1: 1, 3: 8}
"""Bytes of constants that are not strings, by type."""


class _Bytecode:
    """A compiled chunk of Lua 5.1 on a machine with 64 bits, read once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = _HEADER_BYTES

    def iter_globals(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the globals that are read, each with the member that is read of it."""
        self._string()
        self._at += 2 * 4 + 4  # lines, and four bytes of counts
        words = self._words()
        constants = [self._constant() for _ in range(self._count())]
        for at, word in enumerate(words):
            if word & 63 == _GETGLOBAL:
                following = words[at + 1] if at + 1 < len(words) else 0
                name = constants[word >> 14] or b""
                yield name, _member(word, following, constants)
        for _ in range(self._count()):
            yield from self.iter_globals()
        self._words()  # lines
        for _ in range(self._count()):
            self._string()
            self._at += 2 * 4
        for _ in range(self._count()):
            self._string()

    def _count(self) -> int:
        (count,) = struct.unpack_from("<i", self._data, self._at)
        self._at += 4
        return int(count)

    def _words(self) -> Sequence[int]:
        count = self._count()
        words = struct.unpack_from(f"<{count}I", self._data, self._at)
        self._at += 4 * count
        return words

    def _string(self) -> bytes:
        (size,) = struct.unpack_from("<Q", self._data, self._at)
        start = self._at + 8
        self._at = start + size
        return self._data[start : max(start, self._at - 1)]

    def _constant(self) -> bytes | None:
        """Return a constant that is a string; None for another one."""
        kind = self._data[self._at]
        self._at += 1
        if kind in _FIXED:
            self._at += _FIXED[kind]
            return None
        return self._string()


def _member(word: int, following: int, constants: Sequence[bytes | None]) -> bytes | None:
    """Return the constant member that an instruction reads of the global before it."""
    register, key = word >> 6 & 0xFF, following >> 14 & 0x1FF
    if following & 63 != _GETTABLE or following >> 23 != register or key < _CONSTANT:
        return None
    return constants[key - _CONSTANT]
