"""What goes wrong on the way to a server, as errors of kvstream that tell no password."""

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvstream.errors import (
    BusyGroup,
    KVStreamError,
    NoGroup,
    NoSuchKey,
    RequestError,
    StoreError,
    Unblocked,
    UnknownOutcome,
    WrongType,
)

if TYPE_CHECKING:
    import redis


class ServerUnavailable(StoreError):
    """No server answers there, or not now."""


class ServerLoading(ServerUnavailable):
    """The server reads its data set, and will answer when it is done."""


class AccessDenied(StoreError):
    """The server wants a user and a password that it knows."""


class ClientMissing(StoreError):
    """redis-py is not installed."""


_BY_CODE: dict[str, type[KVStreamError]] = {
    "WRONGTYPE": WrongType,
    "NOGROUP": NoGroup,
    "BUSYGROUP": BusyGroup,
    "UNBLOCKED": Unblocked,
    "MISCONF": ServerUnavailable,
    "BUSY": ServerUnavailable,
    "NOREPLICAS": ServerUnavailable,
}
"""By the first word of an error reply; all others are refusals of the request."""

_PIPELINED = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""What redis-py puts before an error of a pipeline: the whole command, with its values."""

_UNREACHED = re.compile(r"Error -?\d+ connecting to (\S+?)\.? (.*?)\.?", re.DOTALL)
"""What redis-py says of a connection that was never made."""


@contextmanager
def translated(*, writing: bool = False) -> Iterator[None]:
    """Raise the errors of redis-py as kvstream's; ``writing``: what is lost may have been done."""
    from redis import RedisError  # here, since it is there when this is needed, and else may not be

    try:
        yield
    except RedisError as error:
        raise error_of(error, writing=writing) from None


def error_of(error: "redis.RedisError", *, writing: bool = False) -> KVStreamError:
    """Return the error of kvstream that says the same."""
    from redis import exceptions

    said = _PIPELINED.sub("", str(error)).strip() or type(error).__name__
    if isinstance(error, exceptions.ResponseError):
        return _refusal(error, said)
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return AccessDenied(f"the server lets nobody in without the right password: {said}")
    if isinstance(error, exceptions.BusyLoadingError):
        return ServerLoading(f"the server is still loading: {said}")
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError):
        refused = _UNREACHED.fullmatch(said)
        if refused is not None:
            return ServerUnavailable(f"no connection to {refused[1]}: {refused[2]}")
        if writing:
            return UnknownOutcome(f"the server may or may not have done it: {said}")
        return ServerUnavailable(f"the server does not answer: {said}")
    return RequestError(said)


def is_tls_refusal(error: BaseException | None) -> bool:
    """Tell whether TLS failed for a reason that trying again does not mend, as a certificate."""
    passing = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, passing):
            return True
        error = error.__cause__ or error.__context__
    return False


def _refusal(error: "redis.ResponseError", said: str) -> KVStreamError:
    from redis import exceptions

    if isinstance(error, exceptions.AskError):  # MOVED is one too
        return ServerUnavailable(f"the key is on another node of the cluster: {error.args[0]}")
    unavailable = (
        exceptions.ReadOnlyError,
        exceptions.OutOfMemoryError,
        exceptions.ClusterDownError,
        exceptions.TryAgainError,
    )
    if isinstance(error, unavailable):
        return ServerUnavailable(said)
    code, _, rest = said.partition(" ")
    kind = _BY_CODE.get(code)
    if kind is not None:
        return kind(rest)
    return NoSuchKey() if said == "no such key" else RequestError(said.removeprefix("ERR "))
