"""``ls``, ``rename``, ``expire``, ``persist``, ``ttl``, ``rm``: streams as keys of a database.

Plain strings, which clients of the server may have set, are keys too.
"""

from collections.abc import Iterator
from typing import Any

import click

from kvstream.cli.contracts import AnyStore, Session
from kvstream.cli.exits import ExitCode, nothing_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, Moment, Name, StreamName, example, stream_argument
from kvstream.cli.session import IMPORT_PREFIX, existing_key
from kvstream.cli.tables import Column, duration, id_columns, name_column, number, plural, printable

_MS = 1000


def _expiry(seconds: float | None) -> str:
    return "never" if seconds is None else f"in {duration(round(seconds * _MS))}"


def _count(count: int | None) -> str:
    return "-" if count is None else number(count)


_LS = (
    name_column("stream"),
    Column("type", "type"),
    Column("length", "length", _count, right=True),
    Column("groups", "groups", _count, right=True),
    Column("last id", "last_id", width=18),
    id_columns(key="last_id")[1],
    Column("expires", "ttl", _expiry),
)


@click.command(epilog=example("kvstream ls", "kvstream ls 'orders:*' --json"))
@click.argument("pattern", type=Name(), required=False)
@click.option("--all", "everything", is_flag=True, help="Show the notes of imports too.")
@output_options
@click.pass_obj
def ls(session: Session, out: Output, /, pattern: bytes | None, everything: bool) -> None:
    """List the streams, in the order they were made.

    With a PATTERN, as the shell has them for files, those whose name matches it. An import keeps
    how far it has come in a stream whose name begins with kvstream:import:. These are shown with
    --all. Plain strings, which clients of a server have set, are shown among the streams.
    """
    with session.reading() as store:
        out.table(_LS, _listed(store, pattern, everything))


def _listed(store: AnyStore, pattern: bytes | None, everything: bool) -> Iterator[dict[str, Any]]:
    for key, kind, info, ttl in store.listed(pattern):
        if key.startswith(IMPORT_PREFIX) and not everything:
            continue
        yield {
            "stream": key,
            "type": kind,
            "length": info and info.length,
            "groups": info and info.groups,
            "last_id": info and info.last_generated_id,
            "ttl": ttl,
        }


@click.command(epilog=example("kvstream rename orders orders:2025"))
@stream_argument
@click.argument("new_name", type=Name())
@click.option("--no-replace", is_flag=True, help="Do nothing where NEW_NAME exists.")
@output_options
@click.pass_obj
def rename(
    session: Session, out: Output, /, stream: bytes, new_name: bytes, no_replace: bool
) -> None:
    """Give a stream another name.

    A stream that had the name is deleted, unless --no-replace. Takes the same time for a stream of
    any size.
    """
    with session.writing() as store:
        existing_key(store, stream)
        done = store.rename(stream, new_name, replace=not no_replace)
    text = "renamed to" if done else "not renamed: there is a stream"
    out.result(f"{printable(stream)}: {text} {printable(new_name)}", renamed=done)
    nothing_unless(done)


@click.command(
    epilog=example("kvstream expire orders 7d", "kvstream expire orders --at 2030-01-31")
)
@stream_argument
@click.argument("after", type=Duration(), required=False, metavar="[DURATION]")
@click.option("--at", type=Moment(), help="The time itself, such as 2030-01-31T12:00 (UTC).")
@output_options
@click.pass_obj
def expire(
    session: Session, out: Output, /, stream: bytes, after: float | None, at: int | None
) -> None:
    """Let a stream expire after a time.

    Then it is deleted, with whatever is in it.
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
    """Take a stream's expiry away."""
    with session.writing() as store:
        existing_key(store, stream)
        done = store.persist(stream)
    text = "no longer expires" if done else "had no expiry"
    out.result(f"{printable(stream)} {text}", persisted=done)
    nothing_unless(done)


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

    All go in one commit. Takes the same time for streams of any size. Ends with 1 when one of them
    was not there.
    """
    with session.writing() as store:
        deleted = store.delete(*streams)
    out.result(f"{plural(deleted, 'stream')} deleted", deleted=deleted)
    if deleted < len(set(streams)):
        raise click.exceptions.Exit(int(ExitCode.FAILED))
