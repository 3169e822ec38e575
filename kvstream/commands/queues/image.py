"""KVSTREAM.QUEUE: what a stream has as a queue, for another kvstream; DUMP has the rest."""

from kvstream.commands.args import Args, Argv, syntax_error
from kvstream.commands.command import GROW, OURS, READ, SECOND, Family, Session
from kvstream.commands.replies import Reply
from kvstream.meta.txn import Txn
from kvstream.operations.queues import image

COMMANDS = Family("stream")
COMMANDS.add_help("kvstream.queue", since=OURS)


@COMMANDS.command(
    "kvstream.queue|export", "key [BEHIND cursor] [COUNT count]", READ, SECOND, since=OURS
)
def queue_export(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return what a stream has as a queue and DUMP has no place for, in pages.

    BEHIND: The cursor of the page before. COUNT: At most so many rows, 100,000 unless given.

    These are the rules of groups, delayed messages, entries that wait, schedules, unique IDs,
    retention, times to live and the redrive. The reply has a cursor, which is empty if no page
    follows, and an array of keys and values for KVSTREAM.QUEUE IMPORT. A page that reaches 32 MB
    ends before. A key that does not exist has no rows.
    """
    args, behind, count = Args(argv, 3), b"", image.PAGE_ROWS
    while args:
        option = args.option()
        if option == b"BEHIND":
            behind = args.next()
        elif option == b"COUNT":
            count = args.at_least(1, "COUNT must be a positive integer")
        else:
            raise syntax_error()
    rows, cursor = image.page(txn, session.prefix + argv[2], behind, count)
    flat: list[Reply] = [part for row in rows for part in row]
    return [cursor, flat]


@COMMANDS.command(
    *("kvstream.queue|import", "key row value [row value ...]", GROW, SECOND),
    since=OURS,
    uses="RW insert",
    any_key=lambda argv: True,
)
def queue_import(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add rows of KVSTREAM.QUEUE EXPORT to a stream; return how many were left out.

    Those of groups that the stream does not have, and of entries that are not pending, are left
    out. A row that the stream has already is put again. If one is damaged, none is added.

    Rules and redrives name streams that they write: the user needs permission for all keys.
    """
    rest = argv[3:]
    if len(rest) % 2:
        raise syntax_error()
    rows = list(zip(rest[::2], rest[1::2], strict=True))
    return image.restore(txn, session.prefix + argv[2], rows)
