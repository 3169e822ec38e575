"""Translation of a Redis command stream into kvstream commands, sans-IO.

Most commands run unchanged. The exceptions:

- Redis replicates ``~`` as ``=`` with the exact threshold but keeps the LIMIT, and XADD with IDMP
  has an explicit ID; clients may send neither.
- RENAME, MOVE and COPY may read a key that the target lacks, because of its type or because it is
  not followed.
- Commands of types that kvstream lacks may replace a key that the target has.

If the target refuses a command that the source has run, its keys are recorded; they are copied
whole at the cut-over.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstream.commands.args import Argv
from kvstream.commands.command import Command, Flag
from kvstream.commands.table import COMMANDS, command_of, find
from kvstream.commands.trim import POLICIES
from kvstream.errors import InvalidArgument, KVStreamError, NoSuchKey, RequestError
from kvstream.migration.items import DbKey, Selection
from kvstream.operations.append import automatic_iid
from kvstream.rdb.skipping import OBJECT_TYPES, STRING
from kvstream.rdb.versions import STREAM_KINDS, Dialect


class Run(NamedTuple):
    """A command to run in a database."""

    db: int
    argv: list[bytes]


@dataclass(slots=True)
class Translation:
    """The effect of one command of the source."""

    runs: list[Run] = field(default_factory=list)
    """The commands to run for it."""
    recopy: list[DbKey] = field(default_factory=list)
    """Keys that must be copied whole, since only the source has their value."""
    is_known: bool = True
    """Whether kvstream has the command."""
    is_opaque: bool = False
    """Whether the command may have changed keys that it does not name."""
    retyped: list[tuple[DbKey, str]] = field(default_factory=list)
    """Keys that now have a type that kvstream lacks, with that type."""
    flushed: list[int] = field(default_factory=list)
    """Databases whose followed keys are deleted."""
    moved: tuple[DbKey, DbKey, bool] | None = None
    """Source and target of a value, and whether the source keeps it."""
    swapped: tuple[int, int] | None = None
    """Two followed databases that were swapped."""
    is_exchange: bool = False
    """Whether a followed database was swapped with another: everything must be copied again."""


class Context(NamedTuple):
    """The selected database, and the keys that are followed."""

    db: int
    selection: Selection

    def has(self, key: bytes, db: int | None = None) -> bool:
        return self.selection.has(self.db if db is None else db, key)

    def run(self, *argv: bytes, db: int | None = None) -> Run:
        return Run(self.db if db is None else db, list(argv))


Rule = Callable[[Context, Argv], Translation]
EVERY_DATABASE = -1
"""Stands for all databases in ``flushed``."""

_KEPT_TYPES = (STRING, *STREAM_KINDS)
"""The types of payloads that kvstream can restore."""
SILENT = frozenset(
    b"asking auth client cluster config debug echo latency memory module multi ping "
    b"pfselftest publish readonly readwrite replconf script slowlog spublish wait waitaof".split()
)
"""Commands that change no key and can be ignored."""


def translate(db: int, argv: Argv, selection: Selection) -> Translation:
    """Return the translation of a command of the source."""
    context = Context(db, selection)
    rule = _RULES.get(argv[0].lower())
    if rule is not None:
        return rule(context, argv)
    command = command_of(argv, COMMANDS)
    if command is None:
        return _foreign(context, argv)
    return _pass_on(context, command, argv)


def _pass_on(context: Context, command: Command, argv: Argv) -> Translation:
    keys = command.keys_of(argv) if Flag.WRITE in command.flags else []
    return (
        Translation([context.run(*argv)]) if keys and all(map(context.has, keys)) else Translation()
    )


# --- many keys ----------------------------------------------------------------------------------


def _each(step: int) -> Rule:
    """Return the rule for arguments that are keys (1), or keys and values (2)."""

    def rule(context: Context, argv: Argv) -> Translation:
        wanted = _select_followed(context, argv[1:], step)
        return Translation([context.run(argv[0], *wanted)] if wanted else [])

    return rule


def _select_followed(context: Context, words: Sequence[bytes], step: int) -> list[bytes]:
    """Return the arguments that belong to followed keys."""
    return [
        word
        for at in range(0, len(words), step)
        if context.has(words[at])
        for word in words[at : at + step]
    ]


def _msetex(context: Context, argv: Argv) -> Translation:
    end = 2 + 2 * _number(argv, 1)
    wanted = _select_followed(context, argv[2:end], 2)
    count = b"%d" % (len(wanted) // 2)
    return Translation([context.run(argv[0], count, *wanted, *argv[end:])] if wanted else [])


def _number(argv: Argv, at: int) -> int:
    return int(argv[at]) if len(argv) > at and argv[at].isdigit() else 0


# --- moved keys -----------------------------------------------------------------------------------


def _translate_move(
    context: Context, source: bytes, target: bytes, db: int, argv: Argv, keeps: bool
) -> Translation:
    """Return the translation of a command that moves a value from one key to another.

    The target key is deleted first: the source key may have a type that kvstream lacks.
    """
    has_source, has_target = context.has(source), context.has(target, db)
    if (source, context.db) == (target, db):
        return Translation()
    runs = [context.run(b"DEL", target, db=db)] if has_target else []
    if has_source and has_target:
        moved = ((context.db, source), (db, target), keeps)
        return Translation([*runs, context.run(*argv)], moved=moved)
    if has_source and not keeps:
        runs.append(context.run(b"DEL", source))
    return Translation(runs, recopy=[(db, target)] if has_target else [])


def _rename(context: Context, argv: Argv) -> Translation:
    return _translate_move(context, argv[1], argv[2], context.db, argv, keeps=False)


def _move(context: Context, argv: Argv) -> Translation:
    return _translate_move(context, argv[1], argv[1], _number(argv, 2), argv, keeps=False)


def _copy(context: Context, argv: Argv) -> Translation:
    words = [word.upper() for word in argv[3:]]
    db = _number(argv, 4 + words.index(b"DB")) if b"DB" in words else context.db
    return _translate_move(context, argv[1], argv[2], db, argv, keeps=True)


def _restore(context: Context, argv: Argv) -> Translation:
    """Return the translation of RESTORE: the key, or a type that kvstream lacks."""
    if not context.has(argv[1]):
        return Translation()
    gone = context.run(b"DEL", argv[1])
    if argv[3][:1] and argv[3][0] not in _KEPT_TYPES:
        kind = OBJECT_TYPES[Dialect.REDIS].get(argv[3][0])
        retyped = [((context.db, argv[1]), "unknown" if kind is None else kind.name)]
        return Translation([gone], is_known=False, retyped=retyped)
    return Translation([gone, context.run(b"RESTORE", *argv[1:])])


# --- databases ------------------------------------------------------------------------------------


def _flushdb(context: Context, _argv: Argv) -> Translation:
    return Translation(flushed=[context.db] if context.selection.has_database(context.db) else [])


def _swapdb(context: Context, argv: Argv) -> Translation:
    both = _number(argv, 1), _number(argv, 2)
    followed = sum(map(context.selection.has_database, both))
    if followed == 1:
        return Translation(is_exchange=True)
    return Translation([context.run(*argv)], swapped=both) if followed else Translation()


# --- XADD and XTRIM -------------------------------------------------------------------------------

_TRIMS = (b"MAXLEN", b"MINID")


@dataclass(slots=True)
class _Options:
    """The options of XADD or XTRIM."""

    kept: list[bytes] = field(default_factory=list)
    approximate: bool = False
    limit: bytes | None = None
    pid: bytes | None = None
    iid: bytes | None = None

    @property
    def words(self) -> list[bytes]:
        """The options to run; a LIMIT is valid only after ``~``."""
        if self.approximate and self.limit is not None:
            return [*self.kept, b"LIMIT", self.limit]
        return self.kept


def _options(argv: Argv) -> tuple[_Options, int]:
    """Return the options after the key, and the index of their end."""
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
        elif word == b"NOMKSTREAM":  # replicated only if the stream existed
            at += 1
        elif word in POLICIES:
            options.kept.append(argv[at])
            at += 1
        else:
            break
    return options, at


def _xadd(context: Context, argv: Argv) -> Translation:
    key = argv[1]
    if not context.has(key):
        return Translation()
    options, at = _options(argv)
    if not options.kept and options.pid is None:
        return Translation([context.run(argv[0], key, *argv[at:])])
    if options.pid is not None and argv[at : at + 1] == [b"*"]:  # as a client sends it
        return Translation([context.run(*argv)])
    runs = [context.run(argv[0], key, *options.words, *argv[at:])]
    if options.pid is not None:
        iid = automatic_iid(argv[at + 1 :]) if options.iid is None else options.iid
        runs.append(context.run(b"XIDMPRECORD", key, options.pid, iid, argv[at]))
    return Translation(runs)


def _xtrim(context: Context, argv: Argv) -> Translation:
    if not context.has(argv[1]):
        return Translation()
    options, at = _options(argv)
    return Translation([context.run(argv[0], argv[1], *options.words, *argv[at:])])


# --- commands of other types --------------------------------------------------------------------

_FIRST, _BOTH = slice(1, 2), slice(1, 3)
_TRIPLES = slice(1, None, 3)
_COUNTED = slice(0)
"""A count of keys stands after the command."""


def _rows(kind: str, words: str, keys: slice = _FIRST) -> dict[bytes, tuple[str, slice]]:
    return {word.encode(): (kind, keys) for word in words.split()}


_COMMANDS: dict[bytes, tuple[str, slice]] = (
    _rows("list", "lpush rpush lpushx rpushx linsert lset ltrim lrem lpop rpop")
    | _rows("list", "lmove rpoplpush blmove brpoplpush", _BOTH)
    | _rows("list", "blpop brpop", slice(1, -1))
    | _rows("list", "lmpop", _COUNTED)
    | _rows("set", "sadd srem spop")
    | _rows("set", "smove", _BOTH)
    | _rows("hash", "hset hmset hsetnx hincrby hincrbyfloat hdel hgetdel hgetex hsetex")
    | _rows("hash", "hexpire hpexpire hexpireat hpexpireat hpersist")
    | _rows("zset", "zadd zincrby zrem zpopmin zpopmax geoadd")
    | _rows("zset", "zremrangebyrank zremrangebyscore zremrangebylex")
    | _rows("zset", "bzpopmin bzpopmax", slice(1, -1))
    | _rows("zset", "zmpop", _COUNTED)
    | _rows("vectorset", "vadd vrem vsetattr")
    | _rows("module", "json.mset ts.madd", _TRIPLES)
    | _rows("module", "ts.createrule ts.deleterule", _BOTH)
)
"""Write commands of types that kvstream lacks, in small letters: the type, and the key arguments.

The source replicates only what succeeded. So the keys have that type, or had it until the command
removed the last element.
"""

_MODULES = tuple(b"json. ts. bf. cf. cms. topk. tdigest. graph. ft.sug ai.tensor".split())
"""Prefixes of the commands of known modules, whose first argument is the key."""

SILENT_MODULES = (b"ft.", b"_ft.")
"""Prefixes of commands of indexes, which write no key."""


def foreign(argv: Argv) -> tuple[str, list[bytes]] | None:
    """Return the type and the keys of a command; None for an unknown command."""
    word = argv[0].lower()
    found = _COMMANDS.get(word)
    if found is None:
        return ("module", list(argv[_FIRST])) if word.startswith(_MODULES) else None
    kind, place = found
    if place is _COUNTED:
        place = slice(2, 2 + _number(argv, 1))
    return kind, list(argv[place])


def _foreign(context: Context, argv: Argv) -> Translation:
    """Return the translation of a command that kvstream lacks: it runs nothing."""
    word = argv[0].lower()
    kind_and_keys = foreign(argv)
    if kind_and_keys is None:
        is_silent = word in SILENT
        return Translation(
            is_known=is_silent, is_opaque=not is_silent and not word.startswith(SILENT_MODULES)
        )
    kind, keys = kind_and_keys
    retyped = [((context.db, key), kind) for key in keys if context.has(key)]
    return Translation(is_known=False, retyped=retyped)


def _replaces(kind: str) -> Rule:
    """Return the rule for a command that replaces its first key by another type."""

    def rule(context: Context, argv: Argv) -> Translation:
        return _translate_replacement(context, argv[1:2], kind)

    return rule


def _translate_replacement(context: Context, keys: Sequence[bytes], kind: str) -> Translation:
    wanted = [key for key in keys if context.has(key)]
    retyped = [((context.db, key), kind) for key in wanted]
    runs = [context.run(b"DEL", *wanted)] if wanted else []
    return Translation(runs, is_known=False, retyped=retyped)


def _stores(kind: str, *words: bytes) -> Rule:
    """Return the rule for a command that stores its result at a key named by an option."""

    def rule(context: Context, argv: Argv) -> Translation:
        targets = [argv[at + 1] for at, word in enumerate(argv[:-1]) if word.upper() in words]
        return _translate_replacement(context, targets[-1:], kind)

    return rule


def _changes(context: Context, argv: Argv) -> Translation:
    """Return the translation of a write to a string that kvstream cannot perform."""
    keys = [(context.db, key) for key in argv[1:2] if context.has(key)]
    return Translation(recopy=keys, is_known=False)


def _bitop(context: Context, argv: Argv) -> Translation:
    """Return the translation of BITOP, which replaces a key by a string."""
    keys = [(context.db, key) for key in argv[2:3] if context.has(key)]
    return Translation([context.run(b"DEL", key) for _, key in keys], recopy=keys, is_known=False)


def _script(context: Context, argv: Argv) -> Translation:
    """Return the translation of a script; Redis before 5 replicates scripts, not their effects."""
    keys = argv[3 : 3 + _number(argv, 2)]
    again = [(context.db, key) for key in keys if context.has(key)]
    return Translation(recopy=again, is_known=False, is_opaque=True)


def _function(context: Context, argv: Argv) -> Translation:
    """Libraries of functions are followed unless only some keys are."""
    changes = len(argv) > 1 and argv[1].upper() in _FUNCTION_CHANGES
    return Translation([context.run(*argv)] if changes and not context.selection.match else [])


_FUNCTION_CHANGES = (b"LOAD", b"DELETE", b"FLUSH", b"RESTORE")
_RULES: dict[bytes, Rule] = {
    b"function": _function,
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
    b"flushall": lambda context, argv: Translation(flushed=[EVERY_DATABASE]),
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
"""Most keys to be copied again; with more of them following ends."""
_DELETIONS = (b"DEL", b"UNLINK")
_RENAMES = (b"RENAME", b"RENAMENX")


class SourceExchanged(RequestError):
    """SWAPDB has swapped a followed database with one that is not followed."""


class Interpreter:
    """The state of one source's command stream: its database, and the keys to copy again."""

    def __init__(self, selection: Selection, databases: int, db: int = 0) -> None:
        """``databases`` is the number of the target's databases, ``db`` the selected one."""
        self.selection = selection
        self._databases = databases
        self.db = db
        self.applied = 0
        """Commands that were run, or changed no followed key."""
        self.skipped: Counter[str] = Counter()
        """Commands that kvstream lacks, by name."""
        self.refused: Counter[str] = Counter()
        """Refused commands that the source has run, by command and error."""
        self.recopy: set[DbKey] = set()
        """Keys that must be copied whole from the source."""

    def read(self, argv: Argv) -> Translation:
        """Return the translation of the next command; raise SourceExchanged for such a SWAPDB."""
        word = argv[0].lower()
        if word in _CONTROL:
            if word == b"select":
                self._select(argv)
            return Translation()
        translation = translate(self.db, argv, self.selection)
        if translation.is_exchange:
            raise SourceExchanged(
                "SWAPDB of the source has swapped a followed database with another"
            )
        if translation.is_known:
            self.applied += 1
        else:
            self.skipped[argv[0].decode("utf-8", "backslashreplace").lower()] += 1
        return translation

    def _select(self, argv: Argv) -> None:
        self.db = int(argv[1])
        if self.selection.has_database(self.db) and not 0 <= self.db < self._databases:
            raise InvalidArgument(
                f"the source uses database {self.db}, but the target has only {self._databases}"
            )

    def note_flush(self, translation: Translation) -> list[int]:
        """Record a flush; return the databases whose followed keys must be deleted."""
        whole = EVERY_DATABASE in translation.flushed
        numbers = list(range(self._databases)) if whole else translation.flushed
        self.recopy.difference_update([name for name in self.recopy if name[0] in numbers])
        return [db for db in numbers if self.selection.has_database(db)]

    def note_run(self, run: Run) -> None:
        """Record a command that was run."""
        if self.recopy and run.argv[0].upper() in _DELETIONS:
            self.recopy.difference_update((run.db, key) for key in run.argv[1:])

    def note_refusal(self, run: Run, error: KVStreamError) -> None:
        """Record a command that was refused.

        Renaming a key that is not followed is ignored, and deleting a library that was left out.
        """
        if isinstance(error, NoSuchKey) and run.argv[0].upper() in _RENAMES:
            return
        word = run.argv[0].decode("ascii", "replace").upper()
        is_function = word == "FUNCTION"  # a command of the server, which has no keys
        if is_function and run.argv[1].upper() == b"DELETE":
            return
        keys = [] if is_function else find(run.argv).keys_of(run.argv)
        names = [(run.db, key) for key in keys]
        # Count only the first refusal of a key.
        if is_function or any(name not in self.recopy for name in names):
            self.refused[f"{word}: {error.reply}"] += 1
        for name in names:
            self._copy_again(name)

    def note_done(self, translation: Translation) -> None:
        """Record that all commands of a translation were run."""
        if self.recopy:
            self._note_moves(translation)
        for name in translation.recopy:
            self._copy_again(name)

    def _note_moves(self, translation: Translation) -> None:
        if translation.moved is not None and translation.moved[0] in self.recopy:
            source, target, keeps = translation.moved
            self.recopy.add(target)
            if not keeps:
                self.recopy.discard(source)
        if translation.swapped is not None:
            one, other = translation.swapped
            numbers = {one: other, other: one}
            moved = [(numbers.get(db, db), key) for db, key in self.recopy]
            self.recopy.clear()  # shared with the journal, so changed in place
            self.recopy.update(moved)

    def _copy_again(self, name: DbKey) -> None:
        if len(self.recopy) >= AGAIN_MAX:
            raise RequestError(f"more than {AGAIN_MAX} keys cannot be followed command by command")
        self.recopy.add(name)


_CONTROL = (b"select", b"multi", b"exec", b"discard")
