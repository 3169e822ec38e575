"""KVSTREAM.POLICY: the rules by which a consumer group delivers, repeats and gives up entries."""

from kvstream.commands.args import (
    Args,
    Argv,
    Option,
    Values,
    integer,
    integer_values,
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
    Keys,
    Session,
    flags,
)
from kvstream.commands.incremental import run_in_steps, run_plan
from kvstream.commands.replies import OK, Map, Reply
from kvstream.errors import InvalidArgument
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.txn import Txn
from kvstream.operations import groups
from kvstream.operations.queues import consumers, policy

COMMANDS = Family("stream")
COMMANDS.add_help("kvstream.policy", since=OURS)
_FAIR = "FAIR must be 1 (the values of ORDERBY take turns) or 0"
_BACKOFF = "BACKOFF must be a list of milliseconds, such as 1000,10000, or EXP base cap"


def _order(args: Args, rules: Values) -> None:
    rules["order_by"] = args.next()
    if args and args.peek().upper() == b"PERKEY":
        args.next()
        rules["max_per_key"] = args.integer()


def _fair(args: Args, rules: Values) -> None:
    fair = args.integer(_FAIR)
    if fair not in (0, 1):
        raise InvalidArgument(_FAIR)
    rules["fair"] = fair == 1


def _backoff(args: Args, rules: Values) -> None:
    word = args.next()
    rules |= {"backoff_cap_ms": 0, "jitter_percent": 0}
    if word.upper() == b"EXP":
        rules["backoff_ms"] = (args.integer(_BACKOFF),)
        rules["backoff_cap_ms"] = args.integer(_BACKOFF)
        if not 0 < rules["backoff_ms"][0] <= rules["backoff_cap_ms"]:
            raise InvalidArgument("BACKOFF EXP: the base must be above 0 and not above the cap")
    else:
        rules["backoff_ms"] = tuple(integer(delay, _BACKOFF) for delay in word.split(b",") if word)
    if args and args.peek().upper() == b"JITTER":
        args.next()
        rules["jitter_percent"] = args.integer()


_OPTIONS: dict[bytes, Option[Values]] = {
    b"LEASE": integer_values("lease_ms"),
    b"DELIVERIES": integer_values("max_deliveries"),
    b"BACKOFF": (1, _backoff),
    b"DEAD": word_value("dead_letter"),
    b"ORDERBY": (1, _order),
    b"FAIR": (1, _fair),
    b"INFLIGHT": integer_values("max_in_flight"),
    b"RATE": integer_values("rate_count", "rate_ms"),
    b"REAP": integer_values("reap_idle_ms"),
}


class _PolicyKeys(Keys):
    """The keys of SET: the stream, and that of the dead letters."""

    def of(self, argv: Argv) -> list[bytes]:
        keys, at = [*argv[2:3]], 4
        while at < len(argv):
            word = argv[at].upper()
            if word == b"DEAD" and at + 1 < len(argv):
                keys.append(argv[at + 1])
            at += 1 + _WORDS.get(word, 0)
        return keys


_WORDS = {word: option[0] for word, option in _OPTIONS.items()}
_WORDS |= {b"EXP": 2, b"PERKEY": 1, b"JITTER": 1, b"BACKOFF": 0}
"""The number of arguments to skip after each word: BACKOFF is followed by EXP or by delays."""


@COMMANDS.command(
    "kvstream.policy|set",
    "key group [LEASE ms] [DELIVERIES count] [BACKOFF delays|EXP base cap [JITTER percent]] "
    "[DEAD key] [ORDERBY field [PERKEY count]] [FAIR 0|1] [INFLIGHT count] [RATE count ms] "
    "[REAP ms]",
    *(flags("write denyoom movablekeys"), _PolicyKeys(2, 2)),
    since=OURS,
    uses="RW update,RW insert",
)
def policy_set(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Set rules of a group, leave its others, and return all of them.

    LEASE: An entry pending for so long goes to the next reader of new entries.
    DELIVERIES: After so many deliveries an entry moves to the dead letters.
    BACKOFF: Milliseconds before each repetition of a failed entry, separated by commas; the last
        one holds for all further ones.
    EXP: Double the base at each failure, up to the cap.
    JITTER: Shorten each delay by up to so many percent, at random.
    DEAD: The stream of the dead letters; unless given, the name of the stream with `:dead`.
    ORDERBY: Entries with an equal value of the field are delivered in order, each once the one
        before is acknowledged. Entries that are pending already are not ordered.
    PERKEY: At most so many of them are pending at a time; 1 unless given.
    FAIR: With 1, the values of ORDERBY take turns: a value with very many entries delays no other
        one. New entries are pending, without a consumer, from the time at which they are sorted.
    INFLIGHT: At most so many entries are pending with consumers.
    RATE: At most so many entries are delivered in so many milliseconds.
    REAP: A consumer idle for so long is deleted; its pending entries return to the group.

    0, or an empty value, removes a rule. The rules hold for every client that reads new entries
    (XREADGROUP with `>`). If ORDERBY ends, a server makes the entries that wait for others of their
    key ready in steps, which other clients see one by one. Another field sorts all pending entries
    anew; the command is refused while more than 3000 are pending.
    """
    rules: Values = {}
    Args(argv, 4).take_options(_OPTIONS, rules)
    if not rules:
        raise syntax_error()
    name, group = session.prefix + argv[2], argv[3]

    def change(txn: Txn) -> GroupPolicy:
        return policy.set_policy(txn, name, group, rules)

    if session.steps and policy.ends_order(txn, name, group, rules):
        return run_in_steps(policy.plan_end_of_order(name, group, change), policy_reply)
    return policy_reply(change(txn))


@COMMANDS.command("kvstream.policy|get", "key group", FAST_READ, SECOND, since=OURS)
def policy_get(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the rules of a group, an empty map if it has none."""
    rules = policy.policy_of(txn, session.prefix + argv[2], argv[3])
    return Map([]) if rules is None else policy_reply(rules)


@COMMANDS.command("kvstream.policy|del", "key group", WRITE, SECOND, since=OURS, uses="RW delete")
def policy_del(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Remove all rules of a group; return 1 if it had any."""
    name, group = session.prefix + argv[2], argv[3]

    def change(txn: Txn) -> bool:
        return policy.drop_policy(txn, name, group)

    if session.steps and policy.ends_order(txn, name, group, {"order_by": b""}):
        return run_in_steps(policy.plan_end_of_order(name, group, change), int)
    return int(change(txn))


@COMMANDS.command("kvstream.policy|pause", "key group", GROW, SECOND, since=OURS, uses="RW update")
def policy_pause(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Deliver nothing to readers of new entries until the group is resumed.

    Pending entries are acknowledged, given back and extended as before.
    """
    policy.set_policy(txn, session.prefix + argv[2], argv[3], {"paused": True})
    return OK


@COMMANDS.command("kvstream.policy|resume", "key group", WRITE, SECOND, since=OURS)
def policy_resume(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Deliver entries again after a pause; return 1 if there was one."""
    return int(policy.resume(txn, session.prefix + argv[2], argv[3]))


@COMMANDS.command(
    "kvstream.policy|seek", "key group unix-time-milliseconds", WRITE, SECOND, since=OURS
)
def policy_seek(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Deliver entries from a time on, again or for the first time; return the last delivered ID.

    Pending entries stay with their consumers.
    """
    at_ms = integer(argv[4], "the time must be Unix milliseconds")
    return bytes(groups.seek(txn, session.prefix + argv[2], argv[3], at_ms))


@COMMANDS.command(
    "kvstream.policy|remove", "key group consumer", WRITE, SECOND, since=OURS, uses="RW delete"
)
def policy_remove(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Delete a consumer and give its pending entries back to the group; return how many.

    A server gives back very many of them in steps, which other clients see one by one.
    """
    name, group, consumer = session.prefix + argv[2], argv[3], argv[4]
    return run_plan(txn, session, consumers.plan_passing_on(name, group, consumer), int)


def policy_reply(found: GroupPolicy) -> Map:
    """Return the reply for a policy: every rule and its value."""
    pairs: list[tuple[bytes, Reply]] = []
    for name in policy.SHOWN:
        value = getattr(found, name)
        reply: Reply = [*value] if isinstance(value, tuple) else value
        pairs.append((name.encode(), int(value) if isinstance(value, bool) else reply))
    return Map(pairs)
