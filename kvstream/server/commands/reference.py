"""docs/commands.md: the store's commands, and those of connections, transactions and operation.

``python -m kvstream.server.commands.reference > docs/commands.md`` writes it anew. What the table
does not know of the server's commands is here.
"""

from kvstream.commands import reference
from kvstream.commands.reference import Tables, Words
from kvstream.commands.table import CONNECTION_COMMANDS as STORE_CONNECTION_COMMANDS
from kvstream.server.command_docs import SYNTAX
from kvstream.server.commands.table import (
    CONNECTION_COMMANDS,
    OPERATION_COMMANDS,
    SERVER_COMMANDS,
    TABLE,
    TRANSACTION_COMMANDS,
)

_OURS = {row.name for row in SERVER_COMMANDS}
_STORE_ROWS = tuple(row for row in STORE_CONNECTION_COMMANDS if row.name not in _OURS)


def _by_name(*tables: reference.Rows) -> reference.Rows:
    return tuple(sorted((row for table in tables for row in table), key=lambda row: row.name))


TABLES: Tables = (
    *(
        (title, tuple(TABLE[row.name.encode()] for row in rows))
        for title, rows in reference.TABLES[:3]
    ),
    ("Connections", _by_name(_STORE_ROWS, CONNECTION_COMMANDS)),
    ("Transactions", TRANSACTION_COMMANDS),
    ("Operation", OPERATION_COMMANDS),
)

OPTIONS = {
    **dict.fromkeys(
        ("BCAST", "NOLOOP", "OPTIN", "OPTOUT", "PREFIX", "REDIRECT"),
        "Checked as Redis checks it; nothing follows.",
    ),
    "ABORT": "Refused: a shutdown begins at once and cannot be called back.",
    "ACLCAT": "Those of an ACL category.",
    "ALL": "Hold every command, CLIENT UNPAUSE too: the default.",
    "ALLOTTED": "Its entries may be given other IDs.",
    "AUTH": "Log in first.",
    "ERROR": "The other client is told UNBLOCKED.",
    "FILTERBY": "Not all of them, but:",
    "FORCE": "Taken and ignored.",
    "GIVEN": "Its entries came with their IDs.",
    "ID": "Those with these numbers.",
    "MARK": "Only where the key, a plain string, is missing or a lower number; it is set with the "
    "entries, so that a batch that is sent again is passed over.",
    "MASTER": "None ever.",
    "MODULE": "Those of a module: none.",
    "NORMAL": "All.",
    "NOSAVE": "The default.",
    "NOW": "Taken and ignored: there are no replicas to be waited for.",
    "PART": "A file that was sent: its name, and its XXH3-128 in hexadecimal.",
    "PATTERN": "Those whose names match.",
    "PUBSUB": "None ever.",
    "REPLICA": "None ever.",
    "RESET": "Forget it instead.",
    "SAVE": "Write a checkpoint first.",
    "SCHEDULE": "Taken and ignored: a save never waits for a compaction.",
    "SETNAME": "Give the connection a name.",
    "TIMEOUT": "The other client is answered as if its time were over: the default.",
    "VERSION": "Taken and ignored.",
    "WRITE": "Hold commands that write, and transactions with such.",
}

MEANINGS = {
    ("client|list", "TYPE"): "Those of a class.",
    ("function|flush", "ASYNC"): "Taken and ignored.",
    ("function|flush", "SYNC"): "Taken and ignored.",
    ("script|flush", "ASYNC"): "Taken and ignored.",
    ("script|flush", "SYNC"): "Taken and ignored.",
}

OWN = (
    "INFO says `redis_version:8.10.0`, for clients choose by it what they send, and "
    "`kvstream_version` beside it. `used_memory` is the memory of the whole process; "
    "`rdb_changes_since_last_save` counts commands that may write, not keys; `expires` and "
    "`avg_ttl` are of the first 10000 keys that expire.",
    "INFO does not count system calls. Fields of what is not here "
    "(replicas, scripts, forks, eviction) are 0; those of the allocator and of copies on write are "
    "left out. A cycle of the event loop is a turn of requests, so an idle server has none.",
    "The times of INFO latencystats and LATENCY HISTOGRAM are those of commands without the commit "
    "that they share; XADDs that were run together count with their mean. `latency-tracking no` "
    "hides them. Events of LATENCY are `command`, `fast-command`, `aof-write`, a write to "
    "RocksDB, and `aof-fsync-always`, an fsync that clients wait for. What DOCTOR and GRAPH say is "
    "in words of our own.",
    "MEMORY STATS tells the memory of the whole process, and of RocksDB's parts in it beside "
    "Redis's figures, without those of an allocator; what is not here (replicas, scripts, tables "
    "of keys) takes 0. PURGE gives free memory back in a thread.",
    "`min-replicas-to-write` stays 0: without replicas every write would be refused. "
    "`maxmemory-policy` says which of OBJECT FREQ and IDLETIME is answered, as in Redis, and "
    "nothing else; FREQ is 0. `maxmemory` is a bound of the process's memory, looked at before "
    "each turn: beyond it commands that add are refused, for nothing is evicted under any policy. "
    "Entries are on disk, so that memory does not grow with them.",
    "A memory value beyond 63 bits is refused by CONFIG SET, also where a unit makes it so: Redis "
    "takes what is left of `20000000000gb` in 64 bits.",
    "COMMAND INFO has no notes at its key specifications.",
    "SLOWLOG and MONITOR hide all arguments of ACL behind the subcommand; Redis those of SETUSER, "
    "GETUSER and DELUSER. A client that AUTHs is seen by MONITOR, its password is not.",
    "XGROUP SETID lets blocked readers of the group look again at once.",
    "What CLIENT, COMMAND, CONFIG, ACL, SLOWLOG and LATENCY show for HELP is in words of our "
    "own; so are the summaries of COMMAND DOCS.",
    "CLIENT TRACKING has every mode of Redis's. Messages come behind all replies of a turn, so one "
    "may follow a reply that has the newer content already. For want of channels another client "
    "that is to hear must speak RESP3. SWAPDB, DEBUG RELOAD and a DEL of very many keys say that "
    "all keys have changed. In the process of a program ON is refused.",
    "CLIENT REPLY in MULTI holds from the end of EXEC on, whose reply is whole; Redis leaves parts "
    "of it out.",
    "CLIENT LIST counts no memory of arguments, for none is kept, and none of reply buffers "
    "(`rbs`, `rbp`), which nobody has; `qbuf` is what waits to be run, and buffers are not made "
    "beforehand, so `qbuf-free` is 0.",
    "A byte of zero ends no text: IDs with one are refused, and errors show names whole. What "
    "follows it in Redis is not looked at.",
    "SET with NX or XX is refused beside IFEQ and its like, in either order.",
    "SAVE and BGSAVE write a checkpoint, a store of its own, into the directory for checkpoints, "
    "and keep the newest ones; without such a directory they make everything durable where it "
    "is. SAVE holds nobody up but the client that waits for it. `save` is empty unless it is set: "
    "every write is in the log; with save points BGSAVE begins by itself.",
    "BGREWRITEAOF compacts the store.",
    "WAITAOF waits for a sync of everything the client wrote, at any durability. There are no "
    "replicas: WAIT and WAITAOF for some wait until their time is over.",
    "SHUTDOWN stops at once; what was acknowledged stays, with or without SAVE. It cannot be "
    "aborted.",
    "`client-output-buffer-limit` of plain clients is 256 MB, where Redis has none: a client "
    "that does not read would take all memory. MGET is "
    "refused where one reply would need more memory than that, XREADGROUP of new entries gives "
    "fewer; Redis closes the connection. The reply of an EXEC is one reply: reads in it are "
    "refused behind those that take as much.",
    "`maxmemory-clients` is 1 GB, where Redis has no limit, and is held against what clients have "
    "sent and not read: the client that takes most is closed, unless NO-EVICT is on. It is looked "
    "at whenever a sixteenth of it has come or gone, and once a second.",
    "`stream-entry-max-bytes`, 64mb, is the largest entry that XADD takes, by the bytes of its "
    "fields and values: 1mb to 512mb, which is what Redis takes. While an entry is written nobody "
    "else is served, 3 ms a megabyte, and it takes three times its size. What comes by RESTORE, "
    "COPY, KVSTREAM.LOAD or a migration into a store may be larger. A plain string is as large as "
    "`proto-max-bulk-len` lets it be, and takes four times that while it is written.",
    "Long replies of XRANGE, XREVRANGE, XREAD, XPENDING, KEYS, XINFO STREAM FULL, GET and MGET are "
    "written page by page, inside EXEC too, while others are served: they show the store as it was "
    "at one moment, and take little memory however long they are. A client that takes nothing of "
    "one for a minute is cut off; damage that is met in the middle, and DEBUG RELOAD, close the "
    "connection.",
    "SCAN looks at no more than 1000 keys in one call, with TYPE at 250, whatever COUNT asks for.",
    "Settings that would promise what is not done are told as they are (`appendonly yes`, "
    "`notify-keyspace-events` empty), and setting them to something else is refused with the "
    "reason instead of ignored. Those of what is not here (other types, replicas, the files of "
    "Redis) are kept and shown, for tools set them, and nothing follows from them.",
    "CONFIG SET appendfsync changes the durability while the server runs.",
    "`hot-entries-memory`, 16mb, is the memory in which entries that XRANGE and XREAD have shown "
    "lately, and XREADGROUP of a stream with several groups (all of COUNT 100 at the most), are "
    "kept as they were sent, for whoever reads them next; 0: none. INFO tells how much of it is "
    "taken, and how often it was enough.",
    "CONFIG REWRITE writes the settings that CONFIG SET has changed into the TOML file that the "
    "server was started with: options of `kvstream serve` at its top, all others in its table "
    "`[config]`. What was not changed stays as it was written. Users hold until the server stops, "
    "or for good where there is an `aclfile` and ACL SAVE was called.",
    "Rules of ACL for commands that are "
    "not here, and patterns of channels, are kept and shown, though nothing follows from them. "
    "Payloads are always looked at: `sanitize-payload` is not shown. "
    "Rules are shown in the order in which they were given, "
    "as since 7.2. Deleting a user closes its connections; so does ACL LOAD for "
    "users that are gone.",
    "A blocked read whose user has lost the right to it is answered with NOPERM when its keys have "
    "news, as since 7.2. So is, at its next step, a command that is done bit by bit. A long reply "
    "that has begun is written to its end.",
    "A client that needs a password has a minute to give it, and one that has not sent a whole "
    "request must send 1 KB a second by then. Where no password is needed a silent client may "
    "stay, as with `timeout 0` in Redis; `maxclients` bounds their number.",
    "A secured connection counts among the clients from its first byte on; its handshake may take "
    "10 seconds. SIGHUP has the certificates read anew: CONFIG SET does not change them. The "
    "versions of TLS are 1.2 and 1.3, the ciphers those of OpenSSL; there is no renegotiation.",
    "`loglevel` is Redis's; `logfile`, empty for stderr, and `log-format`, text or json, are set "
    "when the server starts. A logfile that was moved away is made anew.",
    "After a failed write or fsync commands that write answer MISCONF until the server is started "
    "again, and all others, PING among them, go on; Redis refuses PING too, and ends after a "
    "failed fsync at `appendfsync always`.",
    "When the server is stopped it answers what has come, ends those who wait, and closes "
    "connections once they have read all, or after `shutdown-timeout`.",
    "DEBUG is for clients on the same machine unless `enable_debug_command` says otherwise; "
    "Redis allows nobody. RELOAD and LOADAOF close the store and open it anew, the one after all "
    "is in tables, the other from its log, while clients wait; options of RELOAD are taken and "
    "ignored, for there is nothing that was not saved. DIGEST is a checksum of our own, which "
    "covers groups too. Crashes on demand are left out.",
    "INCRBYFLOAT adds exactly, in decimals; Redis shows what long doubles make of them. MOVE takes "
    "as long as COPY.",
    "FUNCTION FLUSH and SCRIPT FLUSH answer OK, for there is nothing to be flushed; there is no "
    "other command of scripts but HELP.",
    "KVSTREAM.LOAD is for bulk loads such as those of Spark: TICKET replies what "
    "`kvstream.bulkload.parts.RowsWriter` needs, PUT takes its files in pieces, and COMMIT appends "
    "their entries, in a thread while others go on. A file that is damaged or out of order is "
    "refused, as are keys that the user may not write. Entries of streams that others have "
    "appended to since the ticket, or that were there and not named, are written twice. A load "
    "outlives the connection and the server; one to which nothing was sent for a day is removed. "
    "STATE takes all but the entries from a payload of DUMP, for a stream whose entries have come "
    "by a load. The command is of the category admin, since it takes disk and time, and not for "
    "MULTI.",
)

ABSENT = """\
All other commands answer an error, `ERR unknown command`, and the connection goes on:

| family | commands |
| --- | --- |
| scripts | EVAL, EVALSHA, SCRIPT LOAD, FCALL, FUNCTION LOAD |
| channels | SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE, PUBLISH, SPUBLISH, PUBSUB; notifications of keys |
| other types | hashes, lists, sets, sorted sets, bitmaps, geo, HyperLogLog, modules; SORT, LCS |
| replicas and clusters | CLUSTER, SENTINEL, REPLICAOF, FAILOVER, PSYNC, MIGRATE, MODULE |

Programs that use streams, keys, strings and transactions work as they are. Some use more than \
that, even where they are about streams:

| program | needs | here |
| --- | --- | --- |
| redis-py `Lock` | EVALSHA to release, extend and reacquire | acquiring works, releasing fails; \
`SET key token NX PX ms` and `DELEX key IFEQ token` are a lock without a script |
| redis-py `Sentinel` | SENTINEL, and SUBSCRIBE | fails: name the server itself |
| taskiq-redis, broker of streams | redis-py's `Lock` around XAUTOCLAIM | fails as it releases \
the lock |
| Celery, as broker or result backend | lists and sets; SUBSCRIBE, PUBLISH | fails |
| socket.io, adapters over channels | SUBSCRIBE, PUBLISH | fails |
"""

_NAMES = [command.name for _, table in TABLES for command in reference.rows(table)]
WORDS = Words(
    {**dict.fromkeys(_NAMES, ""), **SYNTAX},
    {**reference.OPTIONS, **OPTIONS},
    {**reference.MEANINGS, **MEANINGS},
)


def render() -> str:
    """Return the text of docs/commands.md."""
    own = reference.OWN + OWN
    return reference.render(
        TABLES, WORDS, ABSENT.rstrip(), own, "kvstream.server.commands.reference"
    )


if __name__ == "__main__":
    print(render(), end="")
