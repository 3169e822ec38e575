"""``ls``, ``copy``, ``rename``, ``expire``, ``persist``, ``ttl``, ``rm``: keys of a database."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.exit_codes import fail_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, Moment, Name, StreamName, example, stream_argument
from kvstream.cli.session import IMPORT_PREFIX, Session, existing_key
from kvstream.cli.tables import (
    ID_WIDTH,
    Column,
    duration,
    id_columns,
    name_column,
    number,
    plural,
    printable,
    size,
    time_of,
)
from kvstream.types.clock import SystemClock
from kvstream.types.ids import StreamID

if TYPE_CHECKING:
    from kvstream.store import Store

_MS = 1000


def _expiry(seconds: float | None) -> str:
    return "never" if seconds is None else f"in {duration(round(seconds * _MS))}"


def _count(count: int | None) -> str:
    return "-" if count is None else number(count)


def _size(count: int | None) -> str:
    return "-" if count is None else size(count)


def _age(last_id: StreamID | None) -> str:
    """Return the time since the last entry; ``-`` if its ID is not a time."""
    if last_id is None or not time_of(last_id):
        return "-"
    return duration(max(0, SystemClock().now_ms() - last_id.ms))


_LS = (
    name_column("stream"),
    Column("length", "length", _count, right=True),
    Column("groups", "groups", _count, right=True),
    Column("lag", "lag", _count, right=True),
    Column("size", "size", _size, right=True),
    Column("age", "last_id", _age, right=True),
    Column("expires", "ttl", _expiry, spare=True),
    Column("type", "type", spare=True),
    Column("last id", "last_id", width=ID_WIDTH, spare=True),
    id_columns(key="last_id")[1],
)


@click.command(epilog=example("kvstream ls", "kvstream ls 'orders:*' --json"))
@click.argument("pattern", type=Name(), required=False)
@click.option("--all", "everything", is_flag=True, help="Include the progress of imports.")
@output_options
@click.pass_obj
def ls(session: Session, out: Output, /, pattern: bytes | None, everything: bool) -> None:
    """List the streams, oldest first.

    Lag is the number of entries that the slowest group has yet to read, - if unknown. Size is an
    estimate in bytes before compression. Age is the time since the last entry was added.

    A PATTERN as of KEYS, such as 'orders:*', selects streams by name. The streams
    kvstream:import:..., in which imports keep their progress, are listed only with --all. Plain
    strings, which clients of a server can set, are listed too.
    """
    with session.reading() as store:
        out.table(_LS, _rows(store, pattern, everything), nothing="no streams")


def _rows(store: "Store", pattern: bytes | None, everything: bool) -> Iterator[dict[str, Any]]:
    for info in store.key_infos(pattern, usage=True):
        if everything or not info.key.startswith(IMPORT_PREFIX):
            shown = info._asdict()
            yield {"stream": shown.pop("key"), **shown}


@click.command(epilog=example("kvstream copy orders orders:test"))
@stream_argument
@click.argument("new_name", type=Name())
@click.option("--replace", is_flag=True, help="Delete a stream that has NEW_NAME.")
@output_options
@click.pass_obj
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
@output_options
@click.pass_obj
def rename(
    session: Session, out: Output, /, stream: bytes, new_name: bytes, no_replace: bool
) -> None:
    """Rename a stream.

    A stream that has the new name is deleted, unless --no-replace is given. The time does not
    depend on the size of the stream.
    """
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
@click.pass_obj
def expire(
    session: Session, out: Output, /, stream: bytes, after: float | None, at: int | None
) -> None:
    """Set when a stream expires.

    An expired stream is deleted, with its entries and groups.
    """
    if (after is None) == (at is None):
        raise click.UsageError("give either a DURATION or --at TIME")
    with session.writing() as store:
        existing_key(store, stream)
        if at is not None:
            store.expire_at(stream, at / _MS)
        else:
            store.expire(stream, after or 0)
        ttl = store.ttl(stream)
    out.result(f"{printable(stream)} expires {_expiry(ttl or 0)}", ttl=ttl or 0)


@click.command(epilog=example("kvstream persist orders"))
@stream_argument
@output_options
@click.pass_obj
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
@click.pass_obj
def ttl(session: Session, out: Output, /, stream: bytes) -> None:
    """Show when a stream expires."""
    with session.reading() as store:
        existing_key(store, stream)
        seconds = store.ttl(stream)
    out.result(_expiry(seconds), ttl=seconds)


@click.command(epilog=example("kvstream rm orders orders:2025"))
@click.argument("streams", type=StreamName(), metavar="STREAM...", nargs=-1, required=True)
@output_options
@click.pass_obj
def rm(session: Session, out: Output, /, streams: tuple[bytes, ...]) -> None:
    """Delete whole streams, with their groups.

    All are deleted in one commit. The time does not depend on their size. The exit code is 1 if one
    of them did not exist.
    """
    with session.writing() as store:
        deleted = store.delete(*streams)
    out.result(f"{plural(deleted, 'stream')} deleted", deleted=deleted)
    fail_unless(deleted == len(set(streams)))
