"""Profiles: places with names, in one configuration file."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvstream.cli import main
from tests.cli.program import Program

GIVEN = ("KVSTREAM_STORE", "KVSTREAM_URL", "KVSTREAM_PROFILE")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config" / "kvstream" / "config.toml"
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("KVSTREAM_CONFIG", raising=False)
    return path


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, words, prog_name="kvstream")
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result


@pytest.mark.places("store", "server")
def test_a_profile_names_the_place(
    orders: Program, place: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = {"store": "store", "server": "url"}[place]
    config.write_text(
        f'[profiles.prod]\n{kind} = "{orders.place[1]}"\nwait = "2s"\n'
        f'[profiles.other]\n{kind} = "{orders.place[1]}"\ndb = 3\n'
    )
    assert run("--profile", "prod", "len", "orders").stdout == "5\n"
    assert run("len", "orders", "--profile=prod").stdout == "5\n"
    assert "database 3" in run("--profile", "other", "len", "orders", code=1).stderr
    assert run("--profile", "other", "--db", "0", "len", "orders").stdout == "5\n"
    monkeypatch.setenv("KVSTREAM_PROFILE", "prod")
    assert run("len", "orders").stdout == "5\n"
    nowhere = str(config.parent / "nowhere")
    assert "there is no store in" in run("--store", nowhere, "len", "orders", code=5).stderr
    monkeypatch.setenv("KVSTREAM_STORE", nowhere)
    assert "either --profile (KVSTREAM_PROFILE) or --store" in run("ls", code=2).stderr
    assert run("--profile", "prod", "len", "orders").stdout == "5\n"


def test_a_store_is_found_beside_the_file(orders: Program, config: Path) -> None:
    orders.directory.rename(config.parent / "data")
    config.write_text('[profiles.here]\nstore = "data"\n')
    assert run("--profile", "here", "len", "orders").stdout == "5\n"
    (config.parent / "data").rename(orders.directory)


def test_another_file_may_be_named(
    orders: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'[profiles.a]\nstore = "{orders.directory}"\n')
    monkeypatch.setenv("KVSTREAM_CONFIG", str(path))
    assert run("--profile", "a", "len", "orders").stdout == "5\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[profiles.prod]\nstore = "x"', "has no profile 'prdo': did you mean 'prod'?"),
        ('[profiles.prdo]\nstoer = "x"', "unknown option 'stoer': did you mean 'store'?"),
        ('[profiles.prdo]\nstore = "x"\nurl = "y"', "it needs either store or url, not both"),
        ("[profiles.prdo]\ndb = 1", "it needs either store or url"),
        ("[profiles.prdo]\nstore = 5", "store must be text"),
        ("[profiles]\nprdo = 5", "it must be a table"),
        ("profiles = 5", "profiles must be a table of tables"),
        ('[profile.prdo]\nstore = "x"', "unknown table 'profile': did you mean 'profiles'?"),
        ('[profiles.prdo]\nstore = "x"\nwait = "soon"', "wait: 'soon' is not a duration"),
        ('[profiles.prdo]\nstore = "x"\ndb = 99', "db: 99 is not in the range"),
        ('[profiles.prdo]\nurl = "x"\ndurability = "no"', "durability is for a store"),
        ("[profiles", "config.toml: "),
        (None, "there is no file "),
    ],
)
def test_a_wrong_profile_is_reported_with_the_file(
    config: Path, text: str | None, message: str
) -> None:
    if text is not None:
        config.write_text(text)
    shown = run("--profile", "prdo", "ls", code=2).stderr
    assert message in shown
    assert str(config) in shown


def test_a_password_must_be_private(config: Path) -> None:
    config.write_text('[profiles.prod]\nurl = "redis://ann:SECRET@127.0.0.1:1"\n')
    config.chmod(0o640)
    shown = run("--profile", "prod", "ls", code=2).stderr
    assert f"run chmod 600 {config}" in shown
    config.chmod(0o600)
    shown += run("--profile", "prod", "ls", code=5).stderr
    assert "no connection to 127.0.0.1:1" in shown
    assert "SECRET" not in shown


def test_a_profile_is_no_place_of_a_migration(config: Path) -> None:
    config.write_text('[profiles.prod]\nstore = "x"\n')
    shown = run("--profile", "prod", "migrate", "status", code=2).stderr
    assert "--profile cannot be used before migrate" in shown


def test_shells_complete_profiles_and_their_streams(
    orders: Program, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(
        f'[profiles.prod]\nstore = "{orders.directory}"\n[profiles.test]\nstore = "x"\n'
    )
    for line, found in (
        ("kvstream --profile pr", "plain,prod"),
        ("kvstream --profile prod len orders:", "plain,orders:2025"),
        ("kvstream --profile prdo len orders:", ""),
    ):
        env = {"_KVSTREAM_COMPLETE": "bash_complete", "COMP_LINE": line}
        result = CliRunner().invoke(main, [], prog_name="kvstream", env=env)
        assert result.stdout.strip() == found
    os.remove(config)
    env["COMP_LINE"] = "kvstream --profile "
    assert CliRunner().invoke(main, [], prog_name="kvstream", env=env).stdout.strip() == ""
