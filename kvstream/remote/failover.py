"""The engine of a store whose primary the Sentinels name: it follows a failover.

A call goes to the present primary. When that dies, is replaced or refuses for now, the engine asks
the Sentinels, looks at the role of the server that they name, and goes on there:
``remote/repeating.py`` says which calls are repeated. It gives up after ``wait_s`` seconds, and
says what each Sentinel has said; a later call asks again.

To be replaced shows in many ways: a lost connection, no reply in time, ``READONLY``, ``LOADING``,
``MASTERDOWN``, ``UNBLOCKED``, and ``NOREPLICAS`` of a primary that cannot hear its replicas. If it
has done a write that no replica confirms, the write is repeated with another primary, or with the
same once replicas confirm a later write of it: their log has the one before, too.
"""

import os
import weakref
from contextlib import closing, suppress
from random import sample
from typing import TYPE_CHECKING, NoReturn, Self

from kvstream.engine.interface import AnyEngine
from kvstream.errors import (
    AccessDenied,
    InvalidArgument,
    KVStreamError,
    RequestError,
    ServerLoading,
    ServerUnavailable,
    StoreClosed,
    StoreError,
)
from kvstream.layout.keys import qualified
from kvstream.layout.values import encode_flat
from kvstream.meta.idempotency import Request
from kvstream.operations import append
from kvstream.operations.append import Idempotency
from kvstream.remote.connection import CONNECT_S as FIRST_S
from kvstream.remote.connection import REPLY_S as LONGEST_S
from kvstream.remote.connection import Connection, connect
from kvstream.remote.engine import RemoteEngine
from kvstream.remote.repeating import Ends, RepeatingEngine, never
from kvstream.remote.sentinels import Address, Asker, require_primary, role_of
from kvstream.remote.server_errors import (
    ConnectionLost,
    NotConfirmed,
    NotPrimary,
    ReplyLate,
    ReplyLost,
    WriteLate,
    is_tls_refusal,
    name_late,
    translate_errors,
)
from kvstream.types.clock import Clock, SystemClock, monotonic
from kvstream.types.ids import AddID
from kvstream.types.options import DATABASES_MAX, StoreOptions
from kvstream.types.urls import Sentinels, sentinels_of

if TYPE_CHECKING:
    import redis

WAIT_S = 30.0
"""Seconds that a call waits for a primary: Sentinels take some, and a new primary opens logs."""
CONNECT_S = 2.0
"""Timeout of connecting to a server, and of its first replies."""
REPLY_S = 10.0
"""The longest timeout of a reply: a machine that has lost its power ends no connection."""
PAUSE_S, PAUSE_MAX_S = 0.05, 0.5
"""The first and the longest pause between two rounds of questions."""
NOTHING_BYTES = 64
RECALLS_S = 10.0
"""Clocks of servers differ by less. It counts from the begin of the oldest read under way."""


_engines: "weakref.WeakSet[FailoverEngine]" = weakref.WeakSet()
"""The engines of this process."""


def _begin_in_child() -> None:
    """Free the locks that other threads of the parent held; connections end by themselves."""
    for engine in list(_engines):
        engine._begin()


os.register_at_fork(after_in_child=_begin_in_child)


class FailoverEngine(RepeatingEngine):
    """The present primary of a name, as the library sees it. Methods are for any thread."""

    server_type: type[RemoteEngine] = RemoteEngine
    not_done = (ConnectionLost, NotPrimary, ReplyLate, ServerLoading)
    in_doubt = (ReplyLost, NotConfirmed, WriteLate)
    recalls_s = RECALLS_S
    pause_s = PAUSE_S
    ended = "the primary has changed"

    def __init__(
        self,
        url: str,
        sentinels: Sentinels,
        db: int | None = None,
        wait_s: float = WAIT_S,
        replicas: int = 0,
    ) -> None:
        """Begin without a primary; ``open`` looks for it."""
        self.url, self._sentinels, self._wait_s = url, sentinels, wait_s
        self._replicas = replicas
        self.db = int(sentinels.db) if db is None else db
        self.place = sentinels.shown
        self.options = StoreOptions(databases=DATABASES_MAX)
        self.clock: Clock = _Clock(self)
        self.local_clock: Clock = SystemClock()
        self._asker = Asker(sentinels, self.server_type.connection_type)
        self._current: RemoteEngine | None = None
        self._closed = False
        self._begin()
        _engines.add(self)

    def _begin(self) -> None:
        """Begin with locks that nobody holds."""
        self._looking = self._new_lock()
        """Held for one round of questions; no call that has an engine needs it."""
        self._failed = 0
        """Rounds that have found nobody."""
        self._failure: ServerUnavailable | None = None
        """Why the last of them has not."""
        self._reset_calls()

    @classmethod
    def open(
        cls, url: str, db: int | None = None, wait_s: float | None = None, replicas: int = 0
    ) -> Self:
        """Return the engine of the primary that the Sentinels of a URL name.

        ``wait_s`` None: that of the URL, else 30 seconds. ``replicas``: how many must have a write
        before its call returns. Raises InvalidArgument for a wrong URL,
        AccessDenied, ServerUnavailable, which says what each Sentinel has said, and ClientMissing.
        """
        sentinels = sentinels_of(url)
        if sentinels is None:
            raise InvalidArgument("not a URL of Sentinels")
        given = sentinels.wait_s if wait_s is None else wait_s
        engine = cls(url, sentinels, db, WAIT_S if given is None else given, replicas)
        engine._get_engine(None)
        return engine

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open store cannot be pickled: open its URL in the other process, too")

    def close(self, discard: bool = False) -> None:
        """Close the connections; calls that look for a primary end with StoreClosed."""
        self._closed = True
        engine, self._current = self._current, None
        if engine is not None:
            engine.close()

    # --- the primary ----------------------------------------------------------------------------

    def _get_engine(self, deadline: float | None, ends: Ends = never) -> RemoteEngine:
        """Return the engine of the primary; look for it, at least once, until ``deadline``."""
        until = monotonic() + self._wait_s if deadline is None else deadline
        pause = PAUSE_S
        while True:
            engine = self._current
            if engine is not None:
                return engine
            before = self._failed
            with self._looking:  # another thread may have found it meanwhile
                if self._closed:
                    raise StoreClosed
                try:
                    return self._current or self._keep(self._look_once(before))
                except ServerUnavailable as error:
                    if monotonic() >= until or ends() or is_tls_refusal(error):
                        raise
            self.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _keep(self, engine: RemoteEngine) -> RemoteEngine:
        """Make an engine the present one, unless another thread has closed the store meanwhile."""
        self._current = engine
        if self._closed:  # ``close`` may have looked before
            self._current = None
            engine.close()
            raise StoreClosed
        return engine

    def _look_once(self, before: int) -> RemoteEngine:
        """Return what ``_look`` does, or fail as a round has since ``before`` had failed.

        So threads that wait for a round share its failure: else each would begin its own behind it.
        """
        if self._failed > before and self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure.__cause__
        try:
            return self._look()
        except ServerUnavailable as error:
            self._failed, self._failure = self._failed + 1, error
            raise

    def _look(self) -> RemoteEngine:
        """Ask each Sentinel once; return the engine of the first primary that says it is one."""
        said, tried, causes = [], dict[Address, str](), list[KVStreamError]()
        for answer in self._asker.primaries():
            text, address = str(answer), answer.address
            if answer.error is not None:
                causes.append(answer.error)
            elif address is not None:
                if address not in tried:
                    try:
                        return self._connect(address)
                    except StoreError as error:
                        if isinstance(error, AccessDenied):
                            raise
                        tried[address] = str(error)
                        causes.append(error)
                text += f" ({tried[address]})"
            said.append(text)
        denied = len(causes) == len(said) and all(isinstance(e, AccessDenied) for e in causes)
        text = f"no primary of {self.place} was found: {'; '.join(said)}"
        cause = causes[-1] if causes else None
        raise (AccessDenied if denied else ServerUnavailable)(text) from cause

    def _connect(self, address: Address) -> RemoteEngine:
        """Return the engine of a server, if that is a primary."""
        url = self._sentinels.server(*address)
        # Half of the call's time, so that a silent primary leaves time to find the next one.
        reply_s = min(max(self._wait_s / 2, CONNECT_S), REPLY_S)
        engine = self.server_type.open(url, self.db, CONNECT_S, reply_s, replicas=self._replicas)
        engine.check_links(require_primary)
        try:
            engine.connection().greet()
        except BaseException:
            engine.close()
            raise
        return engine

    def _forget(self, engine: AnyEngine) -> None:
        if self._current is engine:
            self._current = None
        engine.close()

    def _name(self, error: StoreError) -> StoreError:
        """Return ReplyLate or WriteLate for a late reply: the server may be gone."""
        return name_late(error)

    def _server(self) -> RemoteEngine:
        return self._get_engine(None)

    def _late(self, last: StoreError) -> str:
        return f"no primary of {self.place} has done the call within {self._wait_s:g} s: {last}"

    def _confirm(self, engine: RemoteEngine) -> None:
        """Write nothing but the number of a request: its reply waits for the replicas, too."""
        value, names = encode_flat([b"", b""], NOTHING_BYTES)
        with self._request() as request:
            name = qualified(self.db, b"kvstream:confirm:" + request.client)  # there is none
            try:
                engine.run(append.add, name, value, names, None, None, True, request)
            except RequestError as error:  # such as NOPERM
                raise NotConfirmed(f"replicas cannot be asked: {error}") from None

    def _once(
        self, engine: RemoteEngine, request: Request, eid: AddID
    ) -> Idempotency | Request | None:
        """Return what makes an add repeatable: a request of kvstream, or IDMP of Redis 8.6."""
        if engine.has("KVSTREAM.ADDONCE"):
            return request
        if engine.has("XCFGSET") and eid is None:
            return Idempotency(request.client, str(request.number).encode())
        return None

    # --- beside operations ----------------------------------------------------------------------

    def connection(self, db: int | None = None) -> Connection:
        """Return the connections to the server that is the primary at this moment."""

        def greeted(engine: RemoteEngine) -> Connection:
            connection = engine.connection(self.db if db is None else db)
            connection.greet()
            return connection

        found: Connection = self._repeat(greeted, again=True)
        return found

    def is_open_here(self) -> bool:
        """Return whether this thread is inside a transaction."""
        return self._local.server is not None

    def now_ms(self) -> int:
        """Return the time of the primary."""
        now: int = self._repeat(lambda engine: engine.clock.now_ms(), again=True)
        return now

    def save(self) -> None:
        """Run BGSAVE on the primary, and wait for its end."""
        self._repeat(lambda engine: engine.save())


class _Clock:
    """The clock of the primary."""

    def __init__(self, engine: FailoverEngine) -> None:
        self._engine = engine

    def now_ms(self) -> int:
        return self._engine.now_ms()


def find_primary(sentinels: Sentinels) -> str:
    """Return the URL of the primary that Sentinels name now; see ``FailoverEngine.open``."""
    wait_s = WAIT_S if sentinels.wait_s is None else sentinels.wait_s
    engine = FailoverEngine("", sentinels, wait_s=wait_s)
    try:
        return engine._get_engine(None).url
    finally:
        engine.close()


def find_replica(sentinels: Sentinels) -> str | None:
    """Return the URL of a replica that follows and answers, one of several by chance, or None."""
    found = Asker(sentinels).replicas()
    for address in sample(found, len(found)):
        url = sentinels.server(*address)
        server = Connection(connect(url, CONNECT_S))
        with suppress(ServerUnavailable), translate_errors(), closing(server):
            link = server.take()
            server.give_back(link)
            if role_of(link) == "slave":
                return url
    return None


def connect_present(
    url: str,
    connect_s: float = FIRST_S,
    reply_s: float = LONGEST_S,
    *,
    user: str | None = None,
    password: str | None = None,
) -> "redis.Redis":
    """Return a client as ``connect`` does; for a URL of Sentinels, of the present primary.

    The client stays with that server.
    """
    sentinels = sentinels_of(url)
    if sentinels is not None:
        url = find_primary(sentinels.as_user(user, password))
        user = password = None
    return connect(url, connect_s, reply_s, user=user, password=password)
