"""Connections to servers: commands go out as words, replies come back undecoded.

redis-py connects and frames. Its response callbacks are off: they turn fields into dicts and lose
repeated names. Its errors become kvstream's (``server_errors``); no error shows a password.
"""

import os
import re
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kvstream.errors import (
    ClientMissing,
    Conflict,
    InvalidArgument,
    KVStreamError,
    RequestError,
    ServerUnavailable,
    StoreClosed,
    install_command,
)
from kvstream.remote.replies import sections_of
from kvstream.remote.server_errors import (
    NoReply,
    NotConfirmed,
    error_of,
    mark_unsent,
    translate_errors,
)
from kvstream.resp import may_poll, waits
from kvstream.types.urls import server_url

_pack: Callable[[Any], bytes] | None = None
with suppress(ModuleNotFoundError):  # optional, as redis-py is
    from hiredis import pack_command as _pack

if TYPE_CHECKING:
    import redis

T = TypeVar("T")
Word = bytes | str | int
Words = Sequence[Word]

CONNECT_S = 5.0
REPLY_S = 60.0
"""Timeouts of connecting and of a reply, unless the URL sets its own."""
BLOCK_S_MAX = 5.0
"""Longest wait of one blocking read; a lost connection is noticed after it."""

_DATABASE = re.compile("/?|/[0-9]+")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
FORM = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://... or unix:///PATH[?db=DB]"


CLIENT_MISSING = f"redis-py, which talks to servers, is not installed: {install_command('server')}"


def require_client() -> None:
    """Raise ClientMissing if redis-py is not installed, without importing it."""
    if find_spec("redis") is None:
        raise ClientMissing(CLIENT_MISSING)


NAME_CLASSES = ("KVSTREAM.ERRORS", "ON")
"""Makes kvstream's server name the class of each error."""


@contextmanager
def ignore_unknown_command() -> Iterator[None]:
    """Ignore that a server does not know a command; raise the error of a refused connection."""
    from redis import ResponseError

    try:
        yield
    except ResponseError as error:
        if str(error).startswith("DENIED"):
            raise


def name_classes(connection: Any) -> None:
    """Log in on a new connection, and make errors name their class."""
    connection.on_connect()
    connection.send_command(*NAME_CLASSES)
    with ignore_unknown_command():
        connection.read_response()


def connect(
    url: str,
    connect_s: float = CONNECT_S,
    reply_s: float = REPLY_S,
    *,
    user: str | None = None,
    password: str | None = None,
) -> "redis.Redis":
    """Return a client of the server at a URL; nothing is sent before the first command.

    A failed command is never repeated: it may be a write. The URL may set timeouts, as in
    ``?socket_timeout=300``. ``user`` and ``password`` replace those of the URL. Raises
    InvalidArgument, which does not show the URL, and ClientMissing if redis-py is not installed.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ModuleNotFoundError:
        raise ClientMissing(CLIENT_MISSING) from None
    retry = Retry(NoBackoff(), 0)
    times = {"socket_connect_timeout": connect_s, "socket_timeout": reply_s}
    given = {"username": user, "password": password}
    checked = None
    with suppress(ValueError, TypeError, redis.RedisError):  # their texts have parts of the URL
        url = server_url(url) or url
        _check(url)
        client = redis.Redis.from_url(url, **times, retry=retry)
        settings = client.connection_pool.connection_kwargs
        settings |= {"protocol": 2, "decode_responses": False, "redis_connect_func": name_classes}
        # A handshake would swallow the words with which a server refuses a client.
        named = ("driver_info",) if hasattr(redis, "DriverInfo") else ("lib_name", "lib_version")
        settings |= dict.fromkeys(named)
        settings |= {name: value for name, value in given.items() if value is not None}
        client.connection_pool.connection_class(**settings)  # fails for unknown options
        checked = client
    if checked is None:
        hint = "" if "://" in url else "; a directory is given as --store, or as a path"
        raise InvalidArgument(f"not a URL of a server: {FORM}{hint}")
    _refuse_files(checked.connection_pool.connection_kwargs)
    return checked


def _refuse_files(settings: Mapping[str, Any]) -> None:
    """Raise InvalidArgument if a file that a URL names cannot be read."""
    for name in _FILES:
        if name in settings and not os.access(settings[name], os.R_OK):
            raise InvalidArgument(f"{name} of the URL cannot be read: {settings[name]}")


def socket_connection(client: "redis.Redis") -> Any:
    """Return a new connection of redis-py, for bytes that the caller frames itself."""
    pool = client.connection_pool
    return pool.connection_class(**(pool.connection_kwargs | {"protocol": 2}))


def _check(url: str) -> None:
    """Raise ValueError for parts of a URL that redis-py ignores."""
    parts = urlsplit(url)
    (parts.hostname or "").encode("idna")  # ValueError for a name that no resolver takes
    if parts.fragment:
        raise ValueError("a # must be written %23")
    if "@" in parts.query.partition("=")[0]:
        raise ValueError("a ? in a password must be written %3F")
    if parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path):
        raise ValueError("the database is not a number")


def _no_wait() -> None:
    """Do not wait: with TLS the bytes of a reply may have left the socket already."""


_links: "weakref.WeakSet[Link]" = weakref.WeakSet()
"""The open links of this process."""


def _end_in_child() -> None:
    """Close the parent's connections in a forked child, so that they end with the parent."""
    links = list(_links)
    _links.clear()
    for link in links:
        link.close()


os.register_at_fork(after_in_child=_end_in_child)


class Link:
    """One connection to a server. Errors of the connection are those of redis-py."""

    __slots__ = ("__weakref__", "_connection", "_ended", "_unread", "_wait", "number")

    def __init__(self, client: "redis.Redis") -> None:
        self._connection = socket_connection(client)
        self.number = 0
        """The client ID at the server: 0 before it is asked for, -1 if the server refuses it."""
        try:
            self._connection.connect()
        except Exception as error:
            mark_unsent(error)
            raise
        plain = self._connection._sock
        self._ended = select.poll()
        self._ended.register(plain.fileno(), select.POLLIN)
        self._unread = self._look_for_unread()
        self._wait: Callable[[], object] = _no_wait
        if waits is not None and not isinstance(plain, ssl.SSLSocket):
            self._wait = waits.ReplyWait(plain.fileno(), may_poll()).wait
        _links.add(self)

    def _look_for_unread(self) -> Callable[[], object]:
        """Return the function that tells whether bytes were read beyond the last reply."""
        parser = self._connection._parser
        reader = getattr(parser, "_reader", None)  # hiredis's
        return parser._buffer.unread_bytes if reader is None else reader.has_data  # type: ignore[no-any-return]

    def is_open(self) -> bool:
        """Return whether the next reply will answer the next command.

        It will not if the server has closed the connection or sent a reply too many, or if the
        connection is that of the parent process before a fork.
        """
        return (
            self._connection.pid == os.getpid() and not self._ended.poll(0) and not self._unread()
        )

    def close(self) -> None:
        _links.discard(self)
        self._connection.disconnect()

    def end(self) -> None:
        """End the wait of another thread for a reply; that thread closes the link."""
        plain = self._connection._sock
        if plain is not None:
            with suppress(OSError):  # SSLSocket's own method would break the other thread's read
                socket.socket.shutdown(plain, socket.SHUT_RDWR)

    def _write(self, data: Sequence[bytes]) -> None:
        """Send requests, and wait a little for the first reply."""
        self._connection.send_packed_command(data)
        self._wait()

    def _read(self) -> Any:
        return self._connection.read_response()

    def _pack_words(self, words: Words) -> Sequence[bytes]:
        """Return a command as bytes; redis-py takes three times as long for this."""
        if _pack is None:
            return self._connection.pack_command(*words)  # type: ignore[no-any-return]
        return (_pack(tuple(words)),)

    def ask(self, words: Words) -> Any:
        """Return the reply to a command; an error reply is raised."""
        try:
            self._write(self._pack_words(words))
        except Exception as error:
            mark_unsent(error)
            raise
        return self._read()

    def monitor(self) -> Iterator[bytes]:
        """Run MONITOR, and yield its lines."""
        self.ask(("MONITOR",))
        while True:
            yield self._read()

    def ask_all(self, commands: Sequence[Words]) -> list[Any]:
        """Send commands together; return their replies, errors among them."""
        self._write(self._connection.pack_commands(commands))
        return self._replies(len(commands))

    def _replies(self, count: int) -> list[Any]:
        from redis import ResponseError

        replies: list[Any] = []
        for _ in range(count):
            try:
                replies.append(self._read())
            except ResponseError as error:
                replies.append(error_of(error))
        return replies

    def transaction(self, commands: Sequence[Words], then: Sequence[Words] = ()) -> list[Any]:
        """Run commands in one transaction; return their replies, errors among them.

        The commands of ``then`` follow it in the same pipeline; their replies are ignored. Raises
        Conflict if a watched key has changed, and the error of a command that the server did not
        queue; nothing was done then.
        """
        from redis import InvalidResponse, RedisError

        whole = [("MULTI",), *commands, ("EXEC",), *then]
        try:
            self._write(self._connection.pack_commands(whole))
        except Exception as error:
            if not then:  # else EXEC may have reached the server
                mark_unsent(error)
            raise
        *queued, done = self._replies(len(whole))[: len(commands) + 2]
        if done is None:
            raise Conflict(
                "another client changed what this transaction has read: nothing was done, run it "
                "again"
            )
        if isinstance(done, Exception):
            raise next((each for each in queued if isinstance(each, Exception)), done)
        if not isinstance(done, list) or len(done) != len(commands):  # replies have come twice
            raise InvalidResponse(f"{len(commands)} replies of EXEC were expected, not {done!r}")
        return [error_of(each) if isinstance(each, RedisError) else each for each in done]


ACKS_S = 2.0
"""The longest that WAIT waits: as long as a server with ``replica-acks`` does by default."""


class ReplicaAcks:
    """How many replicas must have a write, and the command that waits for them.

    With ``durability="replica"`` WAIT follows each write in the same pipeline, or its EXEC. It
    works on kvstream and on Redis.
    """

    def __init__(self, wanted: int, longest_s: float) -> None:
        """``longest_s``: how long a reply of the server may take."""
        self._wanted, self._wait_s = wanted, min(ACKS_S, longest_s)
        self.words = ("WAIT", wanted, max(1, round(self._wait_s * 1000)))

    def checked(self, replies: T, count: Any, place: str) -> T:
        """Return the replies of a write; raise an error among them, or NotConfirmed.

        ``count`` is the reply of WAIT.
        """
        if isinstance(replies, Exception):
            raise replies
        if isinstance(count, Exception):
            raise NotConfirmed(f"the write was done at {place}, and not confirmed: {count}")
        if count < self._wanted:
            raise NotConfirmed(
                f"the write was done at {place}, and {count} of {self._wanted} replicas have "
                f"confirmed it within {self._wait_s:g} s: a failover may lose it"
            )
        return replies


_READS = frozenset({"XREAD", "XREADGROUP"})


class Connection:
    """Sends commands to one database of a server; errors are kvstream's."""

    _link = Link
    """The class of a single connection."""

    def __init__(self, client: "redis.Redis", db: int | None = None) -> None:
        """``db`` None: the database that the URL names."""
        from redis import RedisError, ResponseError  # redis-py is optional

        client.response_callbacks.clear()
        self.client: Any = client  # its methods for plain commands are untyped
        self._errors, self._refusals = RedisError, ResponseError
        self._free: list[Link] = []
        self._blocked: dict[Link, int] = {}
        """Links whose command waits for an entry, and the thread that does."""
        self._unblocks = False
        """Whether ``make_unblock`` may end waits: a link asks for its client ID before it waits."""
        self._closed = False
        self.acks: ReplicaAcks | None = None
        """What writes wait for, if for more than their replies."""
        self.check_link: Callable[[Link], None] | None = None
        """Called with each new connection before it is used; raises to refuse it."""
        settings = client.connection_pool.connection_kwargs
        if db is not None:
            settings["db"] = db
        self.db = int(settings.get("db") or 0)
        self.block_s_max = min(BLOCK_S_MAX, (settings.get("socket_timeout") or REPLY_S) / 2)

    def close(self) -> None:
        """Close the free connections and end blocked reads; other commands get their replies."""
        self._closed = True
        for link in list(self._blocked):
            link.end()
        while self._free:
            self._free.pop().close()
        self.client.close()

    @property
    def place(self) -> str:
        """The address of the server: a host and port, or the path of a socket."""
        settings = self.client.connection_pool.connection_kwargs
        host, port = settings.get("host", "localhost"), settings.get("port", 6379)
        return settings.get("path") or f"{host}:{port}"

    def take(self) -> Link:
        """Return a connection that no command uses, or a new one."""
        with suppress(IndexError):
            while True:
                link = self._free.pop()
                if link.is_open():
                    return link
                link.close()
        link = self._link(self.client)
        if self.check_link is not None:
            try:
                self.check_link(link)
            except BaseException as error:
                mark_unsent(error)
                link.close()
                raise
        return link

    def give_back(self, link: Link) -> None:
        """Keep a connection for the next command."""
        self._free.append(link)
        if self._closed:
            self.close()

    def _execute(self, *words: Word) -> Any:
        """Return the reply to a command. The client's ``execute_command`` takes twice as long."""
        link = self.take()
        blocks = words[0] in _READS and "BLOCK" in words
        try:
            if blocks:
                if self._unblocks and not link.number:
                    link.number = -1
                    with suppress(self._refusals):  # not every user may send CLIENT
                        link.number = link.ask(("CLIENT", "ID"))
                self._blocked[link] = threading.get_ident()
                if self._closed:
                    raise StoreClosed
            reply = link.ask(words)
            if reply and self.acks is not None and words[0] == "XREADGROUP":
                self._blocked.pop(link, None)  # CLIENT UNBLOCK would end this wait, too
                reply = self.acks.checked(reply, link.ask_all([self.acks.words])[0], self.place)
        except self._refusals:
            self.give_back(link)
            raise
        except BaseException:
            link.close()
            raise
        finally:
            if blocks:
                self._blocked.pop(link, None)
        self.give_back(link)
        return reply

    def _all(self, send: Callable[[Link], list[Any]], writing: bool) -> list[Any]:
        """Return the replies to several commands."""
        with translate_errors(writing=writing):
            link = self.take()
            try:
                replies = send(link)
            except BaseException:
                link.close()
                raise
        self.give_back(link)
        return replies

    def make_unblock(self) -> Callable[[], None]:
        """Return a function that ends a blocked read of this thread, which then has no reply.

        It does nothing if the thread does not wait yet, or if the server refuses.
        """
        self._unblocks, thread = True, threading.get_ident()

        def unblock() -> None:
            for link, waiting in list(self._blocked.items()):
                if waiting == thread and not self._closed:
                    with suppress(KVStreamError):
                        self.ask("CLIENT", "UNBLOCK", link.number)

        return unblock

    def greet(self) -> None:
        """Check that a server is there, speaks RESP and accepts this user."""
        try:
            self.ask("PING")
        except NoReply as error:
            raise ServerUnavailable(str(error)) from None
        except RequestError:  # such as NOPERM: not every user may send PING
            pass

    def info(self, section: str) -> dict[str, Any]:
        """Return the fields of a section of INFO."""
        return self.infos(section).get(section, {})

    def infos(self, *sections: str) -> dict[str, dict[str, Any]]:
        """Return sections of INFO by name, those that are empty left out."""
        return sections_of(self.ask("INFO", *sections))

    def key_pages(
        self, *options: Word, wanted: Callable[[bytes], bool] = lambda key: True
    ) -> Iterator[list[bytes]]:
        """Yield the wanted keys by pages of SCAN, each key once; pages may be empty.

        ``options`` are SCAN's, such as MATCH. A key that exists all the time is found.
        """
        seen: set[bytes] = set()  # SCAN may return a key twice
        cursor: Word = 0
        while True:
            cursor, page = self.ask("SCAN", cursor, *options, "COUNT", KEYS_PAGE)
            keys = [key for key in dict.fromkeys(page) if key not in seen and wanted(key)]
            seen.update(keys)
            yield keys
            if int(cursor) == 0:
                return

    def monitor(self) -> Iterator[bytes]:
        """Yield the lines of MONITOR, over a connection of its own without a timeout."""
        settings = self.client.connection_pool.connection_kwargs
        settings["socket_timeout"] = None
        if "path" not in settings:
            settings["socket_keepalive"] = True
        with translate_errors():
            link = self._link(self.client)
            try:
                yield from link.monitor()
            finally:
                link.close()

    def block_words(self, seconds: float | None) -> tuple[Word, ...]:
        """Return BLOCK for so many seconds; for None, or more than those, for ``block_s_max``."""
        longest = self.block_s_max
        seconds = longest if seconds is None else min(seconds, longest)
        return ("BLOCK", max(1, round(seconds * 1000)))

    def ask(self, *words: Word) -> Any:
        """Return the reply to a command that changes nothing."""
        try:
            return self._execute(*words)
        except self._errors as error:
            raise error_of(error) from None

    def do(self, *words: Word) -> Any:
        """Return the reply to a command that changes something."""
        acks = self.acks
        if acks is not None and words[0] not in _READS:
            reply, count = self._all(lambda link: link.ask_all([words, acks.words]), writing=True)
            return acks.checked(reply, count, self.place)
        try:
            return self._execute(*words)
        except self._errors as error:
            raise error_of(error, writing=True) from None

    def ask_all(self, commands: Iterable[Words]) -> list[Any]:
        """Pipeline commands that change nothing; return their replies, errors among them."""
        sent = list(commands)
        return self._all(lambda link: link.ask_all(sent), writing=False)

    def ask_at_once(self, commands: Iterable[Words]) -> list[Any]:
        """Run commands that change nothing in one transaction, and return their replies."""
        sent = list(commands)
        return raise_first_error(self._all(lambda link: link.transaction(sent), writing=False))

    def try_all(self, commands: Iterable[Words]) -> list[Any]:
        """Run commands in one transaction, and return their replies, errors among them."""
        sent = list(commands)
        return self._all(lambda link: self.transact(link, sent), writing=True)

    def transact(self, link: Link, commands: Sequence[Words]) -> list[Any]:
        """Run writes as ``Link.transaction`` does; return once the replicas have them."""
        replies, acks = link.transaction(commands), self.acks
        counts = [] if acks is None else link.ask_all([acks.words])
        return replies if acks is None else acks.checked(replies, counts[0], self.place)

    def do_many(self, commands: Iterable[Words]) -> list[Any]:
        """Pipeline commands without a transaction, and raise the first error."""
        sent = list(commands)
        return raise_first_error(self._all(lambda link: link.ask_all(sent), writing=True))


def raise_first_error(replies: list[Any]) -> list[Any]:
    """Return the replies, unless one is an error: raise the first."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


PAGE_MIN, PAGE_MAX = 10, 2000
"""Entries of the first page of a stream, and of the largest."""
PAGE_BYTES = 4 << 20
"""About how many bytes a page may hold: large entries come few at a time."""
PAGE_GROWTH = 4
"""A page has at most so many times the entries of the last: large ones may follow small ones."""
KEYS_PAGE = 1000


def next_page(flats: Sequence[Sequence[bytes]]) -> int:
    """Return how many entries to ask for next, by the fields and values of the last page."""
    size = sum(sum(map(len, flat)) for flat in flats)
    fitting = PAGE_BYTES * len(flats) // max(size, 1)
    return max(1, min(PAGE_MAX, PAGE_GROWTH * len(flats), fitting))
