"""What cannot be followed is refused before it starts, told meanwhile, and refused at the end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvstream import Store, StoreLocked
from kvstream.cli import main
from kvstream.migration import LossRefused, Pair, cut_over, follow
from kvstream.migration.items import Selection
from kvstream.migration.journal import FollowerNote, Phase, followers, identity_of
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.migration.sources import Source, needs_redis
from tests.migration.test_functions import ONE, TWO, libraries, put
from tests.migration.test_replication_calls import level
from tests.patience import PATIENCE_S, until
from tests.serving import ServerProcess

pytestmark = needs_redis


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    server = Source(tmp_path / "redis", "--save", "", "--databases", "20")
    server.ask("XADD", "s", "*", "n", 1)
    yield server
    server.stop()


def names(refusal: "pytest.ExceptionInfo[LossRefused]") -> set[str]:
    return {loss.name for loss in refusal.value.losses}


@pytest.mark.parametrize("kind", ["store", "server"])
def test_other_types_are_refused_before_anything_is_written(
    kind: str, source: Source, tmp_path: Path
) -> None:
    source.ask("HSET", "h", "a", 1)
    server = ServerProcess(tmp_path / "served") if kind == "server" else None
    there = tmp_path / "store" if server is None else f"redis://127.0.0.1:{server.port}"
    try:
        for call in (follow, cut_over):
            with pytest.raises(LossRefused, match=r"hash \(1 key\)") as refusal:
                call(source.url, there)
            assert names(refusal) == {"other-types"}
        if server is None:
            assert not (tmp_path / "store").exists()
        done = cut_over(source.url, there, pause_s=6, allow_loss=["other-types"])
        assert done.is_done
        assert done.verification.skipped == {"hash": 1}
    finally:
        if server is not None:
            server.stop()


def test_other_types_that_come_later_are_told_and_stop_the_cut_over(
    source: Source, tmp_path: Path
) -> None:
    there, said = tmp_path / "store", list[str]()
    follow(source.url, there, until=level, said=said.append)
    source.ask("RPUSH", "list", 1)
    source.ask("SADD", "set", 1)
    allowed = ["other-types"]
    follow(source.url, there, until=level, said=said.append, allow_loss=allowed)
    assert "left out: commands that kvstream does not have: rpush, sadd" in said
    with pytest.raises(LossRefused, match=r"list \(1 key\), set \(1 key\)"):
        cut_over(source.url, there)
    source.ask("XADD", "s", "*", "n", 2)  # the source takes writes
    assert cut_over(source.url, there, pause_s=6, allow_loss=allowed).is_done
    with Store.open(there, read_only=True) as store:
        assert len(store.stream("s")) == 2


def test_databases_that_the_target_lacks_are_refused_or_left_out(
    source: Source, tmp_path: Path
) -> None:
    high = source.connect(19)
    high.execute_command("XADD", "high", "*", "n", 1)
    with pytest.raises(LossRefused) as refusal:
        follow(source.url, tmp_path / "store")
    assert names(refusal) == {"databases"}

    def write(pair: Pair) -> bool:
        if level(pair) and pair.commands == 0:
            high.execute_command("XADD", "high", "*", "n", 2)
            source.ask("XADD", "s", "*", "n", 2)
        return level(pair) and pair.commands > 0

    follow(source.url, tmp_path / "low", until=write, allow_loss=["databases"])
    done = cut_over(source.url, tmp_path / "low", pause_s=6, allow_loss=["databases"])
    assert (done.is_done, done.verification.skipped) == (True, {"database 19": 1})
    follow(source.url, tmp_path / "all", until=level, target_databases=20)
    assert cut_over(source.url, tmp_path / "all", pause_s=6, target_databases=20).is_done
    with Store.open(tmp_path / "all", databases=20, read_only=True) as store:
        assert len(store.select(19).stream("high")) == 2


def test_an_unselected_database_beyond_those_of_the_target_does_not_matter(
    source: Source, tmp_path: Path
) -> None:
    high = source.connect(19)

    def write(pair: Pair) -> bool:
        if level(pair) and pair.commands == 0:
            high.execute_command("XADD", "high", "*", "n", 2)
            source.ask("XADD", "s", "*", "n", 2)
        return level(pair) and pair.commands > 0

    follow(source.url, tmp_path / "store", until=write, databases=[0])
    assert cut_over(source.url, tmp_path / "store", databases=[0], pause_s=6).is_done


def test_a_library_that_the_target_cannot_load_is_refused(source: Source, tmp_path: Path) -> None:
    put(tmp_path / "store", ONE.replace("name=one", "name=other"))
    source.ask("FUNCTION", "LOAD", ONE)
    for call in (follow, cut_over):
        with pytest.raises(LossRefused, match="Function first already exists") as refusal:
            call(source.url, tmp_path / "store")
        assert names(refusal) == {"functions"}
    follow(source.url, tmp_path / "other", until=level)
    assert cut_over(source.url, tmp_path / "other", pause_s=6).is_done
    assert libraries(tmp_path / "other") == {b"one": ONE.encode()}


@pytest.mark.parametrize("kind", ["store", "server"])
def test_a_library_that_comes_later_and_cannot_be_loaded_is_left_out(
    kind: str, source: Source, tmp_path: Path
) -> None:
    put(tmp_path / "store", ONE.replace("name=one", "name=other"))
    server = ServerProcess(tmp_path / "store") if kind == "server" else None
    there = tmp_path / "store" if server is None else f"redis://127.0.0.1:{server.port}"
    source.ask("FUNCTION", "LOAD", TWO)
    messages: list[str] = []

    def load(pair: Pair) -> bool:
        if level(pair) and pair.commands == 0:
            source.ask("FUNCTION", "LOAD", ONE)
            source.ask("FUNCTION", "LOAD", "REPLACE", TWO.replace("'second'", "'first2'"))
            source.ask("FUNCTION", "DELETE", "two")
            source.ask("FUNCTION", "LOAD", TWO)
        return level(pair) and pair.commands > 3

    left_out = "left out: functions: the library b'one' cannot be loaded: "
    try:
        follow(source.url, there, until=load, said=messages.append)
        told = [text for text in messages if text.startswith("left out")]
        assert [text[: len(left_out)] for text in told] == [left_out]
        with pytest.raises(LossRefused, match="Function first already exists"):
            cut_over(source.url, there)
        messages.clear()
        done = cut_over(
            source.url, there, pause_s=6, allow_loss=["functions"], said=messages.append
        )
        assert any(text.startswith(left_out) for text in messages)
        assert [each.key for each in done.verification.differences] == [b"other"]
    finally:
        if server is not None:
            server.stop()
    assert libraries(tmp_path / "store").keys() == {b"other", b"two"}


def test_a_library_whose_new_version_is_left_out_leaves_with_it(
    source: Source, tmp_path: Path
) -> None:
    put(tmp_path / "store", ONE.replace("name=one", "name=other"))
    source.ask("FUNCTION", "LOAD", TWO)

    def load(pair: Pair) -> bool:
        if level(pair) and pair.commands == 0:
            clashing = TWO.replace("'second'", "'first'")
            source.ask("FUNCTION", "LOAD", "REPLACE", clashing)
        return level(pair) and pair.commands > 0

    follow(source.url, tmp_path / "store", until=load)
    assert libraries(tmp_path / "store").keys() == {b"other"}


# --- a cut-over beside a running follower ---------------------------------------------------------


def start(source: Source, target: Path, *options: str) -> "subprocess.Popen[str]":
    words = ["migrate", "run", source.url, str(target), *options]
    return forking.start(
        [sys.executable, "-m", "kvstream", *words],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def following(source: Source, target: Path) -> "subprocess.Popen[str]":
    """Start a follower, and return it once it follows."""
    process = start(source, target, "--follow")
    assert process.stderr is not None
    while "following from" not in (line := process.stderr.readline()):
        assert process.poll() is None, line
    return process


def test_a_cut_over_takes_over_from_a_running_follower(source: Source, tmp_path: Path) -> None:
    first = following(source, tmp_path / "store")
    source.ask("XADD", "s", "*", "n", 2)
    second = start(source, tmp_path / "store", "--cutover", "--pause", "6s")
    _, errors = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, errors
    _, errors = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0, errors
    assert "--cutover continues there" in errors
    with Store.open(tmp_path / "store") as store:
        assert len(store.stream("s")) == 2


def test_a_cut_over_that_is_given_up_leaves_the_follower_running(
    source: Source, tmp_path: Path, state: Path
) -> None:
    first = following(source, tmp_path / "store")
    try:
        first.send_signal(signal.SIGSTOP)
        second = start(source, tmp_path / "store", "--cutover")
        assert second.stderr is not None
        while "waiting for the --follow" not in second.stderr.readline():
            assert second.poll() is None
        second.kill()
        second.communicate()
        first.send_signal(signal.SIGCONT)
        source.ask("XADD", "s", "*", "n", 2)
        until(lambda: next(followers(state)).commands > 0)
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


def test_a_cut_over_whose_losses_are_refused_leaves_the_follower_running(
    source: Source, tmp_path: Path, state: Path
) -> None:
    first = following(source, tmp_path / "store")
    try:
        source.ask("HSET", "h", "a", 1)
        second = start(source, tmp_path / "store", "--cutover", "--allow-loss", "functions")
        _, errors = second.communicate(timeout=PATIENCE_S)
        assert second.returncode != 0
        assert "would be lost: other-types" in errors
        assert "has ended" not in errors
        source.ask("XADD", "s", "*", "n", 2)
        until(lambda: next(followers(state)).commands > 1)
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_a_cut_over_that_fails_after_the_follower_ended_says_so(
    source: Source, tmp_path: Path, state: Path, options: list[str]
) -> None:
    first = following(source, tmp_path / "store")
    first.send_signal(signal.SIGSTOP)
    second = start(source, tmp_path / "store", "--cutover", *options)
    identity = identity_of(source.url, str(tmp_path / "store"), Selection())
    with FollowerNote(state, identity) as note:
        until(note.is_taken_over)
    source.ask("HSET", "h", "a", 1)  # after the losses were looked for
    first.send_signal(signal.SIGCONT)
    _, errors = second.communicate(timeout=PATIENCE_S)
    assert second.returncode != 0
    assert "would be lost: other-types" in errors
    assert "the --follow has ended; start it again" in errors
    first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0


def test_a_cut_over_again_says_that_it_is_done(source: Source, tmp_path: Path, state: Path) -> None:
    for _ in range(2):
        process = start(source, tmp_path / "store", "--cutover", "--pause", "1s")
        _, errors = process.communicate(timeout=PATIENCE_S)
        (status,) = followers(state)
        assert (status.state, status.phase) == ("finished", Phase.DONE)
        if process.returncode == 0:
            assert "stays paused for 6 s" in errors  # which is the least
    assert process.returncode != 0
    assert f"{source.url} was led over to {tmp_path / 'store'} already, at 20" in errors


def test_a_target_that_another_follower_has_is_named_with_what_must_be_equal(
    source: Source, tmp_path: Path
) -> None:
    first = following(source, tmp_path / "store")
    try:
        second = start(source, tmp_path / "store", "--cutover", "--match", "s*")
        _, errors = second.communicate(timeout=PATIENCE_S)
        assert "the same URL of the source, --match, --db and --state" in errors
        assert str(tmp_path / "store") in errors
        assert "--wait" not in errors
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--follow", "--cutover"], "--cutover follows by itself"),
        (["--follow", "--pause", "9s"], "--pause can only be used with --cutover"),
        (["--pause", "9s"], "--pause can only be used with --cutover"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str], message: str, tmp_path: Path
) -> None:
    words = ["migrate", "run", "redis://127.0.0.1:1", str(tmp_path / "store"), *options]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_one_process_at_a_time_follows_or_cuts_over(tmp_path: Path) -> None:
    identity = identity_of("source", "target", Selection())
    with FollowerNote(tmp_path, identity) as one, FollowerNote(tmp_path, identity) as other:
        one.follow()
        with pytest.raises(StoreLocked, match="--follow of the same places is running"):
            other.follow()
    with FollowerNote(tmp_path, identity) as one, FollowerNote(tmp_path, identity) as other:
        one.cut_over(print, print)
        assert other.is_taken_over()
        for again in (other.follow, lambda: other.cut_over(print, print)):
            with pytest.raises(StoreLocked, match="cut-over of the same places is running"):
                again()
    with FollowerNote(tmp_path, identity) as one:
        one.follow()
        assert not one.is_taken_over()
