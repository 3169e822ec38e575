"""A queue: messages that workers lease, finish, give back, and lose to the dead letters.

A queue is a stream and one of its groups, whose policy the store enforces for every client. Each
priority but the plain one is a stream of its own: ``emails:high``, ``emails``, ``emails:low``.
A message is leased to the consumer that got it. The consumer and the number of deliveries are the
token of the lease: whoever acknowledges with an old token gets LeaseLost, and changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic

from kvstream.dead_letters import DeadLetters
from kvstream.engine.blocking_reads import clear_unknown_idle, lease_messages
from kvstream.engine.coerce import Name, Seconds, at_least_1, expiry_ms, name_bytes, wait_of
from kvstream.engine.decoding import BYTES, Decoder, LetterCounts
from kvstream.engine.interface import AnyEngine
from kvstream.engine.lease_renewal import Lease, Outages, Stop, stop_check
from kvstream.engine.message_leases import MessageLeases
from kvstream.engine.queue_arguments import (
    Delays,
    Duration,
    Moment,
    Rate,
    check_priorities,
    failure_of,
    key_of_priority,
    rules_of,
    unique_consumer,
)
from kvstream.engine.waiters import Interrupt
from kvstream.errors import (
    AccessDenied,
    BusyGroup,
    InvalidArgument,
    NoGroup,
    NoSuchKey,
    RequestError,
    ServerTooOld,
    in_parts,
    nearest,
    part_done,
    quote,
    show,
)
from kvstream.group import Group
from kvstream.layout.keys import key_of
from kvstream.layout.rows import Rows
from kvstream.layout.values import FieldPart, FieldsLike, encode_fields
from kvstream.meta.policy import DEAD_SUFFIX, GroupPolicy, Retention
from kvstream.operations import groups
from kvstream.operations.info import group_infos
from kvstream.operations.queues import leases, policy, retention
from kvstream.operations.queues.info import queue_info
from kvstream.storage.contexts import contextmanager
from kvstream.store import Store
from kvstream.stream import Stream
from kvstream.surface import Public
from kvstream.types.ids import MIN_ID, StreamID, Ticket
from kvstream.types.options import OnConflict
from kvstream.types.records import Entry, Fields, LeaseOutcome, QueueInfo, S
from kvstream.types.urls import show_instead

LEASE_S, REAP_S = 30.0, 86_400.0
"""The lease of a new queue, and the idle time after which its consumers are deleted."""
LOW_SHARE = 10
"""Of this many reads that return messages, each lower priority begins one."""
_PAGE = 1000
_DELETE_DONE = Retention(acked=True)
_STAY = "the stream %s was there before its queue, so it keeps what is done: set keep=True or False"
_TOKEN_OF = attrgetter("_entry.id", "deliveries")
_DONE = LeaseOutcome.DONE
_log = logging.getLogger(__name__)


class Message(Public, Generic[S]):
    """A message that was delivered to a consumer of a queue, and its lease."""

    __slots__ = ("_consumer", "_entry", "_name", "_settled", "deliveries", "queue")
    _internal = frozenset({"give_back", "guard", "has_lapsed", "nack_with"})

    def __init__(self, queue: Queue[S], name: bytes, consumer: bytes, entry: Entry[S]) -> None:
        self.queue = queue
        self.deliveries = (entry.deliveries or 0) + 1
        """How often it was delivered: 1 the first time."""
        self._name, self._consumer = name, consumer
        self._entry = entry
        self._settled = False
        """It was acknowledged or given back, perhaps in an open transaction."""

    def __repr__(self) -> str:
        return f"<Message {self.id} of {key_of(self._name)!r}, delivery {self.deliveries}>"

    @property
    def consumer(self) -> S:
        """The consumer that it was delivered to."""
        return self.queue._decoder.name(self._consumer, "the consumer")

    @property
    def id(self) -> StreamID:
        """The ID of the message in its stream; it stays when the message is delivered again."""
        return self._entry.id

    @property
    def fields(self) -> Fields[S]:
        """The fields in order; a repeated one has its last value here: see ``pairs``."""
        return self._entry.fields

    @property
    def flat(self) -> tuple[S, ...]:
        """Field, value, field, value ... in order, repeated fields included."""
        return self._entry.flat

    @property
    def pairs(self) -> tuple[tuple[S, S], ...]:
        """The (field, value) pairs in order, repeated fields included."""
        return self._entry.pairs

    @property
    def key(self) -> S:
        """The key of its stream, which tells its priority."""
        return self.queue._decoder.name(key_of(self._name), "the key")

    @property
    def age(self) -> float:
        """The seconds since it was added, or was due if it was delayed."""
        return max(0, self.queue._engine.local_clock.now_ms() - self.id.ms) / 1000

    @property
    def token(self) -> tuple[StreamID, int]:
        """The ID and the number of deliveries, which the lease holds for."""
        return self.id, self.deliveries

    @property
    def has_lapsed(self) -> bool:
        """Whether it was delivered before, and that lease has ended without a word."""
        return self.deliveries > 1 and self._entry.idle_ms is not None

    def ack(self) -> None:
        """Acknowledge the message. Raises LeaseLost if another consumer has the lease."""
        queue, token = self.queue, (self._entry.id, self.deliveries)
        done = queue._engine.run(leases.ack, self._name, queue._group, self._consumer, [token])
        if type(done) is list and done[0] == _DONE:
            self._settled = True
        else:
            queue._leases.settle(self, done)

    def nack(
        self,
        delay: Duration | None = None,
        *,
        fatal: bool = False,
        error: BaseException | str | None = None,
        traceback: str | None = None,
    ) -> None:
        """Give the message back to the queue. Raises LeaseLost if another consumer has the lease.

        It comes again after ``delay``, or that of the queue's backoff. With ``fatal``, and after
        the last of ``max_deliveries``, it moves to the dead letters, with the text and traceback of
        ``error``.
        """
        self.nack_with(**failure_of(delay, fatal, error, traceback))

    def nack_with(self, **options: Any) -> None:
        """Give the message back with the options of ``leases.nack``; raise LeaseLost."""
        held = self.queue._leases
        held.settle(self, held.run(leases.nack, [self], **options))

    def extend(self) -> None:
        """Renew the lease. Raises LeaseLost if another consumer has it."""
        held = self.queue._leases
        held.refuse_lost(self, held.run(leases.extend, [self]))

    def guard(self) -> None:
        """Raise LeaseLost if the lease is lost; in a transaction on a server also at its end."""
        self.queue._leases.guard(self)

    def give_back(self) -> None:
        """Give the message back as not delivered, unless another consumer has it."""
        self.queue._leases.give_back(self)

    @contextmanager
    def transaction(self) -> Iterator[Store[S]]:
        """Run everything that this thread does in the block, and the ack, as one atomic commit.

        So each message has its effect inside the store exactly once: an exception undoes the
        block, and so does LeaseLost, if the lease is another's by the end. The rules are those of
        ``Store.transaction``. ::

            with message.transaction() as store:
                store.stream("invoices").add({"order": message.fields[b"order"]})
        """
        queue = self.queue
        try:
            with queue._engine.transaction():
                self.guard()
                self._settled = False  # an earlier transaction may have been undone
                yield queue.store
                if not self._settled:
                    self.ack()
        except BaseException:
            self._settled = False
            raise


class _Messages(list[Message[S]]):
    """A list of messages, which says so to those who take it for one message."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = f": use queue.get_one().{name}" if hasattr(Message, name) else ""
            raise AttributeError(
                f"get() returns a list of messages, which has no {name}{hint}",
                name=name,
                obj=self,
            )


class Queue(DeadLetters[S]):
    """A queue of messages, by its name; methods may be called from any thread.

    The first ``get`` or ``listen`` creates its streams and group, and sets those rules of the
    policy that were given: the last process to set a rule wins, and a rule that nobody gives stays.
    ``put`` needs no policy. If a Queue makes the stream, messages that are done are deleted from
    it, by a rule of retention; a stream that had entries before keeps them: see ``keep``. ::

        emails = Queue(store, "emails", lease=30, max_deliveries=5, backoff=[1, 10, 60])
        emails.put({"to": "ann"}, delay=60)
        for message in emails.listen():
            send(message.fields)
            message.ack()

    >>> with kvstream.open("data", decode=True) as store:
    ...     emails = kvstream.Queue(store, "emails", lease=30, max_deliveries=5)
    ...     _ = emails.put({"to": "ann"})
    ...     message = emails.get_one()
    ...     print(message.fields, emails.info().leased)
    ...     message.ack()
    ...     print(emails.info().leased)
    {'to': 'ann'} 1
    0
    """

    _internal = frozenset({"keys", "messages_of", "policy", "prepare", "stream_for"})

    def __init__(
        self,
        store: Store[S],
        name: Name,
        *,
        group: Name = "workers",
        consumer: Name | None = None,
        lease: Duration | None = None,
        max_deliveries: int | None = None,
        backoff: Delays | None = None,
        dead_letter: Name | None = None,
        order_by: Name | None = None,
        max_per_key: int | None = None,
        fair: bool | None = None,
        max_in_flight: int | None = None,
        rate: Rate | None = None,
        priorities: Sequence[str] = (),
        keep: bool | None = None,
    ) -> None:
        """Describe a queue; nothing is read or written yet.

        ``lease``: the seconds after which a message goes to another consumer, 30 for a new queue.
        ``max_deliveries``: then it moves to the stream ``dead_letter``, by default
        ``<name>:dead``. ``backoff``: the seconds before it comes again, as ``[1, 10, 60]`` or
        ``Backoff(1, 3600)``. ``order_by``: a field; messages of equal value are delivered in
        order, ``max_per_key`` (1) at a time; with ``fair`` the values take turns.
        ``max_in_flight``: how many are leased at a time. ``rate``: ``(100, 60)`` delivers at most
        100 in 60 seconds. ``priorities``: their names, the most urgent first; limits hold for each.
        ``keep``: whether messages that are done stay, which is decided when the stream is made; by
        default if it had entries, rules of retention or other groups. ``consumer``: unique if None.
        """
        if not isinstance(store, Store):
            raise InvalidArgument(
                f"a Queue has a Store, not {show_instead(store)}: open one with kvstream.open; "
                "kvstream.aio.AsyncQueue has an AsyncStore"
            )
        self.store = store
        self._engine: AnyEngine = store._engine
        self._decoder: Decoder[S] = store._decoder
        self._group = name_bytes(group, "the group")
        self._consumer_name = None if consumer is None else name_bytes(consumer, "the consumer")
        self._process_consumer: tuple[int, bytes] = (0, b"")
        """The ID of this process and its own consumer, used if no consumer was given."""
        self._keep = keep
        self._leases = MessageLeases(self._engine, self._group)
        self._begun: dict[bytes, Stream[S]] = {}
        """Streams that exist, with their rules of retention set, by name."""
        self._key = name_bytes(name, "the queue")
        self._priorities = check_priorities(priorities)
        self._names = [store.name_of(key_of_priority(self._key, each)) for each in self._priorities]
        self._plain = store.name_of(self._key)
        self._rules = rules_of(
            lease=lease,
            max_deliveries=max_deliveries,
            backoff=backoff,
            dead_letter=dead_letter,
            order_by=order_by,
            max_per_key=max_per_key,
            fair=fair,
            max_in_flight=max_in_flight,
            rate=rate,
        )
        if len(self._names) > 1:
            self._rules.setdefault("dead_letter", self._key + DEAD_SUFFIX)
        if self._rules.get("lease_ms", 1) < 1:
            raise InvalidArgument("lease must be above 0: without one, a lost message stays lost")
        self._lease_ms = 0
        """The lease of the policy; 0: group and policy are not known yet."""
        self._reads = 0
        """Reads that have returned messages."""

    def __repr__(self) -> str:
        return f"<Queue {self._key!r}, group {self._group!r}>"

    @property
    def name(self) -> S:
        """The name of the queue: the key of its stream of normal priority."""
        return self._decoder.name(self._key, "the queue")

    @property
    def group(self) -> S:
        """The name of the consumer group."""
        return self._decoder.name(self._group, "the group")

    @property
    def consumer(self) -> S:
        """The name of the consumer that this object reads as."""
        return self._decoder.name(self._consumer, "the consumer")

    @property
    def _consumer(self) -> bytes:
        if self._consumer_name is not None:
            return self._consumer_name
        process = os.getpid()
        if self._process_consumer[0] != process:  # this one was forked
            self._process_consumer = process, unique_consumer().encode()
        return self._process_consumer[1]

    @property
    def priorities(self) -> tuple[str, ...]:
        """The priorities, the most urgent first."""
        return self._priorities

    def streams(self) -> list[Stream[S]]:
        """Return the streams of the priorities, the most urgent first."""
        return [Stream(self._engine, name, self._decoder) for name in self._names]

    def keys(self) -> list[str]:
        """Return the keys of the streams of the priorities, as text."""
        return [key_of(name).decode("utf-8", "surrogateescape") for name in self._names]

    def groups(self) -> list[Group[S]]:
        """Return the group of each stream."""
        return [Group(self._engine, name, self._group, self._decoder) for name in self._names]

    # --- putting --------------------------------------------------------------------------------

    def put(
        self,
        fields: FieldsLike,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        ttl: Duration | None = None,
        unique: FieldPart | None = None,
        window: Duration | Rate | None = None,
        on_conflict: OnConflict = "skip",
        max_wait: Duration | None = None,
        priority: str | None = None,
    ) -> StreamID | Ticket:
        """Add a message; return its ID, or its ticket if it is delayed. See ``Stream.add``."""
        return self._stream(priority).add(
            fields,
            delay=delay,
            at=at,
            ttl=ttl,
            unique=unique,
            window=window,
            on_conflict=on_conflict,
            max_wait=max_wait,
        )

    def put_many(
        self,
        messages: Iterable[FieldsLike],
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        ttl: Duration | None = None,
        priority: str | None = None,
    ) -> Sequence[StreamID | Ticket]:
        """Add messages in one atomic commit; return the ID or ticket of each."""
        return self._stream(priority).add_many(messages, delay=delay, at=at, ttl=ttl)

    def stream_for(self, priority: str | None) -> Stream[S]:
        """Return the stream that messages of a priority are put into."""
        return self._stream(priority)

    def _stream(self, priority: str | None) -> Stream[S]:
        if priority is None:
            return self._stream_of(self._plain)
        if priority not in self._priorities:
            near = nearest(str(priority), self._priorities)
            near = near or f": it has {', '.join(self._priorities)}"
            raise InvalidArgument(f"the queue has no priority {show(priority)}{near}")
        return self._stream_of(self._names[self._priorities.index(priority)])

    def _stream_of(self, name: bytes) -> Stream[S]:
        stream = self._begun.get(name)
        if stream is None:
            stream = Stream(self._engine, name, self._decoder)
            try:
                self._begin(stream)
            except (AccessDenied, ServerTooOld):  # a user that may only add entries
                self._begun[name] = stream
        return stream

    def _begin(self, stream: Stream[S]) -> None:
        """Make a new stream delete done messages; keep the rules of one that has begun."""
        name, begin = stream._name, retention.begin_with
        if self._keep or self._engine.run(begin, name, _DELETE_DONE, self._group) is False:
            self._begun[name] = stream  # True, or None in a transaction on a server, may be undone

    def cancel(self, *tickets: Ticket | StreamID | str) -> int:
        """Cancel delayed messages; return how many were still delayed."""
        return sum(in_parts(partial(stream.cancel, *tickets) for stream in self.streams()))

    # --- getting --------------------------------------------------------------------------------

    def get(self, count: int = 1, block: Seconds | None = None) -> list[Message[S]]:
        """Lease up to ``count`` messages; [] if there are none.

        First come those that are due again, then those whose lease has ended, then new ones; of
        several priorities the most urgent come first, but each lower one begins every tenth read
        that returns messages. Waits at most ``block`` seconds: 0 is for ever, None not at all.
        """
        return _Messages(take([self], count, block))

    def get_one(self, block: Seconds | None = None) -> Message[S] | None:
        """Lease one message; None if there is none. See ``get``."""
        messages = take([self], 1, block)
        return messages[0] if messages else None

    def _read_order(self) -> list[bytes]:
        """Return the streams of the next read, in its order."""
        names = self._names
        if len(names) == 1:
            return names
        share = max(LOW_SHARE, len(names))
        behind = share - self._reads % share
        if behind >= len(names):
            return names
        return [names[-behind], *names[:-behind], *names[len(names) - behind + 1 :]]

    def listen(
        self, count: int = 1, *, poll: Seconds = 1.0, stop: Stop | None = None
    ) -> Iterator[Message[S]]:
        """Yield messages for ever; settle each with ``ack``, ``nack`` or ``transaction``.

        ``count`` messages are read at once. The one in work, and those read ahead, stay leased: a
        thread (in asyncio a task) extends their leases, three times in each, until the next message
        is asked for. One whose lease was lost all the same is not yielded. One wait lasts ``poll``
        seconds at most. Ends when the event ``stop`` is set (see ``stop_on_signals``), before the
        next message or after the wait; messages that were read and not yielded are given back.
        """
        count = at_least_1(count, "count")
        wait_of(poll, "poll")
        return self._listen(count, poll, stop_check(stop))

    def _listen(
        self, count: int, poll: Seconds, stopped: Callable[[], bool]
    ) -> Iterator[Message[S]]:
        lease: Lease[Message[S]] | None = None
        ahead: list[Message[S]] = []
        outages = Outages(self._engine, stopped)
        try:
            while not stopped():
                found = ahead = outages.outlast(partial(self.get, count, poll)) or []
                if lease is None:
                    every_s = self._lease_ms / 3000
                    lease = Lease(self._engine, self._extend_held, every_s, outages)
                lease.hold(found)
                for at, message in enumerate(found):
                    if stopped():
                        return
                    ahead = found[at + 1 :]
                    if lease.begin(at):
                        yield message
                lease.hold(())
        finally:
            if lease is not None:
                lease.end()
            for message in ahead:
                message.give_back()

    def _extend_held(self, messages: Sequence[Message[S]]) -> list[Message[S]]:
        """Extend leases; return the messages whose lease is still held, or not needed any more."""
        unsettled = [message for message in messages if not message._settled]
        outcomes = zip(unsettled, self.extend(*unsettled), strict=True)
        lost = {message for message, outcome in outcomes if outcome is not LeaseOutcome.DONE}
        return [message for message in messages if message not in lost or message._settled]

    # --- settling -------------------------------------------------------------------------------

    def ack(self, *messages: Message[S]) -> list[LeaseOutcome]:
        """Acknowledge messages; return the outcome of each."""
        return self._all(leases.ack, messages)

    def messages_of(self, consumer: bytes) -> Iterator[Message[S]]:
        """Yield the messages that a consumer has in work, up to 1000 of each priority."""
        for stream, group in zip(self.streams(), self.groups(), strict=True):
            try:
                rows = group.pending_range(count=_PAGE, consumer=consumer)
            except (NoGroup, NoSuchKey):
                continue
            for row in rows:
                if (entry := stream.get(row.id)) is not None:
                    read = entry._replace(deliveries=row.deliveries - 1)
                    yield Message(self, stream._name, consumer, read)

    def nack(
        self,
        *messages: Message[S],
        delay: Duration | None = None,
        fatal: bool = False,
        error: BaseException | str | None = None,
        traceback: str | None = None,
    ) -> list[LeaseOutcome]:
        """Give messages back; return the outcome of each. See ``Message.nack``."""
        return self._all(leases.nack, messages, **failure_of(delay, fatal, error, traceback))

    def extend(self, *messages: Message[S]) -> list[LeaseOutcome]:
        """Renew leases; return the outcome of each."""
        return self._all(leases.extend, messages)

    def _all(
        self, operation: Any, messages: Sequence[Message[S]], **options: Any
    ) -> list[LeaseOutcome]:
        """Run an operation on messages, one call for each stream; return the outcomes.

        In a transaction on a server they are known when its block has ended.
        """
        for each in messages:
            if not isinstance(each, Message):
                hint = ": put a * before the list" if isinstance(each, list | tuple) else ""
                raise InvalidArgument(f"{show(each)} is not a message{hint}")
        return self._leases.run_each(operation, messages, **options)

    # --- the group and its policy ---------------------------------------------------------------

    def prepare(self) -> None:
        """Create the groups and set their policies, unless that is done."""
        if self._lease_ms:
            return
        lease_ms = 0
        for name in self._names:
            present = self.policy(name)
            prepare = self._create if present is None else self._stream_of
            prepare(name)  # a group with a policy may be of a stream that no Queue has begun
            rules = dict(self._rules)
            if present is None or not present.lease_ms:
                rules.setdefault("lease_ms", round(LEASE_S * 1000))
                rules.setdefault("reap_idle_ms", round(REAP_S * 1000))
            if present is None or any(getattr(present, rule) != rules[rule] for rule in rules):
                present = self._engine.run(policy.set_policy, name, self._group, rules)
            lease_ms = present.lease_ms
        self._lease_ms = lease_ms

    def _create(self, name: bytes) -> None:
        """Create a stream and its group, unless another process has just done so.

        Messages that are done are deleted from a stream that a Queue has made; with ``keep=False``
        from any stream that has no other group and no rules of retention.
        """
        self._begin(Stream(self._engine, name, self._decoder))
        try:
            self._engine.run(groups.create_group, name, self._group, MIN_ID, True, None)
        except BusyGroup:
            return
        if self._keep or self._engine.run(retention.rules_of, name) is not None:
            return
        if len(self._engine.run(group_infos, name)) > 1:
            return
        if self._keep is None:
            _log.warning(_STAY, quote(key_of(name)))
        else:
            self._engine.run(retention.set_rules, name, _DELETE_DONE)

    def policy(self, name: bytes | None = None) -> GroupPolicy | None:
        """Return the policy of the group in a stream, by default the plain one; None without one.

        Raises ServerTooOld if the server knows no policies.
        """
        try:
            return self._engine.run(policy.policy_of, name or self._plain, self._group)
        except ServerTooOld:
            raise
        except RequestError:  # NoGroup, or the key does not exist
            return None

    def pause(self) -> None:
        """Deliver nothing until ``resume``; messages in work go on, and puts are taken."""
        self.prepare()
        for _ in in_parts(group.pause for group in self.groups()):
            pass

    def resume(self) -> None:
        """Deliver again."""
        self.prepare()
        for _ in in_parts(group.resume for group in self.groups()):
            pass

    # --- looking --------------------------------------------------------------------------------

    def info(self) -> QueueInfo:
        """Return the number of messages by their state; priorities are read one after another.

        ``dead`` counts the queue's own letters. If other queues may share their stream, that is
        read.
        """
        return self._info(
            LetterCounts(lambda key: Stream(self._engine, self.store.name_of(key), BYTES).scan())
        )

    def _info(self, letters: LetterCounts) -> QueueInfo:
        ready = delayed = leased = waiting = held = dead = oldest_ms = 0
        paused = False
        for name in self._names:
            try:
                figures = self._engine.run(queue_info, name)
            except NoSuchKey:
                continue
            delayed += figures.delayed
            group = next((each for each in figures.groups if each.name == self._group), None)
            if group is None:  # nobody has read from it yet
                ready += figures.length
                first = Stream(self._engine, name, self._decoder).range(count=1)
                now_ms = self._engine.clock.now_ms()
                oldest_ms = max([oldest_ms, *(now_ms - entry.id.ms for entry in first)])
                continue
            of_group = Group(self._engine, name, self._group, self._decoder)
            ready += of_group.backlog() if group.ready is None else group.ready
            leased, waiting = leased + group.leased, waiting + group.waiting
            held += group.held
            oldest_ms = max(oldest_ms, group.oldest_ms)
            dead += letters.of(key_of(name), group, figures.groups)
            paused |= group.policy is not None and group.policy.paused
        age = oldest_ms / 1000 if ready + leased + waiting + held else None
        return QueueInfo(ready, delayed, leased, waiting, held, dead, age, paused)

    def purge(self) -> int:
        """Delete all messages, delayed ones too; return how many were neither done nor in work.

        Messages in work can be settled, and are not delivered again. Dead letters stay.
        """
        before, pairs = self.info(), zip(self.streams(), self.groups(), strict=True)
        cancelled = sum(in_parts(partial(_purge, *pair) for pair in pairs))
        return before.ready + before.waiting + before.held + cancelled

    # --- dead letters ---------------------------------------------------------------------------

    def dead_stream(self) -> Stream[S]:
        """Return the stream of the dead letters."""
        key = self._rules.get("dead_letter")
        if not key:
            rules = self.policy() or GroupPolicy()
            key = rules.dead_key(self._key)
        return self.store.stream(key)


def take(
    queues: Sequence[Queue[S]], count: int = 1, block: Seconds | None = None
) -> list[Message[S]]:
    """Lease up to ``count`` messages of several queues with one read; see ``Queue.get``.

    The queues are of one store and database, and have the same group and consumer. Their order is
    that of the read.
    """
    return take_until(queues, count, block, None)


def take_until(
    queues: Sequence[Queue[S]], count: int, block: Seconds | None, interrupt: Interrupt | None
) -> list[Message[S]]:
    """Lease messages as ``take`` does; ``interrupt`` ends the wait."""
    if not queues:
        raise InvalidArgument("take needs at least one queue")
    if type(count) is not int or count < 1:
        count = at_least_1(count, "count")
    first, consumer = queues[0], queues[0]._consumer
    if len(queues) > 1:
        owner = (first._engine, first._group, consumer)
        if any(owner != (each._engine, each._group, each._consumer) for each in queues):
            raise InvalidArgument(
                "queues that are read together need the same store, group, consumer"
            )
    for queue in queues:
        if not queue._lease_ms:
            queue.prepare()
    try:
        messages = _take(queues, consumer, count, block, interrupt)
    except NoGroup:  # deleted meanwhile
        for queue in queues:
            queue._lease_ms = 0
            queue.prepare()
        messages = _take(queues, consumer, count, block, interrupt)
    if messages:
        for queue in queues if len(queues) == 1 else {each.queue for each in messages}:
            queue._reads += 1
    return messages


def _take(
    queues: Sequence[Queue[S]],
    consumer: bytes,
    count: int,
    block: Seconds | None,
    interrupt: Interrupt | None,
) -> list[Message[S]]:
    first = queues[0]
    engine, decode, lease_ms = first._engine, first._decoder.entries, first._lease_ms
    names, queue_of = first._read_order(), {}
    if len(queues) > 1:
        queue_of = {name: queue for queue in queues for name in queue._read_order()}
        names, lease_ms = list(queue_of), min([queue._lease_ms for queue in queues])
    reply = lease_messages(engine, names, first._group, consumer, count, lease_ms, block, interrupt)
    messages: list[Message[S]] = []
    for name, leased in reply:
        queue = queue_of.get(name, first)
        found = leased if type(leased) is Rows else clear_unknown_idle(engine, leased)
        messages += [Message(queue, name, consumer, entry) for entry in decode(name, found)]
    return messages


def finish(
    messages: Sequence[Message[S]],
    results: Iterable[tuple[Name, FieldsLike, Seconds | None]] = (),
    unless: Sequence[Name] = (),
) -> bool:
    """Acknowledge and delete messages of one store, and add their results, in one commit.

    A result is an entry of a stream: the key, the fields, and the seconds for which the key is
    kept, or None if its expiry is not to change. If one of the keys ``unless`` exists, nothing is
    done, and False is returned. Raises LeaseLost, and nothing is done, if the lease of one message
    is lost: an open transaction must be undone then.
    """
    by_stream: dict[tuple[Queue[S], bytes, bytes], list[Message[S]]] = {}
    for message in messages:
        by_stream.setdefault((message.queue, message._name, message._consumer), []).append(message)
    store = messages[0].queue.store
    if len(by_stream) > 1 and not store.has_transaction():
        with store.brief_transaction():
            return finish(messages, results, unless)
    made = [
        leases.Result(store.name_of(key), *encode_fields(fields), ttl_ms)
        for key, fields, seconds in results
        if (ttl_ms := None if seconds is None else expiry_ms(seconds)) is None or ttl_ms > 0
    ]
    names = [*map(store.name_of, unless)]
    for (queue, name, consumer), some in by_stream.items():
        tokens = [*map(_TOKEN_OF, some)]
        if not queue._engine.run(leases.finish, name, queue._group, consumer, tokens, made, names):
            return False
        made, names = [], []
    for message in messages:
        message._settled = True
    return True


def _purge(stream: Stream[S], group: Group[S]) -> int:
    """Delete all messages of a stream; return how many of them were delayed."""
    cancelled = 0
    with suppress(NoSuchKey, NoGroup):
        last = stream.info().last_generated_id
        stream.trim(maxlen=0)
        with part_done("the messages that were not delayed are deleted"):
            group._forget_free(last)
    while delayed := stream.delayed(count=_PAGE):
        cancelled += stream.cancel(*[each.ticket for each in delayed])
    return cancelled
