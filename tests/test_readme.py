"""A reader who follows README.md from top to bottom, in one directory, gets no error."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

import kvstream
from tests import forking
from tests.patience import PATIENCE_S
from tests.ports import free_port

ROOT = Path(kvstream.__file__).resolve().parent.parent
PORT = free_port()
"""A free port replaces the printed one, which may be in use."""
README = (ROOT / "README.md").read_text().replace("6390", str(PORT))
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
SPARK = [block for block in BLOCKS if "kvstream.spark" in block]
"""tests/spark runs it, in its session."""
CLIENTS = [block for block in BLOCKS if "redis.Redis(" in block]
COMMANDS = re.findall(r"^\$ (kvstream --store .*)$", README, re.MULTILINE)
REMOTE_COMMANDS = re.findall(r"^\$ (kvstream --url .*)$", README, re.MULTILINE)
LINES_MAX = 150
"""A reader decides in a minute whether to go on; pages have the rest."""
PRINTED = re.findall(
    r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", README, re.DOTALL | re.MULTILINE
)
"""Blocks of Python, each with the output shown below it."""
ANSWERED = re.findall(r"^\$ (kvstream --store .*)\n((?:(?!\$ |```).*\n)+)", README, re.MULTILINE)
"""Commands, each with the output shown below it."""
SERVING = re.search(r"^\$ kvstream (serve .*) &\n\$ redis-cli (.*)$", README, re.MULTILINE)


def masked(text: str) -> str:
    """Return an output without IDs and times, which differ from run to run."""
    text = re.sub(r"\b\d{13}-\d+\b", "ID", text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)


def run(directory: Path, *arguments: str, anew: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run Python in a separate process, which finds kvstream even if it is not installed.

    It is a fork, or with ``anew`` a new process: each line of the README could be the first one.
    """
    command = [sys.executable, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if not anew:
        return forking.run(command, cwd=directory, env=env, text=True, timeout=PATIENCE_S)
    return subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's directory: one for all blocks and commands."""
    return tmp_path_factory.mktemp("reader")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES_MAX


def test_the_readme_shows_the_library_and_the_program() -> None:
    assert len(BLOCKS) >= 2
    assert len(COMMANDS) >= 6


def test_the_python_blocks_run_as_printed_one_after_another(directory: Path) -> None:
    for block in BLOCKS:
        if block in CLIENTS or block in SPARK:
            continue
        done = run(directory, "-c", block, anew=True)
        assert (done.returncode, done.stderr) == (0, ""), block


def test_the_commands_run_as_printed_one_after_another(directory: Path) -> None:
    for command in COMMANDS:
        done = run(directory, "-m", *shlex.split(command))
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout, command


def test_the_shown_output_is_printed(tmp_path: Path) -> None:
    assert PRINTED
    assert len(ANSWERED) >= 6
    for block, shown in PRINTED:
        assert masked(run(tmp_path, "-c", block).stdout) == masked(shown)
    for command, shown in ANSWERED:
        assert masked(run(tmp_path, "-m", *shlex.split(command)).stdout) == masked(shown)


def test_the_server_accepts_the_printed_requests(directory: Path) -> None:
    assert SERVING is not None
    arguments, words = SERVING[1], shlex.split(SERVING[2])
    remote_commands = [["-m", *shlex.split(command)] for command in REMOTE_COMMANDS]
    clients = [["-c", block] for block in CLIENTS]
    assert remote_commands
    assert clients
    assert words[0] == "-p"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kvstream", *shlex.split(arguments)]
    with forking.start(
        command, cwd=directory, env=env, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().endswith(f"serves depot at 127.0.0.1:{words[1]}\n")
        client: Any = redis.Redis(port=int(words[1]))
        added = client.execute_command(*words[2:])
        assert client.xrevrange("orders", count=1)[0][0] == added
        client.close()
        for given in (*remote_commands, *clients):
            done = run(directory, *given)
            assert (done.returncode, done.stderr) == (0, ""), given
            assert done.stdout, given
        server.terminate()
    assert server.returncode == 0
