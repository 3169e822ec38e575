"""COPY and MOVE, which copy long streams in steps."""

from kvstream.commands.args import Args, Argv, database, syntax_error
from kvstream.commands.command import (
    FAST_WRITE,
    FIRST,
    FIRST_TWO,
    GROW,
    Answer,
    Family,
    Session,
    flags,
)
from kvstream.commands.incremental import run_plan
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations.images import copy

COMMANDS = Family("generic")


@COMMANDS.command(
    *("copy", "key newkey [DB index] [REPLACE]", GROW | flags("shows_change"), FIRST_TWO),
    since="6.2.0",
    uses="RO access, OW update",
    counted_keys=1,
)
def copy_(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Copy a key in one commit; return 1 if it was copied.

    DB: Copy into another database.
    REPLACE: Overwrite the new key if it exists.

    Copying a stream takes time in proportion to its entries and pending entries. A server copies a
    stream of more than 2,000 entries in steps and makes the key at the end, as a copy of what its
    source is then. In MULTI, and in a program's own process, it is one step.

    The copy has the policies of the groups, but no delayed messages, schedules or unique IDs.
    """
    db, replace = session.db, False
    args = Args(argv, 3)
    while args:
        word = args.option()
        if word == b"REPLACE":
            replace = True
        elif word == b"DB" and args:
            db = database(args.next(), session.databases)
        else:
            raise syntax_error()
    source, target = session.prefix + argv[1], qualified(db, argv[2])
    plan = copy.plan_copy(source, target, replace)
    return run_plan(txn, session, plan, int, copy.is_long(txn, source))


@COMMANDS.command(
    *("move", "key db", FAST_WRITE | flags("shows_change"), FIRST),
    since="1.0.0",
    uses="RW access update",
)
def move(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Move a key to another database if it does not exist there; return 1 if it was moved.

    It takes as long as COPY.
    """
    db = database(argv[2], session.databases)
    source, target = session.prefix + argv[1], qualified(db, argv[1])
    plan = copy.plan_copy(source, target, is_move=True)
    return run_plan(txn, session, plan, int, copy.is_long(txn, source))
