"""XGROUP, XACK, XACKDEL and XNACK."""

from dataclasses import replace
from functools import partial

from kvstream.commands import reply_pages
from kvstream.commands.args import (
    Args,
    Argv,
    packed_ids,
    stream_id,
    stream_id_or_sign,
    stream_ids,
    text,
)
from kvstream.commands.command import Answer, Session
from kvstream.commands.replies import OK, Reply, Simple
from kvstream.commands.streams import Step, about, are_many, policy_and_ids
from kvstream.errors import InvalidArgument, InvalidID
from kvstream.meta.txn import Txn
from kvstream.operations import ack, groups
from kvstream.operations.ack import Nack, NackMode
from kvstream.operations.delete import Live, Outcome
from kvstream.operations.groups import existing_group, existing_stream, group_of_key
from kvstream.operations.incremental import LongAck, LongNack
from kvstream.types.ids import StreamID, ascending_packed, is_ascending

_CREATE_WORDS_MAX = 8
_SETID_WORDS = (5, 7)


def bad_subcommand(argv: Argv) -> InvalidArgument:
    """Return the error of a subcommand whose options Redis does not take."""
    container, name = text(argv[0]).upper(), text(argv[1][:128])
    return InvalidArgument(
        f"unknown subcommand or wrong number of arguments for '{name}'. Try {container} HELP."
    )


# --- XGROUP -------------------------------------------------------------------------------------


def xgroup_create(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Make a group that will be given what comes after an ID."""
    entries_read, mkstream = _group_options(argv, may_make=True)
    name = session.prefix + argv[2]
    stream = txn.stream(name) if mkstream else existing_stream(txn, name)
    if len(argv) > _CREATE_WORDS_MAX:
        raise bad_subcommand(argv)
    after = None if argv[4] == b"$" and stream is not None else _created_after(argv[4])
    groups.create_group(txn, name, argv[3], after, mkstream, entries_read)
    return OK


def _created_after(raw: bytes) -> StreamID | None:
    return None if raw == b"$" else stream_id(raw)


def xgroup_setid(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Move the last ID that a group counts as given; what is pending stays."""
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
            entries_read = groups.checked_entries_read(args.integer())
        else:
            raise bad_subcommand(argv)
    return entries_read, mkstream


def xgroup_destroy(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Remove a group with its consumers; 1 if there was one."""
    return int(groups.destroy_group(txn, session.prefix + argv[2], argv[3]))


def xgroup_createconsumer(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Make a consumer; 1 if it is new."""
    return int(groups.create_consumer(txn, session.prefix + argv[2], argv[3], argv[4]))


def xgroup_delconsumer(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Remove a consumer and answer how many pending entries went with it."""
    return groups.delete_consumer(txn, session.prefix + argv[2], argv[3], argv[4])


_XGROUP_HELP = [
    Simple(line)
    for line in (
        "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CREATE <key> <groupname> <id|$> [option]",
        "    Make a consumer group that starts after an ID. Options:",
        "    * MKSTREAM",
        "      Make the stream too if the key is missing.",
        "    * ENTRIESREAD entries_read",
        "      Entries that count as read so far.",
        "CREATECONSUMER <key> <groupname> <consumer>",
        "    Make a consumer in a group.",
        "DELCONSUMER <key> <groupname> <consumer>",
        "    Remove a consumer from a group, its pending entries with it.",
        "DESTROY <key> <groupname>",
        "    Remove a group.",
        "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
        "    Move what a group counts as delivered.",
        "HELP",
        "    Show these lines.",
    )
]


def xgroup_help(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Show the subcommands."""
    return _XGROUP_HELP


# --- acknowledging ------------------------------------------------------------------------------


def xack(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Make entries no longer pending and answer how many were."""
    name, group = session.prefix + argv[1], argv[2]
    if are_many(session, len(argv) - 3):
        if ack.stream_and_group(txn, name, group) is None:
            return 0
        return about(argv[3:], lambda txn, ids: LongAck(name, group, ascending_packed(ids)).step)
    try:
        ids = packed_ids(argv[3:])
    except InvalidID:
        if ack.stream_and_group(txn, name, group) is None:  # Redis does not look at the IDs then
            return 0
        raise
    return ack.acknowledge_packed(txn, name, group, ids)


def xackdel(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Acknowledge and delete entries; for each ID 1 deleted, 2 referred to, -1 not pending."""
    name, group = session.prefix + argv[1], argv[2]
    missing = ack.stream_and_group(txn, name, group) is None
    policy, raw = policy_and_ids(Args(argv, 3))
    if missing:
        return [-1] * len(raw)
    ids = stream_ids(raw)

    def operation(txn: Txn, live: Live) -> list[Outcome]:
        return ack.acknowledge_and_delete(txn, name, group, ids, policy, live)

    answer = partial(reply_pages.of_outcomes, session)
    return reply_pages.of_erasure(session, txn, name, ids, operation, answer)


def xnack(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Give pending entries back to their group, owned by nobody, and answer how many."""
    name, group = session.prefix + argv[1], argv[2]
    group_of_key(txn, name, group)
    mode = NackMode(text(argv[3]).upper())
    args = Args(argv, 4)
    if args.option() != b"IDS":
        raise InvalidArgument("syntax error, expected IDS keyword")
    message = "numids must be a positive integer"
    count = args.at_least(1, message, message)
    if count > len(args):
        raise InvalidArgument("number of IDs doesn't match numids")
    words = args.take(count)

    def begin(txn: Txn, ids: list[bytes]) -> Step:
        nack = _nack(mode, args)
        if is_ascending(ids):
            return LongNack(name, group, ids, nack).step
        some = [*map(StreamID.unpack, ids)]
        return lambda txn: ack.negative_acknowledge(txn, name, group, some, nack)

    if are_many(session, count):
        return about(words, begin)
    ids = stream_ids(words)
    return ack.negative_acknowledge(txn, name, group, ids, _nack(mode, args))


def _nack(mode: NackMode, args: Args) -> Nack:
    """Read RETRYCOUNT and FORCE."""
    nack = Nack(mode)
    while args:
        word = args.next()
        option = word.upper()
        if option == b"FORCE":
            nack = replace(nack, force=True)
        elif option == b"RETRYCOUNT" and args:
            nack = replace(nack, retrycount=args.integer())
        else:
            raise InvalidArgument(f"Unrecognized XNACK option '{text(word)}'")
    return nack
