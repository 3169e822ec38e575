"""KVSTREAM.INFO, QUEUE and WAKEUPS: a stream as a queue, its image, and why its readers woke."""

from kvstream.commands.args import Args, Argv, syntax_error
from kvstream.commands.command import FIRST, GROW, OPERATE, OURS, READ, SECOND, Family, Session
from kvstream.commands.queues import policy, retention
from kvstream.commands.replies import Map, Reply
from kvstream.layout.keys import database_of, key_of
from kvstream.meta.txn import Txn
from kvstream.operations.queues import image
from kvstream.operations.queues.info import GroupQueue, queue_info

COMMANDS = Family("stream")
COMMANDS.add_help("kvstream.queue", since=OURS)


@COMMANDS.command("kvstream.info", "key [FROM group] [COUNT count]", READ, FIRST, since=OURS)
def info(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the figures of a stream as a queue, with those of its groups and its retention.

    FROM: The groups from this name on, in their order. COUNT: At most so many groups.

    `entries_added` counts all that were ever added. `delayed` messages are not in the stream yet.
    Of each group, `ready` entries are for the next reads (null if they are too many to count),
    `leased` ones are pending with a consumer, `waiting` ones wait for another delivery, and `held`
    ones for another entry of their key. One whose lease has ended is ready. `next_ms` is the time
    until the first waiting one is ready, null if none waits. `dead` is the length of its
    dead-letter stream. `oldest_ms` is the age of the first entry that is not acknowledged, by its
    ID. Maps of groups without rules, or of streams without them, are empty.
    """
    args, first, count = Args(argv, 2), b"", None
    while args:
        option = args.option()
        if option == b"FROM":
            first = args.next()
        elif option == b"COUNT":
            count = args.at_least(1, "COUNT must be a positive integer")
        else:
            raise syntax_error()
    queue = queue_info(txn, session.prefix + argv[1], first, count)
    groups: list[Reply] = [_group(each) for each in queue.groups]
    return Map(
        [
            (b"length", queue.length),
            (b"entries_added", queue.added),
            (b"delayed", queue.delayed),
            (b"schedules", queue.schedules),
            (b"groups", groups),
            (b"retention", retention.retention_reply(queue.retention)),
        ]
    )


def _group(group: GroupQueue) -> Reply:
    figures = group._asdict()
    rules = figures.pop("policy")
    pairs: list[tuple[Reply, Reply]] = [(name.encode(), value) for name, value in figures.items()]
    return Map([*pairs, (b"policy", Map([]) if rules is None else policy.policy_reply(rules))])


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


@COMMANDS.command("kvstream.wakeups", "", OPERATE, since=OURS, tips="nondeterministic_output")
def wakeups(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return why blocked readers of this store woke: counts by reason, and the last 100.

    Each of the last has its Unix time in milliseconds, database, key, group (null: none) and
    reason; the newest is the first. The log has them as they happen, at the level `debug`.

    The reader got an outcome: `added` (entries), `due` (a delayed message, or one of a schedule),
    `deleted`, `expired` and `replaced` (the key), `group-changed` and `group-destroyed`, `policy`
    (rules, or the end of a pause), `given-back`, `retry` (a backoff is over), `freed` (a limit or a
    key has room again), `claimed` and `lease` (another lease ends next, or one ended), `rate`,
    `more` (a long read goes on), `idle` (CLAIM), `again` (the first try was undone).

    The wait ended without one: `timeout`, `unblocked`, `cancelled` (the client left), `failed` and
    `closed` (the store).
    """
    found = txn.catalog.wakeups
    counts: list[tuple[Reply, Reply]] = [(why.encode(), n) for why, n in found.counts.items()]
    last: list[Reply] = [
        [each.at_ms, database_of(each.name), key_of(each.name), each.group, each.reason.encode()]
        for each in reversed(found.last)
    ]
    return Map([(b"counts", Map(counts)), (b"last", last)])
