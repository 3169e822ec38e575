"""Following and cutting over as library calls, and the status that others see meanwhile."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvstream import InvalidArgument, Store, StoreLocked, migration
from kvstream.cli import main
from kvstream.migration import Pair
from kvstream.migration.journal import Phase, followers
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.cli.terminal import TypedInput
from tests.migration.sources import Source, needs_redis
from tests.patience import until
from tests.serving import ServerProcess

pytestmark = needs_redis


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    server = Source(tmp_path / "redis", "--save", "")
    for number in range(50):
        server.ask("XADD", "s", "*", "n", number)
    server.ask("XGROUP", "CREATE", "s", "g", "0")
    yield server
    server.stop()


def level(pair: Pair) -> bool:
    lag = pair.lag()
    return lag is not None and lag[0] == 0


def test_a_program_follows_resumes_and_cuts_over(
    source: Source, tmp_path: Path, state: Path
) -> None:
    there = tmp_path / "store"
    said: list[str] = []
    migration.follow(source.url, there, until=level, said=said.append)
    assert said[0] == "the source sends a snapshot"
    (reply,) = followers(state)
    assert (reply.source, reply.target, reply.state) == (source.url, str(there), "interrupted")
    received = reply.bytes
    assert received > 100
    source.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", 10, "STREAMS", "s", ">")
    migration.follow(source.url, there, until=level, said=said.append)
    (reply,) = followers(state)
    assert reply.offset > 100
    assert reply.commands >= 10
    assert reply.bytes > received + 100
    done = migration.cut_over(source.url, there, pause_s=1, said=said.append)
    assert done.is_done
    assert done.is_paused
    assert said.count("the source sends a snapshot") == 1
    with Store.open(there, read_only=True) as store:
        assert len(store.stream("s")) == 50
        assert store.stream("s").group("g").pending().count == 10
        assert store.keys("kvstream:*") == []
    (reply,) = followers(state)
    assert (reply.phase, reply.state) == (Phase.DONE, "finished")


def test_a_source_that_cannot_be_followed_is_refused_before_any_file_is_created(
    source: Source, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="live server"):
        migration.follow(tmp_path, tmp_path / "store")
    with pytest.raises(InvalidArgument, match="into a store"):
        migration.cut_over(source.url, tmp_path / "out.rdb")
    assert not (tmp_path / "store").exists()


def is_level(found: list[dict[str, object]]) -> bool:
    return bool(found) and (found[0]["phase"], found[0]["behind_bytes"]) == ("following", 0)


def rows(*words: str) -> list[dict[str, object]]:
    result = CliRunner().invoke(main, ["migrate", "status", "--json", *words])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_status_shows_a_running_and_a_killed_follower(
    source: Source, tmp_path: Path, state: Path
) -> None:
    words = ["migrate", "run", source.url, str(tmp_path / "store"), "--follow"]
    program = [sys.executable, "-m", "kvstream", *words]
    following = forking.start(program, env={**os.environ, **ENVIRONMENT}, stderr=subprocess.PIPE)
    try:
        until(lambda: state.is_dir() and is_level(rows()), "the follower to be level")
        (row,) = rows()
        assert (row["kind"], row["state"], row["phase"]) == ("follow", "running", "following")
        assert (row["behind_bytes"], row["behind_ms"]) == (0, 0)
        assert isinstance(row["begun_ms"], int)
        assert isinstance(row["since_ms"], int)
        assert row["begun_ms"] <= row["since_ms"] <= time.time() * 1000
        with pytest.raises(StoreLocked):
            migration.follow(source.url, tmp_path / "store")
    finally:
        following.kill()
        following.communicate()
    (row,) = rows()
    assert (row["state"], row["phase"]) == ("interrupted", "following")
    shown = CliRunner().invoke(main, ["migrate", "status"]).stdout
    assert "interrupted" in shown
    assert "since" in shown


def test_the_password_of_a_target_is_prompted_for_too(source: Source, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store")
    try:
        with server.asker() as asker:
            asker.ask("CONFIG SET requirepass secret")
        words = ["migrate", "run", source.url, f"redis://127.0.0.1:{server.port}", "--cutover"]
        typed = TypedInput(b"secret\n")
        result = CliRunner().invoke(
            main, [*words, "--pause", "1s"], input=typed, env={"TERM": "xterm"}
        )
        assert result.exit_code == 0, result.output
        assert "secret" not in result.output
    finally:
        server.stop()


@pytest.mark.parametrize("option", ["--replace", "--target-version=valkey"])
def test_options_without_meaning_for_following_are_refused(option: str, tmp_path: Path) -> None:
    words = ["migrate", "run", "redis://127.0.0.1:1", str(tmp_path / "store"), "--follow", option]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "cannot be used with --follow" in result.stderr
