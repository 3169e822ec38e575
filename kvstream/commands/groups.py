"""XGROUP: create, move and delete consumer groups and consumers."""

from kvstream.commands.args import Args, Argv, bad_subcommand, stream_id, stream_id_or_sign
from kvstream.commands.command import GROW, SECOND, WRITE, Family, Session, flags
from kvstream.commands.replies import OK, Reply
from kvstream.meta.txn import Txn
from kvstream.operations import groups
from kvstream.operations.groups import existing_group, require_stream

COMMANDS = Family("stream")
COMMANDS.add_help("xgroup", since="5.0.0")
_CREATE_WORDS_MAX = 8
_SETID_WORDS = (5, 7)


@COMMANDS.command(
    "xgroup|create",
    "key group id|$ [MKSTREAM] [ENTRIESREAD entries-read]",
    *(GROW, SECOND),
    since="5.0.0",
    uses="RW insert",
    usage="<key> <groupname> <id|$> [option]",
)
def xgroup_create(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Create a consumer group that reads the entries after an ID.

    MKSTREAM: Create the stream if it does not exist.

    ENTRIESREAD above the number of entries ever added is lowered to it; Redis before 8.2.2 keeps
    it.
    """
    entries_read, mkstream = _group_options(argv, may_make=True)
    name = session.prefix + argv[2]
    if mkstream:
        txn.stream(name)  # refuses a key of another type before the ID is parsed
    else:
        require_stream(txn, name)
    if len(argv) > _CREATE_WORDS_MAX:
        raise bad_subcommand(argv)
    after = None if argv[4] == b"$" else stream_id(argv[4])
    groups.create_group(txn, name, argv[3], after, mkstream, entries_read)
    return OK


@COMMANDS.command(
    "xgroup|setid",
    "key group id|$|-|+ [ENTRIESREAD entries-read]",
    *(WRITE, SECOND),
    since="5.0.0",
    usage="<key> <groupname> <id|$> [ENTRIESREAD entries_read]",
)
def xgroup_setid(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set the last delivered ID of a group; pending entries stay.

    Blocked readers of the group look for entries at once.
    """
    entries_read, _ = _group_options(argv, may_make=False)
    name = session.prefix + argv[2]
    existing_group(txn, name, argv[3])
    if len(argv) not in _SETID_WORDS:
        raise bad_subcommand(argv)
    after = None if argv[4] == b"$" else stream_id_or_sign(argv[4])
    groups.set_group_id(txn, name, argv[3], after, entries_read)
    return OK


def _group_options(argv: Argv, may_make: bool) -> tuple[int | None, bool]:
    """Return ENTRIESREAD and MKSTREAM."""
    entries_read: int | None = None
    mkstream = False
    args = Args(argv, 5)
    while args:
        word = args.option()
        if word == b"MKSTREAM" and may_make:
            mkstream = True
        elif word == b"ENTRIESREAD" and args:
            entries_read = groups.check_entries_read(args.integer())
        else:
            raise bad_subcommand(argv)
    return entries_read, mkstream


@COMMANDS.command(
    *("xgroup|destroy", "key group", WRITE | flags("shows_change"), SECOND),
    since="5.0.0",
    uses="RW delete",
    usage="<key> <groupname>",
)
def xgroup_destroy(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete a group and its consumers; return 1 if it existed."""
    return int(groups.destroy_group(txn, session.prefix + argv[2], argv[3]))


@COMMANDS.command(
    *("xgroup|createconsumer", "key group consumer", GROW | flags("shows_change"), SECOND),
    since="6.2.0",
    uses="RW insert",
    usage="<key> <groupname> <consumer>",
)
def xgroup_createconsumer(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Create a consumer; return 1 if it is new."""
    return int(groups.create_consumer(txn, session.prefix + argv[2], argv[3], argv[4]))


@COMMANDS.command(
    *("xgroup|delconsumer", "key group consumer", WRITE, SECOND),
    since="5.0.0",
    uses="RW delete",
    usage="<key> <groupname> <consumer>",
)
def xgroup_delconsumer(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete a consumer and its pending entries; return how many there were."""
    return groups.delete_consumer(txn, session.prefix + argv[2], argv[3], argv[4])
