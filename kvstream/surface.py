"""What a public class shows of itself, and what it says about a name that it does not have.

``dir``, ``help`` and completion leave out the names of ``_internal``: only other modules of
kvstream use them. The error for a wrong attribute has the call that is meant: people know the
commands of redis-py, and the methods of other queues.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from kvstream.errors import show

_FIELDS_SHOWN = 5

_STREAM = {
    "add(fields)": "xadd append push send publish write insert emit produce",
    "add_many(entries)": "extend push_many send_many publish_many insert_many",
    "range(start, end)": "xrange entries items all",
    "revrange(end, start)": "xrevrange",
    "read(after)": "xread",
    "tail()": "follow subscribe",
    "trim(maxlen=n)": "xtrim",
    "delete(*ids)": "xdel remove",
    "delete_entries(*ids)": "xdelex",
    "set_id(last_id)": "xsetid",
    "info()": "xinfo xinfo_stream",
    "create_group(name)": "xgroup_create add_group",
    "group(name)": "",
    "groups()": "xinfo_groups",
}
"""Calls of a Stream, with other names of each."""
_GROUP = {
    "ack(*ids)": "xack acknowledge",
    "ack_delete(*ids)": "xackdel",
    "nack(*ids)": "xnack",
    "claim(consumer, *ids)": "xclaim",
    "autoclaim(consumer)": "xautoclaim",
    "pending()": "xpending",
    "pending_range(start, end)": "xpending_range",
    "consumer(name)": "",
    "consumers()": "xinfo_consumers",
    "set_id(start)": "xgroup_setid",
    "create_consumer(name)": "xgroup_createconsumer",
    "delete_consumer(name)": "xgroup_delconsumer",
    "destroy()": "xgroup_destroy",
}
_CONSUMER = {
    "read(count)": "xreadgroup poll consume fetch receive",
    "listen()": "subscribe messages",
}
_STORE = {
    "store.read({key: after})": "xread",
    'store.read_group(group, consumer, {key: ">"})': "xreadgroup",
    "store.stream(key), whose first add creates the stream": "create_stream",
    "len(store.stream(key))": "xlen",
    "store.keys()": "streams list_streams",
    "store.scan_keys()": "scan scan_iter",
    "store.size()": "dbsize",
    "store.flush()": "flushdb clear",
    "store.flush_all()": "flushall",
    "store.transaction()": "pipeline multi begin commit",
    "store.checkpoint(path)": "backup save bgsave snapshot",
    "kvstream.Queue(store, name)": "queue",
}
_QUEUE = {
    "queue.put(fields)": "push enqueue add send publish append submit xadd",
    "queue.put_many(messages)": "push_many enqueue_many add_many send_many extend",
    "queue.get(count)": "receive lease reserve read poll fetch xreadgroup",
    "queue.get_one()": "pop dequeue take get_nowait",
    "queue.listen()": "subscribe consume messages",
    "queue.info()": "size qsize length count empty",
    "queue.dead()": "dead_letters",
    "message.ack()": "complete done delete remove task_done xack",
}
_MESSAGE = {
    "message.fields": "body data payload value values content",
    "message.ack()": "complete done delete remove task_done",
    "message.nack()": "reject release requeue retry fail",
    "message.extend()": "renew touch",
}
_REDIS = """bitcount blpop brpop config_get config_set decr decrby eval evalsha execute_command get
    getdel getex getset hdel hget hgetall hincrby hlen hmget hset incr incrby incrbyfloat info llen
    lock lpop lpush lrange mget mset ping psubscribe pubsub register_script rpop rpush sadd set
    setex setnx sismember smembers srem strlen time unlink zadd zrange zrem"""
"""Methods of a client of redis-py for values that are no streams."""


def _calls(prefix: str, table: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield a pair of wrong name and right call for each name in a table."""
    for call, names in table.items():
        for name in (call.partition("(")[0], *names.split()):
            yield name, prefix + call


def _table(*parts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the calls by wrong name; the first part that has a name decides."""
    return {name: call for part in reversed(parts) for name, call in part}


_OF_STREAM, _OF_GROUP = "store.stream(key).", "store.stream(key).group(name)."
_LENGTH = [(name, "len(stream)") for name in ("xlen", "length", "size")]
_CONNECT = "kvstream.connect(place), which returns a client of redis-py"
_ASYNC = {
    "len(stream)": "stream.length()",
    "len(store.stream(key))": "store.stream(key).length()",
    _CONNECT: "kvstream.connect_async(place), which returns a client of redis.asyncio",
}
"""The calls of the asynchronous classes that differ."""
_MEANT = {
    "Store": _table(
        _calls("", _STORE),
        [(name, _CONNECT) for name in _REDIS.split()],
        _calls(_OF_STREAM, _STREAM),
        _calls(_OF_GROUP, _GROUP),
        _calls(f"{_OF_GROUP}consumer(name).", _CONSUMER),
    ),
    "Stream": _table(
        _LENGTH,
        _calls("stream.", _STREAM),
        _calls("stream.group(name).", _GROUP),
        _calls("stream.group(name).consumer(name).", _CONSUMER),
    ),
    "Group": _table(
        _calls("group.", _GROUP),
        _calls("group.consumer(name).", _CONSUMER),
        _calls(_OF_STREAM, _STREAM),
    ),
    "Consumer": _table(
        _calls("consumer.", _CONSUMER), _calls(_OF_GROUP, _GROUP), _calls(_OF_STREAM, _STREAM)
    ),
    "Queue": _table(_calls("", _QUEUE)),
    "Message": _table(_calls("", _MESSAGE)),
}
"""The calls that are meant, by class and wrong name."""


class _Class(type):
    def __dir__(cls) -> list[str]:
        hidden = _internal(cls)
        return [name for name in super().__dir__() if name not in hidden]


class Public(metaclass=_Class):
    """The base of public classes."""

    __slots__ = ()

    _internal: ClassVar[frozenset[str]] = frozenset()
    """Names that only other modules of kvstream use."""

    def __dir__(self) -> list[str]:
        hidden = _internal(type(self))
        return [name for name in super().__dir__() if name not in hidden]

    if not TYPE_CHECKING:  # a checker would take every name

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError with the call that is meant."""
            if hasattr(type(self), name):  # a property that has raised: show its own error
                return object.__getattribute__(self, name)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{_suggest(self, name)}",
                name=name,
                obj=self,
            )


def _internal(of: type) -> frozenset[str]:
    return frozenset().union(*(vars(each).get("_internal", ()) for each in of.__mro__))


def _suggest(of: Any, name: str) -> str:
    if name.startswith("_"):
        return ""
    for each in type(of).__mro__:
        kind = each.__name__.removeprefix("Async")
        call = _MEANT.get(kind, {}).get(name)
        if call is not None:
            return f": use {call if kind == each.__name__ else _ASYNC.get(call, call)}"
    fields = getattr(of, "fields", None) if hasattr(type(of), "fields") else None
    return where_field_is(fields, name) if isinstance(fields, Mapping) else ""


def where_field_is(fields: Mapping[Any, Any] | None, name: Any) -> str:
    """Return how to read a field that was taken for an attribute or an item of an entry."""
    if fields is None:
        return ": the entry has no fields, as its message was deleted or justid left them out"
    for key in (name, name.encode() if isinstance(name, str) else name.decode(errors="replace")):
        if key in fields:
            return f": use .fields[{key!r}]"
    return f": its fields are in .fields: {', '.join(map(show, islice(fields, _FIELDS_SHOWN)))}"
