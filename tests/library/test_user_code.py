"""No code of the program runs under the store's lock: special methods of arguments, iterators."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kvstream import KVStreamError, Queue, Store
from kvstream.engine.engine import Engine

_OWN = {
    "__class__",
    "__new__",
    "__init__",
    "__getattribute__",
    "__init_subclass__",
    "__subclasshook__",
}
_LEFT = _OWN | {
    "__class_getitem__",
    "__setattr__",
    "__delattr__",
    "__dir__",
    "__getnewargs__",
    "__del__",
}


class Watch:
    """Notes the special methods that were called under the lock of an engine."""

    engine: ClassVar[Engine | None] = None
    seen: ClassVar[list[str]] = []

    @classmethod
    def note(cls, name: str) -> None:
        if cls.engine is not None and cls.engine.is_held_here():
            cls.seen.append(name)


def watched(base: type) -> Any:
    """Return a subclass of a type whose special methods are watched."""

    def made(name: str) -> Callable[..., Any]:
        method = getattr(base, name)

        def call(self: Any, *args: Any) -> Any:
            Watch.note(f"{base.__name__}.{name}")
            return method(self, *args)

        return call

    names = [name for name in dir(base) if name.startswith("__") and name not in _LEFT]
    methods = {name: made(name) for name in names if callable(getattr(base, name))}
    return type(f"Watched{base.__name__.title()}", (base,), methods)


Int, Float, Str, Bytes, Dict = (watched(each) for each in (int, float, str, bytes, dict))
Delta = watched(timedelta)


class Plain:
    """An argument of a wrong type, which errors show."""

    def __repr__(self) -> str:
        Watch.note("repr")
        return "Plain()"

    __str__ = __repr__


def entries() -> Iterator[Any]:
    for number in range(3):
        Watch.note("iterator")
        yield Dict({Str("f"): Bytes(b"v"), Bytes(b"n"): Int(number), Str("x"): Float(1.5)})


CALLS: dict[str, Callable[[Store], object]] = {
    "add": lambda store: store.stream(Str("s")).add(Dict({Str("f"): Int(1), "g": Bytes(b"v")})),
    "add_wrong": lambda store: store.stream("s").add({"f": Plain()}),  # type: ignore[dict-item]
    "add_id": lambda store: store.stream("s").add({"f": "v"}, id=Str("99999999999999-*")),
    "add_maxlen": lambda store: store.stream("s").add({"f": "v"}, maxlen=Int(10)),
    "add_many": lambda store: store.stream("s").add_many(entries()),
    "range": lambda store: store.stream("s").range(Str("-"), Delta(hours=-1), count=Int(3)),
    "range_wrong": lambda store: store.stream("s").range(Plain()),  # type: ignore[arg-type]
    "read": lambda store: store.stream("s").read(after=Str("0"), count=Int(2), block=Float(0.001)),
    "read_many": lambda store: store.read(Dict({Str("s"): Str("0")}), Int(2)),
    "trim": lambda store: store.stream("s").trim(maxlen=Int(2)),
    "delete": lambda store: store.stream("s").delete(Str("1-1"), Bytes(b"2-2")),
    "group": lambda store: store.stream("s").create_group(Str("h"), start=Str("0"), exist_ok=True),
    "consumer": lambda store: store.stream("s").group(Str("g")).consumer(Bytes(b"c")).read(Int(2)),
    "ack": lambda store: store.stream("s").group("g").ack(Str("1-1"), Str("2-2")),
    "claim": lambda store: (
        store.stream("s").group("g").consumer("d").autoclaim(Float(0.0), count=Int(1))
    ),
    "pending": lambda store: store.stream("s").group("g").pending_range(count=Int(3)),
    "expire": lambda store: store.expire(Str("s"), Float(1000.0)),
    "rename": lambda store: store.rename(Str("other"), Bytes(b"another")),
    "keys": lambda store: store.keys(Str("*")),
    "put": lambda store: Queue(store, Str("jobs")).put(Dict({Str("f"): Str("v")}), delay=Delta(0)),
    "get": lambda store: [
        message.nack(delay=Delta(seconds=1), error=Plain())  # type: ignore[func-returns-value,arg-type]
        for message in Queue(store, "jobs", lease=Delta(seconds=30)).get(Int(1))
    ],
    "schedule": lambda store: store.stream("s").schedule(
        Str("name"), Str("* * * * *"), Dict({"f": "v"})
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_special_method_runs_under_the_lock(tmp_path: Path, name: str) -> None:
    with Store.open(tmp_path / "store") as store:
        store.stream("s").add_many([{"n": n} for n in range(5)])
        store.stream("s").create_group("g", start="0")
        store.stream("other").add({"f": "v"})
        Queue(store, "jobs").put({"f": "v"})
        Watch.engine = store.engine
        Watch.seen.clear()
        try:
            with contextlib.suppress(KVStreamError, TypeError):
                CALLS[name](store)
        finally:
            Watch.engine = None
    assert Watch.seen == []
