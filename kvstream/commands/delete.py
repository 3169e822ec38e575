"""XDEL and XDELEX."""

from functools import partial

from kvstream.commands.args import Args, Argv, packed_ids, stream_ids, syntax_error
from kvstream.commands.command import FAST_WRITE, FIRST, Answer, Family, Session, flags
from kvstream.commands.incremental import run_erasure
from kvstream.commands.reply_pages import of_outcomes
from kvstream.commands.trim import POLICIES, POLICY_SYNTAX
from kvstream.errors import InvalidArgument, InvalidID
from kvstream.meta import nodes
from kvstream.meta.compiled import plain
from kvstream.meta.txn import Txn
from kvstream.operations import delete
from kvstream.types.options import RefPolicy
from kvstream.types.records import Outcome

COMMANDS = Family("stream")
IDS_SYNTAX = "IDS numids id [id ...]"


@COMMANDS.command(
    *("xdel", "key id [id ...]", FAST_WRITE | flags("shows_change invalidates"), FIRST),
    since="5.0.0",
    uses="RW delete",
)
def xdel(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Delete entries by their IDs; return how many existed."""
    if plain is not None:
        count = plain.delete_words(nodes.measure, txn, session.prefix, argv)
        if count >= 0:
            return count
    name = session.prefix + argv[1]
    try:
        if len(argv) == 3:
            return delete.delete_one(txn, name, packed_ids(argv[2:])[0])
        ids = stream_ids(argv[2:])
    except InvalidID:
        if txn.stream(name) is None:  # Redis does not parse the IDs then
            return 0
        raise

    if len(ids) <= txn.thresholds.long_rows:
        return delete.delete(txn, name, ids)

    def operation(txn: Txn, live: delete.Live) -> int:
        return delete.delete(txn, name, ids, live)

    return run_erasure(session, txn, name, ids, operation, int)


@COMMANDS.command(
    *("xdelex", f"key {POLICY_SYNTAX} {IDS_SYNTAX}", FAST_WRITE | flags("invalidates"), FIRST),
    since="8.2.0",
    uses="RW delete",
)
def xdelex(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Delete entries by a policy; return for each ID 1 deleted, 2 still referenced, -1 not found.

    In a stream without groups ACKED deletes, here and in XACKDEL and XTRIM, as the server does;
    Redis's documentation says that nothing is deleted.

    Where a group has been destroyed, Redis 8.2 keeps with ACKED what that group had not read, here
    and in XACKDEL, XADD and XTRIM.
    """
    name = session.prefix + argv[1]
    stream = txn.stream(name)
    policy, raw = policy_and_ids(Args(argv, 2))
    if stream is None:
        return [-1] * len(raw)
    ids = stream_ids(raw)

    def operation(txn: Txn, live: delete.Live) -> list[Outcome]:
        return delete.delete_with_policy(txn, name, ids, policy, live)

    return run_erasure(session, txn, name, ids, operation, partial(of_outcomes, txn, session))


def policy_and_ids(args: Args) -> tuple[RefPolicy, Argv]:
    """Take the options of XDELEX and XACKDEL: a policy and an IDS block, in any order."""
    policy: RefPolicy | None = None
    ids: Argv | None = None
    message = "Number of IDs must be a positive integer"
    while args:
        word = args.option()
        if word in POLICIES and policy is None:
            policy = POLICIES[word]
        elif word == b"IDS" and args:
            count = args.at_least(1, message, message)
            if count > len(args):
                raise InvalidArgument("The `numids` parameter must match the number of arguments")
            ids = args.take(count)
        else:
            raise syntax_error()
    if ids is None:
        raise InvalidArgument("IDS option is required")
    return policy or RefPolicy.KEEPREF, ids
