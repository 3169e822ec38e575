"""``queue policy``: the rules of a queue, as options and as text.

A queue is a stream with a consumer group, whose policy the store enforces for every client. The
commands of queues take the name of the stream; ``choose_group`` finds the group.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import (
    Duration,
    GroupName,
    Name,
    Type,
    example,
    option_group,
    stream_argument,
)
from kvstream.cli.session import Session, existing_group, existing_stream, stream_or_free
from kvstream.cli.tables import duration, number, printable, quote
from kvstream.errors import NoSuchKey, RequestError
from kvstream.types.ids import duration_ms

if TYPE_CHECKING:
    from kvstream.group import Group
    from kvstream.meta.policy import GroupPolicy
    from kvstream.store import Store

WORKERS = b"workers"
"""The group of a queue unless another one is named, as in the library."""

group_option = click.option(
    "--group", type=GroupName(), help="The group; by default the only one with a policy."
)


class Doubling(NamedTuple):
    """Delays that double from ``first`` up to ``cap`` seconds."""

    first: float
    cap: float


class Delays(Type):
    """The delays of a backoff: ``1s,10s,1m``, or ``1s..1h``, which doubles."""

    name = "delays"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Doubling | tuple[float, ...]:
        first, doubles, cap = str(value).partition("..")
        texts = [first, cap] if doubles else str(value).split(",")
        found = [duration_ms(text) for text in texts]
        delays = tuple(ms / 1000 for ms in found if ms is not None)
        if len(delays) < len(texts) or (doubles and not 0 < delays[0] <= delays[1]):
            self.fail(f"{value!r} is no backoff: write 1s,10s,1m or 1s..1h.", param, ctx)
        if doubles:
            return Doubling(*delays)
        return () if delays == (0,) else delays


class Rate(Type):
    """A number of messages in a time: ``100/1m``; 0: no limit."""

    name = "n/duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        if value == "0":
            return 0, 0
        match = re.fullmatch(r"(\d{1,15})/(.+)", str(value))
        ms = duration_ms(match[2] if match[2][0].isdigit() else f"1{match[2]}") if match else None
        if match is None or not ms or not int(match[1]):
            self.fail(f"{value!r} is no rate: write 100/1m for 100 in a minute.", param, ctx)
        return int(match[1]), ms / 1000


_NUMBER = click.IntRange(0)
rule_options = option_group(
    click.option(
        "--lease",
        type=Duration(),
        metavar="DURATION",
        help="A message pending for so long goes to another consumer.",
    ),
    click.option(
        "--max-deliveries",
        type=_NUMBER,
        metavar="N",
        help="After so many deliveries a message is a dead letter.",
    ),
    click.option(
        "--backoff",
        type=Delays(),
        metavar="DELAYS",
        help="Wait before each repetition: 1s,10s,1m (the last repeats) or 1s..1h (doubles).",
    ),
    click.option(
        "--jitter",
        type=click.IntRange(0, 100),
        metavar="PERCENT",
        help="Shorten delays that double by up to this share, at random.",
    ),
    click.option("--dead-letter", type=Name(), metavar="KEY", help="The dead-letter stream."),
    click.option(
        "--order-by",
        type=Name(),
        metavar="FIELD",
        help="Deliver messages of equal value in order, one at a time.",
    ),
    click.option(
        "--max-per-key", type=click.IntRange(1), metavar="N", help="With --order-by: N at a time."
    ),
    click.option(
        "--fair/--no-fair",
        default=None,
        help="With --order-by: the values take turns, whichever has how many messages.",
    ),
    click.option(
        "--max-in-flight", type=_NUMBER, metavar="N", help="Lease at most N messages at a time."
    ),
    click.option(
        "--rate", type=Rate(), metavar="N/DURATION", help="Deliver at most N in this time: 100/1m."
    ),
    click.option(
        "--reap", type=Duration(), metavar="DURATION", help="Delete consumers idle for so long."
    ),
)
"""The rules of a policy, named as in the library."""


def collect_rules(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``Group.set_policy``; a usage error if one needs another."""
    from kvstream.engine.queue_arguments import Backoff  # a policy that is only shown needs none

    jitter = options.pop("jitter")
    rules = {name: value for name, value in options.items() if value is not None}
    backoff = rules.get("backoff")
    if isinstance(backoff, Doubling):
        rules["backoff"] = Backoff(*backoff, (jitter or 0) / 100)
    elif jitter is not None:
        raise click.UsageError("--jitter goes with delays that double: --backoff 1s..1h")
    if "max_per_key" in rules and "order_by" not in rules:
        raise click.UsageError("--max-per-key goes with --order-by")
    return rules


# --- the group of a queue -------------------------------------------------------------------------


def choose_group(store: "Store", stream: bytes, name: bytes | None) -> "Group":
    """Return the group of a queue; if none or several may be meant, the error says what to do."""
    if name is not None:
        return existing_group(store, stream, name)
    stored = existing_stream(store, stream)
    groups = [stored.group(info.name) for info in stored.groups()]
    if not groups:
        raise RequestError(
            f"stream {quote(stream)} has no group, so it is no queue yet: its first worker "
            f"creates one, or: kvstream queue policy {printable(stream)} --create --lease 30s"
        )
    if len(groups) > 1:
        groups = [each for each in groups if each.policy() is not None] or groups
    if len(groups) > 1:
        names = ", ".join(printable(each.name) for each in groups)
        raise click.UsageError(f"stream {quote(stream)} has the groups {names}: name --group")
    return groups[0]


# --- text -----------------------------------------------------------------------------------------


def policy_rows(policy: "GroupPolicy | None", key: bytes) -> Iterator[tuple[str, str]]:
    """Yield the rules of the group of a stream as titles and texts."""
    if policy is None:
        return
    if policy.paused:
        yield "paused", "yes"
    if policy.lease_ms:
        yield "lease", duration(policy.lease_ms)
    if policy.max_deliveries:
        yield "max deliveries", number(policy.max_deliveries)
    if policy.backoff_ms:
        yield "backoff", _backoff_text(policy)
    if policy.max_deliveries or policy.dead_letter:
        yield "dead letters", printable(policy.dead_key(key))
    if policy.order_by:
        per_key = f", {number(policy.max_per_key)} at a time" if policy.max_per_key > 1 else ""
        turns = ", in turns" if policy.fair else ""
        yield "order by", printable(policy.order_by) + per_key + turns
    if policy.max_in_flight:
        yield "max in flight", number(policy.max_in_flight)
    if policy.rate_count:
        yield "rate", f"{number(policy.rate_count)} in {duration(policy.rate_ms)}"
    if policy.reap_idle_ms:
        yield "reap", f"consumers idle for {duration(policy.reap_idle_ms)}"


def _backoff_text(policy: "GroupPolicy") -> str:
    if not policy.backoff_cap_ms:
        return ", ".join(map(duration, policy.backoff_ms))
    text = f"{duration(policy.backoff_ms[0])}, doubled up to {duration(policy.backoff_cap_ms)}"
    return f"{text}, up to {policy.jitter_percent}% less" if policy.jitter_percent else text


def policy_values(policy: "GroupPolicy | None") -> dict[str, Any]:
    """Return the rules for programs, by the names of the library; times are in milliseconds."""
    from kvstream.operations.queues.policy import SHOWN  # imports the engine

    return {} if policy is None else {name: getattr(policy, name) for name in SHOWN}


# --- the command ----------------------------------------------------------------------------------


@click.command(
    epilog=example(
        "kvstream queue policy emails",
        "kvstream queue policy emails --max-deliveries 5 --backoff 1s..1h",
        "kvstream queue policy reports --create --order-by user --rate 100/1m",
    )
)
@stream_argument
@group_option
@rule_options
@click.option("--create", is_flag=True, help="Create the stream and the group if they are missing.")
@click.option("--drop", is_flag=True, help="Remove all rules.")
@output_options
def policy(
    session: Session,
    out: Output,
    /,
    stream: bytes,
    group: bytes | None,
    create: bool,
    drop: bool,
    **options: Any,
) -> None:
    """Show or change the rules of a queue.

    The store enforces them for all clients that read new entries of the group. A rule that is not
    given stays; 0, or an empty name, removes one. Workers that give rules of their own set them
    again when they start. Without --dead-letter, dead letters go to the stream of that name with
    :dead.
    """
    rules = collect_rules(options)
    if drop and (rules or create):
        raise click.UsageError("--drop removes all rules: it goes with no other option")
    if not (rules or drop or create):
        with session.reading() as store:
            found = choose_group(store, stream, group)
            _show(out, stream, found.name, found.policy())
        return
    with session.writing(create=create) as store:
        chosen = (
            _create_group(store, stream, group) if create else choose_group(store, stream, group)
        )
        if drop:
            chosen.drop_policy()
        elif rules:
            chosen.set_policy(**rules)
        _show(out, stream, chosen.name, chosen.policy())


def _create_group(store: "Store", stream: bytes, group: bytes | None) -> "Group":
    """Return the group of a queue; create it, and the stream, if they are missing."""
    name = group or WORKERS
    stored = stream_or_free(store, stream)
    try:
        known = {info.name for info in stored.groups()}
    except NoSuchKey:
        known = set()
        stored.set_retention(acked=True)  # as the stream that a Queue makes
    return stored.group(name) if name in known else stored.create_group(name, "0")


def _show(out: Output, stream: bytes, group: bytes, found: "GroupPolicy | None") -> None:
    if out.for_programs:
        out.object(stream=stream, group=group, **policy_values(found))
        return
    rows = dict(policy_rows(found, stream))
    if rows:
        out.record({"group": printable(group), **rows}, {})
    else:
        out.result(f"group {printable(group)} of stream {printable(stream)} has no rules")
