"""Every error ends with one line and its exit code."""

import inspect
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvstream import Store, errors
from kvstream.cli import main
from kvstream.cli.exit_codes import MEANINGS, ExitCode, Failure, code_of, explain
from kvstream.cli.session import holder_of
from tests.cli.program import Program

ERRORS = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, errors.KVStreamError) and error is not errors.KVStreamError
]


def test_ctrl_c_while_a_command_is_imported_exits_with_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvstream.cli.app.import_module", interrupted)
    result = CliRunner().invoke(main, ["ls", "--store", "data"])
    assert (result.exit_code, result.output) == (ExitCode.INTERRUPTED, "")


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_of_the_library_has_an_exit_code(error: type[Exception]) -> None:
    assert code_of(error("x")) in MEANINGS
    assert Failure(error("x")).exit_code not in (ExitCode.OK, ExitCode.INTERRUPTED)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NoSuchKey(), ExitCode.FAILED),
        (errors.NoSuchStore("x"), ExitCode.UNAVAILABLE),
        (errors.IDTooSmall("x"), ExitCode.FAILED),
        (errors.BusyGroup(), ExitCode.FAILED),
        (errors.InvalidID(), ExitCode.USAGE),
        (errors.StoreLocked("x"), ExitCode.LOCKED),
        (errors.Corruption("x"), ExitCode.DAMAGED),
        (errors.LostWrites("x"), ExitCode.DAMAGED),
        (errors.UnknownLayout("x"), ExitCode.DAMAGED),
        (errors.StoreFull("x"), ExitCode.UNAVAILABLE),
        (errors.StoreReadOnly("x"), ExitCode.UNAVAILABLE),
        (errors.UnknownOutcome("x"), ExitCode.UNAVAILABLE),
        (PermissionError(13, "Permission denied", "f"), ExitCode.UNAVAILABLE),
    ],
)
def test_the_exit_code_separates_usage_data_and_system_errors(
    error: Exception, code: ExitCode
) -> None:
    assert code_of(error) is code


def test_an_error_is_one_printable_line_with_advice() -> None:
    assert explain(errors.Corruption("bad\nblock \x1b[31m")) == (
        r"bad\nblock \x1b[31m (restore the last checkpoint; kvstream export saves streams that can "
        "still be read)"
    )
    assert explain(PermissionError(13, "Permission denied", "f")) == "f: Permission denied"
    assert explain(OSError("no name")) == "no name"
    full = "free space on the disk, then try again"
    assert explain(OSError(28, "No space left", "f")) == f"f: No space left ({full})"
    assert explain(OSError(28, "No space left")) == f"No space left ({full})"


def test_the_store_must_be_an_option_or_in_the_environment(orders: Program) -> None:
    without = {"KVSTREAM_STORE": None}
    result = CliRunner().invoke(main, ["ls"], env=without)
    assert result.exit_code == 2
    assert "KVSTREAM_STORE" in result.stderr
    named = {"KVSTREAM_STORE": str(orders.directory)}
    assert "orders" in CliRunner().invoke(main, ["ls"], env=named).stdout


def test_commands_about_the_program_need_no_store() -> None:
    for arguments in (["version"], ["completion", "zsh"], ["--help"], ["range", "--help"]):
        result = CliRunner().invoke(main, arguments, env={"KVSTREAM_STORE": None})
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("arguments", [["nonsense"], ["ls", "--nonsense"], ["--wait", "x", "ls"]])
def test_wrong_usage_exits_with_2(orders: Program, arguments: list[str]) -> None:
    assert "Usage:" in orders(*arguments, code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--json", "ls"], "--json goes after the command: kvstream COMMAND --json"),
        (["-n", "5", "range", "orders"], "-n goes after the command: kvstream COMMAND -n"),
    ],
)
def test_the_error_for_a_misplaced_option_names_its_place(
    orders: Program, arguments: list[str], hint: str
) -> None:
    shown = orders(*arguments, code=2).stderr
    assert "Usage: kvstream " in shown
    assert shown.endswith(f"\nError: {hint}\n")


@pytest.mark.parametrize("command", ["serve", "check"])
def test_the_error_for_a_store_as_an_argument_names_the_option(
    orders: Program, command: str
) -> None:
    result = CliRunner().invoke(main, [command, "data"], env={"KVSTREAM_STORE": None})
    assert result.exit_code == 2
    assert result.stderr.endswith("extra argument (data); name the store: --store DIR\n")
    assert orders(command, "data", code=2).stderr.endswith("extra argument (data)\n")


def test_global_options_may_follow_the_command(orders: Program) -> None:
    named = str(orders.directory)

    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, list(words), env={"KVSTREAM_STORE": None})
        assert result.exit_code == code, result.output
        return result.stdout

    assert run("len", "orders", "--store", named) == "5\n"
    assert run("len", f"--store={named}", "orders", "--wait", "0") == "5\n"
    assert run("--store", "/none", "len", "orders", "--store", named) == "5\n"
    assert "billing" in run("group", "ls", "--store", named, "orders")
    assert run("ls", "--db", "1", "--store", named) == ""
    assert run("--store", named, "add", "orders", "--", "--db=1").endswith("-0\n")
    assert "the default" not in run("ls", "--store", code=2)
    shown = CliRunner().invoke(main, ["serve", "--help", "--durability", "always"]).stdout
    assert "--durability" in shown


@pytest.mark.parametrize("arguments", [["--nonsense", "ls"], ["ls", "--nonsense"]])
def test_the_error_for_an_unknown_option_names_no_place(
    orders: Program, arguments: list[str]
) -> None:
    shown = orders(*arguments, code=2).stderr
    assert "No such option" in shown
    assert " goes " not in shown


def test_the_help_and_the_advice_name_the_same_option(orders: Program) -> None:
    advice = re.search(r"--wait [A-Z]+", explain(errors.StoreLocked("x")))
    assert advice is not None
    assert advice[0] in orders("--help").stdout


def test_the_error_for_a_locked_store_names_the_process(orders: Program) -> None:
    with Store.open(orders.directory):
        shown = orders("ls", code=3).stderr
        assert "is held by process " in shown
        assert "--wait DURATION" in shown
        assert "shared=True" in shown
        assert len(shown.splitlines()) == 1
        assert orders("add", "orders", "a=1", code=3).stdout == ""
        assert orders("recover", code=3).stdout == ""
        assert "is held by process " in orders("serve", "--port", "0", code=3).stderr


def test_several_readers_exclude_writers(orders: Program) -> None:
    with Store.open(orders.directory, read_only=True):
        assert orders.one("len", "orders") == {"length": 5}
        orders("add", "orders", "a=1", code=3)


def test_a_free_or_missing_store_has_no_owner(orders: Program, tmp_path: Path) -> None:
    assert holder_of(orders.directory) is None
    assert holder_of(tmp_path / "missing") is None


def test_every_error_has_an_exit_code() -> None:
    class OfItsOwn(errors.KVStreamError):
        """As if a package is not installed."""

    assert code_of(OfItsOwn("missing")) is ExitCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["lst"], "No such command 'lst': did you mean 'ls'?"),
        (["hel"], "No such command 'hel': did you mean 'help'?"),
        (["group", "creat"], "No such command 'creat': did you mean 'create'?"),
        (["help", "exprot"], "No such command 'exprot': did you mean 'export'?"),
        (["XLEN", "orders"], "for a command of Redis use kvstream cmd XLEN ..."),
        (["xadd"], "for a command of Redis use kvstream cmd xadd ..."),
        (["publish", "a", "b"], "for a command of Redis use kvstream cmd publish ..."),
        (["PUBLISH", "a", "b"], "for a command of Redis use kvstream cmd PUBLISH ..."),
        (["config", "get", "x"], "for a command of Redis use kvstream cmd config ..."),
        (["hset", "a", "b", "c"], "(kvstream has no hashes: its types are streams and strings)"),
        (["lpush", "a", "b"], "(kvstream has no lists: its types are streams and strings)"),
        (["json.set"], "(kvstream has no JSON documents: its types are streams and strings)"),
    ],
)
def test_a_wrong_command_names_the_nearest_one(
    orders: Program, words: list[str], hint: str
) -> None:
    assert orders(*words, code=2).stderr.endswith(f"{hint}\n")


def test_help_shows_the_help_of_a_command(orders: Program) -> None:
    for words in ([], ["ls"], ["group", "create"], ["shell"]):
        assert orders("help", *words).stdout == orders(*words, "--help").stdout
    assert "ls has no commands of its own" in orders("help", "ls", "x", code=2).stderr


def test_lines_of_a_shell_may_be_commands_of_redis(orders: Program) -> None:
    shown = orders("shell", input="XLEN orders\nhelp ttl\nlen orders\n").stdout
    assert shown.startswith("(integer) 5\nUsage: kvstream ttl")
    assert shown.endswith("\n5\n")
