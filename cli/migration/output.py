"""The output of ``migrate``: plans, reports, differences, and the status of migrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.output import Output
from kvstream.cli.tables import (
    Column,
    count_column,
    duration,
    name_column,
    number,
    or_dash,
    plural,
    printable,
    quote,
    size,
    time_of,
)

if TYPE_CHECKING:
    from kvstream.migration.copy import Carried
    from kvstream.migration.items import PlannedTarget, Source
    from kvstream.migration.journal import Followed, Status
    from kvstream.migration.runner import Planned, Report
    from kvstream.migration.verification import Verification
    from kvstream.rdb.versions import Loss

_PLAN = (
    Column("db", "db", str, right=True),
    name_column("key"),
    Column("type", "type"),
    count_column("entries"),
    Column("bytes", "bytes", size, right=True),
    count_column("groups"),
    count_column("pending"),
    Column("target", "target"),
    Column("lost", "lost", wraps=True),
)
_DIFFERENCES = (
    Column("db", "db", str, right=True),
    name_column("key"),
    Column("what", "what", wraps=True),
    Column("source", "source", wraps=True),
    Column("target", "target", wraps=True),
)
_STATUS = (
    Column("source", "source", wraps=True),
    Column("target", "target", wraps=True),
    Column("state", "state"),
    count_column("keys"),
    count_column("entries"),
    Column("at", "at_ms", time_of),
    name_column("key"),
)

_FOLLOWED = (
    Column("source", "source", wraps=True),
    Column("target", "target", wraps=True),
    Column("state", "state"),
    Column("phase", "phase"),
    Column("since", "since_ms", time_of),
    Column("lag", "behind_ms", or_dash(duration), right=True),
    Column("behind", "behind_bytes", or_dash(size), right=True),
    count_column("commands"),
    Column("received", "bytes", size, right=True),
    Column("at", "at_ms", time_of),
)


def show_plan(out: Output, planned: Iterable[Planned]) -> None:
    """Show each key and library, what would be lost, and why."""
    from kvstream.migration.copy import LossCount, list_counts
    from kvstream.migration.items import LIBRARY

    items = list(planned)
    out.table(_PLAN, [_planned_row(each, out.for_programs) for each in items])
    if out.for_programs:
        return
    lost = LossCount()
    for each in items:
        lost.add(each.key, each.losses)
    for name, text in sorted(lost.lines()):
        click.echo(f"lost: {name}: {printable(text)}")
    for each in items:
        for correction in each.corrections:
            click.echo(f"corrected in {quote(each.key)}: {printable(correction)}")
    keys = [each for each in items if each.kind != LIBRARY]
    skipped = Counter(loss.what for each in keys if not each.carried for loss in each.losses)
    text = f"{plural(sum(each.carried for each in keys), 'key')} to migrate"
    if skipped:
        text += f", {number(skipped.total())} to skip: {printable(list_counts(skipped))}"
    if len(items) > len(keys):
        text += f", {plural(len(items) - len(keys), 'function library')}"
    click.echo(text)
    if lost:
        names = ",".join(sorted({name for name, _ in lost.lines()}))
        click.echo(f"run is refused unless --allow-loss {names} is given")


def _planned_row(planned: Planned, as_json: bool) -> Mapping[str, Any]:
    target = "skipped" if not planned.carried else "exists" if planned.exists else "new"
    names = ", ".join(dict.fromkeys(loss.name for loss in planned.losses))
    row = {
        "db": planned.db,
        "key": planned.key,
        "type": planned.kind,
        "entries": planned.entries,
        "bytes": planned.bytes,
        "groups": planned.groups,
        "pending": planned.pending,
        "target": target,
        "lost": names or "nothing",
    }
    if as_json:
        row["lost"] = [_loss(loss) for loss in planned.losses]
        row["corrections"] = list(planned.corrections)
        row["expire_at_ms"] = planned.expire_at_ms or None
    return row


def _loss(loss: Loss) -> dict[str, Any]:
    return {"name": loss.name, "affected": loss.affected, "why": loss.text, "what": loss.what}


def show_remarks(place: Source | PlannedTarget) -> None:
    """Show what a place reports beside its keys."""
    for remark in place.remarks:
        click.echo(f"note: {printable(remark)}", err=True)


def show_report(out: Output, report: Report) -> None:
    """Show the result of a run."""
    from kvstream.migration.copy import Outcome

    if not out.for_programs:
        for carried in report.noteworthy:
            _show_key(carried)
        for text in report.functions.reported:
            click.echo(printable(text), err=True)
    out.result(
        _report_text(report),
        **{str(outcome): report.outcomes[outcome] for outcome in Outcome},
        entries=report.entries,
        bytes=report.bytes,
        skipped_types=dict(report.skipped),
        resumed_keys=report.resumed_keys,
        resumed_entries=report.resumed_entries,
        lost=dict(report.losses),
        functions={str(outcome): count for outcome, count in report.functions.outcomes.items()},
        noteworthy=[_noteworthy(carried) for carried in report.noteworthy],
    )


def _show_key(carried: Carried) -> None:
    name = f"{quote(carried.key)} in database {carried.db}"
    for correction in carried.corrections:
        click.echo(f"{name}: recounted: {printable(correction)}", err=True)
    for loss in carried.losses:
        click.echo(f"{name}: lost: {loss.name}: {printable(loss.text)}", err=True)
    for difference in carried.reported:
        what, source, target = map(
            printable, (difference.what, difference.source, difference.target)
        )
        click.echo(
            f"{name} differs: {what}: {source} at the source, {target} at the target", err=True
        )


def _report_text(report: Report) -> str:
    from kvstream.migration.copy import Outcome

    parts = [
        f"{plural(count, 'key')} {outcome}"
        for outcome, count in report.outcomes.items()
        if count and outcome is not Outcome.SKIPPED
    ]
    parts += [
        f"{plural(count, 'key')} of {_kind(what)} skipped" for what, count in report.skipped.items()
    ]
    parts += [
        f"{plural(count, 'function library')} {outcome}"
        for outcome, count in report.functions.outcomes.items()
    ]
    parts.append(plural(report.entries, "entry"))
    if report.resumed_keys or report.resumed_entries:
        parts.append(
            f"of which an interrupted run had copied {plural(report.resumed_keys, 'key')} and "
            f"{plural(report.resumed_entries, 'entry')} of others"
        )
    return ", ".join(parts)


def _kind(what: str) -> str:
    """Return what keys that were left out have in common: a type, or a database."""
    return what if " " in what and not what.startswith("string ") else f"type {what}"


def _noteworthy(carried: Carried) -> dict[str, Any]:
    return {
        "db": carried.db,
        "key": carried.key,
        "outcome": str(carried.outcome),
        "lost": [_loss(loss) for loss in carried.losses],
        "corrections": carried.corrections,
        "differences": [difference._asdict() for difference in carried.reported],
    }


def show_verification(out: Output, found: Verification) -> None:
    """Show each difference; list those that may change by themselves separately."""
    from kvstream.migration.items import LIBRARY

    moved = [each for each in found.differences if each.may_move]
    real = [each for each in found.differences if not each.may_move]
    if out.for_programs:
        out.table(_DIFFERENCES, [each._asdict() for each in found.differences])
        digests = [
            {"db": db, "key": key, "digest": digest} for (db, key), digest in found.digests.items()
        ]
        out.object(
            equal=found.equal,
            keys=found.keys,
            entries=found.entries,
            functions=found.functions,
            differences=len(real),
            moved=len(moved),
            skipped_types=found.skipped,
            uncompared=dict(found.uncompared),
            digests=digests,
        )
        return
    if real:
        out.table(_DIFFERENCES, [each._asdict() for each in real])
    if moved:
        out.heading("changed meanwhile, not counted")
        out.table(_DIFFERENCES, [each._asdict() for each in moved])
    counts = Counter(each.what == LIBRARY for each in real)
    nouns = {False: "difference", True: "different function library"}
    parts = [plural(counts[each], noun) for each, noun in nouns.items() if counts[each]]
    click.echo(verdict(found, " and ".join(parts)))


def verdict(found: Verification, differences: str) -> str:
    """Return the last line; ``differences`` says how many there are, and is empty if none are."""
    compared = f"{plural(found.keys, 'key')}, {plural(found.entries, 'entry')}"
    if found.functions:
        compared += f", {plural(found.functions, 'function library')}"
    skipped = "".join(
        f", {plural(count, 'key')} of {_kind(what)} not compared"
        for what, count in found.skipped.items()
    )
    if found.uncompared:
        parts = ", ".join(f"{what} ({n})" for what, n in sorted(found.uncompared.items()))
        skipped += f"; only one side has, so not compared: {parts}"
    if not differences:
        return f"equal: {compared}{skipped}"
    return f"different: {differences} in {compared}{skipped}"


def show_status(out: Output, runs: list[Status], followed: list[Followed]) -> None:
    """Show the state of runs and of followers, from their journals."""
    if runs or not followed:
        out.table(_STATUS, [_status_row(status) for status in runs])
    if followed:
        if runs:
            out.heading("followed")
        out.table(_FOLLOWED, [_followed_row(each) for each in followed])


def _status_row(status: Status) -> Mapping[str, Any]:
    return {
        "source": status.source,
        "target": status.target,
        "kind": "run",
        "state": status.state,
        "keys": status.keys,
        "entries": max(status.entries, sum(status.done.values())),
        "at_ms": status.at_ms,
        "begun_ms": status.begun_ms,
        "finished_ms": status.finished_ms,
        "db": status.db,
        "key": status.key,
    }


def _followed_row(followed: Followed) -> Mapping[str, Any]:
    behind_bytes, behind_s = followed.behind or (None, None)
    return {
        "source": followed.source,
        "target": followed.target,
        "kind": "follow",
        "state": followed.state,
        "phase": followed.phase.value,
        "since_ms": followed.since_ms,
        "behind_bytes": behind_bytes,
        "behind_ms": None if behind_s is None else round(behind_s * 1000),
        "commands": followed.commands,
        "bytes": followed.bytes,
        "offset": followed.offset,
        "begun_ms": followed.begun_ms,
        "at_ms": followed.at_ms,
    }
