"""Errors of servers as errors of kvstream.

redis-py raises errors of its own, some with the text of a server. ``error_of`` returns the error
here for each. The classes of this module say more than the public ones that programs see: whether
the command was sent, and whether another server may have the store by now.
"""

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvstream import errors
from kvstream.errors import (
    AccessDenied,
    BadPayload,
    BusyGroup,
    IDsExhausted,
    IDTooSmall,
    InvalidArgument,
    InvalidID,
    KeyExists,
    KVStreamError,
    LeaseLost,
    NoGroup,
    NoSuchKey,
    RequestError,
    ServerLoading,
    ServerUnavailable,
    StoreError,
    Unblocked,
    UnknownOutcome,
    WrongType,
)

if TYPE_CHECKING:
    import redis


class ConnectionLost(ServerUnavailable):
    """A connection ended before the reply came; another one may be made."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerUnavailable, self.args


class NotSent(ConnectionLost):
    """The command did not reach a server: nothing was done."""


class ReplyLost(UnknownOutcome):
    """A connection ended after a write was sent, before its reply came."""

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownOutcome, self.args


class NotPrimary(ServerUnavailable):
    """The server is a replica, still copies, or lacks its own replicas: nothing was done."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerUnavailable, self.args


class ReplyLate(ServerUnavailable):
    """The reply did not come in time; the command changes nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerUnavailable, self.args


class WriteLate(UnknownOutcome):
    """The reply to a write did not come in time."""

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownOutcome, self.args


class NotConfirmed(UnknownOutcome):
    """A write was done, and replicas did not confirm it in time: a failover may lose it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownOutcome, self.args


class NoReply(RequestError):
    """A server sent something that is not a reply of Redis."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RequestError, self.args


for _own, _public in (
    (ConnectionLost, ServerUnavailable),
    (NotSent, ServerUnavailable),
    (ReplyLost, UnknownOutcome),
    (NotPrimary, ServerUnavailable),
    (ReplyLate, ServerUnavailable),
    (WriteLate, UnknownOutcome),
    (NotConfirmed, UnknownOutcome),
    (NoReply, RequestError),
):  # programs see the public class in tracebacks and logs
    _own.__name__ = _own.__qualname__ = _public.__name__
    _own.__module__ = _public.__module__


_BY_CODE: dict[str, type[KVStreamError]] = {
    "WRONGTYPE": WrongType,
    "NOGROUP": NoGroup,
    "BUSYGROUP": BusyGroup,
    "BUSYKEY": KeyExists,
    "LEASELOST": LeaseLost,
    "UNBLOCKED": Unblocked,
    "DENIED": AccessDenied,
    "MISCONF": ServerUnavailable,
    "BUSY": ServerUnavailable,
    "NOREPLICAS": NotPrimary,
    "READONLY": NotPrimary,
    "MASTERDOWN": NotPrimary,
}
"""Errors by the first word of a reply; any other word than ERR is a RequestError."""

_OF_REDIS: tuple[tuple[str, type[KVStreamError]], ...] = (
    ("no such key", NoSuchKey),
    ("The ID specified in XADD", IDTooSmall),
    ("The stream has exhausted", IDsExhausted),
    ("Invalid stream ID", InvalidID),
    ("Protocol error: unauthenticated", AccessDenied),
    ("Bad data format", BadPayload),
    ("DUMP payload version", BadPayload),
    *(
        (start, InvalidArgument)
        for start in (
            *("At least one parameter", "COUNT must", "Elements are too", "IDMP-", "Invalid TTL"),
            *("Invalid RETRYCOUNT", "The ID specified in XSETID", "The entries_added"),
            *("entries_added", "invalid expire time", "source and destination"),
            "value for ENTRIESREAD",
        )
    ),
)
"""Errors of Redis and Valkey with the code ERR, by the beginning of their text."""

_DONE_ALONE = "The write was done here"
"""NOREPLICAS of kvstream for a write that replicas did not confirm."""
_EXEC_REFUSED = "Transaction discarded because of: "
"""EXECABORT for an EXEC that the server refuses, before the code of the reason."""
_ROLE_CHANGED = "instance state changed"
"""UNBLOCKED for reads that a change of role ends."""

_UNREACHED = re.compile(
    r"Error (?P<all>.*?) connecting to (?P<place>\S+?)\.?(?: (?P<why>.*?)\.?)?", re.DOTALL
)
"""redis-py's error for a connection that was never made; ``all`` is a number, or the errors of
several addresses."""
_CROWDED = "max number of clients reached"


@contextmanager
def translate_errors(*, writing: bool = False) -> Iterator[None]:
    """Raise errors of redis-py as kvstream's.

    ``writing``: a lost connection raises UnknownOutcome, since the command may have run.
    """
    from redis import RedisError  # redis-py is optional

    try:
        yield
    except RedisError as error:
        raise error_of(error, writing=writing) from None


def error_of(error: "redis.RedisError", *, writing: bool = False) -> KVStreamError:
    """Return the kvstream error for an error of redis-py."""
    from redis import exceptions

    message = str(error).strip() or type(error).__name__
    if isinstance(error, exceptions.ResponseError):
        return _refusal(error, message)
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        if "without any password" in message:
            return AccessDenied(
                "the server has no password: leave it out of the URL, or give the user's name too "
                f"({message})"
            )
        return AccessDenied(f"the server lets nobody in without the right password: {message}")
    if isinstance(error, exceptions.BusyLoadingError):
        return ServerLoading(f"the server is still loading: {message}")
    if isinstance(error, exceptions.DataError):  # the request cannot be packed
        return RequestError(message)
    refused = _UNREACHED.fullmatch(message)
    if refused is not None:
        why = refused["why"] or refused["all"]
        return NotSent(f"no connection to {refused['place']}: {why}")
    if message.startswith(_CROWDED):  # the first words of a server that serves no more clients
        return NotSent(f"the server takes no more clients: {message}")
    if isinstance(error, exceptions.InvalidResponse):  # the connection is of no use any more
        message = f"the answer is not one of a Redis server: {message}"
        if not writing:
            return NoReply(message)
    in_time = not isinstance(error, exceptions.TimeoutError)
    if getattr(error, "is_unsent", False):
        unsent = NotSent if in_time else ServerUnavailable
        return _mark_late(unsent(f"the server does not answer: {message}"), in_time)
    if writing:
        unknown = ReplyLost if in_time else UnknownOutcome
        return _mark_late(unknown(f"the server may or may not have done it: {message}"), in_time)
    kind = ConnectionLost if in_time else ServerUnavailable
    return _mark_late(kind(f"the server does not answer: {message}"), in_time)


def mark_unsent(error: BaseException) -> None:
    """Mark an error of connecting or sending: the server never got the whole request."""
    error.is_unsent = True  # type: ignore[attr-defined]


def _mark_late(error: KVStreamError, in_time: bool) -> KVStreamError:
    """Mark the error of a reply that did not come in time, for ``name_late``."""
    error.is_late = not in_time  # type: ignore[attr-defined]
    return error


def is_late(error: StoreError) -> bool:
    """Return whether a reply did not come in time."""
    return getattr(error, "is_late", False)


def name_late(error: StoreError) -> StoreError:
    """Return ReplyLate or WriteLate for the error of a late reply, any other one as it is."""
    if not is_late(error):
        return error
    return (WriteLate if isinstance(error, UnknownOutcome) else ReplyLate)(*error.args)


def is_tls_refusal(error: BaseException | None) -> bool:
    """Return whether TLS failed for a reason that a retry does not mend, such as a certificate."""
    temporary = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, temporary):
            return True
        error = error.__cause__ or error.__context__
    return False


def _refusal(error: "redis.ResponseError", message: str) -> KVStreamError:
    from redis import exceptions

    message, _, detail = message.partition("\t")  # a detail comes from kvstream's server alone
    if isinstance(error, exceptions.AskError):  # MOVED is one too
        return ServerUnavailable(f"the key is on another node of the cluster: {error.args[0]}")
    if isinstance(error, exceptions.ReadOnlyError | exceptions.MasterDownError):
        return NotPrimary(message)
    unavailable = (
        exceptions.OutOfMemoryError,
        exceptions.ClusterDownError,
        exceptions.TryAgainError,
    )
    if isinstance(error, unavailable):
        return ServerUnavailable(message)
    message = message.removeprefix(_EXEC_REFUSED)
    code, _, rest = message.partition(" ")
    kind = _BY_CODE.get(code)
    if kind is NotPrimary and rest.startswith(_DONE_ALONE):
        kind = NotConfirmed
    elif kind is Unblocked and _ROLE_CHANGED in rest:
        kind = NotPrimary
    if kind is not None:
        return kind(rest).with_detail(detail)
    text = message.removeprefix("ERR ")
    name, colon, rest = text.partition(": ")
    named = vars(errors).get(name) if colon else None
    if isinstance(named, type) and issubclass(named, KVStreamError):
        return _remote(named, rest, detail)
    kinds = (kind for start, kind in _OF_REDIS if text.startswith(start))
    return _remote(next(kinds, RequestError), text, detail)


def _remote(kind: type[KVStreamError], text: str, detail: str) -> KVStreamError:
    """Return the error here for one of a class that a server has raised."""
    if kind is BadPayload:
        return BadPayload(detail or "refused by the server", message=text)
    if issubclass(kind, StoreError) and kind not in (AccessDenied, UnknownOutcome):
        kind = ServerUnavailable  # the state of its store is not that of the connection
    return kind(text).with_detail(detail)
