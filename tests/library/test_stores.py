"""Store: opening, closing, reading several streams, copies, and maintenance."""

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream import (
    Durability,
    Fault,
    InvalidArgument,
    KVStreamError,
    ManualClock,
    NoGroup,
    NoSuchStore,
    Store,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    connect,
    connect_async,
)
from kvstream.engine.coerce import Level
from tests.engine.waiting import add, ms_of
from tests.opening import LEVELS, Stores


def furnish(store: Store) -> None:
    """Fill a store with keys of each kind."""
    orders = store.stream("orders")
    orders.add_many([{"n": n} for n in range(250)])
    orders.add([("a", "1"), ("a", b"\xff")], idmp=("p", "1"))
    group = orders.create_group("g", start="0")
    group.consumer("c").read(count=100)
    group.ack(orders.range(count=30))
    group.nack(orders.range(count=1)[0].id, force=True)
    orders.trim(maxlen=200)
    orders.delete(orders.revrange(count=1)[0])
    store.select(3).stream("other").create_group("h")
    store.stream("gone").add({"f": "v"})
    store.delete("gone")
    store.expire("orders", 1000)


def view(store: Store) -> list[object]:
    """Return the complete visible state of the store."""
    seen: list[object] = []
    for db in range(16):
        chosen = store.select(db)
        for key in chosen.keys():  # noqa: SIM118 - a store is no mapping
            stream = chosen.stream(key)
            seen += [db, key, stream.info_full(count=0), chosen.ttl(key)]
            seen += [stream.group(group.name).consumers() for group in stream.groups()]
    return seen


# --- opening and closing ------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["always", "everysec", "no", *LEVELS])
def test_a_store_is_opened_with_a_durability(tmp_path: Path, durability: Level) -> None:
    with Store.open(tmp_path / "store", durability=durability) as store:
        assert store.engine.options.durability is Durability(durability)
        eid = store.stream("s").add({"f": "v"})
    with Store.open(str(tmp_path / "store"), durability=durability) as store:
        assert [entry.id for entry in store.stream("s")] == [eid]


def test_a_store_is_durable_every_second_by_default(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        assert store.engine.options.durability is Durability.EVERYSEC


@pytest.mark.parametrize("durability", ["", "sometimes", "ALWAYS", None, 1])
def test_an_unknown_durability_is_refused_before_any_file_is_created(
    tmp_path: Path, durability: Any
) -> None:
    with pytest.raises(
        InvalidArgument, match="durability must be one of always, everysec, archive"
    ):
        Store.open(tmp_path / "store", durability=durability)
    assert not (tmp_path / "store").exists()


def test_an_unknown_option_is_refused_before_any_file_is_created(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^no such option: fsync, sync "):
        Store.open(tmp_path / "new", sync=True, fsync=True)  # type: ignore[call-overload]
    assert not (tmp_path / "new").exists()


def test_a_missing_store_is_created_by_default(tmp_path: Path) -> None:
    with pytest.raises(NoSuchStore):
        Store.open(tmp_path / "store", create=False)
    assert not (tmp_path / "store").exists()
    Store.open(tmp_path / "store").close()
    Store.open(tmp_path / "store", create=False).close()
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}], ids=repr)
def test_the_error_for_a_missing_store_names_its_path(tmp_path: Path, options: Any) -> None:
    missing, empty, other, made = (tmp_path / name for name in ("a", "b", "c", "d"))
    for folder in (empty, other, made):
        folder.mkdir(mode=0o700)
    (other / "notes.txt").touch()
    (made / "KVSTREAM").write_text("kvstream store\nlayout 1\n")  # killed during its creation
    for path, more in (
        (missing, ""),
        (empty, ""),
        (other, ": it holds 'notes.txt', but no file KVSTREAM"),
        (made, ""),
    ):
        with pytest.raises(NoSuchStore) as refusal:
            Store.open(path, **options)
        assert str(refusal.value) == f"there is no store in {path}{more}"
    assert not missing.exists()
    assert [len(os.listdir(path)) for path in (empty, other, made)] == [0, 1, 1]


def test_a_store_is_opened_once_at_a_time(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(StoreLocked):
            Store.open(tmp_path / "store")
        store.stream("s").add({"f": "v"})
    Store.open(tmp_path / "store").close()


def test_any_type_of_path_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Somewhere(os.PathLike[str]):
        def __fspath__(self) -> str:
            return "there"

    monkeypatch.chdir(tmp_path)
    with Store.open(Somewhere()) as store:
        store.stream("s").add({"f": "v"})
    with Store.open("there") as store:
        assert len(store.stream("s")) == 1


def test_a_path_may_be_bytes(tmp_path: Path) -> None:
    class Somewhere(os.PathLike[bytes]):
        def __fspath__(self) -> bytes:
            return os.fsencode(tmp_path / "über")

    with Store.open(os.fsencode(tmp_path / "über")) as store:
        store.stream("s").add({"f": "v"})
        store.checkpoint(os.fsencode(tmp_path / "copy"))
    with Store.open(Somewhere()) as store, Store.open(tmp_path / "copy") as copy:
        assert len(store.stream("s")) == len(copy.stream("s")) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (None, "a path is str, bytes or os.PathLike, not None"),
        (7, "a path is str, bytes or os.PathLike, not 7"),
        ("", "the path is empty: give '.' for the current directory"),
        ("a\0b", r"a path holds no null character: 'a\x00b'"),
        (b"caf\xe9", r"RocksDB takes no path but UTF-8: b'caf\xe9'"),
    ],
)
def test_an_invalid_path_is_refused_before_any_file_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, path: Any, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.listdir()
    for refused in (Store.open, store.checkpoint):
        with pytest.raises(InvalidArgument) as refusal:
            refused(path)
        assert str(refusal.value) == text
    assert os.listdir() == before


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("redis://localhost:6379/0", 'redis.Redis.from_url("redis://...")'),
        ("REDISS://ann:secret@host", 'redis.Redis.from_url("rediss://...")'),
        (b"unix:///run/redis.sock", "on the command line --url (KVSTREAM_URL)"),
        ("valkey://localhost", 'redis.Redis.from_url("redis://...")'),
        (" redis://joe:secret@h:1", "is the URL of a server"),
        ("redis://joe:secret@h:1\n", "is the URL of a server"),
        ("redis//joe:secret@h", "is the URL of a server"),
        ("redis:joe:secret@h", "is the URL of a server"),
        ("redis:/joe:secret@h", "is the URL of a server"),
        (b"unix:/run/a.sock?password=secret", "is the URL of a server"),
        ("'redis://localhost'", "is the URL of a server"),
        ("http://localhost:6379", "give a path on this machine"),
        ("file:///data", "give the path alone, as in /path"),
        ("s3://bucket/key", "give a path on this machine"),
        ("hdfs://host/data", "give a path on this machine"),
        (Path("redis://localhost:6379/0"), "is the URL of a server"),
        (Path(" redis://joe:secret@h"), "is the URL of a server"),
        (Path("redis:joe:secret@h"), "is the URL of a server"),
        (Path("file:///data"), "give the path alone"),
        ("localhost:6379", "use redis://localhost:6379"),
        (b"10.0.0.1:6379", "use redis://10.0.0.1:6379"),
    ],
)
def test_a_url_is_no_path_and_the_right_call_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, url: Any, right: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.listdir()
    calls: list[Callable[[Any], object]] = [Store.open, store.checkpoint, connect, connect_async]
    for refused in calls:
        with pytest.raises(InvalidArgument) as refusal:
            refused(url)
        assert right in str(refusal.value)
        assert "secret" not in str(refusal.value)
    assert os.listdir() == before


PATHS_WITH_COLONS = [
    *("a:b", "redis:x", "redis:/x", "./redis://x", "a/s3://b", b"a:b"),
    *("redis@x", "redis/a@b", "a-redis:x@y", "./redis:x@y", " a:b "),
    *("./localhost:6379", "a:6379", "day.1T10:30"),
]


@pytest.mark.parametrize("path", PATHS_WITH_COLONS)
def test_a_path_may_have_colons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs(os.path.dirname(os.fsdecode(path)) or ".", exist_ok=True)
    Store.open(path).close()
    Store.open(path, create=False).close()


@pytest.mark.parametrize("db", [-1, 16])
def test_a_store_opened_at_no_database_is_not_left_open(tmp_path: Path, db: int) -> None:
    with pytest.raises(InvalidArgument, match="DB index is out of range"):
        Store.open(tmp_path / "store", db=db)
    assert not (tmp_path / "store").exists()
    Store.open(tmp_path / "store").close()


CALLS: list[Callable[[Store], object]] = [
    lambda store: store.stream("s").add({"f": "v"}),
    lambda store: len(store.stream("s")),
    lambda store: store.stream("s").range(),
    lambda store: store.read({"s": "0"}),
    lambda store: store.stream("s").group("g").ack("1-0"),
    lambda store: store.keys(),
    lambda store: store.delete("s"),
    lambda store: store.transaction().__enter__(),
    lambda store: store.sync(),
    lambda store: store.check(),
    lambda store: store.compact(),
    lambda store: store.stats(),
    lambda store: store.flush_all(),
    lambda store: store.checkpoint("nowhere"),
]


def test_a_closed_store_raises_store_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.open(tmp_path / "store", durability="no")
    store.close()
    store.close()
    for call in CALLS:
        with pytest.raises(StoreClosed):
            call(store)
    assert os.listdir(tmp_path) == ["store"]


def test_leaving_a_store_closes_it_also_with_an_error(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    with pytest.raises(ZeroDivisionError), store:
        raise ZeroDivisionError
    with pytest.raises(StoreClosed):
        store.keys()


def test_the_state_survives_reopening(open_store: Stores) -> None:
    store = open_store("own")
    furnish(store)
    before = view(store)
    assert view(open_store.reopen(store)) == before


# --- reading only -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A furnished store, opened for reading."""
    directory = tmp_path_factory.mktemp("read-only") / "store"
    with Store.open(directory, clock=ManualClock()) as store:
        furnish(store)
    with Store.open(directory, clock=ManualClock(), read_only=True) as store:
        yield store


def test_a_read_only_store_shows_everything(open_store: Stores) -> None:
    store = open_store("own")
    furnish(store)
    before = view(store)
    store = open_store.reopen(store, read_only=True)
    assert view(store) == before
    orders = store.stream("orders")
    assert len(orders) == len(list(orders)) == 199
    assert store.read({"orders": "+"}) == {b"orders": orders.revrange(count=1)}
    assert orders.read("$", block=0.01) == []
    assert orders.group("g").pending().count == 71
    assert store.check() == []
    assert store.stats()["size_on_disk"] > 0


WRITES: dict[str, Callable[[Store], object]] = {
    "add": lambda store: store.stream("orders").add({"f": "v"}),
    "add to a new key": lambda store: store.stream("new").add({"f": "v"}),
    "trim": lambda store: store.stream("orders").trim(maxlen=1),
    "delete": lambda store: store.delete("orders"),
    "rename": lambda store: store.rename("orders", "x"),
    "expire": lambda store: store.expire("orders", 5),
    "group": lambda store: store.stream("orders").create_group("x"),
    "read": lambda store: store.stream("orders").group("g").consumer("c").read(),
    "ack": lambda store: (
        store.stream("orders")
        .group("g")
        .nack(store.stream("orders").group("g").pending_range(consumer="c", count=1))
    ),
    "flush": lambda store: store.flush_all(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_read_only_store_refuses_writes(
    read_only: Store, write: Callable[[Store], object]
) -> None:
    before = view(read_only)
    with pytest.raises(StoreReadOnly, match="opened read-only"):
        write(read_only)
    assert view(read_only) == before


def test_a_read_only_store_skips_expired_keys(read_only: Store) -> None:
    clock = read_only.engine.clock
    assert isinstance(clock, ManualClock)
    clock.advance(2_000_000)
    assert read_only.keys() == []
    assert not read_only.exists("orders")
    assert read_only.stream("orders").range() == []
    clock.advance(-2_000_000)
    assert read_only.keys() == [b"orders"]


# --- several streams ----------------------------------------------------------------------------


def test_several_streams_are_read_in_the_given_order(store: Store) -> None:
    add(store, b"a", "1-0", "2-0")
    add(store, b"b", "3-0")
    found = store.read({"b": "0", b"missing": "0", "a": "1-0"})
    assert list(found) == [b"b", b"a"]
    assert [ms_of(entries) for entries in found.values()] == [[3], [2]]
    assert store.read({"a": "$", "b": 9}) == store.read({}) == {}
    assert [ms_of(e) for e in store.read({"a": "0", "b": "0"}, 1).values()] == [[1], [3]]
    assert [ms_of(e) for e in store.read({"a": "0", "b": "0"}, max_count=1).values()] == [[1]]
    with pytest.raises(InvalidArgument, match="The > ID can be specified only"):
        store.read({"a": ">"})


def test_several_streams_are_read_as_a_group_of_each(store: Store) -> None:
    for key in ("a", "b"):
        add(store, key.encode(), "1-0", "2-0")
        store.stream(key).create_group("g", start="0")
    found = store.read_group("g", "c", {"b": ">", "a": ">"}, count=1)
    assert {key: ms_of(entries) for key, entries in found.items()} == {b"b": [1], b"a": [1]}
    assert ms_of(store.read_group("g", "c", {"a": "0", "b": "1"})[b"a"]) == [1]
    assert store.read_group("g", "c", {"b": "1"}) == {b"b": []}
    taken = store.read_group("g", "d", {"a": ">", "b": ">"}, noack=True, max_count=1)
    assert {key: ms_of(entries) for key, entries in taken.items()} == {b"a": [2]}
    claimed = store.read_group("g", "d", {"a": ">"}, claim_min_idle=0)
    assert [(entry.id.ms, entry.deliveries) for entry in claimed[b"a"]] == [(1, 2)]
    assert store.read_group("g", "d", {"a": ">"}) == {}
    with pytest.raises(NoGroup, match="No such key 'missing' or consumer group 'g'"):
        store.read_group("g", "c", {"a": ">", "missing": ">"})
    with pytest.raises(InvalidArgument, match="meaningless"):
        store.read_group("g", "c", {"a": "$"})


# --- copies and care ----------------------------------------------------------------------------


def test_a_checkpoint_opens_as_a_store_of_its_own_and_equals(
    open_store: Stores, tmp_path: Path
) -> None:
    store = open_store("own")
    furnish(store)
    before = view(store)
    store.checkpoint(tmp_path / "backup")
    store.stream("orders").add({"later": "1"})
    copy = open_store("backup")
    assert view(copy) == before
    eid = copy.stream("orders").add({"f": "v"})
    assert copy.check() == []
    assert store.stream("orders").get(eid) != copy.stream("orders").get(eid)
    assert copy.stream("new").add({"f": "v"})
    again = open_store.reopen(copy)
    assert len(again.stream("orders")) == len(store.stream("orders"))


def test_a_checkpoint_never_writes_over_anything(open_store: Stores, tmp_path: Path) -> None:
    store = open_store("own")
    furnish(store)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    for target in ("taken", "taken/file", "own"):
        with pytest.raises(StoreError):
            store.checkpoint(tmp_path / target)
    assert (tmp_path / "taken" / "file").read_text() == "mine"
    assert store.check() == []


def test_a_checkpoint_inside_a_transaction_has_nothing_of_it(
    open_store: Stores, tmp_path: Path
) -> None:
    store = open_store("own")
    add(store, b"s", "1-0")
    with store.transaction() as tx:
        tx.stream("s").add({"f": "v"}, id="2-0")
        tx.checkpoint(tmp_path / "backup")
    assert ms_of(open_store("backup").stream("s").range()) == [1]
    assert len(store.stream("s")) == 2


def test_compaction_keeps_all_entries(open_store: Stores) -> None:
    store = open_store("own")
    furnish(store)
    before = view(store)
    store.compact()
    assert view(store) == before
    store.delete("orders")
    store.compact()
    assert open_store.reopen(store).keys() == []


def test_statistics_have_sizes_and_failures(store: Store) -> None:
    furnish(store)
    stats = store.stats()
    assert stats["size_on_disk"] > 0
    assert stats["failure"] is None
    assert set(stats["families"]) == {"messages", "metadata", "trees"}


def test_a_sound_store_has_no_faults_and_nothing_to_repair(store: Store) -> None:
    furnish(store)
    before = view(store)
    assert store.check() == store.check(repair=True) == []
    assert view(store) == before


def test_a_wrong_counter_is_reported_and_repaired(open_store: Stores) -> None:
    store = open_store("own")
    furnish(store)
    stream = store.engine.catalog.streams[b"\x00\x00orders"]
    stream.length += 5
    with store.transaction() as tx:
        tx.stream("orders").set_id("9999999999999-0")
    faults = store.check()
    assert faults
    assert all(type(fault) is Fault and not fault.repaired for fault in faults)
    assert any(fault.repaired for fault in store.check(repair=True))
    assert store.check() == []
    assert len(store.stream("orders")) == len(store.stream("orders").range())


# --- nothing is unpickled -----------------------------------------------------------------------


class Trap:
    """Creates a marker file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.mark,)


def test_values_that_look_like_pickles_stay_bytes(open_store: Stores, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    poison = pickle.dumps(Trap(mark))
    store = open_store("own")
    store.stream(poison).add({poison: poison})
    group = store.stream(poison).create_group(poison, start="0")
    store.checkpoint(tmp_path / "copy")
    for opened in (open_store.reopen(store), open_store("copy")):
        assert opened.keys() == [poison]
        stream = opened.stream(poison)
        assert stream.range()[0].fields == {poison: poison}
        assert stream.group(poison).consumer(poison).read()[0].fields == {poison: poison}
        assert opened.check() == []
    assert group.name == poison
    assert not mark.exists()


def test_objects_are_refused_rather_than_pickled(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"field 'f' cannot be .*, a Trap: give bytes"):
        store.stream("s").add({"f": Trap(tmp_path)})  # type: ignore[dict-item]
    with pytest.raises(KVStreamError):
        store.stream("s").add(Trap(tmp_path))  # type: ignore[call-overload]
    assert store.keys() == []
