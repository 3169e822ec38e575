"""KVSTREAM.LOAD: bulk loads, whose tables clients make and the store takes in as they are."""

from kvstream.bulkload import commit
from kvstream.bulkload.parts import PART_WORDS
from kvstream.commands.args import Argv, integer, syntax_error
from kvstream.commands.command import Answer
from kvstream.commands.replies import OK, Map, Reply
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations import dump
from kvstream.server.commands.admin import help_of, server_of
from kvstream.server.runtime.client import Client

_PART = b"PART"


def load_ticket(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Begin a bulk load; answer its name, and what makers of parts for these streams must know."""
    load, ticket = server_of(client).loads.begin(commit.ticket(txn, client.db, argv[2:]))
    return Map([(b"load", load), (b"ticket", ticket)])


def load_put(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Append bytes to a file of a part, at an offset that is its length; answer its new length."""
    offset = integer(argv[4])
    if offset < 0:
        raise InvalidArgument("offset is out of range, must be positive")
    return server_of(client).loads.put(argv[2], argv[3], offset, argv[5])


def load_commit(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Append the entries of all parts at once, or none; answer how many, 0 where MARK was there."""
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
    """Give a stream the groups, counters and producers of a payload of DUMP; its entries stay."""
    dump.restate(txn, qualified(client.db, argv[2]), argv[3])
    return OK


def load_discard(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Give a load up, and remove what was sent for it."""
    server_of(client).loads.discard(argv[2])
    return OK


load_help = help_of(
    "KVSTREAM.LOAD",
    ("TICKET [<key> ...]", "Begin a bulk load into these streams, and others."),
    (
        "PUT <load> <name> <offset> <data>",
        "Send a piece of a part's file, NAME.sst or NAME.pieces.",
    ),
    (
        "COMMIT <load> [MARK <key> <number>] PART <name> <digest> <digest> <rows> <bytes>",
        "    GIVEN|ALLOTTED [PART ...]: append all of it at once. MARK: unless KEY has NUMBER.",
    ),
    ("DISCARD <load>", "Remove what was sent."),
    ("STATE <key> <payload>", "Give a stream groups and counters of a payload of DUMP."),
)
