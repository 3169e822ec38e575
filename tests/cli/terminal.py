"""``kvstream`` on a pseudoterminal, whose keys a test types."""

import fcntl
import io
import os
import pty
import select
import struct
import sys
import termios
import time

from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.patience import PATIENCE_S


class TypedInput(io.BytesIO):
    """The input of a program in this process, as typed on a terminal."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """A terminal, of 80 columns by default, with the program on it."""

    def __init__(
        self, *arguments: str, size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None
    ) -> None:
        self.said = b""
        self._seen = 0
        self._ours, theirs = pty.openpty()
        columns, lines = size
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        inherited = dict(os.environ)
        for name in ("COLUMNS", "LINES"):
            inherited.pop(name, None)
        self.process = forking.start(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**inherited, **ENVIRONMENT, "TERM": "xterm", **(env or {})},
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def interrupt(self, text: bytes) -> None:
        """Press Ctrl-C, every ten seconds, until a text appears.

        Python's readline misses a signal just before it waits for a key.
        """
        self.type("\x03")
        self.await_text(text, "\x03")

    def await_text(self, text: bytes, again: str = "") -> str:
        """Read until a text appears after the last call of this; return the new output.

        ``again`` are keys to type every ten seconds meanwhile.
        """
        start, now = self._seen, time.monotonic()
        deadline, at = now + PATIENCE_S, now + 10
        while text not in self.said[start:]:
            assert time.monotonic() < deadline, (text, self.said[start:])
            assert self._read(), (text, self.said[start:])
            if again and time.monotonic() > at:
                self.type(again)
                at += 10
        self._seen = self.said.index(text, start) + len(text)
        return self.said[start : self._seen].decode("utf-8", "replace")

    def _read(self) -> bool:
        if select.select([self._ours], [], [], 0.1)[0]:
            try:
                self.said += os.read(self._ours, 1 << 16)
            except OSError:  # the other side is closed
                return False
        return True

    def wait(self) -> int:
        """Read until the end, and return the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.said
            self._read()
        while select.select([self._ours], [], [], 0)[0] and self._read():
            pass
        os.close(self._ours)
        return self.process.returncode

    def end(self, number: int) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.wait()


_PROGRAM = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal
from kvstream.cli import main
sys.argv[0] = "kvstream"
main()
"""
