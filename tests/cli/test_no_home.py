"""A user without a home folder, as in a container that runs as a bare number."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from kvstream.cli import main
from kvstream.cli.profiles import config_path, profile_names
from kvstream.cli.shell import history_path
from kvstream.errors import InvalidArgument
from kvstream.migration.journal import default_folder
from kvstream.types.user_folders import expand
from tests.cli.program import Program
from tests.cli.terminal import Terminal

VARIABLES = ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "KVSTREAM_CONFIG", "KVSTREAM_HISTORY")


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder, as a user without HOME and without a line in /etc/passwd."""

    def getpwuid(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("kvstream.types.user_folders.getpwuid", getpwuid)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def run(*words: str, code: int) -> Result:
    result = CliRunner().invoke(main, words, prog_name="kvstream")
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result


def test_a_migration_asks_for_a_folder_of_its_progress(orders: Program, tmp_path: Path) -> None:
    move = ("migrate", "run", str(orders.directory), str(tmp_path / "out.rdb"))
    for words in (move, ("migrate", "status")):
        said = run(*words, code=2).stderr
        assert said.startswith("Error: this user has no home folder: set HOME or XDG_STATE_HOME")
        assert "--state DIR" in said
    assert not (tmp_path / "out.rdb").exists()
    run(*move, "--state", str(tmp_path / "state"), code=0)
    assert list(Path.cwd().iterdir()) == []


def test_a_home_that_cannot_be_written_leads_to_the_option(
    orders: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    said = run("migrate", "run", str(orders.directory), str(tmp_path / "out.rdb"), code=5).stderr
    assert "(--state DIR)" in said


def test_a_profile_asks_for_its_file() -> None:
    said = run("--profile", "prod", "ls", code=2).stderr
    assert (
        "no home folder: set HOME or XDG_CONFIG_HOME, or name the file in KVSTREAM_CONFIG" in said
    )
    assert profile_names() == []


def test_the_store_of_a_profile_in_the_home_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text('[profiles.prod]\nstore = "~/data"\n')
    monkeypatch.setenv("KVSTREAM_CONFIG", str(tmp_path / "config.toml"))
    assert "~/data: there is no home folder for ~" in run("--profile", "prod", "ls", code=2).stderr


def test_the_shell_works_without_a_history(orders: Program) -> None:
    with pytest.raises(InvalidArgument, match="KVSTREAM_HISTORY"):
        history_path()
    terminal = Terminal(*orders.place, "shell", env={"HOME": "", "KVSTREAM_HISTORY": "~nobody-/h"})
    terminal.await_text(b"no history is kept")
    terminal.await_text(b"> ")
    terminal.type("len orders\nexit\n")
    terminal.await_text(b"5\r\n")
    assert terminal.wait() == 0


@pytest.mark.parametrize("home", ["", "~", "relative"])
def test_a_home_that_is_no_absolute_path_is_none(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    with pytest.raises(InvalidArgument, match="no home folder"):
        default_folder()


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CONFIG_HOME"])
def test_a_tilde_in_the_environment_is_the_home_folder(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "~/x")
    find = default_folder if variable == "XDG_STATE_HOME" else config_path
    with pytest.raises(InvalidArgument, match="~/x: there is no home folder for ~"):
        find()
    monkeypatch.setenv("HOME", "/home/ann")
    assert str(find()).startswith("/home/ann/x/kvstream/")


def test_without_home_the_line_in_passwd_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(pw_dir="/home/ann")
    monkeypatch.setattr("kvstream.types.user_folders.getpwuid", lambda uid: entry)
    assert default_folder() == Path("/home/ann/.local/state/kvstream/migrate")
    assert expand("~/a") == Path("/home/ann/a")
    assert expand("/b") == Path("/b")
