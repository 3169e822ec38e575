"""``kvstream migrate``: its arguments, its output, and its exit codes."""

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kvstream.cli import main
from kvstream.cli.migration.command import migrate
from tests.cli.program import examples_of
from tests.cli.terminal import TypedInput
from tests.migration.conftest import Start
from tests.migration.filling import fill
from tests.migration.servers import RedisServer

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
LOCAL, OTHER = "redis://127.0.0.1:6379", "redis://127.0.0.1:6380"


def run(*words: str, code: int = 0, **options: str) -> Result:
    result = CliRunner().invoke(main, ["migrate", *words], prog_name="kvstream", env=options)
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}"
    return result


def objects(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_plan_shows_each_key_and_writes_nothing(source: RedisServer, tmp_path: Path) -> None:
    fill(source.client())
    source.client().rpush("a list", 1)
    rows = objects(run("plan", source.url, str(tmp_path / "store"), "--json"))
    orders = next(row for row in rows if row["key"] == "orders")
    assert (orders["entries"], orders["groups"], orders["pending"]) == (700, 2, 150)
    assert (orders["target"], orders["lost"]) == ("new", [])
    assert next(row for row in rows if row["key"] == "a list")["target"] == "skipped"
    assert not (tmp_path / "store").exists()
    text = run("plan", source.url, str(tmp_path / "store")).stdout
    assert "8 keys to migrate, 1 to skip" in text


def test_a_run_is_verified_and_known_to_status(source: RedisServer, tmp_path: Path) -> None:
    fill(source.client())
    there = str(tmp_path / "store")
    assert "8 keys copied" in run("run", source.url, there).stdout
    assert run("verify", source.url, there).stdout.startswith("equal: 8 keys, 1,107 entries")
    (status,) = objects(run("status", "--json"))
    assert (status["source"], status["state"]) == (source.url, "finished")
    assert (status["keys"], status["entries"]) == (8, 1107)


def test_a_difference_is_named_and_exits_with_1(source: RedisServer, tmp_path: Path) -> None:
    fill(source.client())
    there = str(tmp_path / "store")
    run("run", source.url, there)
    source.client().xack("orders", "bill", "1001-1")
    found = objects(run("verify", source.url, there, "--json", code=1))
    assert found[0]["key"] == "orders"
    assert found[0]["what"] == "group 'bill', pending 1001-1"
    assert (found[0]["source"], found[0]["target"]) == ("absent", "of 'worker-3'")
    assert "1001-1" in run("verify", source.url, there, code=1).stdout
    errors = run("run", source.url, there, code=1)
    assert "1 key different" in errors.stdout
    assert "pending 1001-1: absent at the source" in errors.stderr
    assert "1 key replaced" in run("run", source.url, there, "--replace").stdout
    run("verify", source.url, there)


def test_a_password_comes_from_the_environment_or_a_file(
    source: RedisServer, tmp_path: Path
) -> None:
    source.client().acl_setuser(
        "ann", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"]
    )
    source.client().xadd("s", {"a": 1})
    ann = ("--source-user", "ann")
    there = str(tmp_path / "store")
    run("plan", source.url, there, *ann, code=5, KVSTREAM_SOURCE_PASSWORD="wrong")
    run("plan", source.url, there, *ann, KVSTREAM_SOURCE_PASSWORD="secret")
    file = tmp_path / "password"
    file.write_text("secret\n")
    assert run("run", source.url, there, *ann, "--source-password-file", str(file)).stderr == ""
    with_password = source.url.replace("redis://", "redis://ann:secret@")
    errors = run("run", with_password, there)
    assert "other users of this machine can see the password" in errors.stderr
    assert "secret" not in errors.stdout + errors.stderr


@pytest.mark.parametrize("content", ["", "\n", "\nsecret\n"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_an_empty_file_of_a_password_is_refused(tmp_path: Path, side: str, content: str) -> None:
    file, place = tmp_path / "password", "redis://127.0.0.1:1"
    file.write_text(content)
    done = run("run", place, "redis://127.0.0.1:2", f"--{side}-password-file", str(file), code=2)
    assert f"{file}: the first line, the password of the {side}, is empty" in done.stderr


def test_a_password_is_prompted_for_on_a_terminal(source: RedisServer, tmp_path: Path) -> None:
    rights = {"keys": ["*"], "commands": ["+@all"]}
    source.client().acl_setuser("ann", enabled=True, passwords=["+secret"], **rights)
    source.client().xadd("s", {"a": 1})
    words = ["migrate", "run", source.url, str(tmp_path / "store"), "--source-user", "ann"]
    result = CliRunner().invoke(main, words, input=TypedInput(b"secret\n"), env={"TERM": "xterm"})
    assert result.exit_code == 0, result.output
    assert "1 key copied" in result.stdout
    assert "secret" not in result.output


def test_databases_are_named_after_the_command(source: RedisServer, tmp_path: Path) -> None:
    for db in (0, 3):
        source.client(db=db).xadd("s", {"a": 1})
    assert "1 key copied" in run("run", source.url, str(tmp_path / "store"), "--db", "3").stdout
    for option, value in (("--db", "3"), ("--store", "x"), ("--url", source.url)):
        result = CliRunner().invoke(main, [option, value, "migrate", "status"])
        assert result.exit_code == 2
        assert "name SOURCE and TARGET after it" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere", "target"), "nothing at nowhere"),
        (("http://host", "target"), "http://... is a URL, not a path"),
        (("redis://127.0.0.1:1/0", "store", "--target-version", "redis:7.0"), ""),
    ],
)
def test_an_invalid_place_is_reported_in_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["migrate", "run", *words])
    assert result.exit_code in (2, 5)
    assert said in result.stderr


def test_the_commands_of_the_page_run_one_after_another(
    source: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(source.client())
    lines = re.findall(r"^ *\$ kvstream (migrate .*)$", PAGE.read_text(), re.MULTILINE)
    commands = [shlex.split(line, comments=True) for line in lines]
    following = [words for words in commands if {"--follow", "--cutover"} & {*words}]
    at_once = [words for words in commands if words not in following]
    assert {words[1] for words in at_once} == {"plan", "run", "verify"}
    for words in at_once:
        given = [source.url if word == LOCAL else word for word in words]
        result = CliRunner().invoke(main, given, prog_name="kvstream")
        assert result.exit_code == 0, f"{words}\n{result.stdout}{result.stderr}"
    assert len({(words[2], words[3]) for words in following}) == 1  # the cut-over goes on with it


def test_every_example_runs_unchanged(
    source: RedisServer, target: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source.client().xadd("orders:1", {"a": 1})
    source.saved().rename(tmp_path / "dump.rdb")
    assert isinstance(migrate, click.Group)
    for command in (migrate.commands[name] for name in ("run", "plan", "verify", "status")):
        for line in examples_of(command):
            if "--follow" in line or "--cutover" in line:  # see test_replication_cutover.py
                continue
            there = line.replace(LOCAL, source.url).replace(OTHER, target.url)
            result = CliRunner().invoke(main, shlex.split(there)[1:], prog_name="kvstream")
            assert result.exit_code == 0, f"{line}\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hidden@127.0.0.1:{port}",
        "redis://127.0.0.1:{port}/0?username=default&password=hidden",
        "unix://default:hidden@{socket}",
        "redis://:hidden@127.0.0.1:1",
        "redis://:hidden@127.0.0.1:no",
        "redis://:hidden@[::1",
    ],
)
def test_a_password_in_a_url_is_shown_and_kept_nowhere(
    url: str, start_redis: Start, tmp_path: Path
) -> None:
    socket = tmp_path / "socket"
    server = start_redis(
        "locked",
        *("--requirepass", "hidden", "--unixsocket", str(socket)),
        *("--repl-diskless-sync-delay", "0"),
    )
    server.client(password="hidden").xadd("s", {"a": 1})
    there, source = str(tmp_path / "store"), url.format(port=server.port, socket=socket)
    for words in (
        ("plan", source, there),
        ("run", source, there),
        ("verify", source, there),
        ("run", there, source),
        ("run", source, there + "2", "--cutover", "--pause", "6s"),
        ("status",),
    ):
        result = CliRunner().invoke(main, ["migrate", *words], prog_name="kvstream")
        assert isinstance(result.exception, SystemExit | None), result.exception
        assert "hidden" not in result.stdout + result.stderr
    for path in tmp_path.rglob("*"):
        assert "hidden" not in path.name
        if path.is_file() and "locked" not in path.parts:
            assert b"hidden" not in path.read_bytes()
