"""``check``: walk every column family, recount everything, and tell or mend what does not hold.

The walk reads rows, not what is held in memory, and decodes each record anew; what is in memory is
then compared with the disk. It holds chunks of rows and a bit for each number in use, never all
rows. The truth is in message rows, runs of pending entries and idempotent IDs; counters and indexes
are made to fit them. What is written in repair is in proportion to what is wrong.
"""

from kvstream.errors import InvalidArgument
from kvstream.meta.records import ConsumerMeta, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.checks.entries import check_entries
from kvstream.operations.checks.groups import check_groups
from kvstream.operations.checks.keyspace import KeyspaceCheck, check_messages, check_trees
from kvstream.operations.checks.memory import check_memory
from kvstream.operations.checks.producers import check_producers
from kvstream.operations.checks.survey import Survey
from kvstream.storage.batch import Batch, Family
from kvstream.types.records import Fault


def check(txn: Txn, repair: bool = False) -> list[Fault]:
    """Return what does not hold in the whole store; with ``repair`` set right what can be.

    Raises Corruption where rows cannot be read at all, and InvalidArgument in a transaction that
    has changed something: its changes are in memory and not yet in rows.
    """
    if txn.dirty:
        raise InvalidArgument("a check needs a transaction that has changed nothing")
    survey = Survey(txn, repair)
    KeyspaceCheck(survey, _check_stream).run()
    check_messages(survey)
    check_trees(survey)
    check_memory(survey, txn)
    faults = survey.findings.faults()
    if repair and faults:
        _mend(txn, survey.findings.mending)
    return faults


def _check_stream(survey: Survey, stream: StreamMeta, place: str, gone: bool) -> None:
    """Check all that belongs to one stream, whose fields become what is true.

    A stream that a flush made ``gone`` has no entries any more.
    """
    survey.claim_tree(place, stream.nodes_tree)
    if not gone:
        check_entries(survey, stream, place)
    check_groups(survey, stream, place)
    check_producers(survey, stream, place)


def _mend(txn: Txn, mending: Batch) -> None:
    """Have the mending rows written, and all in memory read anew."""
    for family, lower, upper in mending.ranges:
        txn.batch.delete_range(family, lower, upper)
    for puts, mended in zip(txn.batch.puts, mending.puts, strict=True):
        puts.update(mended)
    for row, consumer in txn.catalog.seen.items():
        record = txn.batch.get(Family.TREES, row)
        if record is not None:
            stored = ConsumerMeta.decode(consumer.name, row, record)
            stored.seen_ms, stored.active_ms = consumer.seen_ms, consumer.active_ms
            stored.activity = consumer.activity
            txn.batch.put(Family.TREES, row, stored.encode())
    txn.catalog.forget()
