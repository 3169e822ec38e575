"""``check``: read every column family, recount everything, and report or repair what is wrong.

The check reads rows and decodes each record again; then it compares objects in memory with the
disk. It holds chunks of rows and one bit for each number in use. Message rows, runs of pending
entries and idempotent IDs are the truth; counters and indexes follow from them. A repair writes
only what is wrong.
"""

from kvstream.errors import InvalidArgument
from kvstream.meta.records import ConsumerMeta, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.checks.entries import check_entries
from kvstream.operations.checks.groups import check_groups
from kvstream.operations.checks.keyspace import KeyspaceCheck, check_messages, check_trees
from kvstream.operations.checks.memory import check_memory
from kvstream.operations.checks.producers import check_producers
from kvstream.operations.checks.queues import check_queue
from kvstream.operations.checks.survey import CheckProgress, Survey
from kvstream.storage.batch import Batch, Family
from kvstream.types.records import Fault


def check(txn: Txn, repair: bool = False, progress: CheckProgress | None = None) -> list[Fault]:
    """Return the faults of the whole store; with ``repair`` correct those that can be.

    ``progress`` counts the rows that are read, for another thread to show.

    Raise Corruption if rows cannot be read at all, and InvalidArgument in a transaction that has
    changed something, since its changes are not in rows yet.
    """
    if txn.dirty:
        raise InvalidArgument("a check needs a transaction that has changed nothing")
    survey = Survey(txn, repair, progress)
    KeyspaceCheck(survey, _check_stream).run()
    check_messages(survey)
    check_trees(survey)
    check_memory(survey, txn)
    faults = survey.findings.faults()
    if repair and faults:
        _write_repairs(txn, survey.findings.repairs)
    return faults


def _check_stream(survey: Survey, stream: StreamMeta, place: str, gone: bool) -> None:
    """Check everything of one stream, and set its fields to their true values.

    ``gone``: a flush has deleted the stream, so it has no entries.
    """
    survey.claim_tree(place, stream.nodes_tree)
    if not gone:
        check_entries(survey, stream, place)
    check_groups(survey, stream, place)
    check_producers(survey, stream, place)
    check_queue(survey, stream, place)


def _write_repairs(txn: Txn, repairs: Batch) -> None:
    """Write the repaired rows, and drop everything in memory, so that it is loaded again."""
    for family, lower, upper in repairs.ranges:
        txn.batch.delete_range(family, lower, upper)
    for puts, repaired in zip(txn.batch.puts, repairs.puts, strict=True):
        puts.update(repaired)
    for row, consumer in txn.catalog.seen.items():
        record = txn.batch.get(Family.TREES, row)
        if record is not None:
            stored = ConsumerMeta.decode(consumer.name, row, record)
            stored.seen_ms, stored.active_ms = consumer.seen_ms, consumer.active_ms
            stored.activity = consumer.activity
            txn.batch.put(Family.TREES, row, stored.encode())
    txn.catalog.forget()
