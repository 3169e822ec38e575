"""``del`` and ``trim``: entries that go."""

from collections.abc import Sequence
from typing import Any

import click

from kvstream.cli.contracts import Session
from kvstream.cli.examples import example
from kvstream.cli.exits import nothing_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import ids_argument, ids_given, stream_argument
from kvstream.cli.session import existing_stream
from kvstream.cli.tables import Column, id_columns
from kvstream.cli.text import plural
from kvstream.cli.trimming import ref_policy_option, trim_options
from kvstream.ids import StreamID
from kvstream.operations.delete import Outcome
from kvstream.operations.references import RefPolicy

_MEANINGS = {
    Outcome.MISSING: "not there",
    Outcome.DELETED: "deleted",
    Outcome.KEPT: "kept: a group refers to it",
}
_OUTCOMES = (*id_columns(), Column("outcome", "outcome", _MEANINGS.__getitem__))


def show_outcomes(out: Output, ids: Sequence[StreamID], outcomes: Sequence[Outcome]) -> None:
    """Show what became of each ID; exit code 1 where none was deleted."""
    rows = [{"id": eid, "outcome": each} for eid, each in zip(ids, outcomes, strict=True)]
    out.table(_OUTCOMES, rows)
    nothing_unless(Outcome.DELETED in outcomes)


@click.command(
    "del",
    epilog=example(
        "kvstream del orders 1700000000000-0",
        "kvstream del orders 1700000000000-0 --ref-policy delref",
    ),
)
@stream_argument
@ids_argument
@ref_policy_option
@output_options
@click.pass_obj
def del_(
    session: Session, out: Output, /, stream: bytes, ids: tuple[str, ...], ref_policy: str | None
) -> None:
    """Delete entries by ID.

    - takes the IDs from stdin, one a line. With --ref-policy it shows what became of each. Ends
    with 1 when none was there.
    """
    wanted = ids_given(ids)
    with session.writing() as store:
        found = existing_stream(store, stream)
        if ref_policy is None:
            deleted = found.delete(wanted)
            out.result(f"{plural(deleted, 'entry', 'entries')} deleted", deleted=deleted)
            nothing_unless(deleted)
        else:
            outcomes = found.delete_entries(wanted, ref_policy=RefPolicy(ref_policy))
            show_outcomes(out, wanted, outcomes)


@click.command(
    epilog=example(
        "kvstream trim orders --maxlen 1000000 --approximate",
        "kvstream trim orders --minid now-30d",
    )
)
@stream_argument
@trim_options
@output_options
@click.pass_obj
def trim(session: Session, out: Output, /, stream: bytes, **options: Any) -> None:
    """Remove the oldest entries.

    All but the last N go, or what lies before an ID or a time.
    """
    if options["maxlen"] is None and options["minid"] is None:
        raise click.UsageError("give --maxlen N or --minid ID|TIME")
    with session.writing() as store:
        trimmed = existing_stream(store, stream).trim(**options)
    out.result(f"{plural(trimmed, 'entry', 'entries')} removed", trimmed=trimmed)
