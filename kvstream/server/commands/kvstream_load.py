"""KVSTREAM.LOAD: bulk loads from files of rows that clients send."""

from kvstream.bulkload import commit
from kvstream.commands.args import Argv, at_least, integer, syntax_error
from kvstream.commands.command import OURS, SECOND, Answer, Family, Keys, flags
from kvstream.commands.replies import OK, Map, Reply
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations.images import dump
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import server_of
from kvstream.server.runtime.uploads import PART_WORDS

COMMANDS = Family("server")
COMMANDS.add_help("kvstream.load", since=OURS)
_LOADS = flags("write denyoom admin no_multi")
_PART = b"PART"


@COMMANDS.command(
    *("kvstream.load|ticket", "[key ...]", _LOADS | flags("no_touch"), Keys(2, -1)),
    since=OURS,
    uses="RW insert",
)
def load_ticket(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Start a bulk load into streams; return its name and its ticket.

    Bulk loads are for jobs such as those of Spark: TICKET returns the input of
    `kvstream.bulkload.parts.RowsWriter`, PUT uploads its files in pieces, COMMIT appends their
    entries in a thread while other clients are served. A load survives the connection and the
    server; one that receives nothing for a day is removed. The commands have the category admin,
    since they take disk and time.
    """
    load, ticket = server_of(client).uploads.begin(commit.ticket(txn, client.db, argv[2:]))
    return Map([(b"load", load), (b"ticket", ticket)])


@COMMANDS.command(
    *("kvstream.load|put", "load file offset data", flags("denyoom admin local")),
    since=OURS,
)
def load_put(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Append bytes to a file, at an offset equal to its length; return the new length."""
    offset = at_least(0, argv[4], "offset is out of range, must be positive")
    return server_of(client).uploads.put(argv[2], argv[3], offset, argv[5])


@COMMANDS.command(
    "kvstream.load|commit",
    "load [MARK key number] PART name digest GIVEN|ALLOTTED [PART ...]",
    _LOADS,
    since=OURS,
)
def load_commit(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Append the entries of all files, or none; return their number, 0 if MARK was reached before.

    MARK: Only if the key, a plain string, does not exist or is a lower number. The number is set
        with the entries, so that a batch that is sent again is skipped.
    PART: A file that was sent: its name, and its XXH3-128 in hexadecimal.
    GIVEN: The entries have their own IDs.
    ALLOTTED: The entries may get other IDs.

    A file that is damaged or out of order is refused, as are keys that the user may not write.
    Entries are written twice if their stream got others since the ticket, or existed without being
    named in it.
    """
    mark, at = None, 3
    if argv[at].upper() == b"MARK":
        if len(argv) < at + 3:
            raise syntax_error()
        mark, at = (argv[at + 1], integer(argv[at + 2])), at + 3
        client.user.check_writes([mark[0]])
    words: list[bytes] = []
    step = 1 + PART_WORDS
    for start in range(at, len(argv), step):
        if argv[start].upper() != _PART or start + step > len(argv):
            raise syntax_error()
        words += argv[start + 1 : start + step]
    guard = client.user.check_writes
    job, outcome = server_of(client).uploads.commit(argv, argv[2], words, mark, guard)
    return job.wait(Map(outcome))


@COMMANDS.command(
    "kvstream.load|state",
    "key serialized-value",
    *(_LOADS | flags("no_touch invalidates"), SECOND),
    since=OURS,
)
def load_state(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Set the groups, counters and producers of a stream from a payload of DUMP; entries stay.

    It is for a stream whose entries came by a bulk load.
    """
    dump.restate(txn, qualified(client.db, argv[2]), argv[3])
    return OK


@COMMANDS.command("kvstream.load|discard", "load", flags("admin local"), since=OURS)
def load_discard(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Cancel a load and delete its files."""
    server_of(client).uploads.discard(argv[2])
    return OK
