"""What comes in: the clients of a server, and what they have sent that has yet to be run."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter

from kvstream.commands.command import Blocked, Command, Container, every
from kvstream.commands.replies import Paged
from kvstream.engine.engine import Engine
from kvstream.server.acl import Acl, WrongPassword
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.blocked_clients import Waits
from kvstream.server.runtime.checkpoints import Saving
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.dispatch import Calls
from kvstream.server.runtime.incremental_commands import Works
from kvstream.server.runtime.limits import Limits, resident_bytes
from kvstream.server.runtime.reply_queue import Again, Outbox, Slot
from kvstream.server.runtime.reply_streaming import Paging
from kvstream.server.runtime.tracking import Trackers
from kvstream.server.runtime.uploads import Loads
from kvstream.server.runtime.xadd_requests import BURST_BYTES_MAX, PlainBurst, burst_of

_log = logging.getLogger(__name__)


class Arrivals:
    """All clients of a server, and the store that they share."""

    waits: Waits
    outbox: Outbox
    works: Works
    burst_bytes_max = BURST_BYTES_MAX

    def __init__(
        self,
        engine: Engine,
        commands: Mapping[bytes, Command | Container],
        clock: Callable[[], float],
        options: ServerOptions | None,
    ) -> None:
        self.engine: Engine = engine
        self.commands = commands
        self.options: ServerOptions = replace(options or ServerOptions())
        self.acl = Acl(commands, self.options.requirepass, self.options.aclfile)
        self.clients: dict[int, Client] = {}
        self.trackers = Trackers(self)
        self.calls = Calls(
            self.options, every(commands), perf_counter, engine.catalog.index.usage, self.trackers
        )
        engine.catalog.index.usage.begin(engine.clock.now_ms())
        self.statistics, self.slowlog = self.calls.statistics, self.calls.slowlog
        self.monitors = self.calls.monitors
        self.latency = self.calls.latency
        self.limits = Limits(self)
        self.saving = Saving(engine, self.options.checkpoint_dir, self.options.checkpoints_kept)
        self.loads = Loads(engine)
        self.stop: Callable[[], None] = lambda: None
        """Has the server stop soon."""
        self.set_level: Callable[[str], None] = lambda name: None
        """Has a process that serves log by another level; in others the program decides."""
        self.started_at = int(time.time())
        self.memory_at_start = resident_bytes()
        self.clock = clock
        self.ready: dict[Client, None] = {}
        """Clients with requests to be run, first come first served."""
        self.bursts: list[PlainBurst] = []
        """What else is to be run, before those."""
        self.first: list[Client] = []
        """Whose next request is to be the first of a turn."""
        self.paging = Paging(self)

    def look_after(self) -> None:
        """Do what comes between two turns."""
        if self.works.is_busy:
            self.works.run()
        if self.limits.held:
            self.limits.release()
        self.limits.bound_clients()
        if self.trackers.clients:
            self.tell_trackers()

    def tick(self) -> None:
        """Do what comes once a second."""
        self.statistics.sample(self.clock())
        self.paging.tick()
        self.tell_trackers()
        self.saving.save_if_due(self.options.save_points, self.statistics.changes)
        self.limits.tick()

    def tell_trackers(self) -> None:
        """Say to clients which keep what they have read what has changed since the last time."""
        slots = self.trackers.messages()
        if slots:
            self.outbox.send(self.engine.seen_sequence, slots)

    def add(self, client: Client) -> None:
        self.clients[client.id] = client
        _log.debug("client %d connects from %s", client.id, client.address)
        self.statistics.connections += 1
        client.reader.bulk_max = self.options.bulk_max
        client.reader.query_max = self.options.query_max
        client.settle()

    def received(self, client: Client, data: bytes) -> None:
        """Take what a client has sent; what is whole runs in the next turn."""
        self.statistics.bytes_in += len(data)
        client.bytes_in += len(data)
        if client.bytes_in > client.look_at:
            self.limits.look(client)
        if client.direct:
            burst = burst_of(client, data)
            if burst is not None:
                self.bursts.append(burst)
                return
        self.keep(client, data)

    def keep(self, client: Client, data: bytes) -> None:
        """Take what is no burst."""
        client.last_used = self.clock()
        if client.direct:
            client.direct = False
            if client.receive_whole(data):
                self.ready[client] = None
                return
        elif client.closing:
            return
        client.receive(data)
        if client.block is not None:
            if client.unread.size > client.reader.query_max:
                self.statistics.input_disconnections += 1
                self.drop(client)
        elif client.has_work:
            self.ready[client] = None

    def log_in(self, client: Client, user: bytes, password: bytes) -> None:
        """Have a client be a user, or raise WrongPassword."""
        try:
            client.become(self.acl.authenticate(user, password))
        except WrongPassword:
            self.calls.deny(client, "auth", client.last_command.upper().encode(), user)
            raise

    def hush(self, client: Client) -> None:
        """Tell a client no more of what others do or change."""
        self.monitors.pop(client, None)
        self.trackers.end(client)

    def ended(self, client: Client) -> bool:
        """Note that a client sends no more: it is closed behind its last reply; False: at once.

        Nobody reads what a blocked command would answer.
        """
        asked = client.has_work or any(each.client is client for each in self.bursts)
        if client.block is not None or not (asked or client.paged or self.is_answering):
            return False
        client.direct, client.leaving = False, True
        self.ready[client] = None
        return True

    def gone(self, client: Client) -> None:
        """Forget a client whose connection has ended."""
        _log.debug("client %d of %s is gone", client.id, client.address)
        client.closing, client.direct = True, False
        client.requests.clear()
        client.unread.clear()
        self.hush(client)
        self.ready.pop(client, None)
        self.clients.pop(client.id, None)
        self.waits.cancel(client)
        self.paging.forget(client)
        if client in self.first:
            self.first.remove(client)
        self.works.forget(client)

    def drop(self, client: Client) -> None:
        """Close a client's connection without a word; what it has not read is let go."""
        self.gone(client)
        client.abort()

    def let_go(self, slot: Slot) -> None:
        """Have a client that a turn held which has failed be held by nothing.

        What it has not been answered is its next request; what this slot is to answer, it waits
        for no more.
        """
        client = slot.client
        self.works.put_back(client)
        self.waits.pause.let_go(client)
        if client.requests:
            self.ready[client] = None
        if isinstance(slot.reply, Blocked):
            if client.block is not None and client.block.wait is slot.reply:
                self.waits.end(client)  # its waiter went with the turn
            else:  # somebody has ended the wait: the reply to that is another slot's
                slot.unit = None
        elif type(slot.reply) is Paged:
            self.paging.release(client)

    def taken_back(self, client: Client) -> Slot:
        """Return the request of a client that was to be the first of the next turn."""
        self.first.remove(client)
        client.paged = False
        self.ready[client] = None  # for what comes behind it
        again = client.requests.popleft()
        assert isinstance(again, Again)
        return again.slot

    @property
    def is_answering(self) -> bool:
        """Tell whether replies wait until what they tell of is durable."""
        return self.outbox.is_waiting
