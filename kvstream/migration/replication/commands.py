"""What a command means that a Redis server sends to its replicas, in commands of kvstream.

Most are run as they are. What is not:

- Redis writes ``~`` as ``=`` with what is left, and lets the LIMIT behind it stand; XADD with IDMP
  comes with its ID. From clients both are errors.
- A key may come from one that we have not: one of another type, or one that is not followed.
- Commands that kvstream has not may put another type in the place of a key that we have.

This module is pure: it looks at one command and at which keys are followed, never at a store.

One source's commands in order: in which database each is, what it means, what is owed to it.

A command that the source has run and that the target refuses is no reason to stop: its keys are
noted, to be copied from the source as a whole. This module knows no target.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstream.commands.args import Argv
from kvstream.commands.command import Command, Container, Flag
from kvstream.commands.table import COMMANDS, find
from kvstream.commands.trim import POLICIES
from kvstream.errors import InvalidArgument, KVStreamError, NoSuchKey, RequestError
from kvstream.migration.items import Selection
from kvstream.migration.replication.foreign import SILENT_MODULES, foreign
from kvstream.operations.append import automatic_iid
from kvstream.rdb.skipping import OBJECT_TYPES
from kvstream.rdb.versions import Dialect

Name = tuple[int, bytes]
"""A key and the database that it is in."""


class Run(NamedTuple):
    """A command of kvstream, in a database."""

    db: int
    argv: list[bytes]


@dataclass(slots=True)
class Meaning:
    """What is to be done for one command."""

    runs: list[Run] = field(default_factory=list)
    again: list[Name] = field(default_factory=list)
    """Keys whose value only the source can tell: they are to be copied whole."""
    is_known: bool = True
    """False: kvstream has no such command; what it does to keys that we have is in ``runs``."""
    is_unheard: bool = False
    """Nobody can tell which keys it has changed, but that ``again`` may name some of them."""
    became: list[tuple[Name, str]] = field(default_factory=list)
    """Keys of a type that kvstream does not have, with that type."""
    flushed: list[int] = field(default_factory=list)
    """Databases whose followed keys are all gone."""
    moved: tuple[Name, Name, bool] | None = None
    """From where to where a value went, and whether it stays there as well."""
    swapped: tuple[int, int] | None = None
    """Databases that were exchanged, both of them followed."""
    is_exchange: bool = False
    """What is followed was exchanged for what is not: all of it is to be copied anew."""


class Context(NamedTuple):
    """The database that a command is for, and what is followed."""

    db: int
    selection: Selection

    def has(self, key: bytes, db: int | None = None) -> bool:
        return self.selection.has(self.db if db is None else db, key)

    def run(self, *argv: bytes, db: int | None = None) -> Run:
        return Run(self.db if db is None else db, list(argv))


Rule = Callable[[Context, Argv], Meaning]
EVERY_DATABASE = -1
"""In place of a database that was flushed: all of them."""

_KEPT_TYPES = (0, 15, 19, 21, 26, 27)
"""The first bytes of payloads of what kvstream keeps: strings and streams."""
SILENT = frozenset(
    b"asking auth client cluster config debug echo function latency memory module multi ping "
    b"pfselftest publish readonly readwrite replconf script slowlog spublish wait waitaof".split()
)
"""Commands that touch no key: nothing is lost where they are passed over."""


def meaning(db: int, argv: Argv, selection: Selection) -> Meaning:
    """Return what a command of the stream means."""
    context = Context(db, selection)
    word = argv[0].lower()
    rule = _RULES.get(word)
    if rule is not None:
        return rule(context, argv)
    found = COMMANDS.get(word)
    if isinstance(found, Container):
        found = found.subcommands.get(argv[1].lower()) if len(argv) > 1 else None
    if found is None:
        return _foreign(context, argv)
    return _as_it_is(context, found, argv)


def _as_it_is(context: Context, command: Command, argv: Argv) -> Meaning:
    keys = command.keys_of(argv) if Flag.WRITE in command.flags else []
    return Meaning([context.run(*argv)]) if keys and all(map(context.has, keys)) else Meaning()


# --- many keys ----------------------------------------------------------------------------------


def _each(step: int) -> Rule:
    """Return the rule of a command of keys alone, or of keys and values."""

    def rule(context: Context, argv: Argv) -> Meaning:
        wanted = _wanted(context, argv[1:], step)
        return Meaning([context.run(argv[0], *wanted)] if wanted else [])

    return rule


def _wanted(context: Context, words: Sequence[bytes], step: int) -> list[bytes]:
    """Return the words that belong to keys which are followed."""
    return [
        word
        for at in range(0, len(words), step)
        if context.has(words[at])
        for word in words[at : at + step]
    ]


def _msetex(context: Context, argv: Argv) -> Meaning:
    end = 2 + 2 * _number(argv, 1)
    wanted = _wanted(context, argv[2:end], 2)
    count = b"%d" % (len(wanted) // 2)
    return Meaning([context.run(argv[0], count, *wanted, *argv[end:])] if wanted else [])


def _number(argv: Argv, at: int) -> int:
    return int(argv[at]) if len(argv) > at and argv[at].isdigit() else 0


# --- keys that become others --------------------------------------------------------------------


def _moved(
    context: Context, source: bytes, target: bytes, db: int, argv: Argv, keeps: bool
) -> Meaning:
    """Return what it means that a key has come to have what another one had.

    Where we have no such source, being of a type that we do not keep, the target is gone with it:
    that is why it is deleted first.
    """
    has_source, has_target = context.has(source), context.has(target, db)
    if (source, context.db) == (target, db):
        return Meaning()
    runs = [context.run(b"DEL", target, db=db)] if has_target else []
    if has_source and has_target:
        moved = ((context.db, source), (db, target), keeps)
        return Meaning([*runs, context.run(*argv)], moved=moved)
    if has_source and not keeps:
        runs.append(context.run(b"DEL", source))
    return Meaning(runs, again=[(db, target)] if has_target else [])


def _rename(context: Context, argv: Argv) -> Meaning:
    return _moved(context, argv[1], argv[2], context.db, argv, keeps=False)


def _move(context: Context, argv: Argv) -> Meaning:
    return _moved(context, argv[1], argv[1], _number(argv, 2), argv, keeps=False)


def _copy(context: Context, argv: Argv) -> Meaning:
    words = [word.upper() for word in argv[3:]]
    db = _number(argv, 4 + words.index(b"DB")) if b"DB" in words else context.db
    return _moved(context, argv[1], argv[2], db, argv, keeps=True)


def _restore(context: Context, argv: Argv) -> Meaning:
    """Return what a payload means: the key, or that it is of a type that we do not keep."""
    if not context.has(argv[1]):
        return Meaning()
    gone = context.run(b"DEL", argv[1])
    if argv[3][:1] and argv[3][0] not in _KEPT_TYPES:
        kind = OBJECT_TYPES[Dialect.REDIS].get(argv[3][0])
        became = [((context.db, argv[1]), "unknown" if kind is None else kind.name)]
        return Meaning([gone], is_known=False, became=became)
    return Meaning([gone, context.run(b"RESTORE", *argv[1:])])


# --- whole databases ----------------------------------------------------------------------------


def _flushdb(context: Context, _argv: Argv) -> Meaning:
    return Meaning(flushed=[context.db] if context.selection.has_database(context.db) else [])


def _swapdb(context: Context, argv: Argv) -> Meaning:
    both = _number(argv, 1), _number(argv, 2)
    followed = sum(map(context.selection.has_database, both))
    if followed == 1:
        return Meaning(is_exchange=True)
    return Meaning([context.run(*argv)], swapped=both) if followed else Meaning()


# --- entries ------------------------------------------------------------------------------------

_TRIMS = (b"MAXLEN", b"MINID")


@dataclass(slots=True)
class _Options:
    """The options of an XADD or XTRIM as they are to be run."""

    kept: list[bytes] = field(default_factory=list)
    approximate: bool = False
    limit: bytes | None = None
    pid: bytes | None = None
    iid: bytes | None = None

    @property
    def words(self) -> list[bytes]:
        """The options but for what only clients are asked for, or may not say."""
        if self.approximate and self.limit is not None:
            return [*self.kept, b"LIMIT", self.limit]
        return self.kept


def _options(argv: Argv) -> tuple[_Options, int]:
    """Return the options behind the key, and where they end."""
    options, at = _Options(), 2
    while at < len(argv):
        word = argv[at].upper()
        if word in _TRIMS:
            signed = argv[at + 1 : at + 2] in ([b"~"], [b"="])
            options.approximate = argv[at + 1] == b"~" if signed else False
            options.kept += argv[at : at + 2 + signed]
            at += 2 + signed
        elif word == b"LIMIT":
            options.limit = argv[at + 1]
            at += 2
        elif word == b"IDMP":
            options.pid, options.iid = argv[at + 1 : at + 3]
            at += 3
        elif word == b"IDMPAUTO":
            options.pid = argv[at + 1]
            at += 2
        elif word == b"NOMKSTREAM":  # it was there, or nothing would have come
            at += 1
        elif word in POLICIES:
            options.kept.append(argv[at])
            at += 1
        else:
            break
    return options, at


def _xadd(context: Context, argv: Argv) -> Meaning:
    key = argv[1]
    if not context.has(key):
        return Meaning()
    options, at = _options(argv)
    if not options.kept and options.pid is None:
        return Meaning([context.run(argv[0], key, *argv[at:])])
    if options.pid is not None and argv[at : at + 1] == [b"*"]:  # nothing but a client says that
        return Meaning([context.run(*argv)])
    runs = [context.run(argv[0], key, *options.words, *argv[at:])]
    if options.pid is not None:
        iid = automatic_iid(argv[at + 1 :]) if options.iid is None else options.iid
        runs.append(context.run(b"XIDMPRECORD", key, options.pid, iid, argv[at]))
    return Meaning(runs)


def _xtrim(context: Context, argv: Argv) -> Meaning:
    if not context.has(argv[1]):
        return Meaning()
    options, at = _options(argv)
    return Meaning([context.run(argv[0], argv[1], *options.words, *argv[at:])])


# --- commands that kvstream has not -------------------------------------------------------------


def _foreign(context: Context, argv: Argv) -> Meaning:
    """Return what a command means that is not in the table: nothing to the keys that we have."""
    word = argv[0].lower()
    found = foreign(argv)
    if found is None:
        is_silent = word in SILENT
        return Meaning(
            is_known=is_silent, is_unheard=not is_silent and not word.startswith(SILENT_MODULES)
        )
    kind, keys = found
    became = [((context.db, key), kind) for key in keys if context.has(key)]
    return Meaning(is_known=False, became=became)


def _replaces(kind: str) -> Rule:
    """Return the rule of a command that puts another type in the place of its first key."""

    def rule(context: Context, argv: Argv) -> Meaning:
        return _replaced(context, argv[1:2], kind)

    return rule


def _replaced(context: Context, keys: Sequence[bytes], kind: str) -> Meaning:
    wanted = [key for key in keys if context.has(key)]
    became = [((context.db, key), kind) for key in wanted]
    runs = [context.run(b"DEL", *wanted)] if wanted else []
    return Meaning(runs, is_known=False, became=became)


def _stores(kind: str, *words: bytes) -> Rule:
    """Return the rule of a command whose option names the key that gets the result."""

    def rule(context: Context, argv: Argv) -> Meaning:
        given = [argv[at + 1] for at, word in enumerate(argv[:-1]) if word.upper() in words]
        return _replaced(context, given[-1:], kind)

    return rule


def _changes(context: Context, argv: Argv) -> Meaning:
    """Tell of a string that is written in a way that kvstream cannot."""
    keys = [(context.db, key) for key in argv[1:2] if context.has(key)]
    return Meaning(again=keys, is_known=False)


def _bitop(context: Context, argv: Argv) -> Meaning:
    """Tell of a string that takes the place of a key of any type."""
    keys = [(context.db, key) for key in argv[2:3] if context.has(key)]
    return Meaning([context.run(b"DEL", key) for _, key in keys], again=keys, is_known=False)


def _script(context: Context, argv: Argv) -> Meaning:
    """Tell of a script that was sent as such: before Redis 5, that is what was done."""
    keys = argv[3 : 3 + _number(argv, 2)]
    again = [(context.db, key) for key in keys if context.has(key)]
    return Meaning(again=again, is_known=False, is_unheard=True)


_RULES: dict[bytes, Rule] = {
    b"del": _each(1),
    b"unlink": _each(1),
    b"mset": _each(2),
    b"msetnx": _each(2),
    b"msetex": _msetex,
    b"rename": _rename,
    b"renamenx": _rename,
    b"move": _move,
    b"copy": _copy,
    b"restore": _restore,
    b"restore-asking": _restore,
    b"flushdb": _flushdb,
    b"flushall": lambda context, argv: Meaning(flushed=[EVERY_DATABASE]),
    b"swapdb": _swapdb,
    b"xadd": _xadd,
    b"xtrim": _xtrim,
    **dict.fromkeys(b"sunionstore sinterstore sdiffstore".split(), _replaces("set")),
    **dict.fromkeys(
        b"zunionstore zinterstore zdiffstore zrangestore geosearchstore".split(),
        _replaces("zset"),
    ),
    b"sort": _stores("list", b"STORE"),
    b"georadius": _stores("zset", b"STORE", b"STOREDIST"),
    b"georadiusbymember": _stores("zset", b"STORE", b"STOREDIST"),
    **dict.fromkeys(b"setbit bitfield pfadd pfmerge pfcount".split(), _changes),
    b"bitop": _bitop,
    **dict.fromkeys(b"eval evalsha fcall".split(), _script),
}


AGAIN_MAX = 100_000
"""Keys that are noted to be copied again; where there are more, everything had better be."""
_DELETIONS = (b"DEL", b"UNLINK")
_RENAMES = (b"RENAME", b"RENAMENX")


class SourceExchanged(RequestError):
    """SWAPDB has put a database that is not followed in the place of one that is."""


class Interpreter:
    """What is known of the stream of one source."""

    def __init__(self, selection: Selection, databases: int, db: int = 0) -> None:
        """``databases`` is how many the target has, ``db`` where the next command belongs."""
        self.selection = selection
        self._databases = databases
        self.db = db
        self.in_unit = False
        """Inside MULTI: what has come is to be committed together with what comes until EXEC."""
        self.applied = 0
        """Commands that were run, or had nothing to do with what is followed."""
        self.skipped: Counter[str] = Counter()
        """Commands that kvstream has not, by name."""
        self.refused: Counter[str] = Counter()
        """What was refused although the source ran it: by command and error."""
        self.again: set[Name] = set()
        """Keys that are to be copied from the source as a whole."""

    def read(self, argv: Argv) -> Meaning:
        """Return what a command means; SourceExchanged where it cannot be followed at all."""
        control = _CONTROL.get(argv[0].lower())
        if control is not None:
            control(self, argv)
            return Meaning()
        told = meaning(self.db, argv, self.selection)
        if told.is_exchange:
            raise SourceExchanged(
                "SWAPDB of the source has exchanged a database that is followed with another"
            )
        if told.is_known:
            self.applied += 1
        else:
            self.skipped[argv[0].decode("utf-8", "backslashreplace").lower()] += 1
        return told

    def _select(self, argv: Argv) -> None:
        self.db = int(argv[1])
        if not 0 <= self.db < self._databases:
            raise InvalidArgument(
                f"the source uses database {self.db}, and the target has only {self._databases}"
            )

    def _begin(self, argv: Argv) -> None:
        self.in_unit = True

    def _end(self, argv: Argv) -> None:
        self.in_unit = False

    def flushed(self, told: Meaning) -> list[int]:
        """Return the databases whose followed keys are to be deleted."""
        whole = EVERY_DATABASE in told.flushed
        numbers = list(range(self._databases)) if whole else told.flushed
        self.again.difference_update([name for name in self.again if name[0] in numbers])
        return [db for db in numbers if self.selection.has_database(db)]

    def note_run(self, run: Run) -> None:
        """Note that a command was run."""
        if self.again and run.argv[0].upper() in _DELETIONS:
            self.again.difference_update((run.db, key) for key in run.argv[1:])

    def note_refusal(self, run: Run, error: KVStreamError) -> None:
        """Note that a command was refused; a key that we never had may well be renamed."""
        if isinstance(error, NoSuchKey) and run.argv[0].upper() in _RENAMES:
            return
        names = [(run.db, key) for key in find(run.argv).keys_of(run.argv)]
        if any(name not in self.again for name in names):  # else it follows from the first one
            word = run.argv[0].decode("ascii", "replace").upper()
            self.refused[f"{word}: {error.reply}"] += 1
        for name in names:
            self._copy_again(name)

    def note_done(self, told: Meaning) -> None:
        """Note that all of a command was run: keys that are owed have their new names."""
        if self.again:
            self._note_moves(told)
        for name in told.again:
            self._copy_again(name)

    def _note_moves(self, told: Meaning) -> None:
        if told.moved is not None and told.moved[0] in self.again:
            source, target, keeps = told.moved
            self.again.add(target)
            if not keeps:
                self.again.discard(source)
        if told.swapped is not None:
            one, other = told.swapped
            numbers = {one: other, other: one}
            moved = [(numbers.get(db, db), key) for db, key in self.again]
            self.again.clear()  # the journal has the same set
            self.again.update(moved)

    def _copy_again(self, name: Name) -> None:
        if len(self.again) >= AGAIN_MAX:
            raise RequestError(f"more than {AGAIN_MAX} keys cannot be followed command by command")
        self.again.add(name)


_CONTROL: dict[bytes, Callable[[Interpreter, Argv], None]] = {
    b"select": Interpreter._select,
    b"multi": Interpreter._begin,
    b"exec": Interpreter._end,
    b"discard": Interpreter._end,
}
