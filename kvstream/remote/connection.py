"""The way to a server: commands go there as words, and replies come back as they are.

It knows no command, and of redis-py as little as can be: how it connects and frames. Its callbacks,
which turn fields into dicts and lose those that repeat, stay out.

What goes wrong on the way to a server, as errors of kvstream that tell no password.
"""

import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kvstream.errors import (
    BusyGroup,
    InvalidArgument,
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


T = TypeVar("T")
Word = bytes | str | int
Words = Sequence[Word]

CONNECT_S = 5.0
REPLY_S = 60.0
"""How long to wait for a connection and its first reply, and for any other one, where the URL does
not say otherwise."""
BLOCK_S_MAX = 5.0
"""Longest wait of one blocking read: a lost connection is noticed after it."""
TRIES = 100
"""How often work is done anew because others have written meanwhile."""

_DATABASE = re.compile("/?|/[0-9]+")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
FORM = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://... or unix:///PATH[?db=DB]"


def connect(url: str, connect_s: float = CONNECT_S, reply_s: float = REPLY_S) -> "redis.Redis":
    """Return a client of the server at a URL; nothing is sent before the first command.

    Nothing is sent twice: whoever repeats a write must know that it is one. Timeouts may stand in
    the URL, as in ``?socket_timeout=300``. Raises InvalidArgument, without the URL in it, and
    ClientMissing where redis-py is not installed.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ModuleNotFoundError:
        raise ClientMissing(
            "redis-py, which talks to servers, is not installed: pip install 'kvstream[server]'"
        ) from None
    try:
        _check(url)
        client = redis.Redis.from_url(
            url,
            socket_connect_timeout=connect_s,
            socket_timeout=reply_s,
            retry=Retry(NoBackoff(), 0),
        )
        settings = client.connection_pool.connection_kwargs
        settings |= {"protocol": 2, "decode_responses": False}
        client.connection_pool.connection_class(**settings)  # options that are none fail here
    except (ValueError, TypeError, redis.RedisError):
        hint = "" if "://" in url else "; a directory is given as --store, or as a path"
        raise InvalidArgument(f"that is no URL of a server: {FORM}{hint}") from None
    for name in _FILES:
        if name in settings and not os.access(settings[name], os.R_OK):
            raise InvalidArgument(f"{name} of the URL cannot be read: {settings[name]}")
    return client


def _check(url: str) -> None:
    """Refuse with ValueError what redis-py would pass over in silence."""
    parts = urlsplit(url)
    (parts.hostname or "").encode("idna")  # what no resolver takes is a ValueError too
    if parts.fragment:
        raise ValueError("a # must be written %23")
    if parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path):
        raise ValueError("the database is no number")


class Connection:
    """Commands to one database of a server; errors are kvstream's."""

    def __init__(self, client: "redis.Redis", db: int | None = None) -> None:
        """``db`` None: the one that the URL names."""
        client.response_callbacks.clear()
        self._client: Any = client  # whose methods for plain commands have no types
        settings = client.connection_pool.connection_kwargs
        if db is not None:
            settings["db"] = db
        self.db = int(settings.get("db") or 0)
        self._block_s_max = min(BLOCK_S_MAX, (settings.get("socket_timeout") or REPLY_S) / 2)

    def close(self) -> None:
        self._client.close()

    def greet(self) -> None:
        """See that a server is there which speaks RESP, and lets this user in."""
        with suppress(RequestError):  # such as NOPERM: not every user may send a PING
            self.ask("PING")

    def block_words(self, seconds: float | None) -> Words:
        """Return how long a read waits: ``seconds``, or less; None: not at all."""
        if seconds is None:
            return ()
        return ("BLOCK", max(1, round(min(seconds, self._block_s_max) * 1000)))

    def ask(self, *words: Word) -> Any:
        """Return the reply to a command that changes nothing."""
        with translated():
            return self._client.execute_command(*words)

    def do(self, *words: Word) -> Any:
        """Return the reply to a command that changes something."""
        with translated(writing=True):
            return self._client.execute_command(*words)

    def ask_all(self, commands: Iterable[Words]) -> list[Any]:
        """Return the replies to commands that change nothing, sent together; errors among them."""
        import redis

        with translated(), self._client.pipeline(transaction=False) as pipeline:
            for words in commands:
                pipeline.execute_command(*words)
            return [
                error_of(reply) if isinstance(reply, redis.RedisError) else reply
                for reply in pipeline.execute(raise_on_error=False)
            ]

    def ask_at_once(self, commands: Iterable[Words]) -> list[Any]:
        """Return the replies to commands that change nothing, all of one moment."""
        with translated(), self._client.pipeline() as pipeline:
            return _executed(pipeline, commands)

    def do_all(self, commands: Iterable[Words]) -> list[Any]:
        """Run commands in one transaction, and return their replies."""
        with translated(writing=True), self._client.pipeline() as pipeline:
            return _executed(pipeline, commands)

    def do_many(self, commands: Iterable[Words]) -> list[Any]:
        """Run commands that are sent together, each for itself; raises the first error of them."""
        with translated(writing=True), self._client.pipeline(transaction=False) as pipeline:
            return _executed(pipeline, commands)

    def optimistically(self, keys: Sequence[bytes], work: Callable[[list[Words]], T]) -> T:
        """Run in one transaction the commands that ``work`` lists, unless a key has changed.

        Then ``work`` is done again.
        """
        from redis import WatchError

        for _ in range(TRIES):
            with translated(writing=True), self._client.pipeline() as pipeline:
                if keys:
                    pipeline.watch(*keys)
                commands: list[Words] = []
                done = work(commands)
                pipeline.multi()
                try:
                    _executed(pipeline, commands)
                except WatchError:
                    continue
                return done
        raise RequestError("others write to the same stream all the time: try again")


def _executed(pipeline: Any, commands: Iterable[Words]) -> list[Any]:
    """Return the replies to a transaction; raises the first error among them."""
    for words in commands:
        pipeline.execute_command(*words)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
