"""Every public call that writes: what it needs, and the call."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvstream import Entry, Jobs, NackMode, Queue, Store
from kvstream.types.ids import MIN_ID

GROUP, QUEUE = b"g", b"workers"
FAR_S = 1e6
NAMES = b"jobs:ended"


def queue_of(store: Store, priorities: Sequence[str] = ()) -> Queue:
    return Queue(store, "q", consumer="ann", lease=FAR_S, keep=True, priorities=priorities)


def fill(store: Store, ours: bool) -> None:
    """Make a stream of three entries, of which a consumer has two, and a queue of three."""
    stream = store.stream("s")
    for n in range(3):
        stream.add({"n": n}, id=f"{n + 1}-1")
    stream.create_group(GROUP, "0").consumer("c").read(2)
    store.stream("t").add({"n": 9}, id="1-1")
    if not ours:
        return
    stream.schedule("nightly", "0 3 * * *", {"n": 1})
    stream.group(GROUP).set_policy(max_in_flight=100)
    store.stream("t").set_retention(max_length=1000)
    store.stream("d").add({"n": 1}, delay=FAR_S)
    queue = queue_of(store)
    queue.put({"n": 0})
    (message,) = queue.get()
    message.nack(fatal=True, error="broken")
    queue.put_many([{"n": n} for n in range(1, 4)])


def state(store: Store, ours: bool) -> dict[bytes, Any]:
    """Return all that a write may have changed, without IDs and times.

    A stream that has only its rules of retention does not count: a queue makes it first. Nor does
    the list of the queues with jobs, which is written again until it is there.
    """
    found: dict[bytes, Any] = {}
    for key in sorted(set(store.keys()) - {NAMES}):
        kind = store.type(key)
        if kind != "stream":
            found[key] = kind
            continue
        entries, added, *rest = _stream(store, key)
        of_ours = _of_ours(store, key) if ours else {}
        if added or of_ours.get("delayed"):
            found[key] = [entries, added, *rest, of_ours]
    return found


def _stream(store: Store, key: bytes) -> list[Any]:
    stream, info = store.stream(key), store.stream(key).info()
    entries = stream.range()
    places = {entry.id: at for at, entry in enumerate(entries)}
    groups = [
        (
            group.name,
            places.get(group.last_delivered_id),
            [
                (places.get(row.id), row.consumer, row.deliveries)
                for row in stream.group(group.name).pending_range("-", "+", 100)
            ],
            [each.name for each in stream.group(group.name).consumers()],
        )
        for group in stream.groups()
    ]
    fields = [
        {name: value for name, value in entry.fields.items() if not _has_times(name, entry)}
        for entry in entries
    ]
    deleted = info.max_deleted_entry_id > MIN_ID
    return [fields, info.entries_added, deleted, groups, store.ttl(key) is None]


def _has_times(name: bytes, entry: Entry) -> bool:
    """Return whether a field has a time or chance in its value."""
    return name.startswith((b"cron:", b"dead:")) or (b"task" in entry.fields and name != b"args")


def _of_ours(store: Store, key: bytes) -> dict[str, Any]:
    stream = store.stream(key)
    return {
        "schedules": [each.name for each in stream.schedules()],
        "retention": stream.retention(),
        "delayed": [each.fields for each in stream.delayed()],
        "policies": [stream.group(group.name).policy() for group in stream.groups()],
    }


def transact(store: Store) -> None:
    with store.transaction():
        assert len(store.stream("s")) == 3
        store.stream("t").add({"n": 10}, id="9-9")
        store.stream("u").add({"n": 11})


def transact_message(message: Any) -> None:
    with message.transaction() as store:
        store.stream("t").add({"n": 12})


def ticket(store: Store) -> Any:
    return store.stream("d").delayed()[0].ticket


def messages(store: Store) -> Any:
    return queue_of(store).get(2)


def messages_of_priorities(store: Store) -> Any:
    queue = queue_of(store, ("high", "normal"))
    queue.put({"n": 5}, priority="high")
    return [queue.get()[0], *queue_of(store).get()]


class Write(NamedTuple):
    """A call that writes."""

    call: Callable[[Store, Any], Any]
    prepare: Callable[[Store], Any] = lambda store: None
    """Returns what the call needs."""
    is_counted: bool = False
    """The store counts how often it is done."""
    has_parts: bool = False
    """It is more than one write: a part may be done."""


def _jobs(store: Store) -> Any:
    jobs = Jobs("app")
    jobs.use(store)
    return jobs.task(_task)


def _task(n: int) -> int:
    return n


PLAIN: dict[str, Write] = {
    "add": Write(lambda s, _: s.stream("s").add({"n": 3})),
    "add with an ID": Write(lambda s, _: s.stream("s").add({"n": 3}, id="9-1")),
    "add to a new stream": Write(lambda s, _: s.stream("new").add({"n": 3}, maxlen=9)),
    "add large": Write(lambda s, _: s.stream("s").add({"n": b"x" * 20_000})),
    "add_many": Write(lambda s, _: s.stream("s").add_many([{"n": 3}, {"n": 4}])),
    "trim": Write(lambda s, _: s.stream("s").trim(maxlen=1)),
    "delete": Write(lambda s, _: s.stream("s").delete("1-1", "3-1")),
    "set_id": Write(lambda s, _: s.stream("s").set_id("7-7", entries_added=9)),
    "create_group": Write(lambda s, _: s.stream("s").create_group("h", "0")),
    "group set_id": Write(lambda s, _: s.stream("s").group("g").set_id("1-1")),
    "create_consumer": Write(lambda s, _: s.stream("s").group("g").create_consumer("d")),
    "delete_consumer": Write(lambda s, _: s.stream("s").group("g").delete_consumer("c")),
    "destroy": Write(lambda s, _: s.stream("s").group("g").destroy()),
    "ack": Write(lambda s, _: s.stream("s").group("g").ack("1-1", "2-1")),
    "nack": Write(lambda s, _: s.stream("s").group("g").nack("1-1", mode=NackMode.FATAL)),
    "claim": Write(lambda s, _: s.stream("s").group("g").claim("d", "1-1", "2-1")),
    "autoclaim": Write(lambda s, _: s.stream("s").group("g").autoclaim("d", 0)),
    "read": Write(lambda s, _: s.stream("s").group("g").consumer("d").read(1)),
    "read and wait": Write(lambda s, _: s.stream("s").group("g").consumer("d").read(1, block=9)),
    "history": Write(
        lambda s, _: s.stream("s").group("g").consumer("c").history(), is_counted=True
    ),
    "store delete": Write(lambda s, _: s.delete("s", "t")),
    "rename": Write(lambda s, _: s.rename("s", "new")),
    "copy": Write(lambda s, _: s.copy("s", "new")),
    "expire": Write(lambda s, _: s.expire("s", FAR_S)),
    "persist": Write(lambda s, _: s.persist("s")),
    "restore": Write(lambda s, payload: s.restore("new", payload), lambda s: s.dump("s")),
    "flush": Write(lambda s, _: s.flush()),
    "flush_all": Write(lambda s, _: s.flush_all()),
    "transaction": Write(lambda s, _: transact(s)),
}
"""What a Redis 7.0 has, too."""

OURS: dict[str, Write] = {
    "add with idmp": Write(lambda s, _: s.stream("s").add({"n": 3}, idmp=("p", "1"))),
    "add delayed": Write(lambda s, _: s.stream("s").add({"n": 3}, delay=FAR_S)),
    "add unique": Write(lambda s, _: s.stream("s").add({"n": 3}, unique="u", window=FAR_S)),
    "add_many delayed": Write(lambda s, _: s.stream("s").add_many([{"n": 3}] * 2, delay=FAR_S)),
    "cancel": Write(lambda s, of: s.stream("d").cancel(of), ticket),
    "move": Write(lambda s, of: s.stream("d").move(of, delay=2 * FAR_S), ticket),
    "configure": Write(lambda s, _: s.stream("s").configure(idmp_duration=9, idmp_maxsize=9)),
    "delete_entries": Write(lambda s, _: s.stream("s").delete_entries("1-1", ref_policy="DELREF")),
    "schedule": Write(lambda s, _: s.stream("s").schedule("hourly", "@hourly", {"n": 1})),
    "run_schedule": Write(lambda s, _: s.stream("s").run_schedule("nightly")),
    "delete_schedule": Write(lambda s, _: s.stream("s").delete_schedule("nightly")),
    "set_retention": Write(lambda s, _: s.stream("s").set_retention(max_length=1000)),
    "drop_retention": Write(lambda s, _: s.stream("t").drop_retention()),
    "ack_delete": Write(lambda s, _: s.stream("s").group("g").ack_delete("1-1")),
    "seek": Write(lambda s, _: s.stream("s").group("g").seek(0.0)),
    "remove_consumer": Write(lambda s, _: s.stream("s").group("g").remove_consumer("c")),
    "set_policy": Write(lambda s, _: s.stream("s").group("g").set_policy(max_in_flight=5)),
    "drop_policy": Write(lambda s, _: s.stream("s").group("g").drop_policy()),
    "group pause": Write(lambda s, _: s.stream("s").group("g").pause()),
    "group resume": Write(
        lambda s, _: s.stream("s").group("g").resume(), lambda s: s.stream("s").group("g").pause()
    ),
    "put": Write(lambda s, _: queue_of(s).put({"n": 4})),
    "put into a new queue": Write(lambda s, _: Queue(s, "new").put({"n": 4})),
    "put delayed": Write(lambda s, _: queue_of(s).put({"n": 4}, delay=FAR_S)),
    "put_many": Write(lambda s, _: queue_of(s).put_many([{"n": 4}, {"n": 5}])),
    "get": Write(lambda s, _: queue_of(s).get(2)),
    "get and wait": Write(lambda s, _: queue_of(s).get(2, block=9)),
    "queue ack": Write(lambda s, of: of[0].queue.ack(*of), messages),
    "queue nack": Write(lambda s, of: of[0].queue.nack(*of, delay=FAR_S), messages),
    "queue extend": Write(lambda s, of: of[0].queue.extend(*of), messages),
    "message ack": Write(lambda s, of: of[0].ack(), messages),
    "message nack": Write(lambda s, of: of[0].nack(fatal=True, error="no"), messages),
    "message transaction": Write(lambda s, of: transact_message(of[0]), messages),
    "ack of priorities": Write(
        lambda s, of: of[0].queue.ack(*of), messages_of_priorities, has_parts=True
    ),
    "pause of priorities": Write(
        lambda s, _: queue_of(s, ("high", "normal")).pause(), has_parts=True
    ),
    "queue pause": Write(lambda s, _: queue_of(s).pause()),
    "redrive": Write(lambda s, _: queue_of(s).redrive()),
    "cancel_redrive": Write(lambda s, _: queue_of(s).cancel_redrive()),
    "enqueue": Write(lambda s, task: task.enqueue(1), _jobs),
    "enqueue unique": Write(lambda s, task: task.enqueue(1, unique="u"), _jobs),
    "enqueue_many": Write(lambda s, task: task.enqueue_many([(1,), (2,)]), _jobs),
}
"""What kvstream's server has alone."""
