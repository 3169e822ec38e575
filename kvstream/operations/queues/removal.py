"""Remove a consumer of a group, or move a group, without losing what was delivered.

XGROUP DELCONSUMER forgets the entries that are pending with the consumer. ``pass_on`` gives them
back to the group first. XGROUP SETID delivers pending entries again; ``seek`` moves a group with a
policy past them.
"""

from itertools import islice

from kvstream.errors import InvalidArgument, RequestError, quoted
from kvstream.meta import nodes, pel_index
from kvstream.meta.key_events import XGROUP_DELCONSUMER
from kvstream.meta.pel import runs_of
from kvstream.meta.records import ConsumerMeta, GroupMeta
from kvstream.meta.txn import Txn
from kvstream.operations.ack import note_released
from kvstream.operations.groups import existing_group, set_group_id
from kvstream.types.ids import MIN_ID, U64_MAX, StreamID

RUNS_TOGETHER = 250
"""Runs that one step gives back: ten milliseconds of work."""


def give_back(
    txn: Txn, name: bytes, group: GroupMeta, member: ConsumerMeta, most: int | None
) -> tuple[int, int]:
    """Make up to ``most`` runs of a consumer's entries ready; return how many, of how many entries.

    The delivery counts stay.
    """
    runs = list(islice(runs_of(txn, group, member), most))
    rank = group.nack_rank + 1
    given = {run.anchor: run._replace(owner=b"", time_ms=0, rank=rank) for run in runs}
    pel_index.replace(txn, group, runs, given)
    count = sum(len(run.ids) for run in runs)
    note_released(txn, name, group, rank, count)
    return len(runs), count


class PassingOn:
    """Gives the pending entries of a consumer back to its group, and deletes the consumer."""

    def __init__(self, name: bytes, group: bytes, consumer: bytes) -> None:
        self._name, self._group, self._consumer = name, group, consumer
        self._count = 0

    def step(self, txn: Txn) -> int | None:
        """Give back some entries; in the last step return how many there were, None before."""
        return self._give_back(txn, RUNS_TOGETHER)

    def whole(self, txn: Txn) -> int:
        """Do all steps in one commit."""
        count = self._give_back(txn, None)
        assert count is not None
        return count

    def _give_back(self, txn: Txn, most: int | None) -> int | None:
        _, found = existing_group(txn, self._name, self._group)
        member = txn.catalog.consumer(txn, found, self._consumer)
        if member is None:
            place = f"in group {quoted(self._group)}"
            raise RequestError(f"there is no consumer {quoted(self._consumer)} {place}")
        runs, count = give_back(txn, self._name, found, member, most)
        self._count += count
        if runs == most:
            return None
        txn.frees = True
        txn.catalog.drop_consumer(txn, found, member)
        txn.notify(XGROUP_DELCONSUMER, self._name)
        return self._count


def pass_on(txn: Txn, name: bytes, group: bytes, consumer: bytes) -> int:
    """Give the pending entries of a consumer back to its group, and delete the consumer.

    They keep their delivery counts and are ready at once. Returns how many there were.
    """
    return PassingOn(name, group, consumer).whole(txn)


def seek(txn: Txn, name: bytes, group: bytes, at_ms: int) -> StreamID:
    """Make a group deliver the entries added at a time and later; return its last delivered ID.

    Pending entries stay as they are. In a group with a policy they are not delivered as new ones.
    """
    if not 0 <= at_ms <= U64_MAX:
        raise InvalidArgument(f"a time of Unix milliseconds cannot be {at_ms}")
    after = StreamID(at_ms - 1, U64_MAX) if at_ms else MIN_ID
    stream, _ = existing_group(txn, name, group)
    read = stream.entries_added - nodes.live_after(txn, stream, after)
    set_group_id(txn, name, group, after, read)
    return after
