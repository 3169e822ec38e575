"""Running ``kvstream``: in this process, or as a process of its own."""

import json
import os
import resource
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from kvstream.cli import main
from kvstream.cli.parameters import StreamName
from kvstream.cli.session import names_in
from kvstream.server.runtime.limits import DESCRIPTORS
from kvstream.types.options import MAXCLIENTS
from tests.forking import start
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent.parent
FIRST = "1700000000000-0"
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "",  # compiled once, not by each process anew
    # Tests look whether a server had anything to complain about.
    "KVSTREAM_SERVE_LOGLEVEL": "warning",
}
_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if resource.RLIM_INFINITY != _OPEN_FILES < MAXCLIENTS + DESCRIPTORS:  # each would warn of that
    ENVIRONMENT["KVSTREAM_SERVE_MAXCLIENTS"] = str(_OPEN_FILES - DESCRIPTORS)


@dataclass(frozen=True)
class Program:
    """The program, with a store named."""

    directory: Path

    @property
    def place(self) -> list[str]:
        """The words that say where it works."""
        return ["--store", str(self.directory)]

    def __call__(
        self,
        *arguments: str,
        code: int = 0,
        input: str | bytes | None = None,
        env: dict[str, str | None] | None = None,
    ) -> Result:
        """Run it in this process, and assert its exit code."""
        words = [*self.place, "--wait", "0", *arguments]
        env = {"KVSTREAM_SERVE_LOGLEVEL": "warning", **(env or {})}
        result = CliRunner().invoke(main, words, input=input, env=env, prog_name="kvstream")
        shown = f"{shlex.join(arguments)}\n{result.stdout}\n{result.stderr}"
        assert result.exception is None or isinstance(result.exception, SystemExit), shown
        assert result.exit_code == code, shown
        return result

    def lines(self, *arguments: str, code: int = 0, input: str | None = None) -> list[str]:
        """Run it, and return the lines that it writes to stdout."""
        return self(*arguments, code=code, input=input).stdout.splitlines()

    def json(self, *arguments: str, code: int = 0, input: str | bytes | None = None) -> list[Any]:
        """Run it with ``--json``, and return its objects."""
        result = self(*arguments, "--json", code=code, input=input)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def one(self, *arguments: str, code: int = 0, input: str | bytes | None = None) -> Any:
        """Run it with ``--json``, and return its only object."""
        (value,) = self.json(*arguments, code=code, input=input)
        return value

    def has_logged(self) -> bool:
        """Tell whether there is a row in the log of the store, which may be just being opened."""
        with suppress(FileNotFoundError):
            return any(path.stat().st_size for path in self.directory.glob("*.log"))
        return False

    def command(self, *arguments: str) -> list[str]:
        """Return the words that start it as a process of its own."""
        return [sys.executable, "-m", "kvstream", *self.place, *arguments]

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        """Start it as a process of its own; stdin, stdout and stderr are pipes by default."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        env = {**os.environ, **ENVIRONMENT, **options.pop("env", {})}
        return start(self.command(*arguments), env=env, **{**pipes, **options})

    def run(self, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
        """Run it as a process of its own to its end."""
        with self.start(*arguments, **options) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@dataclass(frozen=True)
class RemoteProgram(Program):
    """The program, with a server named; ``directory`` is the server's."""

    url: str

    @property
    def place(self) -> list[str]:
        return ["--url", self.url]


def examples_of(command: click.Command) -> list[str]:
    """Return the command lines of a command's example."""
    lines = (command.epilog or "").splitlines()
    return [line.removeprefix("  $ ") for line in lines if line.startswith("  $ ")]


def completed(*place: str) -> list[str]:
    """Return the names of streams that a shell offers after global options."""
    ctx = main.make_context("kvstream", [*place], resilient_parsing=True)
    return names_in(ctx, StreamName().names)
