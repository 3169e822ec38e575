"""Commands that destroy something: people are asked first, programs are not."""

import pytest

from tests.cli.program import Program
from tests.cli.terminal import Terminal

DESTROYING = {
    "rm orders orders:2025": b"Delete 'orders' with 5 entries and 1 group, 'orders:2025' with 1",
    "trim orders --maxlen 2": b"Remove 3 entries of 'orders'?",
    "trim orders --minid 1700000001000-0": b"Remove 1 entry of 'orders'?",
    "group destroy orders billing": b"Delete group 'billing' of 'orders', with 2 entries pending?",
    "rename orders orders:2025": b"Delete 'orders:2025' with 1 entry, which has the new name?",
}


def contents(program: Program) -> list[tuple[object, ...]]:
    """Return the streams with their lengths and groups."""
    keys = ("stream", "length", "groups")
    return [tuple(row[key] for key in keys) for row in program.json("ls")]


@pytest.mark.parametrize(("line", "question"), DESTROYING.items())
def test_a_terminal_is_asked_before_something_is_destroyed(
    orders: Program, line: str, question: bytes
) -> None:
    before = contents(orders)
    terminal = Terminal(*orders.place, *line.split())
    terminal.await_text(question)
    terminal.await_text(b"[y/N]: ")
    terminal.type("n\n")
    terminal.await_text(b"nothing was changed")
    assert terminal.wait() == 1
    assert contents(orders) == before
    terminal = Terminal(*orders.place, *line.split())
    terminal.await_text(b"[y/N]: ")
    terminal.type("y\n")
    assert terminal.wait() == 0
    assert contents(orders) != before


@pytest.mark.parametrize("key", ["\n", "\x04", "\x03"])
def test_no_answer_is_no(orders: Program, key: str) -> None:
    terminal = Terminal(*orders.place, "rm", "orders")
    terminal.await_text(b"[y/N]: ")
    terminal.type(key)
    terminal.await_text(b"nothing was changed", key)
    assert terminal.wait() == 1
    assert orders.lines("len", "orders") == ["5"]


def test_yes_answers_beforehand(orders: Program) -> None:
    terminal = Terminal(*orders.place, "rm", "orders", "--yes")
    assert terminal.wait() == 0
    assert b"[y/N]" not in terminal.said
    assert orders.lines("ls", "--names") == ["orders:2025"]


def test_nothing_is_asked_if_nothing_is_there_to_destroy(orders: Program) -> None:
    terminal = Terminal(*orders.place, "rm", "nothing")
    assert terminal.wait() == 1
    assert b"[y/N]" not in terminal.said


@pytest.mark.places("store", "server", "redis")
def test_a_dry_run_shows_what_would_be_destroyed(orders: Program) -> None:
    before = contents(orders)
    assert orders.json("rm", "orders", "orders:2025", "--dry-run") == [
        {"stream": "orders", "length": 5, "groups": 1},
        {"stream": "orders:2025", "length": 1, "groups": 0},
    ]
    orders("rm", "orders", "nothing", "--dry-run", code=1)
    assert orders.one("trim", "orders", "--maxlen", "2", "--dry-run")["trimmed"] == 3
    assert orders.one("trim", "orders", "--maxlen", "9", "--dry-run")["trimmed"] == 0
    assert orders.one("trim", "orders", "--minid", "1700000001000", "--dry-run")["trimmed"] == 1
    shown = orders.lines("group", "destroy", "orders", "billing", "--dry-run")
    assert shown == ["group billing would be deleted, with 2 entries pending"]
    orders("group", "destroy", "orders", "nothing", "--dry-run", code=1)
    assert contents(orders) == before


def test_a_purge_asks_too(emails: Program) -> None:
    terminal = Terminal(*emails.place, "queue", "purge", "emails")
    terminal.await_text(b"messages of 'emails'? [y/N]: ")
    terminal.type("n\n")
    assert terminal.wait() == 1
    assert emails.one("queue", "purge", "emails", "--dry-run")["deleted"] > 0
