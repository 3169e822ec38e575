"""tail: the last entries, the following ones, and concurrent processes."""

from itertools import islice

import pytest

from kvstream import Store
from kvstream.cli import entries
from kvstream.cli.entries import poll_store
from kvstream.cli.session import DirectorySession
from tests.cli.program import FIRST, Program

LAST = "1700000004000-0"


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], 5),
        (["-n", "2"], 2),
        (["-n", "0"], 0),
        (["--after", "$"], 0),
        (["--after", FIRST], 4),
        (["--after", FIRST, "-n", "2"], 2),
        (["--after", "2023-11-14T22:13:23Z"], 2),
    ],
)
@pytest.mark.places("store", "server", "redis")
def test_tail_shows_the_end_oldest_first(orders: Program, options: list[str], found: int) -> None:
    ids = [row["id"] for row in orders.json("tail", "orders", *options)]
    assert len(ids) == found
    assert ids == sorted(ids)


@pytest.mark.places("store", "server", "redis")
def test_tail_of_a_missing_stream_fails_unless_it_follows(orders: Program) -> None:
    assert "no stream 'x'" in orders("tail", "x", code=1).stderr


class CtrlC:
    """Ends a following program in one of its pauses; writes an entry in the earlier ones."""

    def __init__(self, program: Program, pauses: int) -> None:
        self.program = program
        self.left = pauses

    def __call__(self, seconds: float) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        with Store.open(self.program.directory) as store:
            stream = store.stream("orders")
            if self.left == 0:
                store.delete("orders")
            stream.add({"left": self.left}, id=f"{9_000_000_000_000 - self.left}-0")


@pytest.mark.parametrize(
    ("options", "first"), [([], FIRST), (["--after", "$"], None), (["--after", LAST], None)]
)
def test_tail_follows_until_ctrl_c(
    orders: Program, monkeypatch: pytest.MonkeyPatch, options: list[str], first: str | None
) -> None:
    monkeypatch.setattr(entries, "sleep", CtrlC(orders, 3))
    rows = orders.json("tail", "orders", "-f", *options, code=130)
    assert [row["fields"]["left"] for row in rows[-3:]] == ["2", "1", "0"]
    assert (rows[0]["id"] == FIRST) is (first is not None)


def test_tail_follows_a_recreated_stream_with_lower_ids(
    orders: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = iter(range(2))

    def pause(seconds: float) -> None:
        if next(pauses, None) is None:
            raise KeyboardInterrupt
        with Store.open(orders.directory) as store:
            store.delete("orders")
            store.stream("orders").add({"n": "new"}, id="5-0")

    monkeypatch.setattr(entries, "sleep", pause)
    rows = orders.json("tail", "orders", "-f", "-n", "0", code=130)
    assert rows == [{"id": "5-0", "fields": {"n": "new"}}]


def test_a_burst_is_shown_in_bounded_pages(
    orders: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(orders.directory) as store:
        store.stream("orders").add_many([{"n": 1}] * 2500)
    pauses = iter(range(2))

    def pause(seconds: float) -> None:
        if next(pauses, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(entries, "sleep", pause)
    assert len(orders.json("tail", "orders", "-f", "--after", FIRST, code=130)) == 4 + 2500


def test_a_poll_waits_for_the_holder_of_the_store_and_reports_it_once(
    orders: Program, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = DirectorySession(orders.directory, wait_s=0.0)
    holder = Store.open(orders.directory)
    pauses = iter(range(3))

    def pause(seconds: float) -> None:
        if next(pauses, None) is None:
            holder.close()

    monkeypatch.setattr(entries, "sleep", pause)
    seen = poll_store(session, lambda store, wait_s: len(store.stream("orders")), 0)
    assert list(islice(seen, 2)) == [5, 5]
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("waiting: the store in")
