"""What the server knows of one client: its session, its requests, its replies on the way.

A client is a value: it holds no socket. Whoever owns the socket feeds ``reader`` and takes away
what ``send`` is called with.

What a client has sent and nobody has looked at yet: it is taken in small pieces.

So no client can hold up the others by what it sends, nor by how much of it is nothing; and what
comes behind a command that waits costs no more than its bytes. Sans-IO.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from kvstream.commands.command import Blocked, Command, Session
from kvstream.commands.replies import RESP2
from kvstream.engine.engine import Engine
from kvstream.engine.waiters import Waiter
from kvstream.errors import ProtocolError
from kvstream.operations.keyspace import Watched
from kvstream.resp.compiled import twins
from kvstream.resp.requests import ARGUMENT_BYTES, QUERY_LIMIT, RequestReader
from kvstream.server.acl import Acl, User
from kvstream.server.stats import Statistics

PIECE: Final = 16 << 10
"""Bytes that are looked at together: as many as Redis reads at once."""


class Unread:
    """Bytes in the order in which they came."""

    __slots__ = ("_at", "_chunks", "size")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._at = 0
        self.size = 0

    def __bool__(self) -> bool:
        return self.size > 0

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self.size += len(data)

    def piece(self) -> bytes:
        """Take the next bytes, PIECE of them at the most."""
        first, at = self._chunks[0], self._at
        end = at + PIECE
        if end >= len(first):
            self._chunks.popleft()
            self._at = 0
        else:
            self._at = end
        found = first[at:end]
        self.size -= len(found)
        return found

    def clear(self) -> None:
        self._chunks.clear()
        self._at = self.size = 0


Argv = list[bytes]

READ_AHEAD = 1 << 20
"""Bytes of requests that may wait to be run before no more of a client's are read."""
STRANGER_AHEAD = 64 << 10
"""The same of a client that has yet to give its password: it has nothing to say but that."""


class Answers(Enum):
    """What CLIENT REPLY asked for."""

    ON = "on"
    OFF = "off"
    SKIP_NEXT = "skip next"
    SKIP = "skip"


_ON = Answers.ON


@dataclass(slots=True)
class Queue:
    """The commands of a MULTI."""

    commands: list[tuple[Command, Argv]] = field(default_factory=list)
    size: int = 0
    """Bytes of memory that they take."""
    failed: bool = False
    """One of them was refused, so EXEC will be."""

    def add(self, command: Command, argv: Argv) -> None:
        """Put a command behind the others."""
        self.commands.append((command, argv))
        self.size += sum(map(len, argv)) + len(argv) * ARGUMENT_BYTES


@dataclass(slots=True)
class Block:
    """A command that waits."""

    wait: Blocked
    waiter: Waiter
    since: float
    """When it began, on the loop's clock."""
    until: float | None
    """When it ends, on the loop's clock; None: never."""
    retry: float | None = None
    """When trying again may help although nothing was written."""


class Server(Protocol):
    """What a client needs of the server that it has come to."""

    engine: Engine
    acl: Acl
    statistics: Statistics
    clock: Callable[[], float]


class Client(Session):
    """One connection."""

    __slots__ = (
        "abort",
        "address",
        "answers",
        "authenticated",
        "block",
        "bytes_in",
        "bytes_out",
        "close",
        "closing",
        "commands_run",
        "created",
        "descriptor",
        "direct",
        "fault",
        "id",
        "is_local",
        "last_command",
        "last_used",
        "leaving",
        "lib_name",
        "lib_version",
        "local_address",
        "look_at",
        "lost",
        "monitors",
        "name",
        "no_evict",
        "no_touch",
        "output_over_since",
        "paged",
        "pause",
        "pending_output",
        "protocol",
        "queue",
        "reader",
        "requests",
        "resume",
        "send",
        "server",
        "unread",
        "user",
        "watched",
    )

    def __init__(
        self,
        server: Server,
        client_id: int,
        reader: RequestReader,
        send: Callable[[bytes], None],
        close: Callable[[], None],
        now: float,
    ) -> None:
        super().__init__(server.engine.options.databases)
        self.server = server
        self.id = client_id
        self.reader = reader
        self.fault: ProtocolError | None = None
        """What the client sent that is no request: told behind the replies before it."""
        self.send = send
        """Write bytes to the client; must not raise when it has gone."""
        self.close = close
        """Close the connection once what was sent has gone out."""
        self.created = self.last_used = now
        self.address = self.local_address = ""
        self.name = self.lib_name = self.lib_version = b""
        self.descriptor = -1
        self.pending_output: Callable[[], int] = lambda: 0
        """Tells the bytes of replies that the client has not taken yet."""
        self.output_over_since: float | None = None
        """Since when they are more than the soft limit."""
        self.bytes_in = self.bytes_out = 0
        self.abort: Callable[[], None] = close
        """Close the connection, and let go of what was to be sent."""
        self.pause: Callable[[], None] = lambda: None
        """Read nothing more from the connection."""
        self.resume: Callable[[], None] = lambda: None
        """Read from it again."""
        self.look_at = READ_AHEAD if server.acl.is_open else STRANGER_AHEAD
        """The number of bytes received at which it is looked how much of it has not been run."""
        self.lost = False
        """It was cut off: nothing need be written for it."""
        self.is_local = False
        """It is on this machine."""
        self.become(server.acl.default, server.acl.is_open)
        self.protocol = RESP2
        self.requests: deque[Argv] = deque()
        """Requests that have arrived whole and have not been run."""
        self.unread = Unread()
        """What follows them, where it is much or comes behind a command that waits."""
        self.queue: Queue | None = None
        """The open MULTI."""
        self.watched = Watched()
        """Keys under WATCH."""
        self.block: Block | None = None
        self.paged = False
        """A reply of it is being written page by page, or it is to be the first of the next turn:
        nothing else of it runs."""
        self.answers = Answers.ON
        self.direct = False
        """Nothing of it waits to be run or told, and its next request is nobody's but its own: what
        it sends may be a burst."""
        self.closing = False
        """Nothing more is read; it is closed behind the last reply."""
        self.leaving = False
        """It sends no more: it is to be closed once its requests have run."""
        self.no_evict = self.no_touch = self.monitors = False
        self.last_command = ""
        self.commands_run = 0

    @property
    def has_work(self) -> bool:
        """Whether something of what it has sent can be run or looked at now."""
        return bool(self.requests or self.fault or self.unread or self.reader.is_cut)

    def receive(self, data: bytes) -> None:
        """Keep what has come; what is little, and next, is looked at."""
        waits = self.block is not None or self.paged or self.unread.size or self.reader.is_cut
        if waits or len(data) > PIECE:
            self.unread.add(data)
            return
        self.reader.feed(data)
        self.take_in()

    def receive_whole(self, data: bytes) -> bool:
        """Keep what has come behind nothing, if that is whole requests and no more."""
        if len(data) > PIECE:
            return False
        requests = self.reader.whole(data)
        self.requests += requests
        return bool(requests)

    def take_in(self) -> bool:
        """Take requests out of what comes next; False: there is nothing to be looked at.

        Before AUTH they come one by one, for each may change what the next may be.
        """
        reader, unread = self.reader, self.unread
        if self.fault is not None or (not unread.size and reader.is_empty):
            return False
        try:
            found = reader.take()
            fed = not found and bool(unread)
            if fed:
                reader.feed(unread.piece())
                found = reader.take()
        except ProtocolError as error:
            self.fault = error
            self.server.statistics.input_disconnections += str(error) == QUERY_LIMIT
            return False
        self.requests += found
        return fed or bool(found)

    @property
    def query(self) -> int:
        """Bytes of memory that what it has sent takes until it is run."""
        size = self.reader.buffered + self.unread.size
        for argv in self.requests:
            size += sum(map(len, argv)) + len(argv) * ARGUMENT_BYTES
        return size if self.queue is None else size + self.queue.size

    def become(self, user: User, authenticated: bool = True) -> None:
        """Be a user, or somebody who has yet to say who: that one may send little at once."""
        self.user = user
        self.authenticated = self.reader.trusted = authenticated

    def end_queue(self) -> None:
        """Be outside MULTI, and watch nothing."""
        self.queue, self.watched = None, Watched()

    def reset(self) -> None:
        """Be as a new connection."""
        self.select(0)
        self.end_queue()
        self.name = b""
        self.protocol = RESP2
        self.answers = Answers.ON
        self.no_evict = self.no_touch = self.monitors = False
        self.become(self.server.acl.default, self.server.acl.is_open)

    def settle(self) -> None:
        """Find out whether the client may send bursts, once its requests have run."""
        self.direct = (
            self.answers is _ON
            and self.queue is None
            and self.block is None
            and self.authenticated
            and not (self.requests or self.fault or self.unread.size or self.closing)
            and self.reader.is_empty
        )

    def wants_next(self) -> bool:
        """Tell whether the next reply is to be written: CLIENT REPLY SKIP holds for one."""
        if self.answers is _ON:
            return True
        if self.answers is Answers.SKIP_NEXT:
            self.answers = Answers.SKIP
            return False
        if self.answers is Answers.SKIP:
            self.answers = Answers.ON
            return False
        return False


if twins is not None:
    twins.know_clients(Client)
