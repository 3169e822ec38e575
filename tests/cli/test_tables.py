"""Tables on narrow terminals: numbers are complete, names are cut, and no line is too long."""

import pkgutil
from dataclasses import replace
from importlib import import_module
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream import cli
from kvstream.cli.tables import (
    Column,
    Sheet,
    block,
    cells,
    clip,
    count_column,
    fold,
    id_columns,
    left_out_lines,
    name_column,
    plain,
    sheet,
)

PREFIX = "kvstream.cli."
TABLES = {
    f"{module.__name__.removeprefix(PREFIX)}.{name}": value
    for found in pkgutil.walk_packages(cli.__path__, PREFIX)
    for module in [import_module(found.name)]
    for name, value in vars(module).items()
    if isinstance(value, tuple) and value and all(isinstance(each, Column) for each in value)
}
"""All tables of the program."""

NAMES = ("a", "orders", "orders:" + "x" * 293, "\u6f22\u5b57\u30ab\u30ca" * 40, r"\\xff\\x07" * 30)
NUMBERS = (0, 1_500, 856_000, 10**15)

names = st.binary(min_size=5, max_size=300).map(plain) | st.text(max_size=300).map(plain)
numbers = st.integers(0, 10**15).map("{:,}".format)
ids = st.integers(0, 10**15).map("{}-0".format)
words = st.lists(numbers | st.text(max_size=40).map(plain), max_size=9).map("  ".join)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Column], list[list[str]]]:
    """Return random columns, and rows of texts for them."""
    kinds = {
        name_column("name"): names,
        count_column("count"): numbers,
        Column("id", "id", width=18): ids,
        Column("spare", "spare", right=True, spare=True): numbers,
        Column("text", "text", wraps=True): words,
    }
    drawn = draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=9))
    rows = draw(st.lists(st.tuples(*(kinds[column] for column in drawn)), max_size=5))
    columns = [replace(column, title=f"{column.title}{at}") for at, column in enumerate(drawn)]
    return columns, [list(row) for row in rows]


def lines_of(laid: Sheet) -> list[str]:
    return [line for lines in (laid.head, *laid.rows) for line in lines]


def words_of(lines: list[str]) -> list[str]:
    return [word for line in lines for word in line.split()]


@given(tables(), st.sampled_from([40, 60, 80, 120, 200, None]))
def test_every_number_is_complete_in_its_row(
    table: tuple[list[Column], list[list[str]]], width: int | None
) -> None:
    columns, rows = table
    laid = sheet(columns, rows, width)
    for row, lines in zip(rows, laid.rows, strict=True):
        found = words_of(lines)
        for column, text in zip(columns, row, strict=True):
            whole = not (column.shrinks or column.wraps) or width is None
            left_out = column.spare and bool(laid.head) and column.title not in laid.head[0]
            if whole and not left_out:
                assert set(text.split()) <= set(found)
            if column.wraps:
                assert {word for word in text.split() if cells(word) <= 24} <= set(found)
    if width is not None:
        assert all(cells(line) <= width for line in lines_of(laid))


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("width", [120, 80, 60, 40, None])
def test_every_table_of_the_program_shows_its_numbers(name: str, width: int | None) -> None:
    columns = TABLES[name]

    def text_of(column: Column, text: str, number: int) -> str:
        if column.shrinks or column.wraps:
            return text
        if column.right:
            return f"{number:,}"
        return "2026-11-23 06:06:33.400Z" if column.width > 18 else f"{number + 1}-0"

    for text, number in product(NAMES, NUMBERS):
        laid = sheet(columns, [[text_of(column, text, number) for column in columns]], width)
        found = words_of(laid.rows[0])
        shown = [column for column in columns if not (column.shrinks or column.wraps)]
        kept = [column for column in shown if not column.spare or not laid.head]
        for column in kept:
            assert set(text_of(column, text, number).split()) <= set(found), laid
        if width is None:
            assert len(shown) == len(columns) or set(text.split()) <= set(found)
        else:
            assert all(cells(line) <= width for line in lines_of(laid)), laid


def test_all_commands_are_covered() -> None:
    assert len(TABLES) >= 18
    assert {"keys._LS", "groups.GROUP_COLUMNS", "top.view.COLUMNS"} <= TABLES.keys()
    queues = {"queue._LS", "queue._PAUSED", "dead._LS", "delayed._LS", "job_lists._LS"}
    assert {f"queues.{name}" for name in queues} | {"top.view.QUEUE_COLUMNS"} <= TABLES.keys()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["queues.queue._LS", "top.view.QUEUE_COLUMNS"])
def test_queues_are_a_table_on_every_usual_terminal(name: str, width: int) -> None:
    columns = TABLES[name]
    row = {"queue": "mail:transactional", "stream": "mail:transactional", "group": "workers"}
    row |= {"oldest": "3h 20m", "lag": "85,600", "ready": "85,600"}
    laid = sheet(columns, [[row.get(column.title, "12") for column in columns]], width)
    assert laid.head
    for title in ("leased", "waiting", "dead", "oldest"):
        assert title in laid.head[0]
    assert {"85,600", "12", "3h", "20m"} <= set(words_of(laid.rows[0]))


LS = (name_column("stream"), count_column("length"), *id_columns("last id"))


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (None, "order-7f-eu-west  856,000  1700000000000-0     2023-11-14 22:13:20.000Z"),
        (80, "order-7f-eu-west  856,000  1700000000000-0     2023-11-14 22:13:20.000Z"),
        (60, "order-7f-eu-west  856,000  1700000000000-0"),
        (40, "order-7f-e…  856,000  1700000000000-0"),
        (37, "order-7…  856,000  1700000000000-0"),
    ],
)
def test_spare_columns_are_dropped_first_and_then_names_are_cut(
    width: int | None, shown: str
) -> None:
    row = ["order-7f-eu-west", "856,000", "1700000000000-0", "2023-11-14 22:13:20.000Z"]
    assert sheet(LS, [row], width).rows == [[shown]]


def test_rows_become_blocks_if_that_is_not_enough() -> None:
    row = ["order-7f-eu-west", "856,000", "1700000000000-0", "2023-11-14 22:13:20.000Z"]
    laid = sheet(LS, [row, row], 36)
    lines = [
        "stream   order-7f-eu-west",
        "length   856,000",
        "last id  1700000000000-0",
        "time     2023-11-14 22:13:20.000Z",
    ]
    assert laid == Sheet([], [[*lines, ""], lines])


def test_two_names_share_the_room() -> None:
    columns = (name_column("a"), name_column("b"), count_column("n"))
    assert sheet(columns, [["x" * 50, "short", "1"]], 40).rows == [["x" * 29 + "…  short  1"]]
    assert sheet(columns, [["x" * 50, "y" * 50, "1"]], 25).rows == [
        ["x" * 9 + "…  " + "y" * 9 + "…  1"]
    ]


def test_a_record_is_below_its_title_if_there_is_no_room_beside_it() -> None:
    titles, texts = ["max deleted entry id", "n"], ["1700000000000-18446744073709551615", "1"]
    assert block(titles, texts, 40) == [
        "max deleted entry id",
        "  1700000000000-18446744073709551615",
        "n                     1",
    ]


def test_wide_characters_take_two_cells() -> None:
    assert cells("\u6f22\u5b57") == 4
    assert clip("\u6f22\u5b57\u6f22\u5b57", 6) == "\u6f22\u5b57…"
    assert fold("\u6f22\u5b57\u6f22", 4) == ["\u6f22\u5b57", "\u6f22"]
    assert fold("ab cd  efghijk", 5) == ["ab cd", "efghi", "jk"]
    assert fold("", 5) == [""]


def test_a_word_of_a_megabyte_is_folded() -> None:
    assert len(fold("x" * 1_000_000, 40)) == 25_000


def test_columns_without_room_are_named_by_their_titles() -> None:
    columns = (name_column("stream"), *id_columns("last id"), Column("type", "type", spare=True))
    row = ["orders", "1700000000000-0", "2026-11-23 06:06:33.400Z", "stream"]
    assert sheet(columns, [row], 80).left_out == []
    assert sheet(columns, [row], None).left_out == []
    assert sheet(columns, [row], 54).left_out == ["type"]
    assert sheet(columns, [row], 40).left_out == ["time", "type"]
    assert sheet(columns, [row], 10).left_out == ()  # a block, which has all
    lines = left_out_lines(["time", "type"], 40)
    assert " ".join(lines) == "not shown: time, type (widen the terminal, or use --json)"
    assert all(cells(line) <= 40 for line in lines)
    assert left_out_lines([], 40) == []
