"""KVSTREAM.LOAD: bulk loads, from files of rows that clients send."""

from kvstream.bulkload import commit
from kvstream.commands.args import Argv, integer, syntax_error
from kvstream.commands.command import Answer
from kvstream.commands.replies import OK, Map, Reply
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations import dump
from kvstream.server.commands.admin import help_of, server_of
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.uploads import PART_WORDS

_PART = b"PART"


def load_ticket(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Begin a bulk load into streams; reply its name and its ticket."""
    load, ticket = server_of(client).loads.begin(commit.ticket(txn, client.db, argv[2:]))
    return Map([(b"load", load), (b"ticket", ticket)])


def load_put(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Append bytes to a file whose length is the offset; reply the new length."""
    offset = integer(argv[4])
    if offset < 0:
        raise InvalidArgument("offset is out of range, must be positive")
    return server_of(client).loads.put(argv[2], argv[3], offset, argv[5])


def load_commit(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Append the entries of all files, or none; reply how many, 0 if MARK was there."""
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
    job, outcome = server_of(client).loads.commit(argv, argv[2], words, mark, guard)
    return job.wait(Map(outcome))


def load_state(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Give a stream the groups, counters and producers of a DUMP payload; its entries stay."""
    dump.restate(txn, qualified(client.db, argv[2]), argv[3])
    return OK


def load_discard(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Remove a load and its files."""
    server_of(client).loads.discard(argv[2])
    return OK


load_help = help_of(
    "KVSTREAM.LOAD",
    ("TICKET [<key> ...]", "Begin a bulk load into these streams, and others."),
    (
        "PUT <load> <name> <offset> <data>",
        "Append DATA to a file of rows, whose length is OFFSET.",
    ),
    (
        "COMMIT <load> [MARK <key> <number>] PART <name> <digest> GIVEN|ALLOTTED [PART ...]",
        "    Append the entries of all files at once. MARK: unless KEY has NUMBER.",
    ),
    ("DISCARD <load>", "Remove what was sent."),
    ("STATE <key> <payload>", "Give a stream groups and counters of a payload of DUMP."),
)
