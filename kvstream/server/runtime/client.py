"""One client: its session, its unread requests, and what CLIENT LIST shows of it.

A client holds no socket: the owner of the socket passes received bytes to ``receive`` and provides
a ``Transport``. Received bytes are parsed in small pieces, so that no client delays the
others, and bytes behind a blocked command cost no more than their size.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from kvstream.commands.command import Blocked, Command, Session
from kvstream.commands.replies import RESP2, ErrorReply, Reply
from kvstream.engine.engine import Engine
from kvstream.engine.waiters import Waiter
from kvstream.errors import ProtocolError
from kvstream.meta.txn import Txn
from kvstream.operations.watch import Watched
from kvstream.resp.requests import ARGUMENT_BYTES, QUERY_LIMIT, RequestReader
from kvstream.server.acl import Acl, User
from kvstream.server.compiled import twins
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client_state import (
    CLOSED,
    UNFINISHED,
    UNWRITTEN,
    ClientState,
    ConnectionState,
    Event,
    follow,
)
from kvstream.server.stats import CommandStatistics, Statistics
from kvstream.storage.batch import Batch

PIECE: Final = 16 << 10
"""Bytes parsed together: as many as Redis reads at once."""


class Unread:
    """A queue of received bytes that are not parsed yet."""

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
        """Remove and return the next bytes, at most PIECE of them."""
        first, at = self._chunks[0], self._at
        end = at + PIECE
        if end >= len(first):
            self._chunks.popleft()
            self._at = 0
        else:
            self._at = end
        piece = first[at:end]
        self.size -= len(piece)
        return piece

    def clear(self) -> None:
        self._chunks.clear()
        self._at = self.size = 0


Argv = list[bytes]

READ_AHEAD = 1 << 20
"""Bytes of requests that may wait to run before the client's socket is paused."""
STRANGER_AHEAD = 64 << 10
"""The same for a client that has not authenticated: all it may send is its password."""


class ReplyMode(Enum):
    """The modes of CLIENT REPLY."""

    ON = "on"
    OFF = "off"
    SKIP_NEXT = "skip next"
    SKIP = "skip"


_ON, _OPEN = ReplyMode.ON, ConnectionState.OPEN
_BLOCKED, _RUNNABLE = ClientState.BLOCKED, ClientState.RUNNABLE


@dataclass(slots=True)
class MultiQueue:
    """The commands of a MULTI."""

    commands: list[tuple[Command, Argv]] = field(default_factory=list)
    size: int = 0
    """Bytes of memory that the commands take."""
    failed: bool = False
    """A command was refused, so EXEC will fail."""
    grows: bool = False
    """A command may make the store larger."""
    writes: bool = False
    appends: bool = False
    """A command is an XADD."""
    runs_scripts: bool = False

    def add(self, command: Command, argv: Argv) -> None:
        """Append a command; one of a MULTI that will fail takes no memory."""
        if self.failed:
            return
        self.note(command)
        self.commands.append((command, argv))
        self.size += sum(map(len, argv)) + len(argv) * ARGUMENT_BYTES

    def note(self, command: Command) -> None:
        """Note what a queued command may do."""
        self.grows |= command.grows
        self.writes |= command.writes
        self.appends |= command.name == "xadd"
        self.runs_scripts |= command.runs_scripts


@dataclass(slots=True)
class Block:
    """A blocked command; times are on the server's clock."""

    wait: Blocked
    waiter: Waiter
    since: float
    until: float | None
    """When it times out; None: never."""
    retry: float | None = None
    """When it is tried again even if nothing was written."""


class ChannelKind(Enum):
    """What a client subscribes to; the value is the first letter of its commands and messages."""

    CHANNEL = ""
    PATTERN = "p"
    SHARD = "s"


Subscriptions = dict[ChannelKind, dict[bytes, None]]
"""The channels and patterns of one client, in the order of its requests."""


class Server(Protocol):
    """The executor as its parts see it: they may not import it, since it imports them."""

    engine: Engine
    acl: Acl
    options: ServerOptions
    statistics: Statistics
    clock: Callable[[], float]
    post: Callable[[Callable[[], None]], None]
    """Call a function in the executor's thread; other threads use it."""
    clients: dict[int, "Client"]
    """All clients, by ID."""
    ready: dict["Client", None]
    """Clients with requests to run, in the order of arrival."""

    @property
    def in_turn(self) -> bool:
        """Whether the current thread runs a turn."""
        ...

    def is_alone(self, client: "Client") -> bool:
        """Whether no other client has run a request in this turn."""
        ...

    def answer_blocked(self, client: "Client", reply: Reply) -> None:
        """Answer a client that was blocked."""
        ...

    def drop(self, client: "Client") -> None:
        """Close a client's connection at once."""
        ...


class ReplicaClient(Protocol):
    """What ``Replication`` knows of a client that may be a replica."""

    @property
    def is_linked(self) -> bool:
        """Whether it gets the log or a copy."""
        ...


class Transport(Protocol):
    """How a client writes to its connection, and ends it."""

    def send(self, data: bytes) -> None:
        """Write bytes to the client; must not raise if the connection is gone."""
        ...

    def close(self) -> None:
        """Close the connection after the bytes sent so far."""
        ...

    def abort(self) -> None:
        """Close the connection and discard unsent bytes."""
        ...

    def pending_output(self) -> int:
        """Return the bytes of replies that the client has not read yet."""
        ...

    def pause(self) -> None:
        """Stop reading from the connection."""
        ...

    def resume(self) -> None:
        """Read from it again."""
        ...


class Client(Session):
    """One connection."""

    __slots__ = (
        "abort",
        "address",
        "authenticated",
        "block",
        "bytes_in",
        "bytes_out",
        "close",
        "closing",
        "commands_run",
        "connection",
        "created",
        "descriptor",
        "fault",
        "has_tls",
        "id",
        "is_local",
        "is_plain",
        "is_unix",
        "last_command",
        "last_used",
        "lib_name",
        "lib_version",
        "local_address",
        "look_at",
        "lost",
        "may_run",
        "monitors",
        "name",
        "no_evict",
        "no_touch",
        "on_short_path",
        "output_over_since",
        "pause",
        "pending_output",
        "queue",
        "reader",
        "replica",
        "reply_mode",
        "reply_unfinished",
        "requests",
        "resume",
        "send",
        "server",
        "state",
        "subscriptions",
        "unread",
        "user",
        "watched",
    )

    def __init__(
        self,
        server: Server,
        client_id: int,
        reader: RequestReader,
        transport: Transport,
        now: float,
    ) -> None:
        super().__init__(server.engine.options.databases)
        self.server = server
        self.id = client_id
        self.reader = reader
        self.fault: ProtocolError | None = None
        """A protocol error: answered after the replies to the requests before it."""
        self.send, self.pending_output = transport.send, transport.pending_output
        self.close, self.abort = transport.close, transport.abort
        self.pause, self.resume = transport.pause, transport.resume
        self.created = self.last_used = now
        self.address = self.local_address = ""
        self.is_unix = False
        """The connection is a Unix socket; the address is the socket's path."""
        self.name = self.lib_name = self.lib_version = b""
        self.descriptor = -1
        self.output_over_since: float | None = None
        """When ``pending_output`` last rose above the soft limit; None: it is below."""
        self.bytes_in = self.bytes_out = 0
        self.look_at = READ_AHEAD if server.acl.is_open else STRANGER_AHEAD
        """The value of ``bytes_in`` at which the read-ahead limit is checked next."""
        self.replica: ReplicaClient | None = None
        self.is_local = self.has_tls = False
        """The client runs on this machine."""
        self.become(server.acl.default, server.acl.is_open)
        self.requests: deque[Argv] = deque()
        """Whole requests that have not run."""
        self.unread = Unread()
        """Bytes received after these requests and not parsed yet."""
        self.queue: MultiQueue | None = None
        """The open MULTI."""
        self.watched = Watched()
        """Keys under WATCH."""
        self.subscriptions: Subscriptions | None = None
        """None: it is subscribed to nothing. ``PubSub`` changes it."""
        self.reply_mode = ReplyMode.ON
        self.no_evict = self.no_touch = self.monitors = False
        self.last_command = ""
        self.commands_run = 0
        self.state, self.connection = _RUNNABLE, _OPEN
        self.block: Block | None = None
        """What it waits for while it is BLOCKED."""
        # Derived from the two states by ``handle``, since every request reads them.
        self.may_run = True
        """Its next request may run."""
        self.reply_unfinished = False
        """Its command is put off, runs in steps, or has a streamed reply; later requests wait."""
        self.closing = False
        """Nothing more is read or run; the connection closes after the last reply."""
        self.lost = False
        """Its replies are not written."""
        self.is_plain = self.on_short_path = False
        self.update_path()

    # --- states ---------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Change the states by an event; ImpossibleEvent if they do not allow it."""
        state, connection = follow(event, self.state, self.connection)
        if state is not _BLOCKED:
            self.block = None
        self.state, self.connection = state, connection
        self.closing = connection in CLOSED
        self.lost = connection in UNWRITTEN
        self.reply_unfinished = state in UNFINISHED
        self.may_run = state is _RUNNABLE and not self.closing
        if self.may_run:
            self.update_path()
        else:
            self.on_short_path = False

    def wait_for(self, block: Block) -> None:
        """Block the client."""
        self.handle(Event.BLOCK)
        self.block = block

    def update_path(self) -> None:
        """Decide anew whether the client's requests may take the short path.

        Called by each event, after a change of users, and after each request on the general path:
        no other request changes the session.
        """
        self.is_plain = is_plain = (
            self.reply_mode is _ON
            and self.queue is None
            and self.authenticated
            and self.user.free
            and not self.no_touch
            and self.subscriptions is None
        )
        """Its session has no special state: plain requests may run in a pipeline or XADD batch."""
        self.on_short_path = (
            is_plain
            and self.may_run
            and self.connection is _OPEN
            and self.fault is None
            and not self.unread.size
            and self.reader.is_empty
        )
        """It is plain, and all received bytes are in ``requests``: the next bytes may be an XADD
        batch, and no work is left after the requests."""

    # --- requests -------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether received bytes or requests wait to be parsed or run."""
        return bool(self.requests or self.fault or self.unread.size or self.reader.is_cut)

    def receive(self, data: bytes) -> None:
        """Take received bytes; parse them if they are few and nothing is before them."""
        self.on_short_path = False  # until its requests have run
        waits = self.state is not _RUNNABLE or self.unread.size or self.reader.is_cut
        if waits or len(data) > PIECE:
            self.unread.add(data)
            return
        self.reader.feed(data)
        self.take_in()

    def take_in(self) -> bool:
        """Parse the next requests; return False if there are no bytes to parse.

        Before AUTH they are parsed one by one: each may change the limits of the next.
        """
        reader, unread = self.reader, self.unread
        if self.fault is not None or (not unread.size and reader.is_empty):
            return False
        try:
            requests = reader.take()
            fed = not requests and bool(unread)
            if fed:
                reader.feed(unread.piece())
                requests = reader.take()
        except ProtocolError as error:
            self.fault = error
            self.server.statistics.input_disconnections += str(error) == QUERY_LIMIT
            return False
        self.requests += requests
        return fed or bool(requests)

    @property
    def query(self) -> int:
        """Bytes of memory that its unrun requests take."""
        reader, queue = self.reader, self.queue
        received = self.unread.size + (0 if reader.is_empty else reader.buffered)
        return received + self.parsed_bytes + (0 if queue is None else queue.size)

    @property
    def parsed_bytes(self) -> int:
        """Bytes of memory that its parsed requests take."""
        return sum([sum(map(len, argv)) + len(argv) * ARGUMENT_BYTES for argv in self.requests])

    def become(self, user: User, authenticated: bool = True) -> None:
        """Set the user; an unauthenticated client may send small requests only."""
        self.user = user
        self.authenticated = self.reader.trusted = authenticated

    def begin_queue(self) -> None:
        """Begin MULTI."""
        self.queue = MultiQueue()

    def end_queue(self) -> None:
        """End MULTI and WATCH."""
        self.queue = None
        if self.watched.is_used:
            self.watched = Watched()

    def reset(self) -> None:
        """Reset the session, as RESET does."""
        self.select(0)
        self.end_queue()
        self.name = b""
        self.protocol = RESP2
        if self.reply_mode is not ReplyMode.SKIP:  # this reply
            self.reply_mode = ReplyMode.ON
        self.no_evict = self.no_touch = self.monitors = False
        self.become(self.server.acl.default, self.server.acl.is_open)

    def wants_next(self) -> bool:
        """Return whether the next reply is written; count it for CLIENT REPLY SKIP."""
        if self.reply_mode is _ON:
            return True
        if self.reply_mode is ReplyMode.SKIP_NEXT:
            self.reply_mode = ReplyMode.SKIP
        elif self.reply_mode is ReplyMode.SKIP:
            self.reply_mode = ReplyMode.ON
            self.update_path()
        return False


if twins is not None:
    twins.bind(Client, RequestReader, Statistics, CommandStatistics, Txn, Batch)


class PendingReplies(Protocol):
    """A pending reply, a pipeline, an XADD batch with its replies, or a published message."""

    @property
    def client(self) -> Client: ...

    def encode(self) -> bytes: ...

    def memory(self) -> int: ...

    def depends_on_store(self) -> bool: ...

    def fail(self, error: ErrorReply) -> None: ...
