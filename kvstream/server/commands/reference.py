"""The page docs/commands.md, made from the records of the commands.

``python -m kvstream.server.commands.reference > docs/commands.md`` writes it. A handler's docstring
is the text of its command: the summary, a line ``OPTION: meaning`` for each option that is not in
OPTIONS, and paragraphs about differences from Redis. What concerns no single command is here.
"""

import inspect
import re
from collections.abc import Iterator
from operator import attrgetter

from kvstream.commands import table
from kvstream.commands.command import Command, every
from kvstream.server.commands import SECTIONS, TABLE

OPTIONS = {
    "ACKED": "Delete only entries that every group has read and acknowledged.",
    "ASYNC": "Accepted and ignored: deleting a stream does not wait for its entries.",
    "BLOCK": "Wait for new entries for so many milliseconds; 0 for ever. In a transaction nothing "
    "waits.",
    "COUNT": "The number of entries of one stream at most.",
    "DELREF": "Remove the entries from the pending entries of every group too.",
    "ENTRIESREAD": "The number of entries that count as read; -1 if it is not known.",
    "EX": "Expire after so many seconds.",
    "EXAT": "Expire at this time.",
    "FORCE": "Also take entries that are not pending.",
    "GT": "Only if the new expiry is later; no expiry is the latest.",
    "IDS": "The number of IDs, and the IDs.",
    "IFDEQ": "Only if the key is a string with this digest.",
    "IFDNE": "Only if the key does not exist, or is a string with another digest.",
    "IFEQ": "Only if the key is this string.",
    "IFNE": "Only if the key does not exist, or is another string.",
    "JUSTID": "Return IDs only, and do not change delivery counts.",
    "KEEPREF": "Leave the pending entries of the groups as they are: the default.",
    "KEEPTTL": "Keep the expiry of the key; without it the key has none.",
    "LIMIT": "With `~`, which deletes whole nodes, the number of entries to delete at most; 0 for "
    "no limit. By default the entries of a hundred nodes.",
    "LT": "Only if the new expiry is earlier.",
    "MAXCOUNT": "The number of entries of the whole reply at most; not below COUNT.",
    "MAXLEN": "Delete the oldest entries above this number.",
    "MAXSIZE": "No entry is added to a reply above so many bytes; one is always returned.",
    "MINID": "Delete the entries below this ID.",
    "NX": "Only if the key has no expiry.",
    "PERSIST": "Remove the expiry.",
    "PX": "Expire after so many milliseconds.",
    "PXAT": "Expire at this time.",
    "RETRYCOUNT": "The delivery count to set.",
    "SYNC": "Accepted and ignored: deleting a stream does not wait for its entries.",
    "XX": "Only if the key has an expiry.",
}
"""Options that several commands have."""

ABSENT = """\
All other commands return an error, `ERR unknown command`, which says what kvstream lacks, and the \
connection stays open:

| family | commands |
| --- | --- |
| other types | hashes, lists, sets, sorted sets, bitmaps, geo, HyperLogLog, modules; SORT, LCS |
| replicas | SENTINEL, MIGRATE |

CLUSTER, READONLY, READWRITE, ASKING and MODULE answer as a Redis without cluster and modules does.

Programs that use streams, keys, strings, transactions and scripts work unchanged. Some programs \
need more, even if they are about streams:

| program | needs | here |
| --- | --- | --- |
| redis-py `Sentinel` | SENTINEL | fails: connect to the server itself |
| Celery, as broker | lists and sets | fails |"""

OWN = (
    "Every command, however many keys it has, is one atomic commit.",
    "The names of keys, groups and consumers have at most 1 MB. `stream-entry-max-bytes`, 64mb, is "
    "the largest entry that XADD accepts, in bytes of fields and values: 1mb to 512mb, Redis's "
    "limit. Writing an entry takes 3 ms a megabyte, in which no other client is served, and three "
    "times its size in memory. Entries of RESTORE, COPY, KVSTREAM.LOAD and migrations may be "
    "larger. A string is as large as `proto-max-bulk-len` allows, and takes four times that while "
    "it is written.",
    "The lines of HELP and the text of LATENCY DOCTOR and GRAPH are kvstream's own.",
    "A zero byte does not end a text: an ID with one is refused, and errors show whole names. "
    "Redis ignores what follows it.",
    "Long replies of XRANGE, XREVRANGE, XREAD, XPENDING, KEYS, XINFO STREAM FULL, GET and MGET are "
    "written page by page while other clients are served, also in EXEC. They show the store at one "
    "moment, and take little memory. A client that reads nothing of such a reply for a minute is "
    "disconnected; so is one whose reply meets damaged data or DEBUG RELOAD.",
    "`maxmemory` limits the memory of the process and is checked before each turn: above it "
    "commands that add data are refused. Nothing is evicted under any `maxmemory-policy`, which "
    "only selects which of OBJECT FREQ and IDLETIME has a reply. Entries are on disk, so memory "
    "does not grow with them.",
    "`client-output-buffer-limit` of normal clients is 256 MB; Redis has no limit. An MGET whose "
    "reply would take more is refused, and XREADGROUP of new entries delivers fewer; Redis closes "
    "the connection. EXEC has one reply: reads in it are refused once they take as much.",
    "`maxmemory-clients` is 1 GB; Redis has no limit. It counts requests received and replies not "
    "yet read. Above it the client with the most is disconnected, unless it has NO-EVICT. It is "
    "checked once a second, and whenever a sixteenth of it has come or gone.",
    "Keyspace notifications are those of Redis 8.2 (docs/pubsub.md). A SET whose expiry has passed "
    "publishes `set`, `expire` and `expired` at once. A key that MSET names twice has one event.",
    "`hot-entries-memory`, 16mb, caches encoded entries that were read by XRANGE, XREAD, or "
    "XREADGROUP of a stream with several groups, with COUNT 100 at most; 0: no cache. INFO shows "
    "its size and hit rate.",
    "A blocked read whose user has lost the permission returns NOPERM when its keys change, as "
    "since Redis 7.2; so does a long command at its next step. A long reply that has begun is "
    "written to its end.",
    "A client must log in within a minute if a password is needed. A client that has not sent a "
    "whole request by then must send 1 KB a second. Without a password a silent client may stay, "
    "as with `timeout 0` in Redis; `maxclients` limits their number.",
    "A TLS connection counts as a client from its first byte; its handshake may take 10 seconds. "
    "SIGHUP reloads the certificates; CONFIG SET does not change them. The versions are TLS 1.2 "
    "and 1.3, the ciphers those of OpenSSL, without renegotiation.",
    "`loglevel` is Redis's. `logfile`, empty for stderr, and `log-format`, text or json, are set "
    "when the server starts. A logfile that is moved away is created again.",
    "After a failed write or fsync, commands that write return MISCONF until the server is "
    "restarted; all other commands work. Redis refuses PING too, and exits after a failed fsync "
    "with `appendfsync always`.",
    "A server that is stopped answers the requests it has received, ends blocked commands, and "
    "closes connections once their clients have read all replies, or after `shutdown-timeout`.",
)
"""Differences from Redis that concern no single command."""

_OPTION = re.compile(r"[A-Z][A-Z-]+")
_MEANING = re.compile(r"([A-Z][A-Z-]+): ")


def options_of(command: Command) -> dict[str, str]:
    """Return the options in a command's syntax, in its order, with their meanings."""
    own = own_options(command)
    names = dict.fromkeys(_OPTION.findall(command.syntax))
    return {name: own.get(name) or OPTIONS[name] for name in names}


def own_options(command: Command) -> dict[str, str]:
    """Return the meanings of options in the handler's docstring."""
    meanings = (_MEANING.split(each)[1:] for each in _paragraphs(command) if _MEANING.match(each))
    return {
        name: text.strip()
        for words in meanings
        for name, text in zip(words[::2], words[1::2], strict=True)
    }


def _paragraphs(command: Command) -> list[str]:
    """Return the paragraphs of a command's documentation after the summary, one line each."""
    paragraphs = inspect.cleandoc(command.run.__doc__ or "").split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs[1:]]


def sections() -> dict[str, list[Command]]:
    """Return the commands of each section by name, subcommands in the section of the first one."""
    titles: dict[str, str] = {}
    for title, families in (*table.SECTIONS.items(), *SECTIONS.items()):
        for name in (name for family in families for name in family.commands):
            titles.setdefault(name.partition("|")[0], title)
    by_title: dict[str, list[Command]] = {title: [] for title in titles.values()}
    for command in sorted(every(TABLE), key=attrgetter("name")):
        by_title[titles[command.name.partition("|")[0]]].append(command)
    return by_title


def _command(command: Command) -> Iterator[str]:
    name = command.name.upper().replace("|", " ")
    yield f"### {name}"
    yield f"`{name} {command.syntax}".rstrip() + "`"
    since = command.since if " " in command.since else f"Redis {command.since}"
    yield f"{command.summary} Since {since}."
    options = [f"- `{option}`: {meaning}" for option, meaning in options_of(command).items()]
    if options:
        yield "\n".join(options)
    yield from (each for each in _paragraphs(command) if not _MEANING.match(each))


def render() -> str:
    """Return the text of docs/commands.md."""
    by_title = sections()
    parts = [
        "# Commands",
        "The commands of kvstream, with the replies and error texts of Redis 8.10. Where versions "
        "of Redis differ, kvstream does as the newest one. The last paragraphs of a command say "
        "what Redis does otherwise. This page is made by "
        "`python -m kvstream.server.commands.reference`.",
        f"Sections: {', '.join(by_title)}; what is missing comes first, limits and other "
        "differences come last.",
        "## What is missing",
        ABSENT,
    ]
    for title, commands in by_title.items():
        parts.append(f"## {title}")
        parts += (part for command in commands for part in _command(command))
    parts += ["## What differs from Redis", "\n".join(f"- {sentence}" for sentence in OWN)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(render(), end="")
