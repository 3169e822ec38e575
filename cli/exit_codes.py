"""Exit codes: their meaning, the errors that lead to them, and advice about errors."""

import errno
from collections.abc import Sequence
from enum import IntEnum
from typing import IO, Any

import click

from kvstream.cli.standard_streams import OutputFailed
from kvstream.cli.tables import printable
from kvstream.errors import (
    ArchiveDamaged,
    ArchiveTaken,
    ArchiveUnavailable,
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
    WrongArchiveKey,
)


class ExitCode(IntEnum):
    """The exit codes of ``kvstream``."""

    OK = 0
    FAILED = 1
    USAGE = 2
    LOCKED = 3
    DAMAGED = 4
    UNAVAILABLE = 5
    TAKEN = 6
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS = {
    ExitCode.OK: "Success. An empty result, such as a `range` without entries, is a success.",
    ExitCode.FAILED: (
        "The request was refused or found nothing: there is no such stream, group or consumer; an "
        "ID is too small; `del`, `ack`, `nack` or `claim` found none of the entries; `read` got no "
        "entry; `find` found none; `dead` or `delayed` found no such message; a bad line stopped "
        "an `import`; there is no archive at a URL; `diff` or `migrate verify` found a difference; "
        "`migrate run` found keys that differ, or would lose something that was not allowed."
    ),
    ExitCode.USAGE: (
        "Wrong usage: an unknown option, a value out of range, an invalid ID. Of `diff`, as of the "
        "program of this name, every error."
    ),
    ExitCode.LOCKED: "Another process has the store open. Nothing was done.",
    ExitCode.DAMAGED: (
        "The data is damaged: a store, an archive or a file to migrate cannot be read; writes were "
        "lost; the layout is unknown; or `check` found faults that it did not repair."
    ),
    ExitCode.UNAVAILABLE: (
        "The store or server cannot be used now: the directory has no store or is unsafe, the disk "
        "is full or fails, writes are refused, the outcome of a write is unknown, the server does "
        "not answer, or it refuses the user or password; an archive needs another key."
    ),
    ExitCode.TAKEN: (
        "Another store has taken the archive over, so this one is not its continuation any more."
    ),
    ExitCode.INTERRUPTED: "Stopped by Ctrl-C. Everything committed before stays.",
    ExitCode.BROKEN_PIPE: "The reader of the output closed it, as `| head` does.",
}


_CODES: tuple[tuple[type[Exception], ExitCode], ...] = (
    (BadPayload, ExitCode.DAMAGED),
    (InvalidArgument, ExitCode.USAGE),
    (RequestError, ExitCode.FAILED),
    (StoreLocked, ExitCode.LOCKED),
    (ArchiveTaken, ExitCode.TAKEN),
    (StoreError, ExitCode.UNAVAILABLE),
    (DataError, ExitCode.DAMAGED),
    (KVStreamError, ExitCode.UNAVAILABLE),  # such as a package that is not installed
    (OSError, ExitCode.UNAVAILABLE),
)
"""The exit code of each error; the first match counts."""

_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (NoGroup, "list the groups with: kvstream group ls STREAM"),
    (NoSuchStore, "name another one, or create a store with add or import"),
    (
        StoreLocked,
        "wait with --wait DURATION; if it is a server, use --url; a program that opens it with "
        "shared=True lets commands in; a checkpoint can be read meanwhile",
    ),
    (StoreFull, "free space on the disk, or use trim, del or rm, then try again"),
    (ArchiveTaken, ""),  # it says what to do
    (WrongArchiveKey, ""),
    (ArchiveUnavailable, "look at its address and the credentials in the environment"),
    (StoreReadOnly, "check the disk, then try again"),
    (WriteStalled, "try again later"),
    (UnknownOutcome, "check whether the write was done before you repeat it"),
    (
        UnsafeDirectory,
        "a store needs a directory of its own: owned by you, mode 0700, no link, and empty or new",
    ),
    (
        LostWrites,
        "show what is lost with: kvstream recover; accept it with: kvstream recover --accept-loss",
    ),
    (
        ArchiveDamaged,
        "show all damage with: kvstream archive verify URL; restore another moment with --at TIME; "
        "let a store that does not open go on with: kvstream archive restart",
    ),
    (
        Corruption,
        "restore the last checkpoint; kvstream export saves streams that can still be read",
    ),
    (UnknownLayout, ""),  # it says what to do
    (OutputFailed, "the output is incomplete; what the command changed stays changed"),
)
"""What to do about an error; the first match counts."""


_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
"""The disk is full, or the user's quota is used up."""


class Failure(click.ClickException):
    """An error of kvstream or of the system, as one line on stderr."""

    def __init__(self, error: Exception) -> None:
        super().__init__(explain(error))
        self.exit_code = int(code_of(error))  # type: ignore[misc]  # a ClassVar in click

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Error: {self.message}", file=file, err=file is None)


def code_of(error: Exception) -> ExitCode:
    """Return the exit code of an error."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


def explain(error: Exception) -> str:
    """Return an error and the advice about it as one printable line."""
    message = printable(_message(error))
    kinds = () if isinstance(error, StoreLocked) and error.tells_remedy else _ADVICE
    advice = next((text for kind, text in kinds if isinstance(error, kind)), None)
    if advice is None and isinstance(error, OSError) and error.errno in _NO_ROOM:
        advice = "free space on the disk, then try again"
    return f"{message} ({advice})" if advice else message


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


_NAMED_MAX = 5


def fail_unless(found: object) -> None:
    """Exit with 1 if nothing was found or done."""
    if not found:
        raise click.exceptions.Exit(int(ExitCode.FAILED))


def fail_for_missing(ids: Sequence[object]) -> None:
    """Name the IDs that were not found, and exit with 1 if there are any."""
    if ids:
        more = f" and {len(ids) - _NAMED_MAX} more" if len(ids) > _NAMED_MAX else ""
        click.echo(f"not found: {', '.join(map(str, ids[:_NAMED_MAX]))}{more}", err=True)
        raise click.exceptions.Exit(int(ExitCode.FAILED))
