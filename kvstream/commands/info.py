"""XINFO: the counters, groups, consumers and pending entries of a stream."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from kvstream.commands.args import I64_MAX, Args, Argv, bad_subcommand, integer
from kvstream.commands.command import READ, SECOND, Answer, Family, LongReply, Session
from kvstream.commands.incremental import run_before
from kvstream.commands.replies import Alike, Entries, Map, Reply, StoredEntry
from kvstream.commands.reply_pages import array_of, is_long, page
from kvstream.meta.runs import Run
from kvstream.meta.txn import Txn
from kvstream.operations import groups, info
from kvstream.operations.info import ConsumerRow, GroupPages, GroupRow, StreamPages, StreamRow
from kvstream.types.options import FULL_COUNT
from kvstream.types.records import ConsumerDetail, GroupDetail

Pairs = list[tuple[Reply, Reply]]
T = TypeVar("T")

COMMANDS = Family("stream")
COMMANDS.add_help("xinfo", since="5.0.0")


@COMMANDS.command(
    *("xinfo|stream", "key [FULL [COUNT count]]", READ, SECOND),
    since="5.0.0",
    usage="<key> [FULL [COUNT <count>]]",
)
def xinfo_stream(txn: Txn, session: Session, argv: Argv) -> "Answer | LongReply":
    """Return the counters of a stream; with FULL also its entries, groups and pending entries.

    FULL: Show the entries, the groups, and their pending entries.
    COUNT: The number of entries, and of pending entries of each group, at most: 10 by default, 0
        for all.

    Redis before 8.6 returns ten pairs instead of sixteen, and before 8.8 seven instead of eight of
    a group: without `nacked-count`. go-redis 9.17 refuses sixteen. `radix-tree-nodes` is one more
    than `radix-tree-keys`.
    """
    name = session.prefix + argv[2]
    stream = txn.existing_stream(name)
    if len(argv) == 3:
        row = info.stream_row(txn, stream)
        first, last = info.stream_ends(txn, stream)
        ends: Pairs = [
            (b"groups", row[-1]),
            (b"first-entry", None if first is None else StoredEntry(first)),
            (b"last-entry", None if last is None else StoredEntry(last)),
        ]
        return Map(_head(row) + ends)
    count = _full_count(argv)
    if is_long(txn, session, count or stream.length) or (
        session.pages and info.has_much(txn, stream)
    ):
        return LongReply(lambda: _in_steps(info.stream_pages(txn, name, count)))
    detail = info.stream_detail(txn, name, count)
    tail: Pairs = [
        (b"entries", Entries(detail.entries)),
        (b"groups", [_list_group(group) for group in detail.groups]),
    ]
    return Map(_head(info.stream_row(txn, stream)) + tail)


def _in_steps(pages: StreamPages) -> Reply:
    tail: Pairs = [
        (b"entries", array_of(pages.entries)),
        (b"groups", array_of(_groups_in_steps(pages))),
    ]
    return Map(_head(pages.info) + tail)


def _groups_in_steps(pages: StreamPages) -> Iterator[int | list[Reply]]:
    yield pages.groups_count
    for group in pages.groups:
        yield [_group_in_steps(group)]


def _full_count(argv: Argv) -> int:
    args = Args(argv, 3)
    if len(args) not in (1, 3) or args.option() != b"FULL":
        raise bad_subcommand(argv)
    if not args:
        return FULL_COUNT
    if args.option() != b"COUNT":
        raise bad_subcommand(argv)
    count = integer(args.next())
    return count if count >= 0 else FULL_COUNT


def _to_signed(number: int | None) -> int | None:
    """Return a counter as Redis shows it: as a signed 64-bit integer."""
    return number if number is None or number <= I64_MAX else number - (1 << 64)


def _head(row: StreamRow) -> Pairs:
    length, keys, nodes, last, deleted, added, first, *_ = row
    duration, maxsize, pids, iids, iids_added, duplicates = row[7:13]
    return [
        (b"length", length),
        (b"radix-tree-keys", keys),
        (b"radix-tree-nodes", nodes),
        (b"last-generated-id", b"%d-%d" % last),
        (b"max-deleted-entry-id", b"%d-%d" % deleted),
        (b"entries-added", _to_signed(added)),
        (b"recorded-first-entry-id", b"%d-%d" % first),
        (b"idmp-duration", duration),
        (b"idmp-maxsize", maxsize),
        (b"pids-tracked", pids),
        (b"iids-tracked", iids),
        (b"iids-added", _to_signed(iids_added)),
        (b"iids-duplicates", _to_signed(duplicates)),
    ]


def _list_group(group: GroupDetail) -> Reply:
    pending: Reply = [
        [bytes(row.id), row.consumer, row.delivery_time_ms, row.deliveries] for row in group.pending
    ]
    consumers: list[Reply] = []
    for consumer in group.consumers:
        rows: Reply = [
            [bytes(row.id), row.delivery_time_ms, row.deliveries] for row in consumer.pending
        ]
        consumers.append(_consumer(consumer, rows))
    return _group(group, pending, consumers)


def _group_in_steps(pages: GroupPages) -> Reply:
    each = zip(pages.detail.consumers, pages.of_consumers, strict=True)
    consumers = [
        _consumer(consumer, array_of(map(_run_of_consumer, runs))) for consumer, runs in each
    ]
    return _group(pages.detail, array_of(map(_run_of_group, pages.pending)), consumers)


def _run_of_group(step: Run | int | None) -> Alike | int | None:
    if isinstance(step, Run):
        return Alike(step.ids, (step.owner, step.time_ms if step.owned else 0, step.deliveries))
    return step


def _run_of_consumer(step: Run | int | None) -> Alike | int | None:
    return Alike(step.ids, (step.time_ms, step.deliveries)) if isinstance(step, Run) else step


def _group(group: GroupDetail, pending: Reply, consumers: list[Reply]) -> Reply:
    return Map(
        [
            (b"name", group.name),
            (b"last-delivered-id", bytes(group.last_delivered_id)),
            (b"entries-read", _to_signed(group.entries_read)),
            (b"lag", _to_signed(group.lag)),
            (b"pel-count", group.pel_count),
            (b"nacked-count", group.nacked_count),
            (b"pending", pending),
            (b"consumers", consumers),
        ]
    )


def _consumer(consumer: ConsumerDetail, pending: Reply) -> Reply:
    return Map(
        [
            (b"name", consumer.name),
            (b"seen-time", consumer.seen_time_ms),
            (b"active-time", consumer.active_time_ms),
            (b"pel-count", consumer.pel_count),
            (b"pending", pending),
        ]
    )


@COMMANDS.command("xinfo|groups", "key", READ, SECOND, since="5.0.0", usage="<key>")
def xinfo_groups(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return the last delivered ID, lag and number of pending entries of each group.

    The lag of a group below all entries is the length of the stream; Redis 7.0 may return null.
    """
    name = session.prefix + argv[2]
    plan = groups.plan_loading_groups(txn, name) if session.steps else None
    if plan is not None:
        return run_before(plan, partial(_groups, name))
    return _groups(name, txn, session)


def _groups(name: bytes, txn: Txn, session: Session) -> Reply:
    return _each(txn, session, info.group_rows(txn, name), _group_row)


def _group_row(row: GroupRow) -> Reply:
    name, consumers, pending, last, read, lag = row
    return Map(
        [
            (b"name", name),
            (b"consumers", consumers),
            (b"pending", pending),
            (b"last-delivered-id", b"%d-%d" % last),
            (b"entries-read", _to_signed(read)),
            (b"lag", _to_signed(lag)),
        ]
    )


@COMMANDS.command(
    *("xinfo|consumers", "key group", READ, SECOND),
    since="5.0.0",
    tips="nondeterministic_output",
    usage="<key> <groupname>",
)
def xinfo_consumers(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return the idle times and the number of pending entries of each consumer of a group.

    `idle` counts from the last attempt to read, `inactive` from the last delivery, -1 if there was
    none. Redis 7.0 has `idle` alone, and counts it from the last delivery or attempt.
    """
    name, group = session.prefix + argv[2], argv[3]

    def answer(txn: Txn, session: Session) -> Reply:
        return _each(txn, session, info.consumer_rows(txn, name, group), _consumer_row)

    plan = groups.plan_loading_consumers(txn, name, group) if session.steps else None
    return run_before(plan, answer) if plan else answer(txn, session)


def _consumer_row(row: ConsumerRow) -> Reply:
    name, pending, idle, inactive = row
    pairs: Pairs = [(b"name", name), (b"pending", pending), (b"idle", idle)]
    return Map([*pairs, (b"inactive", inactive)])


def _each(txn: Txn, session: Session, rows: Sequence[T], shown: Callable[[T], Reply]) -> Reply:
    """Return each row as a reply, in pages if they are many."""
    if len(rows) < txn.thresholds.long_members or not session.pages:
        return [shown(row) for row in rows]
    return page(_steps(rows, shown))


def _steps(rows: Sequence[T], shown: Callable[[T], Reply]) -> Iterator[int | list[Reply]]:
    yield len(rows)
    for row in rows:
        yield [shown(row)]
