"""KVSTREAM.INFO: the figures of a stream as a queue."""

from kvstream.commands.args import Argv
from kvstream.commands.command import FIRST, OURS, READ, Family, Session
from kvstream.commands.queues import policy, retention
from kvstream.commands.replies import Map, Reply
from kvstream.meta.txn import Txn
from kvstream.operations.queues.info import GroupQueue, queue_info

COMMANDS = Family("stream")


@COMMANDS.command("kvstream.info", "key", READ, FIRST, since=OURS)
def info(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the figures of a stream as a queue, with those of its groups and its retention.

    `delayed` messages are not in the stream yet. Of each group, `ready` entries are for the next
    reads (null if they are too many to count), `leased` ones are pending with a consumer, `waiting`
    ones wait for another delivery, and `held` ones for another entry of their key. `next_ms` is the
    time until the first waiting one is ready, null if none waits. `dead` is the length of its
    dead-letter stream. `oldest_ms` is the age of the first entry that is not acknowledged, by its
    ID. Maps of groups without rules, or of streams without them, are empty.
    """
    found = queue_info(txn, session.prefix + argv[1])
    groups: list[Reply] = [_group(each) for each in found.groups]
    return Map(
        [
            (b"length", found.length),
            (b"delayed", found.delayed),
            (b"schedules", found.schedules),
            (b"groups", groups),
            (b"retention", retention.shown(found.retention)),
        ]
    )


def _group(group: GroupQueue) -> Reply:
    figures = group._asdict()
    rules = figures.pop("policy")
    pairs: list[tuple[Reply, Reply]] = [(name.encode(), value) for name, value in figures.items()]
    return Map([*pairs, (b"policy", Map([]) if rules is None else policy.shown(rules))])
