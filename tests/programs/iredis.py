"""iredis: commands of its line, of its input, and of a terminal."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from tests.patience import PATIENCE_S, until
from tests.programs.environment import clean_environment, python_with
from tests.programs.outcomes import Outcome, Program, checks

VERSION = "1.16.1"


class _Terminal:
    """An iredis in a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._end, inner = pty.openpty()
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self.seen = ""

    def expect(self, text: str) -> None:
        """Wait until the terminal shows a text after the last one."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text} is not in {self.seen!r}"
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._end, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"it ended, and showed {self.seen!r}") from None
                if "\x1b[6n" in self.seen:  # it asks where the cursor is
                    self.seen = self.seen.replace("\x1b[6n", "")
                    self.type("\x1b[1;1R")
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@contextmanager
def _home() -> Iterator[dict[str, str]]:
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        yield clean_environment(HOME=place, TERM="xterm", COLUMNS="100", LINES="40")


def _python() -> Path:
    return python_with(
        "iredis", f"iredis=={VERSION}", "redis==7.4.1", "packaging==24.2", "setuptools"
    )


def _run(port: int) -> list[Outcome]:
    program = _python().with_name("iredis")
    command = [str(program), "-p", str(port)]
    with _home() as environment, redis.Redis(port=port, decode_responses=True) as client:
        client.flushall()
        client.xadd("stream", {"a": "1"}, id="1-1")

        def reply(*lines: str) -> list[str]:
            done = subprocess.run(
                command,
                input="\n".join(lines),
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.split()

        def runs_commands() -> None:
            assert reply("SET k v", "GET k") == ["OK", "v"]
            assert "1-1" in reply("XRANGE stream - +")

        def runs_a_script() -> None:
            assert reply("EVAL 'return 40 + ARGV[1]' 0 2") == ["42"]

        def peeks() -> None:
            assert "1-1" in " ".join(reply("PEEK stream"))

        def transaction() -> None:
            assert reply("MULTI", "INCR n", "INCR n", "EXEC")[-1] == "2"

        def terminal() -> None:
            window = _Terminal(command, environment)
            try:
                window.expect(">")
                window.type("PING\r")
                window.expect("PONG")
                window.type("SUBSCRIBE news\r")
                until(lambda: client.publish("news", "hello in there"), "the subscriber")
                window.expect("hello in there")
            finally:
                window.end()

        return checks(
            runs_commands=runs_commands,
            runs_a_script=runs_a_script,
            peeks_at_a_stream=peeks,
            runs_a_transaction=transaction,
            subscribes_in_a_terminal=terminal,
        )


PROGRAMS = (
    Program(
        "iredis",
        VERSION,
        "PyPI",
        "a program of ours: commands, input, scripts, a look into a stream, a transaction, "
        "channels in a terminal (its package has no tests)",
        _run,
        install=_python,
    ),
)
