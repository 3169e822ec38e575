"""What a command is: a row of the table, and what its handler is given and may answer.

A handler is called in a transaction with the session and the whole request. It reads the arguments,
calls operations and makes their results a reply; it commits nothing and waits for nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, TypeAlias

from kvstream.commands.args import Argv
from kvstream.commands.replies import NULL_ARRAY, Paged, Reply, Streams
from kvstream.layout.keys import U16
from kvstream.meta.txn import Txn

Attempt: TypeAlias = Callable[[Txn], Streams | Paged | None]


@dataclass(frozen=True, slots=True)
class Blocked:
    """In place of a reply: nothing is there yet, and the client is willing to wait.

    ``attempt`` answers None until there is something; it is tried again whenever a key of ``names``
    has news, and at the time that ``retry_at`` tells.
    """

    names: list[bytes]
    attempt: Attempt
    timeout_ms: int | None
    """None: for ever."""
    retry_at: Callable[[Txn], int | None] | None = None
    """Unix milliseconds at which an attempt may succeed although nothing was written."""
    expired: Reply = NULL_ARRAY
    """What is answered when the time is over."""
    shares: bytes | None = None
    """What it takes from together with others: see ``Waiter``."""
    group: bytes | None = None
    """The group that it reads for."""


class Later(Enum):
    """In place of a reply: ask again, in a transaction in which nothing has been changed yet."""

    LATER = "later"


LATER: Final = Later.LATER


@dataclass(frozen=True, slots=True)
class Stepwise:
    """In place of a reply: there is much to do, and others are to go on meanwhile.

    ``step`` is called again and again, each time in a transaction that is committed, until it
    answers anything but a Stepwise.
    """

    step: "Handler"
    undo: Callable[[Txn], None] | None = None
    """Takes away what the steps have left, where the client has gone before the last one."""


class Session:
    """What one client has set: the database that its keys are in."""

    __slots__ = ("databases", "db", "in_exec", "pages", "prefix")

    def __init__(self, databases: int, db: int = 0) -> None:
        self.databases = databases
        self.pages = False
        """It takes Paged for a reply and, outside of EXEC, LATER and Stepwise."""
        self.in_exec = False
        """What runs was queued by MULTI: it is done in one go."""
        self.select(db)

    @property
    def steps(self) -> bool:
        """Whether it takes Stepwise."""
        return self.pages and not self.in_exec

    def select(self, db: int) -> None:
        """Let the keys of the requests that follow be those of database ``db``."""
        self.db = db
        self.prefix = U16.pack(db)
        """Put before a key it makes the key's name: the hot form of ``qualified``."""


Answer: TypeAlias = "Reply | Blocked | Later | Stepwise"
Handler: TypeAlias = Callable[[Txn, Session, Argv], Answer]


class Flag(StrEnum):
    """What servers and clients need to know of a command before it runs, in Redis's words."""

    WRITE = "write"
    READONLY = "readonly"
    DENYOOM = "denyoom"
    """It may make the store larger."""
    FAST = "fast"
    BLOCKING = "blocking"
    ADMIN = "admin"
    MOVABLEKEYS = "movablekeys"
    """Where its keys stand depends on its arguments."""
    NO_AUTH = "no_auth"
    """It may run before AUTH."""
    NO_MULTI = "no_multi"
    LOCAL = "local"
    """It touches no key: not a word of Redis's, and not told to clients."""
    IMMEDIATE = "immediate"
    """It runs inside MULTI instead of being queued; not a word of Redis's either."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Which arguments are keys: from ``first`` to ``last``, counted from the end when negative."""

    first: int
    last: int
    step: int = 1

    def of(self, argv: Argv) -> list[bytes]:
        last = self.last + len(argv) if self.last < 0 else self.last
        return list(argv[self.first : last + 1 : self.step])


class StreamsKeys(Keys):
    """The keys of XREAD and XREADGROUP: the first half of what follows STREAMS."""

    def of(self, argv: Argv) -> list[bytes]:
        at = 1
        while at < len(argv):
            word = argv[at].upper()
            if word == b"STREAMS":
                return list(argv[at + 1 : at + 1 + (len(argv) - at - 1) // 2])
            at += 3 if word == b"GROUP" else 1  # a group or consumer may be called "streams"
        return []


class CountedPairs(Keys):
    """The keys of MSETEX: each before its value, as many as the first argument says."""

    def of(self, argv: Argv) -> list[bytes]:
        number = argv[1] if len(argv) > 1 else b""
        return list(argv[2 : 2 + 2 * int(number) : 2]) if number.isdigit() else []


NO_KEYS = None
FIRST = Keys(1, 1)
SECOND = Keys(2, 2)
FIRST_TWO = Keys(1, 2)
EVERY = Keys(1, -1)
PAIRS = Keys(1, -1, 2)
STREAMS = StreamsKeys(0, 0)
COUNTED_PAIRS = CountedPairs(0, 0)


_ASKED: Final = {
    "writes": Flag.WRITE,
    "grows": Flag.DENYOOM,
    "is_admin": Flag.ADMIN,
    "is_local": Flag.LOCAL,
    "is_immediate": Flag.IMMEDIATE,
}


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table."""

    name: str
    """In small letters; a subcommand's is ``container|name``."""
    arity: int
    """Words of a request, its name included; at least -n where negative."""
    flags: frozenset[Flag]
    keys: Keys | None
    run: Handler
    since: str
    """The version of Redis that brought it."""
    tells: bool = field(init=False, repr=False)
    """Its reply is about what is in the store."""
    writes: bool = field(init=False, repr=False)
    grows: bool = field(init=False, repr=False)
    is_admin: bool = field(init=False, repr=False)
    is_local: bool = field(init=False, repr=False)
    is_immediate: bool = field(init=False, repr=False)
    """What its flags say that is asked for with every call."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tells", not self.flags.isdisjoint((Flag.WRITE, Flag.READONLY)))
        for name, flag in _ASKED.items():
            object.__setattr__(self, name, flag in self.flags)

    @property
    def summary(self) -> str:
        """What it does: the handler's own words."""
        return (self.run.__doc__ or "").strip().partition("\n\n")[0]

    def keys_of(self, argv: Argv) -> list[bytes]:
        """Return the keys that a request names."""
        return [] if self.keys is None else self.keys.of(argv)


@dataclass(frozen=True, slots=True)
class Container:
    """A name whose second word is the command: XGROUP, XINFO, CONFIG."""

    name: str
    since: str
    subcommands: Mapping[bytes, Command]
    """By name in small letters."""
    alone: Command | None = None
    """What the name means without a second word, where that is a command too."""
