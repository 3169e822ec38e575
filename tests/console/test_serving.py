"""``kvstream console`` as a process: its login URL, and its end."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstream import Store
from tests.cli.program import ENVIRONMENT, Program
from tests.forking import start
from tests.patience import PATIENCE_S


@contextmanager
def console(directory: Path, *words: str) -> Iterator[tuple[str, Any]]:
    """Run the command; yield its first login URL and its process."""
    command = [sys.executable, "-m", "kvstream", "console", "--store", str(directory)]
    process = start(
        [*command, "--port", "0", *words],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("open http://127.0.0.1:"), (line, process.poll())
        yield line.split()[1], process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_command_prints_a_login_url(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", durability="no") as store:
        store.stream("orders").add({"sku": "a1"})
    with console(tmp_path / "s") as (url, process), httpx.Client(timeout=PATIENCE_S) as browser:
        root = url.partition("login")[0]
        assert browser.get(root).status_code == 401
        assert browser.get(url).status_code == 200
        assert "orders" in browser.get(root + "streams").text
        assert browser.get(root, headers={"host": "evil.test"}).status_code == 421
        # another process opens the store meanwhile
        shown = Program(tmp_path / "s")("ls")
        assert "orders" in shown.stdout
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    with Store.open(tmp_path / "s") as store:
        assert store.check() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "make a tunnel"),
        (("--port", "70000"), "not in the range"),
    ],
)
def test_it_starts_on_this_machine_alone(tmp_path: Path, words: tuple[str, str], said: str) -> None:
    result = Program(tmp_path / "s")("console", *words, code=2)
    assert said in " ".join(result.stderr.split())


def test_it_needs_a_store(tmp_path: Path) -> None:
    result = Program(tmp_path / "none")("console", "--port", "0", code=5)
    assert "no store" in result.stderr.lower()
