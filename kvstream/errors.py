"""Every error that kvstream raises, in one tree.

::

    KVStreamError                     code ERR
    ├── RequestError                  the call cannot be done as asked
    │   ├── InvalidArgument           an argument of a wrong type or value; also a ValueError
    │   │   └── InvalidID             not a stream ID
    │   ├── NoSuchKey                 the key does not exist; also a KeyError
    │   ├── IDTooSmall                the ID is not above the stream's last ID
    │   ├── IDsExhausted              the stream has used the greatest possible ID
    │   ├── KeyExists                 code BUSYKEY: the target key exists
    │   ├── WrongType                 code WRONGTYPE: the key has another type; also a TypeError
    │   ├── NoGroup                   code NOGROUP: the key or the group does not exist
    │   ├── NoSuchLoad                code NOLOAD: the bulk load was never begun, or has ended
    │   ├── BusyGroup                 code BUSYGROUP: the group exists
    │   ├── LeaseLost                 code LEASELOST: the entry is not this consumer's any more
    │   ├── ReplyTooLarge             the reply would exceed the server's memory limit of a reply
    │   ├── Unblocked                 code UNBLOCKED: a blocked call was ended from outside
    │   ├── Conflict                  another client changed what a transaction has read
    │   ├── ReentrantCall             this thread is in the middle of another call of the store
    │   ├── JobError                  a job has no result
    │   │   ├── JobFailed             it raised, and is not tried again; has its traceback
    │   │   │   └── StepFailed        a step or child of a workflow
    │   │   ├── NonDeterministic      the code of a workflow does not follow its history
    │   │   ├── JobCancelled          it was cancelled
    │   │   └── JobUnknown            nothing is known of it, or not any more
    │   ├── ServerTooOld              the server lacks a command or option
    │   ├── ReplicationRefused        a server refuses to be followed
    │   ├── NotText                   a name or field is not UTF-8; also a UnicodeError
    │   ├── ProtocolError             a client sent bytes that are not a request
    │   └── BadPayload                bytes are not a valid DUMP payload or file of Redis
    ├── StoreError                    the store cannot do it now
    │   ├── StoreClosed
    │   ├── NoSuchStore               the directory has no store, and none was to be created
    │   ├── StoreLocked               another opener holds the directory
    │   ├── StoreReadOnly             code MISCONF: a write failed before; reads go on
    │   │   ├── ArchiveTaken          another opener has taken the archive over
    │   │   └── ReplicaReadOnly       code READONLY: the store is a replica of a server
    │   ├── ArchiveUnavailable        the object store does not answer, or refuses
    │   ├── WrongArchiveKey           the archive is encrypted with another key, or is not
    │   ├── StoreFull                 code MISCONF: less free space than the reserve
    │   ├── WriteStalled              compaction does not progress; nothing was written
    │   ├── UnknownOutcome            the write may or may not be durable
    │   ├── SourceNotReady            a followed server has no data to send yet
    │   ├── ServerUnavailable         no server answers
    │   │   └── ServerLoading         the server is loading its data set
    │   ├── AccessDenied              the server does not accept this user and password
    │   ├── ClientMissing             a package is not installed, such as redis-py or pyarrow
    │   └── UnsafeDirectory           the directory or a file in it is not this user's alone
    └── DataError                     the data on disk is not what was written
        ├── Corruption
        │   └── ArchiveDamaged        an object of an archive is missing or damaged
        ├── LostWrites                acknowledged writes are missing from the log
        └── UnknownLayout             written by another version of kvstream

``code`` is the first word of the Redis error reply; ``reply`` is its text.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from types import FrameType
from typing import Any, ClassVar, Self, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound="KVStreamError")

DISTRIBUTION = "kvstream-db"
"""The project's name on PyPI, where ``kvstream`` is another project."""

_UNKNOWN = object()
_SHOWN_MAX = 60
"""How many characters of a wrong value an error message shows."""
TEXT_BYTES_MAX = 64 << 10
"""Bytes of an exception's text, and of its traceback, that are stored."""
_PART_MAX = 4 << 10
"""Characters of one part of a traceback: of a line of code, or of an exception's text."""


def show(value: object) -> str:
    """Return a value for an error message, cut if it is long."""
    if isinstance(value, str | bytes | bytearray):
        value = value[: _SHOWN_MAX + 1]
    try:
        text = repr(value)
    except Exception:  # an int of thousands of digits, or a __repr__ that raises
        return f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def describe(error: BaseException) -> str:
    """Return the type and the text of an exception, as the last line of a traceback has them."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:  # a __str__ may raise anything
        text = "<its text cannot be shown>"
    return f"{name}: {text}" if text else name


def format_trace(error: BaseException) -> str:
    """Return the traceback of an exception and its causes; each long text in it is cut."""
    from traceback import format_exception, format_tb  # of a failure alone

    try:
        parts = format_exception(error)
    except BaseException:  # an attribute of the exception may raise anything
        parts = [*format_tb(error.__traceback__), f"{describe(error)}\n"]
    return "".join(map(_part, parts))


def _part(text: str) -> str:
    return (
        text if len(text) <= _PART_MAX else f"{text[:_PART_MAX]} {_cut(len(text), 'characters')}\n"
    )


def _cut(length: int, unit: str) -> str:
    return f"[cut: it has {length} {unit}]"


def stored_text(text: str | bytes, *, keep_end: bool = False) -> bytes:
    """Return a text in UTF-8 as it is stored: cut to ``TEXT_BYTES_MAX``, with a note that says so.

    The first bytes are kept, or with ``keep_end`` the last ones. No character is cut in two.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    if len(raw) <= TEXT_BYTES_MAX:
        return raw
    note = _cut(len(raw), "bytes").encode()
    room = TEXT_BYTES_MAX - len(note) - 1
    at = len(raw) - room if keep_end else room
    for _ in range(3):  # a character has at most three more bytes
        if raw[at] & 0xC0 == 0x80:
            at += 1 if keep_end else -1
    return note + b"\n" + raw[at:] if keep_end else raw[:at] + b" " + note


def quote(name: bytes) -> str:
    """Return a key, group or value for an error message: as text if it is UTF-8, else as bytes."""
    try:
        return show(name.decode())
    except UnicodeDecodeError:
        return show(name)


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Return ``: did you mean 'x'?`` for the known name most like a wrong one, or ``""``."""
    from difflib import get_close_matches

    by_case = {name.lower(): str(name) for name in known}
    names = get_close_matches(wrong.lower(), by_case, n=1)
    return f": did you mean {show(by_case[names[0]])}?" if names else ""


def no_choice(text: str, value: object, known: Iterable[str]) -> "InvalidArgument":
    """Return the error for a value that is none of some words, with the word most like it."""
    return InvalidArgument(text).with_detail(f"{show(value)}{nearest(str(value), known)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra of kvstream."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def optional_package(module: str, package: str = "", *, extra: str = "") -> Any:
    """Import a module of a package; ClientMissing names the command that installs it.

    The package has the module's name by default; ``extra`` is kvstream's extra that contains it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError:
        package = package or module.partition(".")[0]
        command = install_command(extra) if extra else f"pip install {package}"
        raise ClientMissing(f"this needs {package}: {command}") from None


def advise(text: str) -> None:
    """Warn about the line of the caller's program that called kvstream."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "kvstream":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


class KVStreamError(Exception):
    """The root of all errors of kvstream."""

    code: ClassVar[str] = "ERR"
    detail = ""
    """A part of the message that the Redis reply does not have."""

    def with_detail(self, detail: str) -> Self:
        """Set the detail, and return the error."""
        self.detail = detail
        return self

    def _message(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        message = self._message()
        return f"{message.rstrip('.')}: {self.detail}" if self.detail else message

    @property
    def reply(self) -> str:
        """The text of the Redis error reply, beginning with the code."""
        return f"{self.code} {self._message()}"


class RequestError(KVStreamError):
    """The call cannot be done as asked; nothing was changed."""


class InvalidArgument(RequestError, ValueError):
    """An argument has a wrong type or value, or does not go with another one."""


class InvalidID(InvalidArgument):
    """The value is not a stream ID; the message shows it, the Redis reply does not."""

    def __init__(
        self,
        message: str = "Invalid stream ID specified as stream command argument",
        value: object = _UNKNOWN,
    ) -> None:
        super().__init__(message)
        if value is not _UNKNOWN:
            self.detail = show(value)


class NoSuchKey(RequestError, KeyError):
    """The command needs a key that does not exist."""

    def __init__(self, message: str = "no such key") -> None:
        super().__init__(message)


class IDTooSmall(RequestError):
    """The ID is not above the last ID of the stream."""


def with_more(error: E, detail: str) -> E:
    """Add to the detail of an error, and return the error."""
    return error.with_detail(f"{error.detail}; {detail}" if error.detail else detail)


def naming_stream(error: IDTooSmall, key: bytes, last: object) -> IDTooSmall:
    """Add the stream and its last ID to the detail of an error, and return the error."""
    return with_more(
        error, f"the last ID of stream {quote(key)} is {last}; give a greater one, or '*'"
    )


class IDsExhausted(RequestError):
    """The stream's last ID is the greatest possible one."""


class ReplyTooLarge(RequestError):
    """The reply would take more memory than the limit of a client of this server."""

    @classmethod
    def beyond(cls, limit: int) -> "ReplyTooLarge":
        """Return the error of a reply of more than ``limit`` bytes."""
        return cls(
            f"the reply would exceed the client-output-buffer-limit of {limit} bytes: "
            "ask for less at a time, as with COUNT"
        )


class KeyExists(RequestError):
    """The target key exists, and was not to be replaced."""

    code = "BUSYKEY"

    def __init__(self, message: str = "Target key name already exists.") -> None:
        super().__init__(message)


class WrongType(RequestError, TypeError):
    """The key holds another kind of value."""

    code = "WRONGTYPE"

    def __init__(
        self, message: str = "Operation against a key holding the wrong kind of value"
    ) -> None:
        super().__init__(message)


class NoGroup(RequestError):
    """The key or its consumer group does not exist."""

    code = "NOGROUP"


class NoSuchLoad(RequestError):
    """The bulk load was never begun, or has ended."""

    code = "NOLOAD"

    def __init__(self, message: str = "No such bulk load: it was committed, or given up") -> None:
        super().__init__(message)


class BusyGroup(RequestError):
    """The consumer group exists; the message names it, the Redis reply does not."""

    code = "BUSYGROUP"

    def __init__(
        self, message: str = "Consumer Group name already exists", detail: str = ""
    ) -> None:
        super().__init__(message)
        self.detail = detail


class LeaseLost(RequestError):
    """The entry is not this consumer's any more: its lease ended, or it was settled."""

    code = "LEASELOST"


class Unblocked(RequestError):
    """A blocked call was ended from outside."""

    code = "UNBLOCKED"


class Conflict(RequestError):
    """Another client changed what a transaction has read; nothing was done: run it again."""


class ReentrantCall(RequestError):
    """A call within a call: the thread is in the middle of another call of the same store.

    Signal handlers, finalizers (``__del__``, callbacks of weak references) and log handlers may run
    at any point of a call, in its thread. What they ask of the store is not done: put it into a
    ``queue.SimpleQueue`` or set a flag, and do it in another thread or after the call.
    """

    def __init__(
        self,
        message: str = (
            "this thread is in the middle of another call of the store, and nothing was done: a "
            "signal handler, finalizer or log handler leaves its work to another thread"
        ),
    ) -> None:
        super().__init__(message)


class JobError(RequestError):
    """A job has no result."""


class JobFailed(JobError):
    """A job raised an exception and is not tried again; it is among the dead letters."""

    traceback = ""
    """The traceback of its last exception."""


class StepFailed(JobFailed):
    """A step or child of a workflow has failed, after its last try, or was cancelled."""

    step = ""
    """The name of the step or of the child's task."""
    error = ""
    """Its last exception, as ``"ValueError: text"``."""
    _event: object = None
    """The event of the history that has it."""


class NonDeterministic(JobError):
    """The code of a workflow makes other calls than its history has: it fails, and can be retried.

    The message has both names, and the line of the code.
    """


class JobCancelled(JobError):
    """A job was cancelled before it was done."""


class JobExpired(JobError):
    """A job was not run, since it had waited for longer than its ``expires``."""


class JobSkipped(JobError):
    """A job was not run, since ``run_if`` of its task was false."""


class JobUnknown(JobError):
    """Nothing is known of a job, or not any more: its result was not kept, or not for so long."""


class ServerTooOld(RequestError):
    """The server lacks a command or option; the message names the version that has it."""


class ReplicationRefused(RequestError):
    """A server refuses to be followed: it cannot, or the user has no right to."""


class NotText(RequestError, UnicodeError):
    """A name or a field is not UTF-8, and the store was opened with ``decode=True``.

    Entries that a consumer's read was to return are pending, as after any read.
    """


class ProtocolError(RequestError):
    """A client sent bytes that are not a request; the rest of its input cannot be read either."""


class BadPayload(RequestError):
    """Bytes are not a valid DUMP payload or file of Redis; nothing of them was stored.

    The message says what is wrong, at which byte and, if ``key`` is set, in which key; the Redis
    reply does not.
    """

    def __init__(
        self, reason: str, offset: int | None = None, message: str = "Bad data format"
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.offset = offset
        self.key: bytes | None = None

    @property
    def detail(self) -> str:  # type: ignore[override]
        """The reason, the offset and the key."""
        place = "" if self.offset is None else f", at byte {self.offset}"
        return f"{self.reason}{place}" + ("" if self.key is None else f", in {show(self.key)}")


class StoreError(KVStreamError):
    """The store cannot do what was asked, now or in this process."""


class StoreClosed(StoreError):
    """The store has been closed."""

    def __init__(self, message: str = "the store is closed") -> None:
        super().__init__(message)


class NoSuchStore(StoreError):
    """The directory has no store, and none was to be created."""


class StoreLocked(StoreError):
    """Another process, or this one, has the store open."""

    tells_remedy = False
    """Whether the message says what to do."""


class StoreReadOnly(StoreError):
    """A write failed before, the directory was removed or replaced, or the store is read-only.

    Reads go on.
    """

    code = "MISCONF"


class ArchiveTaken(StoreReadOnly):
    """Another opener has taken the archive of the store over: this one writes no more."""


class ReplicaReadOnly(StoreReadOnly):
    """The store is a replica, which takes the writes of its primary alone."""

    code = "READONLY"

    def __init__(self, message: str = "You can't write against a read only replica.") -> None:
        super().__init__(message)


class ArchiveUnavailable(StoreError):
    """The object store of an archive does not answer, refuses, or is no archive."""


class WrongArchiveKey(StoreError):
    """An archive is encrypted and no key or another one was given, or it is not and one was."""


class StoreFull(StoreError):
    """Less disk space is free than the reserve; commands that free space are still allowed."""

    code = "MISCONF"


class WriteStalled(StoreError):
    """Flushes and compaction do not progress; nothing of this write was written."""


class UnknownOutcome(StoreError):
    """A write, its fsync or its reply failed: it may or may not be there.

    In a directory the next opening shows it, on a server the next read.
    """


class SourceNotReady(StoreError):
    """A followed server has no data to send yet, or no more; another try may succeed."""


class ServerUnavailable(StoreError):
    """No server answers at the address, or it refuses the call for now; a write was not done."""


class ServerLoading(ServerUnavailable):
    """The server is loading its data set and answers when that is done."""


class AccessDenied(StoreError):
    """The server does not accept this user and password."""


class ClientMissing(StoreError):
    """A package that the call needs is not installed, such as redis-py or pyarrow."""


class UnsafeDirectory(StoreError):
    """The directory or a file in it is unsafe: owned or writable by others, a link, or special."""


class DataError(KVStreamError):
    """The data on disk is not what was written."""


class Corruption(DataError):
    """A checksum does not match, a file is missing, or an invariant is broken."""


class ArchiveDamaged(Corruption):
    """An object of an archive is missing, or not what was put."""


class LostWrites(DataError):
    """The log ends before the last write that was acknowledged as durable."""


class UnknownLayout(DataError):
    """Another version of kvstream, with another layout, wrote the store."""


def public_name(kind: type[KVStreamError]) -> str:
    """Return the name of an error's class, or of its nearest base in this module."""
    return next(each.__name__ for each in kind.__mro__ if each.__module__ == __name__)


@contextmanager
def part_done(what: str) -> Iterator[None]:
    """Raise UnknownOutcome if no server answers inside: ``what``, a part of the call, is done."""
    try:
        yield
    except (ServerUnavailable, StoreLocked) as error:
        raise UnknownOutcome(f"{what}, and then: {error}") from None


def in_parts(calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Make the parts of a call; once one is done, an absent server raises UnknownOutcome."""
    guard: AbstractContextManager[None] = nullcontext()
    for call in calls:
        with guard:
            result = call()
        yield result
        guard = part_done("a part of it is done")


def __dir__() -> list[str]:
    of = globals().items()
    return [name for name, value in of if isinstance(value, type) and issubclass(value, Exception)]
