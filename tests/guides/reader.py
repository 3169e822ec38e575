"""Follow a page of docs/ from top to bottom in the current directory, as a reader would.

    python -m tests.guides.reader PAGE
    python -m tests.guides.reader --show PAGE   prints outputs to write the page by, compares none

What it does with the fenced blocks of the page, in their order:

- ``python``: runs it. If its first line is ``# NAME.py``, it is written to that file instead.
- ``text`` right below a block of Python: the output of that block.
- ``console``: runs each line that begins with ``$ ``. Lines below it are its output, where ``...``
  stands for any text. An output that begins with ``Error:`` is that of a command that fails. A
  command that ends with ``&`` runs until the page ends, or until ``kill -9 %1``.
- others are for the reader's eyes.

IDs, times and durations differ from run to run, so they are not compared; nor are blanks. A page
runs in a process of its own, since frameworks change logging and signals.
"""

import contextlib
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

from click.testing import CliRunner

from kvstream.cli import main as program
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w/]+\.py|[\w/.]+\.(?:toml|acl|json))\n")
_PORTS = re.compile(r"\b(?:6379|6390|26379|9121|8000)\b")
"""Ports of the pages; they may be in use, so free ones take their place."""
_VARYING = (
    (r"\b\d{13}-\d+\b", "ID"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b", "JOB"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|\+00:00)?", "TIME"),
    (r"\b\d+(?:\.\d+)? ?(?:us|ms|s|B|kB|KB|MB|GB)\b", "AMOUNT"),
    (r"\s+", " "),
)
_SHELL = re.compile(r"[|>;&<*$`]")


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield language and text of each block, and the output shown below a block of Python."""
    found = list(_BLOCK.finditer(page.read_text()))
    for at, block in enumerate(found):
        after = found[at + 1] if at + 1 < len(found) else None
        is_output = (
            block[1] == "python"
            and after is not None
            and after[1] == "text"
            and not block.string[block.end() : after.start()].strip()
        )
        yield block[1], block[2], after[2] if is_output and after else ""


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a ``console`` block with the output shown below it."""
    for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield re.sub(r"\s+#\s.*", "", command).strip(), shown


def same(shown: str, printed: str) -> bool:
    """Return whether an output is the one shown, but for what differs from run to run."""
    for pattern, name in _VARYING:
        shown, printed = (re.sub(pattern, name, text).strip() for text in (shown, printed))
    pattern = ".*".join(re.escape(part.strip()) for part in shown.split("..."))
    return re.fullmatch(pattern.replace(".*", r"\s*.*\s*"), printed, re.DOTALL) is not None


class Reader:
    """One who follows a page."""

    def __init__(self, page: Path, shows: bool = False) -> None:
        self._page = page
        self._shows = shows
        self._ports: dict[str, int] = {}
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        programs = Path("..", f"bin-{os.getpid()}").resolve()
        programs.mkdir()
        for name, words in (("kvstream", "-m kvstream"), ("python", ""), ("pytest", "-m pytest")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            (programs / name).chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        os.environ.update(PATH=path, PYTHONPATH=f"{ROOT}:.", XDG_STATE_HOME=f"{programs}.state")
        sys.path[:0] = ["", str(ROOT)]

    def follow(self) -> None:
        """Run all blocks, then end what was started."""
        try:
            for language, text, shown in blocks(self._page):
                text = _PORTS.sub(self._free, text)
                if language == "python" or _FILE.match(text):
                    self._python(text, _PORTS.sub(self._free, shown))
                elif language == "console":
                    for command, output in commands(text):
                        self._run(command, output)
        finally:
            self._end()

    def _free(self, found: "re.Match[str]") -> str:
        return str(self._ports.setdefault(found[0], free_port()))

    def _python(self, text: str, shown: str) -> None:
        if named := _FILE.match(text):
            Path(named[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(named[1]).write_text(text)
            return
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            sys.modules["page"] = module = ModuleType("page")  # decorators look up their module
            exec(compile(text, self._page.name, "exec"), module.__dict__)
        self._compare(text, shown, printed.getvalue())

    def _run(self, command: str, shown: str) -> None:
        if command.endswith("&"):
            self._start(command.removesuffix("&").strip())
            return
        if killed := re.fullmatch(r"kill -(\w+) %(\d)", command):
            self._kill(int(killed[2]), killed[1])
            return
        code, printed = self._in_process(command) or self._by_shell(command)
        failing = shown.startswith("Error:")
        if not self._shows:
            assert (code != 0) == failing, f"{command}\nends with {code}:\n{printed}"
        self._compare(command, shown, printed)

    def _compare(self, done: str, shown: str, printed: str) -> None:
        if self._shows:
            print(f"$ {done}\n{printed}")
        else:
            assert not shown.strip() or same(shown, printed), f"{done}\nprints\n{printed}"

    def _in_process(self, command: str) -> tuple[int, str] | None:
        if not command.startswith("kvstream ") or _SHELL.search(command):
            return None
        done = CliRunner().invoke(program, shlex.split(command)[1:], prog_name="kvstream")
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    def _by_shell(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stdout

    def _start(self, command: str) -> None:
        self._running.append((command, subprocess.Popen(["sh", "-c", f"exec {command}"])))
        for port in map(int, re.findall(r"-port[ =](\d\d+)", command)):
            until(partial(_answers, port), f"{command} to listen", 0.05)

    def _kill(self, number: int, name: str) -> None:
        process = self._running[number - 1][1]
        process.send_signal(int(name) if name.isdigit() else signal.Signals[f"SIG{name}"])
        process.wait(PATIENCE_S)

    def _end(self) -> None:
        for command, process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                code = process.wait(PATIENCE_S)
                if command.startswith("kvstream") and sys.exc_info()[0] is None:
                    assert code == 0, f"{command} ended with {code}"


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def main(arguments: list[str]) -> None:
    """Follow the pages, one after another."""
    shows = "--show" in arguments
    for name in arguments:
        if name != "--show":
            Reader(Path(name), shows).follow()


if __name__ == "__main__":
    main(sys.argv[1:])
