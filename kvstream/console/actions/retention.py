"""The rules by which entries leave a stream: age, number, bytes, done, latest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.actions.plan import Plan, name_in
from kvstream.console.actions.rules import span_text
from kvstream.console.command_lines import Part, line
from kvstream.console.names import segment_of
from kvstream.console.values import whole
from kvstream.errors import InvalidArgument
from kvstream.meta.policy import Retention
from kvstream.types.formatting import duration, number, plural, printable, size
from kvstream.types.ids import duration_ms

if TYPE_CHECKING:
    from kvstream.console.view import View
    from kvstream.stream import Stream


def retention(view: View) -> Plan:
    """Plan to set the rules of a stream, in place of former ones; without any all entries stay."""
    name = name_in(view, "stream")
    stream, rules = view.store.stream(name), _rules(view)
    before, length = stream.retention() or Retention(), stream.info().length

    def run(_: View) -> None:
        if rules.is_empty:
            stream.drop_retention()
            return
        stream.set_retention(
            max_age=rules.max_age_ms / 1000 or None,
            max_length=rules.max_length or None,
            max_bytes=rules.max_bytes or None,
            acked=rules.acked,
            latest=rules.latest or None,
            force=rules.force,
        )

    text = "No entry leaves the stream by itself any more."
    if not rules.is_empty:
        found = "; ".join(_sentences(view, stream, rules, length))
        text = f"The store removes entries in the background from now on: {found}. " + (
            "It removes those that a group still needs, too."
            if rules.force
            else "None goes that a group has pending or has not read."
        )
    return Plan(
        action="retention",
        title=f"Change the retention of {printable(name)}",
        text=f"{text} These rules take the place of all former ones.",
        target=name,
        command=view.command("queue retention", name, *_options(rules)),
        run=run,
        back=view.url("streams", name),
        count=int(rules != before),
        typed=None if rules.is_empty else name,
        facts={"rules": _shown(rules), "before": _shown(before)},
    )


def _rules(view: View) -> Retention:
    """Return the rules of the form; InvalidArgument for a text that is none."""
    age = view.asked("max_age").strip()
    age_ms = duration_ms(age) if age else 0
    if age_ms is None or (age and not age_ms):
        raise InvalidArgument(f"{age!r} is no age: write 7d, 12h or 30m")
    rules = Retention(
        max_age_ms=age_ms,
        max_length=_number(view, "max_length"),
        max_bytes=_number(view, "max_bytes"),
        acked=bool(view.asked("acked")),
        latest=view.name("latest"),
        force=bool(view.asked("force")),
    )
    if rules.force and rules.is_empty:
        raise InvalidArgument("give a rule, too, such as an age of 7d")
    return rules


def _number(view: View, name: str) -> int:
    text = view.asked(name).strip()
    found = whole(text) if text else 0
    if found is None or (text and not found):
        raise InvalidArgument(f"{text!r} is no number above 0")
    return found


def _sentences(view: View, stream: Stream, rules: Retention, length: int) -> list[str]:
    """Return what each rule removes, with the number now where counting reads no entries."""
    found = []
    if rules.max_age_ms:
        old = length - stream.count(max(0, view.now_ms - rules.max_age_ms))
        found.append(f"older than {duration(rules.max_age_ms)} (now {plural(old, 'entry')})")
    if rules.max_length:
        old = max(0, length - rules.max_length)
        found.append(f"all but the last {number(rules.max_length)} (now {plural(old, 'entry')})")
    if rules.max_bytes:
        found.append(f"all but the last {size(rules.max_bytes)}")
    if rules.acked:
        found.append("what every group has acknowledged")
    if rules.latest:
        found.append(f"all but the last of each {printable(rules.latest)}")
    return found


def _options(rules: Retention) -> list[Part]:
    """Return the rules as the command takes them."""
    numbers: list[Part] = [
        (option, text.encode())
        for option, value, text in (
            ("--max-age", rules.max_age_ms, span_text(rules.max_age_ms)),
            ("--max-length", rules.max_length, str(rules.max_length)),
            ("--max-bytes", rules.max_bytes, str(rules.max_bytes)),
        )
        if value
    ]
    flags = [
        flag for flag, is_set in (("--acked", rules.acked), ("--force", rules.force)) if is_set
    ]
    latest: list[Part] = [("--latest", rules.latest)] if rules.latest else []
    return [*numbers, *flags, *latest] or ["--off"]


def texts_of(rules: Retention | None) -> dict[str, str]:
    """Return rules as the inputs of the form have them."""
    rules = rules or Retention()
    return {
        "max_age": span_text(rules.max_age_ms) if rules.max_age_ms else "",
        "max_length": str(rules.max_length or ""),
        "max_bytes": str(rules.max_bytes or ""),
        "latest": segment_of(rules.latest) if rules.latest else "",
        "acked": "checked" if rules.acked else "",
        "force": "checked" if rules.force else "",
    }


def _shown(rules: Retention) -> str:
    """Return rules as the audit has them."""
    return line(*_options(rules))
