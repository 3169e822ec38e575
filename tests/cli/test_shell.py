"""``kvstream shell``: a prompt on a terminal, and lines from a pipe."""

import stat
from pathlib import Path

import pytest

from kvstream.cli import main
from kvstream.cli.shell import Completer
from tests.cli.program import Program
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.places("store", "server")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the history and the configuration of the user who runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "state"


PROMPT = b"> "


def test_lines_are_commands_without_the_word_kvstream(orders: Program) -> None:
    lines = (
        "# a comment\n\nlen orders\nkvstream len 'orders:2025' --json\nadd new 'a=x y'\nget new -\n"
    )
    assert orders.lines("shell", input=lines)[:2] == ["5", '{"length": 1}']
    assert orders.lines("find", "new", "a=x y")


def test_a_script_ends_at_its_first_error(orders: Program) -> None:
    result = orders("shell", input="len nosuch\nlen orders\n", code=1)
    assert "there is no stream 'nosuch'" in result.stderr
    assert result.stdout == ""
    assert "No such command 'lne'" in orders("shell", input="lne orders\n", code=2).stderr
    assert "No closing quotation" in orders("shell", input="len 'orders\n", code=2).stderr
    assert orders("shell", input="exit\nlen nosuch\n").stdout == ""
    assert "a shell already" in orders("shell", input="shell\n", code=2).stderr


def test_options_of_a_line_override_those_of_the_shell(orders: Program) -> None:
    assert orders.lines("shell", input="ls --db 3 --json\nlen orders\n") == ["5"]
    other = f"--store {orders.directory}-other len orders\n"
    assert "there is no store in" in orders("shell", input=other, code=5).stderr


def test_a_session_of_a_new_user(orders: Program, state: Path) -> None:
    terminal = Terminal(*orders.place, "shell")
    terminal.await_text(b"help lists the commands, Tab completes, Ctrl-D leaves")
    terminal.await_text(PROMPT)
    terminal.type("len ord\t")
    terminal.await_text(b"orders:2025")
    terminal.type("\r")
    terminal.type("len orders:2\t\r")
    terminal.await_text(b"orders:2025")
    terminal.await_text(b"1\r\n")
    terminal.await_text(PROMPT)
    terminal.type("len nosuch\r")
    terminal.await_text(b"Error: there is no stream 'nosuch'")
    terminal.await_text(PROMPT)
    terminal.type("half a line")
    terminal.await_text(b"half a line")
    terminal.interrupt(PROMPT)
    terminal.type("tail -f orders -n 1\r")
    terminal.await_text(b"qty=4")
    terminal.interrupt(PROMPT)
    terminal.type("add 'x\r")
    terminal.await_text(b"No closing quotation")
    terminal.await_text(PROMPT)
    terminal.type("--url redis://:SECRET@127.0.0.1:1 ls\r")
    terminal.await_text(b"Error: ")
    terminal.await_text(PROMPT)
    terminal.type("\x04")
    assert terminal.wait() == 0
    assert b"Traceback" not in terminal.said
    history = state / "kvstream" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    lines = history.read_text().splitlines()
    assert "len orders:2025" in [line.strip() for line in lines]
    assert "SECRET" not in history.read_text()
    again = Terminal(*orders.place, "shell")
    again.await_text(PROMPT)
    again.type("\x1b[A\x1b[A\r")  # the lines of the last session
    again.await_text(b"tail -f orders -n 1")
    again.await_text(b"qty=4")
    again.type("\x03")
    again.await_text(PROMPT)
    again.type("quit\r")
    assert again.wait() == 0


@pytest.mark.parametrize(
    ("line", "text", "found"),
    [
        ("", "pi", ["ping "]),
        ("", "pe", ["pending ", "persist "]),
        ("ls ", "--js", ["--json "]),
        ("len ", "orders:", ["orders:2025 "]),
        ("pending orders ", "", ["billing "]),
        ("group ", "re", ["reset "]),
        ("ls 'open ", "x", []),
    ],
)
def test_tab_completes_like_a_shell(
    orders: Program, line: str, text: str, found: list[str]
) -> None:
    completer = Completer(main, lambda words: [*orders.place, *words])
    assert sorted(completer.completions(line, text)) == sorted(found)


@pytest.mark.places("store")
def test_tab_completes_paths_and_quotes_names(
    orders: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a file.csv").touch()
    orders("add", "two words", "f=v")
    completer = Completer(main, lambda words: [*orders.place, *words])
    assert completer.completions("import orders ", "fol") == ["folder/"]
    assert completer.completions("import orders ", "folder/") == ["'folder/a file.csv' "]
    assert completer.completions("len ", "two") == ["'two words' "]


@pytest.mark.places("store")
def test_the_prompt_names_the_place_and_no_password(tmp_path: Path) -> None:
    url = "redis://ann:SECRET@127.0.0.1:1/3"
    for words, prompt in (
        (["--url", url], b"kvstream 127.0.0.1:1> "),
        (["--store", "some/where", "--db", "2"], b"kvstream some/where[2]> "),
    ):
        terminal = Terminal(*words, "shell")
        terminal.await_text(prompt)
        terminal.type("\x04")
        assert terminal.wait() == 0
        assert b"SECRET" not in terminal.said


@pytest.mark.places("store")
def test_the_prompt_works_without_readline(
    orders: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(*orders.place, "shell", env={"PYTHONPATH": _without_readline(orders)})
    terminal.await_text(PROMPT)
    terminal.type("len orders\r")
    terminal.await_text(b"5")
    terminal.type("exit\r")
    assert terminal.wait() == 0


def _without_readline(orders: Program) -> str:
    folder = orders.directory.parent / "without"
    folder.mkdir()
    (folder / "readline.py").write_text("raise ImportError\n")
    return f"{folder}:{Path(__file__).parents[2]}"


@pytest.mark.parametrize(("line", "code"), [("hset a b c", 2), ("HSET a b c", 1)])
def test_a_line_with_a_command_that_is_absent_says_why(
    orders: Program, line: str, code: int
) -> None:
    assert "kvstream has no hashes" in orders("shell", input=line, code=code).stderr
