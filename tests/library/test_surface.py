"""What the public modules and classes show: the list of names, help, and hints for wrong names."""

import asyncio
import copy
import importlib
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import kvstream
import kvstream.aio
from kvstream import DeletedEntry, Queue, Store, StreamID
from kvstream.surface import _MEANT, Public

ROOT = Path(__file__).resolve().parent.parent.parent
LIST = Path(__file__).with_name("public_names.txt")
MODULES = [
    *(
        "kvstream",
        "kvstream.aio",
        "kvstream.console",
        "kvstream.errors",
        "kvstream.inbox",
        "kvstream.jobs",
    ),
    *("kvstream.jobs.middleware", "kvstream.jobs.pytest_plugin", "kvstream.jobs.testing"),
    *("kvstream.migration", "kvstream.spark", "kvstream.spark.jobs"),
    *("kvstream.adapters.apscheduler", "kvstream.adapters.celery", "kvstream.adapters.dramatiq"),
    *("kvstream.adapters.huey", "kvstream.adapters.kombu", "kvstream.adapters.taskiq"),
]
WITH_CLASSES = ("kvstream", "kvstream.aio", "kvstream.inbox", "kvstream.jobs")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "surface", durability="no") as opened:
        yield opened


def module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")


def names_of(value: Any) -> str:
    """Return the names that a class or module shows, without those of Python's own classes."""
    bases = value.__mro__ if inspect.isclass(value) else ()
    python = {name for base in bases if base.__module__ == "builtins" for name in dir(base)}
    return " ".join(sorted(name for name in {*dir(value)} - python if not name.startswith("_")))


def public_names(name: str) -> dict[str, str]:
    """Return the names of a module, and of its classes: errors show those of KVStreamError."""
    found = module(name)
    lines = {name: names_of(found)}
    if name in WITH_CLASSES:
        for each in dir(found):
            value = getattr(found, each)
            if inspect.isclass(value) and (
                not issubclass(value, Exception) or value is kvstream.KVStreamError
            ):
                lines[f"{name}.{each}"] = names_of(value)
    return lines


def read_list() -> dict[str, str]:
    lines = (line.partition(": ") for line in LIST.read_text().splitlines())
    return {name: names for name, _, names in lines}


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_shows_the_names_of_the_list(name: str) -> None:
    """A new public name goes into public_names.txt; any other name is hidden, by ``_internal``."""
    found, known = public_names(name), read_list()
    assert found == {each: known.get(each) for each in found}
    assert {each for each in known if each.rpartition(".")[0] == name} - {*MODULES} <= {*found}


def test_documented_names_are_shown() -> None:
    """What the pages call a method by its class exists, and ``dir`` shows it."""
    pages = [ROOT / f"docs/{page}.md" for page in ("library", "jobs", "queues")]
    text = "\n".join(page.read_text() for page in [ROOT / "README.md", *pages])
    kinds = "Store|Stream|Group|Consumer|Queue|Message|Jobs"
    calls = set(re.findall(rf"`({kinds})\.([a-z_]+)\b", text))
    assert ("Stream", "add") in calls
    for kind, name in calls:
        assert name in dir(getattr(kvstream, kind)), f"{kind}.{name}"


def test_hidden_names_stay_callable(store: Store) -> None:
    for kind in (kvstream.Store, kvstream.Jobs, kvstream.aio.AsyncStore, kvstream.GroupPolicy):
        hidden: frozenset[str] = kind._internal
        assert hidden
        assert not hidden & {*dir(kind)}
    assert "rows" not in dir(store)
    assert store.engine is store._engine
    assert all(hasattr(kvstream.Store, name) for name in kvstream.Store._internal)


def test_modules_are_imported_by_their_first_use() -> None:
    code = "import kvstream; print(kvstream.jobs.Retry.__name__, kvstream.migration.run.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Retry run\n"


# --- help -----------------------------------------------------------------------------------------


def functions() -> list[Any]:
    """Return the public functions, and the methods of public classes."""
    values = [getattr(module(name), each) for name in MODULES[:5] for each in dir(module(name))]
    members = [
        inspect.getattr_static(kind, name)
        for kind in values
        if inspect.isclass(kind)
        for name in dir(kind)
        if not name.startswith("_")
    ]
    return [each for each in (*values, *members) if isinstance(each, FunctionType)]


def test_help_shows_the_names_of_types_and_not_what_they_stand_for() -> None:
    assert len(functions()) > 200
    for function in functions():
        assert len(str(inspect.signature(function))) < 600, function
    text = pydoc.plain(pydoc.render_doc(kvstream.Stream.add))
    assert "FieldsLike" in text
    assert "bytearray" not in text
    assert "rows(" not in pydoc.plain(pydoc.render_doc(kvstream.Store))


@pytest.mark.parametrize(
    "function", [Store.open, Store.read, kvstream.Stream.add, kvstream.Group.claim, Queue.put]
)
def test_annotations_can_be_evaluated(function: Any) -> None:
    hints = typing.get_type_hints(function)
    assert "return" in hints
    assert not any(isinstance(hint, str) for hint in hints.values())


# --- wrong names ----------------------------------------------------------------------------------


def hint_of(value: Any, name: str) -> str:
    with pytest.raises(AttributeError) as error:
        getattr(value, name)
    assert (error.value.name, error.value.obj) == (name, value)
    assert not hasattr(value, name)
    kind = type(value).__name__
    start = f"{kind!r} object has no attribute {name!r}"
    assert str(error.value).startswith(start)
    return str(error.value).removeprefix(start)


def test_a_name_of_another_library_or_class_is_answered_with_the_call(store: Store) -> None:
    stream = store.stream("s")
    group = stream.create_group("g", start="0")
    worker, queue = group.consumer("c"), Queue(store, "q")
    assert hint_of(store, "xadd") == ": use store.stream(key).add(fields)"
    assert hint_of(store, "add") == ": use store.stream(key).add(fields)"
    assert hint_of(store, "xlen") == ": use len(store.stream(key))"
    assert 'store.read_group(group, consumer, {key: ">"})' in hint_of(store, "xreadgroup")
    assert "kvstream.connect(place)" in hint_of(store, "get")
    assert hint_of(store, "pipeline") == ": use store.transaction()"
    assert hint_of(stream, "append") == hint_of(stream, "xadd") == ": use stream.add(fields)"
    assert hint_of(stream, "length") == ": use len(stream)"
    assert hint_of(stream, "ack") == ": use stream.group(name).ack(*ids)"
    assert hint_of(group, "xreadgroup") == ": use group.consumer(name).read(count)"
    assert hint_of(group, "listen") == ": use group.consumer(name).listen()"
    assert hint_of(worker, "xack") == ": use store.stream(key).group(name).ack(*ids)"
    assert hint_of(queue, "push") == ": use queue.put(fields)"
    for value in (store, stream, group, worker, queue):
        assert hint_of(value, "nonesuch") == ""
        assert hint_of(value, "_private") == ""


def test_the_hinted_calls_exist(store: Store) -> None:
    """Every call of the table works on real objects: the names in it are not wrong themselves."""
    stream = store.stream("s")
    group = stream.create_group("g")
    queue = Queue(store, "q")
    queue.put({"a": 1})
    values = {"store": store, "stream": stream, "group": group, "kvstream": kvstream}
    values |= {"consumer": group.consumer("c"), "queue": queue, "message": queue.get()[0]}
    values |= {"len": len, "key": "s", "name": "g"}
    for calls in _MEANT.values():
        for call in {*calls.values()}:
            text = call.partition(", wh")[0]
            path = text if text.startswith("len") else text.rpartition("(")[0] or text
            assert eval(path, {}, values) is not None, call


def test_a_field_taken_for_an_attribute_is_answered_with_fields(tmp_path: Path) -> None:
    with Store.open(tmp_path / "bytes") as store:
        store.stream("s").add({"sku": "a1", "qty": 2})
        (entry,) = store.stream("s").range()
        queue = Queue(store, "q")
        queue.put({"sku": "a1"})
        (message,) = queue.get()
        assert hint_of(entry, "sku") == hint_of(message, "sku") == ": use .fields[b'sku']"
        assert hint_of(entry, "data") == ": its fields are in .fields: b'sku', b'qty'"
        assert hint_of(message, "payload") == ": use message.fields"
        assert hint_of(entry, "timestamp") == ": its time is .id.ms, in Unix milliseconds"
        for name in ("sku", b"sku"):
            with pytest.raises(TypeError, match=rf"has no item {name!r}: use .fields\[b'sku'\]"):
                entry[name]  # type: ignore[call-overload]
    with Store.open(tmp_path / "bytes", decode=True) as text:
        (read,) = text.stream("s").range()
        assert hint_of(read, "sku") == ": use .fields['sku']"
    assert "its message was deleted" in hint_of(DeletedEntry(StreamID(1, 0)), "sku")
    assert (entry[0], entry[-2:], [*entry]) == (entry.id, (None, None), [*entry[0:4]])
    assert pickle.loads(pickle.dumps(entry)) == entry == copy.copy(entry)


def test_the_error_of_a_property_is_its_own() -> None:
    class Broken(Public):
        @property
        def size(self) -> int:
            return self.inner.size  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(AttributeError, match=r"^'Broken' object has no attribute 'inner'$"):
        Broken().size  # noqa: B018


@pytest.mark.parametrize("name", ["Redis", "from_url"])
def test_a_name_of_redis_is_answered_with_connect(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': use kvstream.connect"):
        getattr(kvstream, name)


def test_async_classes_answer_as_theirs_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with kvstream.aio.open(tmp_path / "async") as store:
            assert hint_of(store, "xadd") == ": use store.stream(key).add(fields)"
            assert hint_of(store.stream("s"), "xack") == ": use stream.group(name).ack(*ids)"
            assert hint_of(store.stream("s"), "xlen") == ": use stream.length()"
            assert "kvstream.connect_async(place)" in hint_of(store, "get")
        with pytest.raises(AttributeError, match="'stream' is of the store, which is not open yet"):
            kvstream.aio.open(tmp_path / "async").stream("s")  # type: ignore[attr-defined]

    asyncio.run(main())
