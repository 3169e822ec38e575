"""The exit codes: one table, from which the codes, the documents and the advice come.

It knows errors and codes, and no command.
"""

from enum import IntEnum
from typing import IO, Any

import click

from kvstream.cli.tables import printable
from kvstream.errors import (
    BadPayload,
    Corruption,
    DataError,
    InvalidArgument,
    KVStreamError,
    LostWrites,
    NoGroup,
    NoSuchStore,
    RequestError,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    UnknownLayout,
    UnknownOutcome,
    UnsafeDirectory,
    WriteStalled,
)


class ExitCode(IntEnum):
    """What the process tells its caller."""

    OK = 0
    FAILED = 1
    USAGE = 2
    LOCKED = 3
    DAMAGED = 4
    UNAVAILABLE = 5
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS = {
    ExitCode.OK: "Done. An empty answer, such as a `range` without entries, is an answer.",
    ExitCode.FAILED: (
        "The request was refused or found nothing: no such stream, group or consumer; an ID that "
        "is too small; none of the entries named to `del`, `ack`, `nack` or `claim` was there; "
        "`read` got nothing; a bad line stopped an `import`; `migrate verify` found a difference; "
        "`migrate run` met keys that differ, or was refused for what would be lost."
    ),
    ExitCode.USAGE: "Wrong usage: an unknown option, a value out of range, not an ID.",
    ExitCode.LOCKED: "Another process holds the store. Nothing was done.",
    ExitCode.DAMAGED: (
        "The data is not what was written: damage, of a file that is migrated too; lost writes, an "
        "unknown layout; or `check` has found faults that it did not repair."
    ),
    ExitCode.UNAVAILABLE: (
        "The store cannot be used now: there is none in that directory, the directory is unsafe, "
        "the disk is full or fails, writes are refused, or the outcome of a write is unknown; the "
        "server does not answer, or lets nobody in without a password."
    ),
    ExitCode.INTERRUPTED: "Ended by Ctrl-C. What was committed before stays.",
    ExitCode.BROKEN_PIPE: "The reader of the output has gone away, as in `| head`.",
}

_CODES: tuple[tuple[type[Exception], ExitCode], ...] = (
    (BadPayload, ExitCode.DAMAGED),
    (InvalidArgument, ExitCode.USAGE),
    (RequestError, ExitCode.FAILED),
    (StoreLocked, ExitCode.LOCKED),
    (StoreError, ExitCode.UNAVAILABLE),
    (DataError, ExitCode.DAMAGED),
    (KVStreamError, ExitCode.UNAVAILABLE),  # such as a package that is not installed
    (OSError, ExitCode.UNAVAILABLE),
)
"""The first that fits."""

_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (NoGroup, "see: kvstream group ls STREAM"),
    (NoSuchStore, "name another, or make one with add or import"),
    (
        StoreLocked,
        "wait for it with --wait DURATION, or stop it; if it serves, name it with --url; a "
        "checkpoint can be read meanwhile",
    ),
    (StoreFull, "make room on the disk, or with trim, del or rm, and try again"),
    (StoreReadOnly, "look at the disk, then try again"),
    (WriteStalled, "try again in a while"),
    (UnknownOutcome, "see whether it is there before you repeat it, and look at what failed"),
    (
        UnsafeDirectory,
        "a store wants a directory of its own: yours, 0700, without links, empty or yet to be made",
    ),
    (
        LostWrites,
        "see what is lost: kvstream recover; to give it up: kvstream recover --accept-loss",
    ),
    (Corruption, "restore the last checkpoint; kvstream check shows what can still be read"),
    (UnknownLayout, "use the version of kvstream that wrote it"),
)
"""What to do about an error; the first that fits."""


class Failure(click.ClickException):
    """An error of kvstream or of the system, as one line on stderr."""

    def __init__(self, error: Exception) -> None:
        super().__init__(explain(error))
        self.code = int(code_of(error))

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self.code

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Error: {self.message}", file=file, err=file is None)


def code_of(error: Exception) -> ExitCode:
    """Return the exit code of an error."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


def explain(error: Exception) -> str:
    """Return what happened and what to do about it, on one line that any terminal can show."""
    message = printable(_message(error))
    advice = next((text for kind, text in _ADVICE if isinstance(error, kind)), None)
    return f"{message} ({advice})" if advice else message


def _message(error: Exception) -> str:
    if isinstance(error, KVStreamError) or not isinstance(error, OSError):
        return str(error)
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


def nothing_unless(found: object) -> None:
    """End with exit code 1 where nothing was found or done."""
    if not found:
        raise click.exceptions.Exit(int(ExitCode.FAILED))
