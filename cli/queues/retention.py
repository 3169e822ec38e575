"""``queue retention``: which messages leave a stream by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, Name, example, stream_argument
from kvstream.cli.session import Session, existing_stream
from kvstream.cli.tables import duration, number, printable, size

if TYPE_CHECKING:
    from kvstream.meta.retention import Retention

_RULES = ("max_age", "max_length", "max_bytes", "acked", "latest")


def retention_rows(rules: Retention) -> Iterator[tuple[str, str]]:
    """Yield the rules of a stream as titles and texts."""
    if rules.max_age_ms:
        yield "max age", duration(rules.max_age_ms)
    if rules.max_length:
        yield "max length", number(rules.max_length)
    if rules.max_bytes:
        yield "max bytes", size(rules.max_bytes)
    if rules.acked:
        yield "acked", "entries that every group has acknowledged go"
    if rules.latest:
        yield "latest", f"of each value of {printable(rules.latest)}"
    if rules.force:
        yield "force", "also entries that a group needs"


@click.command(
    epilog=example(
        "kvstream queue retention emails",
        "kvstream queue retention emails --acked --max-age 7d",
        "kvstream queue retention emails --off",
    )
)
@stream_argument
@click.option("--max-age", type=Duration(), metavar="DURATION", help="Older entries go.")
@click.option("--max-length", type=click.IntRange(1), metavar="N", help="All but the last N go.")
@click.option(
    "--max-bytes", type=click.IntRange(1), metavar="N", help="All but the last N bytes go."
)
@click.option("--acked", is_flag=True, help="Entries go that every group has acknowledged.")
@click.option(
    "--latest", type=Name(), metavar="FIELD", help="All but the last entry of each value go."
)
@click.option("--force", is_flag=True, help="Entries go even if a group still needs them.")
@click.option("--off", is_flag=True, help="Remove all rules: every entry stays.")
@output_options
@click.pass_obj
def retention(
    session: Session, out: Output, /, stream: bytes, force: bool, off: bool, **options: Any
) -> None:
    """Show or set which entries leave a stream by themselves.

    The rules given take the place of all former ones. An entry goes when one of them lets it go,
    in the background, and never while a group has it pending or has not read it, unless --force.
    """
    rules = {name: options[name] for name in _RULES if options[name]}
    if off and (rules or force):
        raise click.UsageError("--off removes all rules: it goes with no other option")
    if force and not rules:
        raise click.UsageError("--force goes with a rule, such as --max-age 7d")
    if not (rules or off):
        with session.reading() as store:
            _show(out, stream, existing_stream(store, stream).retention())
        return
    with session.writing() as store:
        found = existing_stream(store, stream)
        if off:
            found.drop_retention()
        else:
            found.set_retention(**rules, force=force)
        _show(out, stream, found.retention())


def _show(out: Output, stream: bytes, rules: Retention | None) -> None:
    if out.json:
        out.result("", stream=stream, **({} if rules is None else asdict(rules)))
    elif rules is None:
        out.result(f"stream {printable(stream)} keeps all entries")
    else:
        out.record(dict(retention_rows(rules)), {})
