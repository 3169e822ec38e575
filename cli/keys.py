"""Commands on whole streams: ``ls``, ``info``, ``copy``, ``rename``, ``rm`` and their like."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.exit_codes import fail_for_missing, fail_unless
from kvstream.cli.groups import GROUP_COLUMNS, group_rows
from kvstream.cli.json_values import jsonable
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import (
    Count,
    Duration,
    Moment,
    Name,
    StreamName,
    confirm,
    destroying_options,
    example,
    must_ask,
    stream_argument,
    yes_option,
)
from kvstream.cli.session import Session, existing_key, existing_stream
from kvstream.cli.tables import (
    ID_WIDTH,
    Column,
    count_column,
    duration,
    id_columns,
    name_column,
    number,
    or_dash,
    plain,
    plural,
    printable,
    quote,
    size,
    time_of,
)
from kvstream.types.clock import now_ms
from kvstream.types.glob import is_listed
from kvstream.types.ids import StreamID
from kvstream.types.options import FULL_COUNT
from kvstream.types.records import GroupDetail, StreamInfo

if TYPE_CHECKING:
    from kvstream.store import Store
    from kvstream.stream import Stream


def _expiry(seconds: float | None) -> str:
    return "never" if seconds is None else f"in {duration(round(seconds * 1000))}"


def _age(last_id: StreamID | None) -> str:
    """Return the time since the last entry; ``-`` if its ID is not a time."""
    if last_id is None or not time_of(last_id):
        return "-"
    return duration(max(0, now_ms() - last_id.ms))


_LS = (
    name_column("stream"),
    Column("length", "length", or_dash(number), right=True),
    Column("groups", "groups", or_dash(number), right=True),
    Column("lag", "lag", or_dash(number), right=True),
    Column("size", "size", or_dash(size), right=True),
    Column("age", "last_id", _age, right=True),
    Column("expires", "ttl", _expiry, spare=True),
    Column("type", "type", spare=True),
    Column("last id", "last_id", width=ID_WIDTH, spare=True),
    id_columns(key="last_id")[1],
)


@click.command(
    epilog=example("kvstream ls", "kvstream ls 'orders:*' --json", "kvstream ls --names")
)
@click.argument("pattern", type=Name(), required=False)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Include the keys kvstream:..., which kvstream keeps for itself.",
)
@click.option("--names", "names_only", is_flag=True, help="Show the names alone, one per line.")
@output_options
def ls(
    session: Session, out: Output, /, pattern: bytes | None, everything: bool, names_only: bool
) -> None:
    """List the streams, oldest first.

    Lag is the number of entries that the slowest group has yet to read, - if unknown. Size is an
    estimate in bytes before compression. Age is the time since the last entry was added.

    A PATTERN as in KEYS, such as 'orders:*', selects streams by name. The keys kvstream:..., which
    kvstream keeps for itself (the audit and the samples of the console, the progress of imports),
    are listed only with --all, or by a PATTERN that begins so. Plain strings, which clients of a
    server can set, are listed too: --json tells their type.
    """
    with session.reading() as store:
        if names_only:
            names = (
                each for each in store.scan_keys(pattern) if everything or is_listed(each, pattern)
            )
            out.names("stream", names, nothing="no streams")
        else:
            out.table(_LS, _rows(store, pattern, everything), nothing="no streams")


def _rows(store: "Store", pattern: bytes | None, everything: bool) -> Iterator[dict[str, Any]]:
    for info in store.key_infos(pattern, usage=True):
        if everything or is_listed(info.key, pattern):
            shown = info._asdict()
            yield {"stream": shown.pop("key"), **shown}


@click.command(epilog=example("kvstream copy orders orders:test"))
@stream_argument
@click.argument("new_name", type=Name())
@click.option("--replace", is_flag=True, help="Delete a stream that has NEW_NAME.")
@output_options
def copy(session: Session, out: Output, /, stream: bytes, new_name: bytes, replace: bool) -> None:
    """Copy a stream, with its groups, under a new name.

    The copy is made in one commit. Memory and time grow with the number of entries. The exit code
    is 1 if NEW_NAME exists.
    """
    with session.writing() as store:
        existing_key(store, stream)
        done = store.copy(stream, new_name, replace=replace)
    text = "copied to" if done else "not copied, there is a stream"
    out.result(f"{printable(stream)}: {text} {printable(new_name)}", copied=done)
    fail_unless(done)


@click.command(epilog=example("kvstream rename orders orders:2025"))
@stream_argument
@click.argument("new_name", type=Name())
@click.option("--no-replace", is_flag=True, help="Do nothing if NEW_NAME exists.")
@yes_option
@output_options
def rename(
    session: Session, out: Output, /, stream: bytes, new_name: bytes, no_replace: bool, yes: bool
) -> None:
    """Rename a stream.

    A stream that has the new name is deleted, unless --no-replace is given; on a terminal you are
    asked first. The time does not depend on the size of the stream.
    """
    if not no_replace and new_name != stream and must_ask(yes):
        with session.reading() as store:
            existing_key(store, stream)
            replaced = _contents(store, new_name)
        if replaced is not None:
            confirm(f"Delete {_describe(replaced)}, which has the new name?")
    with session.writing() as store:
        existing_key(store, stream)
        done = store.rename(stream, new_name, replace=not no_replace)
    text = "renamed to" if done else "not renamed, there is a stream"
    out.result(f"{printable(stream)}: {text} {printable(new_name)}", renamed=done)
    fail_unless(done)


@click.command(
    epilog=example("kvstream expire orders 7d", "kvstream expire orders --at 2030-01-31")
)
@stream_argument
@click.argument("after", type=Duration(), required=False, metavar="[DURATION]")
@click.option("--at", type=Moment(), help="Expire at this time, such as 2030-01-31T12:00 (UTC).")
@output_options
def expire(
    session: Session, out: Output, /, stream: bytes, after: float | None, at: float | None
) -> None:
    """Set when a stream expires.

    An expired stream is deleted, with its entries and groups.
    """
    if (after is None) == (at is None):
        raise click.UsageError("give either a DURATION or --at TIME")
    with session.writing() as store:
        existing_key(store, stream)
        if at is not None:
            store.expire_at(stream, at)
        else:
            store.expire(stream, after or 0)
        ttl = store.ttl(stream)
    out.result(f"{printable(stream)} expires {_expiry(ttl or 0)}", ttl=ttl or 0)


@click.command(epilog=example("kvstream persist orders"))
@stream_argument
@output_options
def persist(session: Session, out: Output, /, stream: bytes) -> None:
    """Remove the expiry of a stream."""
    with session.writing() as store:
        existing_key(store, stream)
        done = store.persist(stream)
    text = "no longer expires" if done else "had no expiry"
    out.result(f"{printable(stream)} {text}", persisted=done)
    fail_unless(done)


@click.command(epilog=example("kvstream ttl orders"))
@stream_argument
@output_options
def ttl(session: Session, out: Output, /, stream: bytes) -> None:
    """Show when a stream expires."""
    with session.reading() as store:
        existing_key(store, stream)
        seconds = store.ttl(stream)
    out.result(_expiry(seconds), ttl=seconds)


@click.command(epilog=example("kvstream rm orders orders:2025", "kvstream rm orders --dry-run"))
@click.argument("streams", type=StreamName(), metavar="STREAM...", nargs=-1, required=True)
@destroying_options
@output_options
def rm(
    session: Session, out: Output, /, streams: tuple[bytes, ...], dry_run: bool, yes: bool
) -> None:
    """Delete whole streams, with their groups.

    On a terminal you are asked first, unless --yes is given. All are deleted in one commit. The
    time does not depend on their size. The exit code is 1 if one of them did not exist.
    """
    if dry_run or must_ask(yes):
        with session.reading() as store:
            found = [each for name in dict.fromkeys(streams) if (each := _contents(store, name))]
        if dry_run:
            out.table(_CONTENTS, found, nothing="no streams")
            known = {each["stream"] for each in found}
            fail_for_missing([quote(each) for each in dict.fromkeys(streams) if each not in known])
            return
        if found:
            more = f" and {plural(len(found) - _NAMED_MAX, 'more stream')}"
            named = ", ".join(map(_describe, found[:_NAMED_MAX]))
            confirm(f"Delete {named}{more if len(found) > _NAMED_MAX else ''}?")
    with session.writing() as store:
        deleted = store.delete(*streams)
    out.result(f"{plural(deleted, 'stream')} deleted", deleted=deleted)
    fail_unless(deleted == len(set(streams)))


_CONTENTS = (
    name_column("stream"),
    Column("length", "length", or_dash(number), right=True),
    Column("groups", "groups", or_dash(number), right=True),
)
_NAMED_MAX = 5
"""Streams that a question names."""


def _contents(store: "Store", name: bytes) -> dict[str, Any] | None:
    """Return the size of a key that is to be deleted; None if it does not exist."""
    kind = store.type(name)
    if kind != "stream":
        return None if kind == "none" else {"stream": name, "length": None, "groups": None}
    stream = store.stream(name)
    return {"stream": name, "length": len(stream), "groups": len(stream.groups())}


def _describe(found: Mapping[str, Any]) -> str:
    """Return a name and its contents for a question."""
    if found["length"] is None:
        return quote(found["stream"])
    groups = f" and {plural(found['groups'], 'group')}" if found["groups"] else ""
    return f"{quote(found['stream'])} with {plural(found['length'], 'entry')}{groups}"


# --- the counters of a stream ---------------------------------------------------------------------


def _id_text(eid: StreamID) -> str:
    return f"{eid}  {time_of(eid)}".rstrip()


_COUNTERS = (
    *("length", "groups", "first_entry", "last_entry", "entries_added", "last_generated_id"),
    *("recorded_first_entry_id", "max_deleted_entry_id", "idmp_duration", "idmp_maxsize"),
    *("pids_tracked", "iids_tracked", "iids_added", "iids_duplicates"),
    *("radix_tree_keys", "radix_tree_nodes"),
)
"""The counters of a stream; those that people look for come first."""
_INFO_FORMATS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("length", "groups", "entries_added", "radix_tree_keys"), number),
    **dict.fromkeys(("radix_tree_nodes", "idmp_maxsize", "pids_tracked"), number),
    **dict.fromkeys(("iids_tracked", "iids_added", "iids_duplicates"), number),
    **dict.fromkeys(("last_generated_id", "max_deleted_entry_id"), _id_text),
    "recorded_first_entry_id": _id_text,
    **dict.fromkeys(("first_entry", "last_entry"), or_dash(lambda entry: _id_text(entry.id))),
    "idmp_duration": lambda seconds: duration(seconds * 1000),
}


@click.command(epilog=example("kvstream info orders", "kvstream info orders --full --json"))
@stream_argument
@click.option("--full", is_flag=True, help="Show entries and pending entries too.")
@click.option(
    "--count",
    "-n",
    type=Count(0),
    default=FULL_COUNT,
    metavar="N",
    help="With --full, show N of each; 0: all.",
)
@output_options
def info(session: Session, out: Output, /, stream: bytes, full: bool, count: int) -> None:
    """Show the counters of a stream, and its groups."""
    with session.reading() as store:
        found = existing_stream(store, stream)
        if full:
            _show_full(out, found, count)
        else:
            _show_info(session, out, found)


def _show_info(session: Session, out: Output, stream: "Stream") -> None:
    info = stream.info()
    groups = list(group_rows(session, stream))
    if out.for_programs:
        out.object(**{**jsonable(info), "groups": groups})
        return
    _show_counters(out, info)
    if groups:
        out.heading("groups")
        out.table(GROUP_COLUMNS, groups)


def _show_counters(out: Output, info: StreamInfo) -> None:
    out.record({name: getattr(info, name) for name in _COUNTERS}, _INFO_FORMATS)


_PENDING = (
    *id_columns(),
    name_column("consumer"),
    Column("delivered", "delivery_time_ms", time_of),
    count_column("deliveries"),
)
_CONSUMERS = (
    name_column("consumer", "name"),
    count_column("pending", "pel_count"),
    Column("last seen", "seen_time_ms", time_of),
    Column("last active", "active_time_ms", time_of),
)


def _show_full(out: Output, stream: "Stream", count: int) -> None:
    detail = stream.info_full(count)
    if out.for_programs:
        out.object(**jsonable(detail))
        return
    _show_counters(out, stream.info())
    out.heading("entries")
    out.entries(detail.entries)
    for group in detail.groups:
        _show_group(out, group)


def _show_group(out: Output, group: GroupDetail) -> None:
    out.heading(f"group {plain(group.name)}")
    shown = ("last_delivered_id", "entries_read", "lag", "pel_count", "nacked_count")
    formats: Mapping[str, Callable[[Any], str]] = {
        "last_delivered_id": _id_text,
        "entries_read": number,
        "lag": number,
    }
    out.record({name: getattr(group, name) for name in shown}, formats)
    if group.consumers:
        out.table(
            _CONSUMERS,
            (
                {column.key: getattr(each, column.key) for column in _CONSUMERS}
                for each in group.consumers
            ),
        )
    if group.pending:
        out.table(_PENDING, (row._asdict() for row in group.pending))
