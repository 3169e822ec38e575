"""stdin, stdout and stderr as a command needs them, however the program was started.

A caller may start the program with closed descriptors, as some daemons do. Then Python has no
``sys.stdout`` at all, and the next file that is opened gets its number. So closed descriptors are
opened first::

    stdin    a read fails: a command that needs no input works
    stdout   what is written is dropped, as by /dev/null
    stderr   the same

An error of stdout, such as a full disk, is ``OutputFailed`` and ends the command. An error of
stderr is ignored, since messages must not stop the work that they describe.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

STDIN, STDOUT, STDERR = range(3)
"""The descriptors of the standard streams."""


class OutputFailed(OSError):
    """Stdout takes no more output, for another reason than a reader that is gone."""


class _Stdin(io.RawIOBase):
    """Stands for a closed stdin: reading it fails."""

    def readable(self) -> bool:
        return True

    def readinto(self, _: "WriteableBuffer", /) -> int:
        raise OSError(errno.EBADF, "it is closed: open it, or name a file", "stdin")


class _Stdout(io.FileIO):
    """Stdout, whose errors can be told from those of other files."""

    def __init__(self, was_closed: bool) -> None:
        super().__init__(STDOUT, "w", closefd=False)
        self.was_closed = was_closed

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFailed(error.errno, error.strerror, "stdout") from None


class _Stderr(io.FileIO):
    """Stderr, whose errors are ignored."""

    def __init__(self) -> None:
        super().__init__(STDERR, "w", closefd=False)

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


@contextmanager
def standard_streams() -> Iterator[None]:
    """Run a program with the three streams; a stream that was replaced, as in tests, stays."""
    closed = [_open_null(number) for number in (STDIN, STDOUT, STDERR)]
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Stdin()))
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(io.BufferedWriter(_Stdout(closed[STDOUT])), sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(io.BufferedWriter(_Stderr()), sys.stderr, line_buffering=True)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # an earlier error ends the program, with its own exit code
            discard_stdout()


def _open_null(number: int) -> bool:
    """Open /dev/null under a number if that is closed, and return whether it was."""
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, number)  # inherited by other programs, unlike the descriptor of os.open
        if null != number:
            os.close(null)
        else:
            os.set_inheritable(number, True)
        return True
    return False


def _text(
    buffer: io.BufferedWriter, old: io.TextIOBase | None, line_buffering: bool = False
) -> io.TextIOWrapper:
    """Return a text stream with the settings of the one that it replaces."""
    if not isinstance(old, io.TextIOWrapper):
        return io.TextIOWrapper(buffer, errors="backslashreplace", line_buffering=line_buffering)
    return io.TextIOWrapper(
        buffer,
        encoding=old.encoding,
        errors="backslashreplace",  # the terminal may not be UTF-8
        line_buffering=old.line_buffering or line_buffering,
        write_through=old.write_through,
    )


def refuse_closed_stdout() -> None:
    """Raise OutputFailed if stdout was closed when the program began."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Stdout) and raw.was_closed:
        raise OutputFailed(errno.EBADF, "it is closed: open it, or name a file", "stdout")


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that flushing its buffer does not fail again."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
