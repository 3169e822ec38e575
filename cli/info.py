"""``info``, ``ping``, ``stats`` and ``version``: a stream, the whole store, and this program."""

import platform
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.groups import GROUP_COLUMNS, group_rows
from kvstream.cli.json_values import jsonable
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import example, stream_argument
from kvstream.cli.session import Session, existing_stream
from kvstream.cli.tables import (
    Column,
    count_column,
    duration,
    id_columns,
    name_column,
    number,
    plain,
    size,
    time_of,
)
from kvstream.types.ids import StreamID
from kvstream.types.options import FULL_COUNT
from kvstream.types.records import Entry, GroupDetail
from kvstream.version import VERSION

if TYPE_CHECKING:
    from kvstream.stream import Stream


def _id_text(eid: StreamID) -> str:
    return f"{eid}  {time_of(eid)}".rstrip()


def _entry_text(entry: Entry | None) -> str:
    return "-" if entry is None else _id_text(entry.id)


_COUNTERS = (
    *("length", "groups", "first_entry", "last_entry", "entries_added", "last_generated_id"),
    *("recorded_first_entry_id", "max_deleted_entry_id", "idmp_duration", "idmp_maxsize"),
    *("pids_tracked", "iids_tracked", "iids_added", "iids_duplicates"),
    *("radix_tree_keys", "radix_tree_nodes"),
)
"""The counters of a stream; first those that people look for."""
_INFO_FORMATS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("length", "groups", "entries_added", "radix_tree_keys"), number),
    **dict.fromkeys(("radix_tree_nodes", "idmp_maxsize", "pids_tracked"), number),
    **dict.fromkeys(("iids_tracked", "iids_added", "iids_duplicates"), number),
    "last_generated_id": _id_text,
    "max_deleted_entry_id": _id_text,
    "recorded_first_entry_id": _id_text,
    "first_entry": _entry_text,
    "last_entry": _entry_text,
    "idmp_duration": lambda seconds: duration(seconds * 1000),
}


@click.command(epilog=example("kvstream info orders", "kvstream info orders --full --json"))
@stream_argument
@click.option("--full", is_flag=True, help="Show entries and pending entries too.")
@click.option(
    "--count",
    "-n",
    type=click.IntRange(0),
    default=FULL_COUNT,
    metavar="N",
    help="With --full, show N of each; 0: all.",
)
@output_options
@click.pass_obj
def info(session: Session, out: Output, /, stream: bytes, full: bool, count: int) -> None:
    """Show the counters of a stream, and its groups."""
    with session.reading() as store:
        found = existing_stream(store, stream)
        if full:
            _show_full(out, found, count)
        else:
            _show_info(session, out, found)


def _show_info(session: Session, out: Output, stream: "Stream") -> None:
    values: dict[str, Any] = jsonable(stream.info())
    groups = list(group_rows(session, stream))
    if out.json:
        out.result("", **{**values, "groups": groups})
        return
    _show_counters(out, stream)
    if groups:
        out.heading("groups")
        out.table(GROUP_COLUMNS, groups)


def _show_counters(out: Output, stream: "Stream") -> None:
    info = stream.info()
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
    if out.json:
        out.result("", **jsonable(detail))
        return
    _show_counters(out, stream)
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


@click.command(epilog=example("kvstream ping"))
@output_options
@click.pass_obj
def ping(session: Session, out: Output) -> None:
    """Check that the store or server answers.

    Shows the time of a round trip to the server, or of opening the store.
    """
    seconds = session.ping()
    out.result(f"PONG after {seconds * _MS:.1f} ms", ms=round(seconds * _MS, 3))


_MS = 1000
_BYTES = "_bytes"
_STATS_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "size_on_disk": size,
    "block_cache_bytes": size,
    "sequence": number,
}


def _figure(name: str, value: Any) -> str:
    if name.endswith(_BYTES):
        return size(value)
    return number(value) if isinstance(value, int) else " ".join(map(str, value))


@click.command(epilog=example("kvstream stats", "kvstream stats --json"))
@output_options
@click.pass_obj
def stats(session: Session, out: Output) -> None:
    """Show the size of the store and its internal counters.

    Numbers of keys are estimates by RocksDB. Names may change in any version. For a server (--url)
    the output is that of INFO.
    """
    with session.reading() as store:
        figures = {"streams": store.size(), **store.stats()}
    figures.pop("failure", None)  # a store opened read-only reports itself as failed
    if out.json:
        out.result("", **figures)
        return
    families: dict[str, dict[str, Any]] = figures.pop("families", {})
    sections = {name: value for name, value in figures.items() if isinstance(value, dict)}
    out.record({name: figures[name] for name in figures if name not in sections}, _STATS_FORMATS)
    for name, section in sections.items():
        out.heading(name)
        out.record(section, {})
    if families:
        _show_families(out, families)


def _show_families(out: Output, families: dict[str, dict[str, Any]]) -> None:
    out.heading("column families")
    names = list(next(iter(families.values())))
    columns = [
        Column("", "name"),
        *(Column(family, family, str, right=True) for family in families),
    ]
    out.table(
        columns,
        (
            {"name": name.removesuffix(_BYTES).replace("_", " ")}
            | {family: _figure(name, values[name]) for family, values in families.items()}
            for name in names
        ),
    )


@click.command(epilog=example("kvstream version --json"))
@output_options
def version(out: Output) -> None:
    """Show the versions of kvstream and its dependencies."""
    from kvstream.storage.directory import LAYOUT_VERSION  # with RocksDB: not for a help text

    try:
        engine = version_of("rocksdict")
    except PackageNotFoundError:  # installed without its metadata
        engine = "unknown"
    out.record(
        {
            "kvstream": VERSION,
            "layout": LAYOUT_VERSION,
            "rocksdict": engine,
            "python": platform.python_version(),
        },
        {},
    )
