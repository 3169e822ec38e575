"""Every error that kvstream raises, in one tree.

::

    KVStreamError                     code ERR
    ├── RequestError                  the caller asked for what cannot be done
    │   ├── InvalidArgument           an option or value out of its range or kind; also a ValueError
    │   │   └── InvalidID             not a stream ID
    │   ├── NoSuchKey                 "no such key"
    │   ├── IDTooSmall                the ID does not lie above the stream's last one
    │   ├── IDsExhausted              the stream has used up the last possible ID
    │   ├── KeyExists                 code BUSYKEY: something has the name that was to be given
    │   ├── WrongType                 code WRONGTYPE
    │   ├── NoGroup                   code NOGROUP
    │   ├── NoSuchLoad                code NOLOAD: a bulk load that was never begun, or has ended
    │   ├── BusyGroup                 code BUSYGROUP
    │   ├── ReplyTooLarge             a reply would take more memory than the server lets one take
    │   ├── Unblocked                 code UNBLOCKED: a blocked call was ended from outside
    │   ├── ReplicationRefused        a server does not let itself be followed
    │   ├── ProtocolError             the bytes that a client sent are no request
    │   └── BadPayload                bytes that should be a payload or file of Redis's are none
    ├── StoreError                    the store cannot do it now
    │   ├── StoreClosed
    │   ├── NoSuchStore               there is none, and none was to be made
    │   ├── StoreLocked               another opener holds it
    │   ├── StoreReadOnly             code MISCONF: a write failed before; reads go on
    │   ├── StoreFull                 code MISCONF: less free space than the reserve
    │   ├── WriteStalled              compaction stands still; nothing was written
    │   ├── UnknownOutcome            the write may or may not be durable
    │   ├── SourceNotReady            a server that is followed has nothing to give yet
    │   └── UnsafeDirectory           the data directory is not ours alone
    └── DataError                     the data on disk is not what was written
        ├── Corruption
        ├── LostWrites                acknowledged writes are missing from the log
        └── UnknownLayout             written by another version of kvstream

``code`` is the word that opens a Redis error reply; ``reply`` is that reply's text.
"""

from typing import ClassVar

_UNKNOWN = object()
_SHOWN_MAX = 60
"""Characters of a wrong value that the text of an error shows."""


def shown(value: object) -> str:
    """Return a value as the text of an error shows it, cut where it is long."""
    if isinstance(value, str | bytes | bytearray):
        value = value[: _SHOWN_MAX + 1]
    try:
        text = repr(value)
    except Exception:  # an int of thousands of digits, or whatever a class of others does
        return f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


class KVStreamError(Exception):
    """The root of all errors of kvstream."""

    code: ClassVar[str] = "ERR"
    detail = ""
    """What the text says more than the Redis reply."""

    def _said(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return f"{self._said()}: {self.detail}" if self.detail else self._said()

    @property
    def reply(self) -> str:
        """The text of the Redis error reply, code first."""
        return f"{self.code} {self._said()}"


class RequestError(KVStreamError):
    """The caller asked for something that cannot be done."""


class InvalidArgument(RequestError, ValueError):
    """An option or a value is of the wrong kind or range, or does not go with another."""


class InvalidID(InvalidArgument):
    """The value is not a stream ID; the text shows the value, the Redis reply does not."""

    def __init__(
        self,
        message: str = "Invalid stream ID specified as stream command argument",
        value: object = _UNKNOWN,
    ) -> None:
        super().__init__(message)
        if value is not _UNKNOWN:
            self.detail = shown(value)


class NoSuchKey(RequestError, KeyError):
    """The command needs a key that does not exist."""

    def __init__(self, message: str = "no such key") -> None:
        super().__init__(message)


class IDTooSmall(RequestError):
    """The ID does not lie above the last one that the stream has given out."""


class IDsExhausted(RequestError):
    """The stream's last ID is the greatest possible one."""


class ReplyTooLarge(RequestError):
    """The reply would take more memory than a client of this server may."""

    @classmethod
    def beyond(cls, most: int) -> "ReplyTooLarge":
        """Return the error of a reply of more than ``most`` bytes."""
        return cls(
            f"the reply would exceed the client-output-buffer-limit of {most} bytes: "
            "ask for less at a time, as with COUNT"
        )


class KeyExists(RequestError):
    """Something else has the name, and was not to be replaced."""

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
    """A bulk load of that name was never begun, or has ended."""

    code = "NOLOAD"

    def __init__(self, message: str = "No such bulk load: it was committed, or given up") -> None:
        super().__init__(message)


class BusyGroup(RequestError):
    """A consumer group of that name exists; the text names it, the Redis reply does not."""

    code = "BUSYGROUP"

    def __init__(
        self, message: str = "Consumer Group name already exists", detail: str = ""
    ) -> None:
        super().__init__(message)
        self.detail = detail


class Unblocked(RequestError):
    """A blocked call was ended from outside."""

    code = "UNBLOCKED"


class ReplicationRefused(RequestError):
    """A server does not let itself be followed: it cannot, or this user may not."""


class ProtocolError(RequestError):
    """The bytes that a client sent are no request; nothing after them can be read either."""


class BadPayload(RequestError):
    """Bytes that should be a payload, or a file, of Redis's are none; nothing of them was taken.

    The text says what is wrong, at which byte and, once ``key`` was set, in which key; the Redis
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
        """What the text says more than the Redis reply."""
        place = "" if self.offset is None else f", at byte {self.offset}"
        return f"{self.reason}{place}" + ("" if self.key is None else f", in {shown(self.key)}")


class StoreError(KVStreamError):
    """The store cannot do what was asked, now or in this process."""


class StoreClosed(StoreError):
    """The store has been closed."""

    def __init__(self, message: str = "the store is closed") -> None:
        super().__init__(message)


class NoSuchStore(StoreError):
    """The directory holds no store, and none was to be made."""


class StoreLocked(StoreError):
    """Another process, or this one, has the directory open."""


class StoreReadOnly(StoreError):
    """A write failed before, or the store was opened read-only; reads go on."""

    code = "MISCONF"


class StoreFull(StoreError):
    """Less free disk space than the reserve; what frees space is still allowed."""

    code = "MISCONF"


class WriteStalled(StoreError):
    """Flushes and compaction stand still, and writes with them; nothing of this one was written."""


class UnknownOutcome(StoreError):
    """The write was handed to the system, which then failed: it may or may not be durable."""


class SourceNotReady(StoreError):
    """A server that is followed has nothing to give yet, or no more: another try may do."""


class UnsafeDirectory(StoreError):
    """The data directory, or a file in it, is not ours alone."""


class DataError(KVStreamError):
    """What is on disk is not what was written."""


class Corruption(DataError):
    """A checksum or an invariant does not hold."""


class LostWrites(DataError):
    """The log ends before the last write that was acknowledged as durable."""


class UnknownLayout(DataError):
    """The store was written by a version of kvstream with another layout."""
