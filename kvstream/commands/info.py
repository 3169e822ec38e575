"""XINFO."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kvstream.commands.args import Args, Argv, integer
from kvstream.commands.command import LATER, Answer, Session
from kvstream.commands.groups import bad_subcommand
from kvstream.commands.replies import Alike, Entries, Gradual, Map, Paged, Reply, Simple
from kvstream.commands.reply_pages import behind_steps, is_long, is_put_off
from kvstream.errors import NoSuchKey
from kvstream.meta.runs import Run
from kvstream.meta.txn import Txn
from kvstream.operations import groups
from kvstream.operations import info as inspect
from kvstream.operations.info import FULL_COUNT, ConsumerRow, GroupPages, GroupRow, StreamPages
from kvstream.types.records import ConsumerDetail, Entry, GroupDetail, StreamInfo

Pairs = list[tuple[Reply, Reply]]
T = TypeVar("T")

_I64_MAX = (1 << 63) - 1


def xinfo_stream(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer what a stream is made of; with FULL its entries, groups and pending entries too."""
    name = session.prefix + argv[2]
    stream = txn.stream(name)
    if stream is None:
        raise NoSuchKey
    if len(argv) == 3:
        info = inspect.stream_info(txn, name)
        ends: Pairs = [
            (b"groups", info.groups),
            (b"first-entry", _entry(info.first_entry)),
            (b"last-entry", _entry(info.last_entry)),
        ]
        return Map(_head(info) + ends)
    count = _full_count(argv)
    if is_long(session, count or stream.length) or (session.pages and inspect.has_much(stream)):
        if is_put_off(txn, session):
            return LATER
        return Paged(_in_steps(inspect.stream_pages(txn, name, count)))
    detail = inspect.stream_detail(txn, name, count)
    tail: Pairs = [
        (b"entries", Entries(detail.entries)),
        (b"groups", [_listed(group) for group in detail.groups]),
    ]
    return Map(_head(detail.info) + tail)


def _in_steps(pages: StreamPages) -> Reply:
    tail: Pairs = [
        (b"entries", Gradual(pages.entries)),
        (b"groups", Gradual(_groups_in_steps(pages))),
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


def _entry(entry: Entry | None) -> Reply:
    return None if entry is None else [bytes(entry.id), list(entry.flat)]


def _signed(number: int | None) -> int | None:
    """Return a counter as Redis tells it, in 64 bits with a sign."""
    return number if number is None or number <= _I64_MAX else number - (1 << 64)


def _head(info: StreamInfo) -> Pairs:
    return [
        (b"length", info.length),
        (b"radix-tree-keys", info.radix_tree_keys),
        (b"radix-tree-nodes", info.radix_tree_nodes),
        (b"last-generated-id", bytes(info.last_generated_id)),
        (b"max-deleted-entry-id", bytes(info.max_deleted_entry_id)),
        (b"entries-added", _signed(info.entries_added)),
        (b"recorded-first-entry-id", bytes(info.recorded_first_entry_id)),
        (b"idmp-duration", info.idmp_duration),
        (b"idmp-maxsize", info.idmp_maxsize),
        (b"pids-tracked", info.pids_tracked),
        (b"iids-tracked", info.iids_tracked),
        (b"iids-added", _signed(info.iids_added)),
        (b"iids-duplicates", _signed(info.iids_duplicates)),
    ]


def _listed(group: GroupDetail) -> Reply:
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
        _consumer(consumer, Gradual(map(_run_of_consumer, runs))) for consumer, runs in each
    ]
    return _group(pages.detail, Gradual(map(_run_of_group, pages.pending)), consumers)


def _run_of_group(step: Run | int | None) -> Alike | int | None:
    if isinstance(step, Run):
        return Alike(step.ids, (step.owner, step.time_ms, step.deliveries))
    return step


def _run_of_consumer(step: Run | int | None) -> Alike | int | None:
    return Alike(step.ids, (step.time_ms, step.deliveries)) if isinstance(step, Run) else step


def _group(group: GroupDetail, pending: Reply, consumers: list[Reply]) -> Reply:
    return Map(
        [
            (b"name", group.name),
            (b"last-delivered-id", bytes(group.last_delivered_id)),
            (b"entries-read", _signed(group.entries_read)),
            (b"lag", _signed(group.lag)),
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


def xinfo_groups(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer what each group of a stream has read and has pending."""
    name = session.prefix + argv[2]

    def answer(txn: Txn, session: Session) -> Reply:
        return _each(session, inspect.group_rows(txn, name), _group_told)

    loading = groups.groups(txn, name) if session.steps else None
    return behind_steps(loading.step, answer) if loading else answer(txn, session)


def _group_told(row: GroupRow) -> Reply:
    name, consumers, pending, last, read, lag = row
    return Map(
        [
            (b"name", name),
            (b"consumers", consumers),
            (b"pending", pending),
            (b"last-delivered-id", bytes(last)),
            (b"entries-read", _signed(read)),
            (b"lag", _signed(lag)),
        ]
    )


def xinfo_consumers(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer when each consumer of a group was seen, and what it has pending."""
    name, group = session.prefix + argv[2], argv[3]

    def answer(txn: Txn, session: Session) -> Reply:
        return _each(session, inspect.consumer_rows(txn, name, group), _consumer_told)

    loading = groups.consumers(txn, name, group) if session.steps else None
    return behind_steps(loading.step, answer) if loading else answer(txn, session)


def _consumer_told(row: ConsumerRow) -> Reply:
    name, pending, idle, inactive = row
    told: Pairs = [(b"name", name), (b"pending", pending), (b"idle", idle)]
    return Map([*told, (b"inactive", inactive)])


def _each(session: Session, rows: Sequence[T], told: Callable[[T], Reply]) -> Reply:
    """Return what is told of each row, in pages where they are many."""
    if len(rows) < groups.LONG_LIST or not session.pages:
        return [told(row) for row in rows]
    return Paged(Gradual(_steps(rows, told)))


def _steps(rows: Sequence[T], told: Callable[[T], Reply]) -> Iterator[int | list[Reply]]:
    yield len(rows)
    for row in rows:
        yield [told(row)]


_XINFO_HELP = [
    Simple(line)
    for line in (
        "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CONSUMERS <key> <groupname>",
        "    Show the consumers of a group.",
        "GROUPS <key>",
        "    Show the consumer groups of a stream.",
        "STREAM <key> [FULL [COUNT <count>]]",
        "    Show what a stream is made of.",
        "HELP",
        "    Show these lines.",
    )
]


def xinfo_help(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Show the subcommands."""
    return _XINFO_HELP
