"""KVSTREAM.RETENTION: the rules by which a stream loses entries in the background."""

from dataclasses import fields

from kvstream.commands.args import (
    Args,
    Argv,
    Option,
    Values,
    flag_value,
    syntax_error,
    word_value,
)
from kvstream.commands.command import (
    FAST_READ,
    GROW,
    OURS,
    SECOND,
    WRITE,
    Answer,
    Family,
    Session,
    flags,
)
from kvstream.commands.incremental import run_plan
from kvstream.commands.replies import OK, Map, Reply
from kvstream.errors import InvalidArgument
from kvstream.meta.policy import Retention
from kvstream.meta.txn import Txn
from kvstream.operations.plans import ALWAYS_HOLDS, Planning
from kvstream.operations.queues import retention

COMMANDS = Family("stream")
COMMANDS.add_help("kvstream.retention", since=OURS)


def _number(name: str) -> Option[Values]:
    def take(args: Args, rules: Values) -> None:
        rules[name] = args.integer()
        if rules[name] < 1:
            raise InvalidArgument("MAXAGE, MAXLEN and MAXBYTES must be between 1 and 2^62")

    return 1, take


_OPTIONS: dict[bytes, Option[Values]] = {
    b"MAXAGE": _number("max_age_ms"),
    b"MAXLEN": _number("max_length"),
    b"MAXBYTES": _number("max_bytes"),
    b"ACKED": flag_value("acked"),
    b"LATEST": word_value("latest"),
    b"FORCE": flag_value("force"),
    b"NX": flag_value("nx"),
    b"GROUP": word_value("group"),
}


@COMMANDS.command(
    "kvstream.retention|set",
    "key [MAXAGE ms] [MAXLEN count] [MAXBYTES bytes] [ACKED] [LATEST field] [FORCE] [NX] "
    "[GROUP group]",
    *(GROW, SECOND),
    since=OURS,
    uses="RW update",
)
def retention_set(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set the rules by which a stream loses entries in the background, in place of former ones.

    MAXAGE: Entries are removed when the time of their ID is so many milliseconds ago.
    MAXLEN: The first entries are removed while there are more.
    MAXBYTES: The first nodes are removed while all nodes have more bytes.
    ACKED: Entries are removed once every group has acknowledged them; without groups all stay.
    LATEST: Of entries with an equal value of a field only the last one stays; entries without the
        field stay.
    FORCE: Entries are removed even if a group has them pending or has not read them.
    NX: Only for a new stream: it has had no entries but delayed messages and those of schedules,
        and has no group and no rules. Else the reply is null.
    GROUP: With NX: this group, if it has a policy, does not count.

    A stream is created if there is none. An entry is removed when one of the rules allows it.
    Without FORCE, an entry that a group needs stays. Bytes are those of the nodes as Redis's
    listpacks, with deleted entries until their node is removed; the node that is being filled
    always stays. A stream that changes is checked each second, and when its first entry reaches its
    age. LATEST goes through the stream in order, and waits at the first entry that a group needs.
    """
    rules: Values = {}
    Args(argv, 3).take_options(_OPTIONS, rules)
    only_new, group = rules.pop("nx", False), rules.pop("group", b"")
    if not rules or (group and not only_new):
        raise syntax_error()
    name, wanted = session.prefix + argv[2], Retention(**rules)
    if only_new:
        return OK if retention.begin_with(txn, name, wanted, group) else None
    retention.set_rules(txn, name, wanted)
    return OK


@COMMANDS.command("kvstream.retention|get", "key", FAST_READ, SECOND, since=OURS)
def retention_get(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the rules of a stream, an empty map if it has none."""
    return retention_reply(retention.rules_of(txn, session.prefix + argv[2]))


@COMMANDS.command("kvstream.retention|del", "key", WRITE, SECOND, since=OURS, uses="RW delete")
def retention_del(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Remove the rules of a stream; return 1 if it had any."""
    return int(retention.drop_rules(txn, session.prefix + argv[2]))


@COMMANDS.command(
    *("kvstream.retention|run", "key", WRITE | flags("invalidates"), SECOND),
    since=OURS,
    uses="RW delete",
)
def retention_run(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Remove now what the rules of a stream let go; return how many entries were removed.

    Other clients are served between the steps. Inside MULTI, and in process, all happens in one go.
    """
    name = session.prefix + argv[2]

    def plan(txn: Txn) -> Planning[int]:
        removed, more = 0, True
        while more:
            gone, more = retention.run(txn, name)
            removed += gone
            if more:
                txn = yield ALWAYS_HOLDS
        return removed

    return run_plan(txn, session, plan, int)


def retention_reply(rules: Retention | None) -> Map:
    """Return the reply for rules: every one and its value."""
    pairs: list[tuple[Reply, Reply]] = []
    for each in fields(Retention) if rules is not None else ():
        value = getattr(rules, each.name)
        pairs.append((each.name.encode(), int(value) if isinstance(value, bool) else value))
    return Map(pairs)
