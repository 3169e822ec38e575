"""docs/commands.md: how it is made of a table, and what the table of the store does not know.

How each command is written is here, and what its options mean. ``kvstream.commands.reference``
tells where Redis does otherwise; ``kvstream.server.commands.reference`` makes the page, with the
commands of the server.

Where Redis does otherwise than we do, by versions, and what is our own: for docs/commands.md.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvstream.commands.command import Command, Container
from kvstream.commands.table import (
    CONNECTION_COMMANDS,
    KEY_COMMANDS,
    STREAM_COMMANDS,
    STRING_COMMANDS,
)

DIFFERENCES = (
    (
        "XREAD `+` after the last entry was deleted",
        "7.4: a null",
        "the last entry that is still there, as in later versions",
    ),
    ("XREAD `+`", "7.0, 7.2: a syntax error", "the last entry, as since 7.4"),
    (
        "XADD `ms-*` with no sequence left",
        "7.0: another text",
        "`The ID specified in XADD is equal or smaller than the target stream top item`",
    ),
    (
        "XREAD, XREADGROUP without an ID for each key",
        "7.0: `Unbalanced XREAD list of streams: ...`",
        "`Unbalanced 'xread' list of streams: ...`, with the IDs that may stand there",
    ),
    (
        "A blocked XREADGROUP whose key or group goes away",
        "7.0: `UNBLOCKED the stream key no longer exists`",
        "`NOGROUP ...` or `WRONGTYPE ...`",
    ),
    (
        "A blocked XREAD of several keys, of which one becomes a string",
        "7.0: the next news of the others; since 7.2 WRONGTYPE with that news",
        "`WRONGTYPE ...` with the next news of the others",
    ),
    (
        "ENTRIESREAD above the entries ever added",
        "before 8.2.2: kept as given",
        "taken as the entries ever added",
    ),
    (
        "XSETID below the greatest deleted ID",
        "7.0: allowed",
        "`The ID specified in XSETID is smaller than current max_deleted_entry_id`",
    ),
    (
        "Lag of a group below all live entries",
        "7.0: may be null",
        "the length of the stream",
    ),
    (
        "XINFO CONSUMERS",
        "7.0: `idle` since the last delivery or attempt",
        "`idle` since the last attempt, `inactive` since the last delivery; -1: never",
    ),
    ("XINFO STREAM", "before 8.6: ten pairs", "sixteen (go-redis 9.17 refuses them)"),
    ("XINFO STREAM FULL, a group", "before 8.8: seven pairs", "eight, with `nacked-count`"),
    (
        "XDELEX, XACKDEL, XTRIM with ACKED in a stream without groups",
        "the documents: nothing is deleted; the server: deleted",
        "deleted, as the server does",
    ),
    (
        "XADD, XTRIM with `~` and DELREF or ACKED",
        "the documents: whole nodes; 8.2: that, or nothing; since then: entry by entry",
        "entry by entry, to the bound, as the server does now",
    ),
    (
        "An unknown command without arguments",
        "7.0: `unknown command 'x', with args beginning with: `",
        "`unknown command 'x'`",
    ),
    ("SCAN with a negative cursor", "7.0: taken", "`invalid cursor`, as since 8.0"),
    (
        "XADD with IDMP that is refused",
        "8.6 to 8.10: leaves a producer without IDs, which `pids-tracked` counts for ever",
        "leaves nothing",
    ),
    (
        "CONFIG SET of a setting without a sign to a number below 0 or beyond 63 bits",
        "7.0, Valkey: `argument must be between ...`, or taken",
        "`argument must be greater or equal to 0`, as since 8.2",
    ),
    (
        "XCFGSET with the values that hold already",
        "the documents: producers are forgotten; the server: they stay",
        "they stay, as the server does",
    ),
    (
        "Age of an idempotent ID",
        "8.6: measured by the entry's ID, so one in the future never ages",
        "measured by the clock of the store",
    ),
)
"""(what, how some version of Redis has it, how it is here): the newest wins."""

OWN = (
    "Every command, however many keys it names, is one atomic commit.",
    "The lines that XGROUP, XINFO and CONFIG show for HELP are in words of our own.",
    "CONFIG knows the settings of streams: `stream-node-max-entries`, `stream-node-max-bytes`, "
    "`stream-idmp-duration`, `stream-idmp-maxsize`, `dump-target`. They hold until the store is "
    "closed.",
    "SCAN goes through the keys in the order in which they were made: one that stays is seen "
    "exactly once, and a cursor stays good over a restart.",
    "COPY of a stream takes time in proportion to its entries and pending entries. From 2,000 "
    "entries on a server copies bit by bit while others go on, and the key comes at the end, as a "
    "copy of what its source is by then; so do XREADGROUP and XAUTOCLAIM of so many. In MULTI, "
    "and in the process of a program, they are done in one go.",
    "Where others change a group during such an XAUTOCLAIM, it may take fewer than COUNT, or pass "
    "over what becomes idle behind where it has looked: the next round finds that.",
    "XREADGROUP CLAIM goes by ID where delivery times are equal, Redis by which was given first.",
    "OBJECT ENCODING of an integer is `int` also where INCRBYFLOAT has made it. IDLETIME "
    "counts from the start of the server, and is kept for the 20,000 keys that were used last; of "
    "others it is at least what is told. REFCOUNT is 1, also of small numbers, which Redis shares.",
    "MEMORY USAGE tells the bytes of a key's rows before compression, from samples: how much room "
    "on disk it may take. Of memory it takes next to none.",
    "SET with EXAT or PXAT in the past leaves no key at once; Redis counts it until asked for it.",
    "DUMP writes the oldest form that loses nothing of the key, so that servers as old as that can "
    "take it: 7.0's, 7.2's and Valkey's, 8.6's or 8.8's. With `CONFIG SET dump-target redis:7.2` "
    "(or `valkey`, ...) all payloads are for such a server, less what it cannot hold. Entries that "
    "were deleted are not in it, where Redis keeps them marked.",
    "RESTORE with a time to live that ends beyond 63 bits is refused; Redis answers OK, and the "
    "key is gone.",
    "RESTORE takes streams and strings of Redis 5.0 to 8.10 and of Valkey, and refuses all other "
    "types. What a payload tells wrongly, its length for one, is set right. FREQ is taken and not "
    "kept. The checksum is always looked at: newer servers take any payload whose "
    "checksum is 0.",
    "XSETID is a change to those who WATCH its key; Redis does not tell them.",
    "`radix-tree-nodes` of XINFO STREAM is one more than `radix-tree-keys`.",
    "The name of a key, group or consumer has at most a mebibyte; an entry has at most 512, "
    "or what the server's `stream-entry-max-bytes` allows.",
)


_TRIM = "MAXLEN|MINID [=|~] threshold [LIMIT count]"
_POLICY = "[KEEPREF|DELREF|ACKED]"
_IDS = "IDS numids id [id ...]"
_LIMITS = "[COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds]"
_EXPIRY = "[NX|XX|GT|LT]"
_TIMES = "EX seconds|PX milliseconds|EXAT unix-time-seconds|PXAT unix-time-milliseconds"

_COMPARED = "IFEQ value|IFNE value|IFDEQ digest|IFDNE digest"

SYNTAX = {
    "append": "key value",
    "config|get": "pattern [pattern ...]",
    "config|help": "",
    "config|set": "setting value [setting value ...]",
    "copy": "key newkey [DB index] [REPLACE]",
    "dbsize": "",
    "decr": "key",
    "decrby": "key decrement",
    "del": "key [key ...]",
    "delex": f"key [{_COMPARED}]",
    "digest": "key",
    "dump": "key",
    "echo": "message",
    "exists": "key [key ...]",
    "expire": f"key seconds {_EXPIRY}",
    "expireat": f"key unix-time-seconds {_EXPIRY}",
    "expiretime": "key",
    "flushall": "[ASYNC|SYNC]",
    "flushdb": "[ASYNC|SYNC]",
    "get": "key",
    "getdel": "key",
    "getex": f"key [{_TIMES}|PERSIST]",
    "getrange": "key start end",
    "getset": "key value",
    "incr": "key",
    "incrby": "key increment",
    "incrbyfloat": "key increment",
    "increx": "key [BYFLOAT increment|BYINT increment] [LBOUND lowerbound] [UBOUND upperbound] "
    f"[SATURATE] [{_TIMES}|PERSIST] [ENX]",
    "keys": "pattern",
    "memory|help": "",
    "memory|usage": "key [SAMPLES count]",
    "mget": "key [key ...]",
    "move": "key db",
    "mset": "key value [key value ...]",
    "msetex": f"numkeys key value [key value ...] [NX|XX] [{_TIMES}|KEEPTTL]",
    "msetnx": "key value [key value ...]",
    "object|encoding": "key",
    "object|freq": "key",
    "object|help": "",
    "object|idletime": "key",
    "object|refcount": "key",
    "persist": "key",
    "pexpire": f"key milliseconds {_EXPIRY}",
    "pexpireat": f"key unix-time-milliseconds {_EXPIRY}",
    "pexpiretime": "key",
    "ping": "[message]",
    "psetex": "key milliseconds value",
    "pttl": "key",
    "randomkey": "",
    "rename": "key newkey",
    "renamenx": "key newkey",
    "restore": "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
    "scan": "cursor [MATCH pattern] [COUNT count] [TYPE type]",
    "select": "index",
    "set": f"key value [{_COMPARED}|NX|XX] [GET] [{_TIMES}|KEEPTTL]",
    "setex": "key seconds value",
    "setnx": "key value",
    "setrange": "key offset value",
    "strlen": "key",
    "substr": "key start end",
    "swapdb": "index index",
    "touch": "key [key ...]",
    "ttl": "key",
    "type": "key",
    "unlink": "key [key ...]",
    "xack": "key group id [id ...]",
    "xackdel": f"key group {_POLICY} {_IDS}",
    "xadd": f"key [NOMKSTREAM] {_POLICY} [IDMPAUTO pid|IDMP pid iid] [{_TRIM}] "
    "*|ms-*|id field value [field value ...]",
    "xautoclaim": "key group consumer min-idle-time start [COUNT count] [JUSTID]",
    "xcfgset": "key [IDMP-DURATION seconds] [IDMP-MAXSIZE entries]",
    "xclaim": "key group consumer min-idle-time id [id ...] [IDLE milliseconds] "
    "[TIME unix-time-milliseconds] [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID id]",
    "xdel": "key id [id ...]",
    "xdelex": f"key {_POLICY} {_IDS}",
    "xgroup|create": "key group id|$ [MKSTREAM] [ENTRIESREAD entries-read]",
    "xgroup|createconsumer": "key group consumer",
    "xgroup|delconsumer": "key group consumer",
    "xgroup|destroy": "key group",
    "xgroup|help": "",
    "xgroup|setid": "key group id|$|-|+ [ENTRIESREAD entries-read]",
    "xidmprecord": "key pid iid id",
    "xinfo|consumers": "key group",
    "xinfo|groups": "key",
    "xinfo|help": "",
    "xinfo|stream": "key [FULL [COUNT count]]",
    "xlen": "key",
    "xnack": f"key group SILENT|FAIL|FATAL {_IDS} [RETRYCOUNT count] [FORCE]",
    "xpending": "key group [[IDLE min-idle-time] start end count [consumer]]",
    "xrange": "key start end [COUNT count]",
    "xread": f"{_LIMITS} STREAMS key [key ...] id|$|+ [id|$|+ ...]",
    "xreadgroup": f"GROUP group consumer {_LIMITS} [CLAIM min-idle-time] [NOACK] "
    "STREAMS key [key ...] id|> [id|> ...]",
    "xrevrange": "key end start [COUNT count]",
    "xsetid": "key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
    "xtrim": f"key {_TRIM} {_POLICY}",
}
"""What follows each command's name, as Redis writes it."""

OPTIONS = {
    "ACKED": "Delete only what every group has been given and no group has pending.",
    "ABSTTL": "The time to live is a Unix time in milliseconds.",
    "ASYNC": "Taken and ignored: deleting does not wait for the entries.",
    "BLOCK": "Wait so long for something new; 0 for ever. Nothing waits in a transaction.",
    "BYFLOAT": "Add a number that may have a fraction, to such a number.",
    "BYINT": "Add an integer; 1 unless given.",
    "CLAIM": "First take over what has been pending for so many milliseconds; each entry of the "
    "reply then tells its idle time and earlier deliveries too. Only with `>`.",
    "COUNT": "Most entries of one stream.",
    "DB": "Into another database.",
    "DELREF": "Take the entries out of every group's pending entries too.",
    "ENTRIESADDED": "Entries ever added to the stream.",
    "ENTRIESREAD": "Entries that count as read so far; -1 where it is not known.",
    "ENX": "Set the expiry only where the key has none.",
    "EX": "Expire after so many seconds.",
    "EXAT": "Expire at this time.",
    "FAIL": "The attempt failed: the count of deliveries stands.",
    "FATAL": "Not to be tried again: the count of deliveries becomes 2^63-1.",
    "FORCE": "Take entries of the stream that are not pending, too.",
    "FULL": "Show the entries, the groups and all that they have pending.",
    "FREQ": "Taken and not kept: accesses are not counted.",
    "GET": "Answer what the key held, set or not; an error where that is no string.",
    "GROUP": "The group that reads, and the consumer that reads for it.",
    "GT": "Only to a later time; a key that never expires has none.",
    "IDLE": "The idle time to note.",
    "IDLETIME": "Have nobody have used the key for so many seconds.",
    "IDMP": "Append once for each ID that a producer gives: a repeated one answers the first "
    "entry's ID. Only with `*`.",
    "IDMP-DURATION": "Seconds, 1 to 86400, for which an idempotent ID is remembered.",
    "IDMP-MAXSIZE": "Idempotent IDs, 1 to 10000, remembered for each producer.",
    "IDMPAUTO": "IDMP with an ID made of the fields and values, whatever their order.",
    "IDS": "The number of IDs, and the IDs.",
    "JUSTID": "Answer IDs alone, and leave the count of deliveries.",
    "KEEPREF": "Leave the groups' pending entries as they are: the default.",
    "KEEPTTL": "Keep the expiry that the key has; without it the key has none.",
    "LASTID": "Move the group's last given ID up to this one.",
    "LBOUND": "Lower bound of the sum; a sum below it is not made.",
    "LIMIT": "Most entries that `~`, which removes whole nodes, may remove; 0 for no limit. "
    "Without it a hundred nodes' worth.",
    "LT": "Only to an earlier time.",
    "MATCH": "Only keys that match a pattern.",
    "MAXCOUNT": "Most entries of the whole reply; not below COUNT.",
    "MAXDELETEDID": "The greatest ID that was ever deleted.",
    "MAXLEN": "Remove the oldest entries above this number.",
    "MAXSIZE": "Bytes of the reply beyond which no further entry is added; one always is.",
    "MINID": "Remove the entries below this ID.",
    "MKSTREAM": "Make the stream where there is none.",
    "NOACK": "Count what is given as acknowledged.",
    "NOMKSTREAM": "Make no stream where there is none.",
    "IFDEQ": "Only where the key is a string of this digest.",
    "IFDNE": "Only where the key is missing or a string of another digest.",
    "IFEQ": "Only where the key is this string.",
    "IFNE": "Only where the key is missing or another string.",
    "NX": "Only where the key has no expiry.",
    "PERSIST": "Take the expiry away.",
    "PX": "Expire after so many milliseconds.",
    "PXAT": "Expire at this time.",
    "REPLACE": "Over a key that has the new name.",
    "RETRYCOUNT": "The count of deliveries to note.",
    "SAMPLES": "Rows of each kind to look at: 5 unless given, 0 for all.",
    "SATURATE": "Go to the bound instead, and answer what was added.",
    "SILENT": "It was not tried: one delivery fewer.",
    "STREAMS": "The keys, then the ID after which to read each of them. `$` is the last ID "
    "given out, `+` the last entry itself, `>` what the group has not been given yet.",
    "SYNC": "Taken and ignored: deleting does not wait for the entries.",
    "TIME": "The time of delivery to note; one in the future counts as now.",
    "TYPE": "Only keys of a type.",
    "UBOUND": "Upper bound of the sum; a sum above it is not made.",
    "XX": "Only where the key has an expiry.",
}
"""What each option means."""

MEANINGS = {
    ("scan", "COUNT"): "Keys to look at: 10 unless given.",
    ("msetex", "NX"): "Only where none of the keys exists.",
    ("msetex", "XX"): "Only where all of the keys exist.",
    ("set", "NX"): "Only where the key does not exist.",
    ("set", "XX"): "Only where the key exists.",
    ("xautoclaim", "COUNT"): "Most entries to take over or drop: 100 unless given.",
    ("xinfo|stream", "COUNT"): "Most entries, and most pending entries of each group: 10 unless "
    "given, 0 for all.",
    ("restore", "REPLACE"): "Over whatever has the name.",
    ("xpending", "IDLE"): "Only what has been pending for so many milliseconds.",
}
"""What an option means in one command, where that is something else."""

_OPTION = re.compile(r"[A-Z][A-Z-]+")

Rows = tuple[Command | Container, ...]
Tables = tuple[tuple[str, Rows], ...]
TABLES: Tables = (
    ("Streams", STREAM_COMMANDS),
    ("Keys", KEY_COMMANDS),
    ("Plain strings", STRING_COMMANDS),
    ("Connection and settings", CONNECTION_COMMANDS),
)
"""The commands by the titles of their sections."""


@dataclass(frozen=True, slots=True)
class Words:
    """What the page says of commands, and their table does not know."""

    syntax: Mapping[str, str]
    options: Mapping[str, str]
    meanings: Mapping[tuple[str, str], str]

    def options_of(self, command: Command) -> list[str]:
        """Return the options that stand in a command's syntax, in its order."""
        return list(dict.fromkeys(_OPTION.findall(self.syntax[command.name])))

    def meaning(self, command: Command, option: str) -> str:
        return self.meanings.get((command.name, option)) or self.options[option]


def rows(table: Rows) -> Iterator[Command]:
    """Yield every command of a table, subcommands in the place of their container."""
    for row in table:
        if isinstance(row, Container):
            yield from (row.alone,) if row.alone is not None else ()
            yield from row.subcommands.values()
        else:
            yield row


def _command(command: Command, words: Words) -> Iterator[str]:
    name = command.name.upper().replace("|", " ")
    yield f"### {name}"
    yield f"`{name} {words.syntax[command.name]}".rstrip() + "`"
    product, _, version = command.since.rpartition(" ")
    told = f"{product} has it, since {version}" if product else f"Redis has it since {version}"
    yield f"{command.summary} {told}."
    described = [
        f"- `{option}`: {words.meaning(command, option)}" for option in words.options_of(command)
    ]
    if described:
        yield "\n".join(described)


def _section(title: str, table: Rows, words: Words) -> Iterator[str]:
    yield f"## {title}"
    for command in rows(table):
        yield from _command(command, words)


def _differences() -> str:
    lines = ["| what | in Redis | here |", "| --- | --- | --- |"]
    return "\n".join(
        lines + [f"| {what} | {redis} | {here} |" for what, redis, here in DIFFERENCES]
    )


def render(tables: Tables, words: Words, absent: str, own: tuple[str, ...], made_by: str) -> str:
    """Return the text of a page of these commands.

    ``absent`` tells what Redis has and we have not, ``own`` what Redis does not have so.
    """
    parts = [
        "# Commands",
        "The commands that kvstream answers, with the replies and error texts of Redis 8.10. This "
        f"page is made by `python -m {made_by}`.",
        f"Here are: {', '.join(title.lower() for title, _ in tables)}.",
        "## What is not here",
        absent,
        *(part for title, table in tables for part in _section(title, table, words)),
        "## Where versions of Redis differ",
        "The newest wins.",
        _differences(),
        "## What is our own",
        "\n".join(f"- {sentence}" for sentence in own),
    ]
    return "\n\n".join(parts) + "\n"
