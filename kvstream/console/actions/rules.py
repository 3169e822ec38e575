"""The rules of a queue as a form: lease, deliveries, backoff, limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvstream.console.actions.plan import Input, Plan
from kvstream.console.actions.queues import commands_of, row_of
from kvstream.console.command_lines import Part
from kvstream.console.values import whole
from kvstream.engine.queue_arguments import Backoff
from kvstream.errors import InvalidArgument
from kvstream.types.formatting import plural, printable
from kvstream.types.ids import duration_ms

if TYPE_CHECKING:
    from kvstream.console.view import View
    from kvstream.meta.policy import GroupPolicy

_TITLES = {
    "lease": "Lease, such as 30s (0: none)",
    "max_deliveries": "Deliveries at most (0: no limit)",
    "backoff": "Backoff: 1s,10s,1m, or 1s..1h, which doubles (0: none)",
    "max_in_flight": "In work at most (0: no limit)",
    "rate": "Rate, such as 100/1m (0: no limit)",
    "reap": "Delete consumers that are idle for, such as 1d (0: never)",
}
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


def policy(view: View) -> Plan:
    """Plan to change the rules of a queue, on all streams of its priorities."""
    row = row_of(view)
    before = texts_of(row.policy)

    def run(_: View) -> None:
        rules = {name: _parse(name, text) for name, text in _changed(view, before).items()}
        if not rules:
            raise InvalidArgument("no rule was changed")
        if isinstance(rules.get("backoff"), Backoff):
            rules["backoff"] = rules["backoff"]._replace(jitter=row.policy.jitter_percent / 100)
        for name in row.streams:
            view.store.stream(name).group(row.group).set_policy(**rules)

    options: list[Part] = [
        (f"--{name.replace('_', '-')}", text.encode()) for name, text in before.items()
    ]
    return Plan(
        action="policy",
        title=f"Change the rules of {printable(row.name)}",
        text="The store enforces them from the next read on, for all clients of the group "
        f"{printable(row.group)}, on {plural(len(row.streams), 'stream')}. Workers that give rules "
        "of their own set them again when they start.",
        target=row.name,
        command=commands_of(view, row, "queue policy", *options),
        run=run,
        back=view.url("queues", row.name, group=row.group),
        inputs=[Input(name, _TITLES[name], value=text) for name, text in before.items()],
        facts={"group": printable(row.group), "before": before},
    )


def texts_of(policy: GroupPolicy) -> dict[str, str]:
    """Return the rules that the form has, as they are typed."""
    backoff = ",".join(map(span_text, policy.backoff_ms)) or "0"
    if policy.backoff_cap_ms:
        backoff = f"{span_text(policy.backoff_ms[0])}..{span_text(policy.backoff_cap_ms)}"
    rate = f"{policy.rate_count}/{span_text(policy.rate_ms)}" if policy.rate_count else "0"
    return {
        "lease": span_text(policy.lease_ms),
        "max_deliveries": str(policy.max_deliveries),
        "backoff": backoff,
        "max_in_flight": str(policy.max_in_flight),
        "rate": rate,
        "reap": span_text(policy.reap_idle_ms),
    }


def span_text(ms: int) -> str:
    """Return a time in the greatest unit that has it whole."""
    for unit, length in _UNITS:
        if ms and not ms % length:
            return f"{ms // length}{unit}"
    return f"{ms}ms" if ms else "0"


def _changed(view: View, before: dict[str, str]) -> dict[str, str]:
    given = {name: view.given(name, text).strip() for name, text in before.items()}
    return {name: text for name, text in given.items() if text != before[name]}


def _parse(name: str, text: str) -> Any:
    """Return a rule as the library takes it; InvalidArgument for a text that is none."""
    if name in ("max_deliveries", "max_in_flight"):
        number = whole(text)
        if number is None:
            raise InvalidArgument(f"{_TITLES[name]}: {text!r} is no number")
        return number
    if name == "backoff":
        first, doubles, cap = text.partition("..")
        if doubles:
            return Backoff(_seconds(name, first), _seconds(name, cap))
        return () if text == "0" else [_seconds(name, each) for each in text.split(",")]
    if name == "rate":
        count, ms = rate_in(text) if text != "0" else (0, 0)
        return count, ms / 1000
    return _seconds(name, text)


def rate_in(text: str) -> tuple[int, int]:
    """Return the number, and the milliseconds, of a rate such as ``100/1m``; both are above 0."""
    match = re.fullmatch(r"(\d{1,15})/(.+)", text)
    count, ms = (int(match[1]), duration_ms(match[2].strip())) if match else (0, None)
    if not count or not ms:
        raise InvalidArgument(f"{text!r} is no rate: write 100/1m for 100 in a minute")
    return count, ms


def _seconds(name: str, text: str) -> float:
    ms = duration_ms(text.strip())
    if ms is None:
        raise InvalidArgument(f"{_TITLES[name]}: {text!r} is no duration")
    return ms / 1000
