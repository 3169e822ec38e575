"""The record of a command, and what its handler gets and returns.

A record stands above its handler as a decorator: ``@COMMANDS.command("xlen", "key", ...)``. The
handler's docstring is the documentation: a summary, a line for each option, notes. Dispatch,
COMMAND, ACL categories, HELP and docs/commands.md are made from the records.

A handler runs in a transaction. It parses the arguments, calls operations, and builds a reply; it
neither commits nor waits. If it reads entries, it returns what it wants read (``Range``,
``StreamsRead``), and ``reply_pages.READERS`` reads them: at once, in pages, or later.
"""

import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from kvstream.commands.args import Argv
from kvstream.commands.replies import NULL_ARRAY, RESP2, RESP3, Reply, Simple
from kvstream.layout.keys import U16
from kvstream.meta.txn import Txn
from kvstream.operations.plans import Stepped
from kvstream.operations.reads.range import Range
from kvstream.operations.reads.read import StreamsRead

T = TypeVar("T")
Attempt: TypeAlias = Callable[[Txn], Reply]


@dataclass(frozen=True, slots=True)
class LongReply:
    """Returned instead of a long reply to a session with ``pages``.

    ``begin`` returns the reply, or the steps of an array. It is called in a transaction without
    changes, or in EXEC; the steps read from the store as it is then.
    """

    begin: "Callable[[], Reply | Iterator[Any]]"


@dataclass(slots=True, eq=False)
class Blocked:
    """Returned instead of a reply by a command that waits for data.

    ``attempt`` returns None until there is data. It runs again when one of the keys ``names``
    changes, and at the time that ``retry_at`` returns.
    """

    names: list[bytes]
    attempt: Attempt
    timeout_ms: int | None
    """None: no timeout."""
    retry_at: Callable[[Txn], int | None] | None = None
    """Unix milliseconds at which an attempt may succeed although nothing was written."""
    expired: Reply = NULL_ARRAY
    """The reply after the timeout."""
    share_key: Hashable | None = None
    """The key of clients that share an attempt: see ``Waiter.share_key``."""
    group: bytes | None = None
    """The consumer group that the command reads for."""


class Later(Enum):
    """Returned instead of a reply: run the command again in a transaction without changes."""

    LATER = "later"


LATER: Final = Later.LATER


@dataclass(slots=True, eq=False)
class Stepwise(Generic[T]):
    """Returned instead of a reply by a long command: other clients are served between its steps.

    ``run`` is its handler from then on: it is called until it returns something else, each time in
    a transaction that is committed.
    """

    work: Stepped[T]
    answer: Callable[[T, Txn, "Session"], "Answer | Unread"]

    def run(self, txn: Txn, session: "Session", argv: Argv) -> "Answer | Unread":
        """Run one step; return the answer in the last one."""
        done = self.work.step(txn)
        return self if done is None else self.answer(done, txn, session)


class Session:
    """The state of one client: the database that its keys are in."""

    __slots__ = ("databases", "db", "in_exec", "pages", "prefix", "protocol")

    def __init__(self, databases: int) -> None:
        self.databases = databases
        self.pages = False
        """Accepts Paged replies and, outside EXEC, LATER and Stepwise."""
        self.in_exec = False
        """Runs the queue of a MULTI: no command is split into steps."""
        self.protocol = RESP2
        """The protocol of its replies."""
        self.select(0)

    @property
    def resp(self) -> int:
        """The version of RESP."""
        return RESP3 if self.protocol == RESP3 else RESP2

    @property
    def steps(self) -> bool:
        """Whether commands may return Stepwise."""
        return self.pages and not self.in_exec

    def select(self, db: int) -> None:
        """Use database ``db`` for the keys of later requests."""
        self.db = db
        self.prefix = U16.pack(db)
        """Put before a key it makes the key's name: the hot form of ``qualified``."""


Unread: TypeAlias = Range | StreamsRead | LongReply
"""What a handler wants read: ``reply_pages.READERS`` makes an answer of it."""
Answer: TypeAlias = "Reply | Blocked | Later | Stepwise[Any]"
Handler: TypeAlias = Callable[[Txn, Session, Argv], "Answer | Unread"]
H = TypeVar("H", bound=Callable[..., "Answer | Unread"])


class Flag(StrEnum):
    """What must be known of a command before it runs, in Redis's words and order."""

    WRITE = "write"
    READONLY = "readonly"
    DENYOOM = "denyoom"
    """It may make the store larger."""
    ADMIN = "admin"
    PUBSUB = "pubsub"
    NOSCRIPT = "noscript"
    BLOCKING = "blocking"
    LOADING = "loading"
    STALE = "stale"
    SKIP_MONITOR = "skip_monitor"
    """It sends itself to MONITOR."""
    SKIP_SLOWLOG = "skip_slowlog"
    FAST = "fast"
    NO_AUTH = "no_auth"
    """It may run before AUTH."""
    NO_MANDATORY_KEYS = "no_mandatory_keys"
    """All of its keys are optional."""
    MOVABLEKEYS = "movablekeys"
    """The positions of its keys depend on its arguments."""
    NO_ASYNC_LOADING = "no_async_loading"
    NO_MULTI = "no_multi"
    ALLOW_BUSY = "allow_busy"
    SCRIPT_RUNNER = "script_runner"
    """It runs a script or a function, whose commands are recorded one by one."""
    # COMMAND does not show the flags below: see HIDDEN_FLAGS.
    MAY_REPLICATE = "may_replicate"
    """It may publish messages, or write by a script."""
    LOCAL = "local"
    """It touches no key."""
    IMMEDIATE = "immediate"
    """It runs inside MULTI instead of being queued."""
    SUBSCRIBED = "subscribed"
    """A subscribed client may send it even if it speaks RESP2, where replies look like messages."""
    NO_TOUCH = "no_touch"
    """It does not count as a use of its keys, whose idle time goes on."""
    SHOWS_CHANGE = "shows_change"
    """It replies 0 or null if and only if it has changed nothing."""
    INVALIDATES = "invalidates"
    """Its changes invalidate keys that clients track, although the index of keys stays as it is.
    Without keys of its own it invalidates all."""


HIDDEN_FLAGS: Final = frozenset(
    {
        *(Flag.MAY_REPLICATE, Flag.LOCAL, Flag.IMMEDIATE, Flag.SUBSCRIBED),
        *(Flag.NO_TOUCH, Flag.SHOWS_CHANGE, Flag.INVALIDATES),
    }
)
"""Flags that COMMAND does not show."""


def flags(words: str) -> frozenset[Flag]:
    return frozenset(map(Flag, words.split()))


READ = flags("readonly")
FAST_READ = flags("readonly fast")
WRITE = flags("write")
FAST_WRITE = flags("write fast")
GROW = flags("write denyoom")
FAST_GROW = flags("write denyoom fast")
LOOKUP = flags("loading stale local")
"""Commands that describe the server itself."""
OPERATE = flags("admin noscript loading stale local")


@dataclass(frozen=True, slots=True)
class Keys:
    """Which arguments are keys: from ``first`` to ``last``, counted from the end when negative."""

    first: int
    last: int
    step: int = 1

    def of(self, argv: Argv) -> list[bytes]:
        last = self.last + len(argv) if self.last < 0 else self.last
        return list(argv[self.first : last + 1 : self.step])


_STREAMS, _GROUP = b"STREAMS", b"GROUP"
_STREAMS_SIZE, _GROUP_SIZE = len(_STREAMS), len(_GROUP)


@dataclass(frozen=True, slots=True)
class StreamsKeys(Keys):
    """The keys of XREAD and XREADGROUP: the first half of the arguments after STREAMS."""

    first: int = 0
    last: int = 0
    search_from: int = 1
    """The first argument that may be STREAMS."""

    def of(self, argv: Argv) -> list[bytes]:
        at, words = 1, len(argv)
        while at < words:
            word = argv[at]
            size = len(word)
            if size == _STREAMS_SIZE and word.upper() == _STREAMS:
                return list(argv[at + 1 : at + 1 + (words - at - 1) // 2])
            # A group or consumer may be called "streams".
            at += 3 if size == _GROUP_SIZE and word.upper() == _GROUP else 1
        return []


class CountedPairs(Keys):
    """The keys of MSETEX: each before its value, as many as the first argument says."""

    def of(self, argv: Argv) -> list[bytes]:
        end = 2 + 2 * _count(argv, 1)
        return list(argv[2:end:2]) if end <= len(argv) + 1 else []


class CountedKeys(Keys):
    """The keys of a script: those after the second argument, as many as it says."""

    def of(self, argv: Argv) -> list[bytes]:
        count = _count(argv, 2)
        return list(argv[3 : 3 + count]) if count <= len(argv) - 3 else []


def _count(argv: Argv, at: int) -> int:
    """Return an argument as a number; 0 if it is not one, or has too many digits for int()."""
    raw = argv[at] if at < len(argv) else b""
    return int(raw) if raw.isdigit() and len(raw) <= _COUNT_DIGITS_MAX else 0


@dataclass(frozen=True, slots=True)
class Channels:
    """Which arguments are channels."""

    at: Keys
    patterns: bool = False
    """They are patterns, which only an equal pattern of the user allows."""
    shard: bool = False
    """They are shard channels, by which a cluster finds the node, as it does by keys."""
    free: bool = False
    """Every user may name any of them."""


OURS = "kvstream 0.1.0"
"""The version of a command that Redis does not have."""

FIRST = Keys(1, 1)
SECOND = Keys(2, 2)
FIRST_TWO = Keys(1, 2)
EVERY = Keys(1, -1)
PAIRS = Keys(1, -1, 2)
ALL_KEYS: Final = sys.maxsize
"""The value of ``Command.counted_keys`` for all of its keys."""

_ASKED: Final = {
    "grows": Flag.DENYOOM,
    "is_admin": Flag.ADMIN,
    "is_local": Flag.LOCAL,
    "is_immediate": Flag.IMMEDIATE,
    "runs_scripts": Flag.SCRIPT_RUNNER,
    "shows_change": Flag.SHOWS_CHANGE,
}
_OF_STORE = (Flag.WRITE, Flag.READONLY)
_COUNT_DIGITS_MAX: Final = 19
_OPTIONAL = re.compile(r"\[[^\[\]]*\]")


@dataclass(frozen=True, slots=True)
class Command:
    """The record of one command, or of one subcommand."""

    name: str
    """In small letters; a subcommand's is ``container|name``."""
    run: Callable[..., "Answer | Unread"]
    """The handler; its docstring documents the command."""
    syntax: str
    """The arguments, as Redis's documentation writes them."""
    flags: frozenset[Flag]
    keys: Keys | None
    since: str
    """The version of Redis that introduced it."""
    group: str
    """Its group in Redis's documentation."""
    categories: str | None = None
    """ACL categories, unless it has that of its group; flags add more."""
    uses: str = ""
    """What it does to its keys, or to each of them, separated by commas: RO, RW, OW (overwrite) or
    RM (remove), then access, update, insert, delete. Empty: it plainly reads or updates."""
    uses_of: Callable[[Argv], str] | None = None
    """Returns ``uses`` for a request whose options decide."""
    tips: str = ""
    """Redis's command tips for clients of clusters."""
    usage: str | None = None
    """The arguments as HELP shows them; None: as in ``syntax``."""
    arity: int = 0
    """The number of words of a request; negative: at least so many. 0: taken from ``syntax``."""
    any_key: Callable[[Argv], bool] | None = None
    """Whether a request may write keys that it does not name: its user needs all keys."""
    channels: Channels | None = None
    counted_keys: int = -1
    """How many of its keys count as keyspace hits or misses; -1: all if it only reads, or none."""
    depends: bool = field(init=False, repr=False)
    """Its reply depends on the keys of the store, or on the commit."""
    writes: bool = field(init=False, repr=False)
    touches_keys: bool = field(init=False, repr=False)
    """It counts as a use of its keys."""
    key_at: int = field(init=False, repr=False)
    """The argument that is its only key; 0: it may have several, or none."""
    grows: bool = field(init=False, repr=False)
    is_admin: bool = field(init=False, repr=False)
    is_local: bool = field(init=False, repr=False)
    is_immediate: bool = field(init=False, repr=False)
    runs_scripts: bool = field(init=False, repr=False)
    shows_change: bool = field(init=False, repr=False)
    """Whether it has a flag that every call looks up."""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("arity", self.arity or self._least_words())
        for name, flag in _ASKED.items():
            put(name, flag in self.flags)
        script_writes = self.runs_scripts and Flag.MAY_REPLICATE in self.flags
        put("writes", script_writes or Flag.WRITE in self.flags)
        put("depends", script_writes or not self.flags.isdisjoint(_OF_STORE))
        put("touches_keys", not self.runs_scripts and Flag.NO_TOUCH not in self.flags)
        put("key_at", 1 if self.keys == FIRST else 2 if self.keys == SECOND else 0)
        if self.counted_keys < 0:
            only_reads = Flag.READONLY in self.flags and not self.runs_scripts
            put("counted_keys", ALL_KEYS if only_reads else 0)

    def _least_words(self) -> int:
        required, depth = self.syntax, 1
        while depth:
            required, depth = _OPTIONAL.subn("", required)
        words = len(self.name.split("|")) + len(required.split())
        return words if required == self.syntax else -words

    @property
    def summary(self) -> str:
        """The first paragraph of the handler's docstring."""
        return " ".join((self.run.__doc__ or "").partition("\n\n")[0].split())

    def keys_of(self, argv: Argv) -> list[bytes]:
        """Return the keys of a request."""
        return [] if self.keys is None else self.keys.of(argv)


def spellings(name: str) -> tuple[bytes, bytes]:
    """Return a name in small and in capital letters, as clients write it; others are converted."""
    return name.encode(), name.upper().encode()


class Family:
    """The commands of one module: ``command`` is the decorator that adds one."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.commands: dict[str, Command] = {}

    def command(
        self,
        name: str,
        syntax: str = "",
        flags: frozenset[Flag] = frozenset(),
        keys: Keys | None = None,
        *,
        since: str,
        group: str = "",
        categories: str | None = None,
        uses: str = "",
        uses_of: Callable[[Argv], str] | None = None,
        tips: str = "",
        usage: str | None = None,
        arity: int = 0,
        any_key: Callable[[Argv], bool] | None = None,
        channels: Channels | None = None,
        counted_keys: int = -1,
    ) -> Callable[[H], H]:
        """Register the decorated handler; the arguments are those of ``Command``."""

        def register(run: H) -> H:
            self.commands[name] = Command(
                *(name, run, syntax, flags, keys, since, group or self._group),
                *(categories, uses, uses_of, tips, usage, arity, any_key),
                *(channels, counted_keys),
            )
            return run

        return register

    def override(self, base: Command) -> Callable[[H], H]:
        """Register the decorated handler for a command of another family."""

        def register(run: H) -> H:
            self.commands[base.name] = replace(base, run=run)
            return run

        return register

    def add_help(
        self,
        container: str,
        since: str,
        *,
        more: "Family | None" = None,
        group: str = "",
        categories: str | None = None,
    ) -> None:
        """Register HELP of a container; it also lists the subcommands of the family ``more``."""

        def show(txn: Txn, session: Session, argv: Argv) -> Reply:
            """Show the subcommands."""
            listed = {**(more.commands if more else {}), **self.commands}
            lines = [
                f"{container.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
            ]
            names = sorted(name for name in listed if name.startswith(f"{container}|"))
            for name in sorted(names, key=f"{container}|help".__eq__):  # HELP comes last
                lines += _help_lines(listed[name])
            return [*map(Simple, lines)]

        record = self.command(
            f"{container}|help", "", LOOKUP, since=since, group=group, categories=categories
        )
        record(show)


def _help_lines(command: Command) -> list[str]:
    usage = command.syntax if command.usage is None else command.usage
    name = command.name.partition("|")[2].upper()
    return [f"{name} {usage}".rstrip(), f"    {command.summary}"]


@dataclass(frozen=True, slots=True)
class Container:
    """A name whose second word is the command: XGROUP, XINFO, CONFIG."""

    name: str
    subcommands: Mapping[bytes, Command]
    """By name in small letters."""
    alone: Command | None = None
    """The command of the name without a second word, if there is one."""

    @property
    def since(self) -> str:
        """The version that introduced the first subcommand."""
        members = (self.alone,) if self.alone is not None else self.subcommands.values()
        return min((row.since for row in members), key=_version)

    @property
    def group(self) -> str:
        return next(iter(self.subcommands.values())).group


def _version(since: str) -> list[int]:
    return [*map(int, since.rpartition(" ")[2].split("."))]


Table: TypeAlias = Mapping[bytes, Command | Container]


def table_of(sections: Iterable[Iterable[Family]]) -> dict[bytes, Command | Container]:
    """Return the commands by name; one of a later family replaces an earlier one."""
    named: dict[str, Command] = {}
    for families in sections:
        commands = [command for family in families for command in family.commands.values()]
        named.update(
            (command.name, command) for command in sorted(commands, key=attrgetter("name"))
        )
    containers = {name.partition("|")[0] for name in named if "|" in name}
    table: dict[bytes, Command | Container] = {}
    for name in dict.fromkeys(name.partition("|")[0] for name in named):
        table[name.encode()] = _container(name, named) if name in containers else named[name]
    return table


def _container(name: str, named: Mapping[str, Command]) -> Container:
    words = sorted(full.partition("|")[2] for full in named if full.startswith(f"{name}|"))
    return Container(name, {w.encode(): named[f"{name}|{w}"] for w in words}, named.get(name))


def every(table: Table) -> list[Command]:
    """Return every command of a table, subcommands in place of their container."""
    commands: list[Command] = []
    for row in table.values():
        if isinstance(row, Container):
            commands += [row.alone] if row.alone is not None else []
            commands += row.subcommands.values()
        else:
            commands.append(row)
    return commands
