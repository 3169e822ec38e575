"""Damage any row in any way: each call returns a sound reply or raises an error of ours.

Rows have no checksums of their own (RocksDB's blocks have), so a mutant is what a bug or a forged
table would leave. Each call runs on the damaged store and is undone. One mutant in eight is tried,
or all of them with ``KVSTREAM_MUTANTS=all``.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvstream import ManualClock, Store
from kvstream.operations import info, keyspace, strings
from kvstream.operations.images import copy
from kvstream.types.thresholds import Thresholds
from tests.opening import Stores
from tests.operations.checks.mutating import LARGE, LOCK, Call, Damaged, mutants, targets
from tests.operations.checks.seeding import GROUP, KEY, NODE_ENTRIES, fill, small_trees
from tests.pieces import small_pieces

ORDERS = b"\0\0orders"


def _of_stream(call: Callable[[Any], object]) -> Call:
    return lambda store: call(store.stream(KEY))


def _of_group(call: Callable[[Any], object]) -> Call:
    return lambda store: call(store.stream(KEY).group(GROUP))


def _of_consumer(call: Callable[[Any], object]) -> Call:
    return lambda store: call(store.stream(KEY).group(GROUP).consumer("ann"))


CALLS: dict[str, Call] = {
    "keys": lambda store: store.keys(),
    "size": lambda store: store.size(),
    "exists": lambda store: store.exists(KEY),
    "ttl": lambda store: store.ttl("brief"),
    "delete": lambda store: store.delete(KEY, "brief"),
    "rename": lambda store: store.rename(KEY, "brief"),
    "rename back": lambda store: store.rename("brief", "other"),
    "expire": lambda store: store.expire("brief", 5),
    "persist": lambda store: store.persist("brief"),
    "a new key": lambda store: store.stream("new").add({"a": "b"}),
    "a new key of the flushed": lambda store: store.select(2).stream("s15").add({"a": "b"}),
    "keys of the flushed": lambda store: store.select(2).keys(),
    "flush": lambda store: store.flush(),
    "flush all": lambda store: store.flush_all(),
    "sweep": lambda store: store.engine.run(keyspace.sweep, 100),
    "add": _of_stream(lambda s: s.add({"n": "1", "note": "2"})),
    "add at length": _of_stream(lambda s: s.add_many([{"n": "1", "note": "2"}] * 10)),
    "add other names": _of_stream(lambda s: s.add({"x" * 5000: "1"})),
    "add trimming": _of_stream(lambda s: s.add({"n": "1"}, maxlen=5)),
    "add once": _of_stream(lambda s: s.add({"n": "1"}, idmp=("web", 1))),
    "add once more": _of_stream(lambda s: s.add({"n": "1"}, idmp=("web", 7))),
    "add to repeated": lambda store: store.stream("brief").add_many([{"a": "b"}] * 10),
    "trim": _of_stream(lambda s: s.trim(maxlen=3)),
    "trim nodes": _of_stream(lambda s: s.trim(maxlen=5, approximate=True)),
    "trim all": _of_stream(lambda s: s.trim(maxlen=0)),
    "trim below": _of_stream(lambda s: s.trim(minid=s.info().last_generated_id)),
    "delete entries": _of_stream(lambda s: s.delete([e.id for e in s.range()][::2])),
    "delete the first": _of_stream(lambda s: s.delete([e.id for e in s.range(count=1)])),
    "delete the last": _of_stream(lambda s: s.delete([e.id for e in s.revrange(count=1)])),
    "acknowledge and delete": _of_group(lambda g: g.ack_delete(_pending(g), ref_policy="DELREF")),
    "set the last ID": _of_stream(lambda s: s.set_id("9999999999999-0", entries_added=100)),
    "configure": _of_stream(lambda s: s.configure(idmp_duration=5)),
    "length": _of_stream(len),
    "range": _of_stream(lambda s: s.range()),
    "range of repeated": lambda store: store.stream("brief").range(),
    "revrange": _of_stream(lambda s: s.revrange()),
    "get": _of_stream(lambda s: [s.get(e.id) for e in s.range()]),
    "scan": _of_stream(lambda s: list(s.scan(page=3))),
    "read": _of_stream(lambda s: s.read(after="0")),
    "read by size": lambda store: store.read({KEY: "0", "brief": "0"}, max_size=900),
    "read the last": lambda store: store.read({KEY: "+"}),
    "info": _of_stream(lambda s: s.info()),
    "info in full": _of_stream(lambda s: s.info_full(0)),
    "groups": _of_stream(lambda s: s.groups()),
    "create a group": _of_stream(lambda s: s.create_group("new", "0").consumer("c").read()),
    "group read": _of_consumer(lambda c: c.read()),
    "group read and claim": _of_consumer(lambda c: c.read(claim_min_idle=0)),
    "history": _of_consumer(lambda c: c.history()),
    "ack": _of_group(lambda g: g.ack(_pending(g))),
    "ack the first": _of_group(lambda g: g.ack(_pending(g)[:1])),
    "nack": _of_group(lambda g: g.nack(_pending(g))),
    "claim": _of_group(lambda g: g.claim("bob", _pending(g))),
    "claim in vain": _of_group(lambda g: g.claim("new", "1-1", force=True)),
    "autoclaim": _of_group(lambda g: g.autoclaim("cat", count=100)),
    "pending": _of_group(lambda g: g.pending()),
    "pending of one": _of_consumer(lambda c: c.pending()),
    "pending by idle": _of_group(lambda g: g.pending_range(min_idle=0)),
    "group info": _of_group(lambda g: (g.info(), g.backlog(), g.consumers())),
    "set the group": _of_group(lambda g: g.set_id("0", entries_read=5)),
    "delete a consumer": _of_group(lambda g: g.delete_consumer("ann")),
    "destroy": _of_group(lambda g: g.destroy()),
    "get a string": lambda store: store.engine.run(strings.get, LOCK),
    "set": lambda store: store.engine.run(strings.put, LOCK, b"theirs"),
    "increment": lambda store: store.engine.run(strings.add, LOCK, 1),
    "append to a string": lambda store: store.engine.run(strings.append, LOCK, b"7"),
    "take": lambda store: store.engine.run(strings.take, LOCK),
    "get several": lambda store: store.engine.run(strings.get_several, [LOCK, ORDERS]),
    "get a large string": lambda store: store.engine.run(strings.get, LARGE),
    "get a part": lambda store: store.engine.run(strings.part, LARGE, 9, 12),
    "set a large string": lambda store: store.engine.run(strings.put, LARGE, b"another one"),
    "set it to little": lambda store: store.engine.run(strings.put, LARGE, b"tiny"),
    "append to a large string": lambda store: store.engine.run(strings.append, LARGE, b"7" * 9),
    "overwrite a part": lambda store: store.engine.run(strings.overwrite, LARGE, 12, b"parts"),
    "take a large string": lambda store: store.engine.run(strings.take, LARGE),
    "delete a large string": lambda store: store.engine.run(keyspace.delete, LARGE),
    "copy a large string": lambda store: store.engine.run(copy.copy, LARGE, b"\0\0new"),
    "rename a large string": lambda store: store.rename("large", "brief"),
    "usage of a large string": lambda store: store.engine.run(info.usage, LARGE),
    "rename a string": lambda store: store.rename("lock", "brief"),
    "set over a stream": lambda store: store.engine.run(strings.put, b"\0\0brief", b"mine"),
    "set a key of the flushed": lambda store: store.engine.run(strings.put, b"\0\2s15", b"mine"),
    "copy": lambda store: store.engine.run(copy.copy, ORDERS, b"\0\1orders"),
    "copy over": lambda store: store.engine.run(copy.copy, b"\0\0brief", ORDERS, replace=True),
    "copy a string": lambda store: store.engine.run(copy.copy, LOCK, ORDERS, replace=True),
    "usage": lambda store: store.engine.run(info.usage, ORDERS, None),
    "usage of a string": lambda store: store.engine.run(info.usage, LOCK),
    "random key": lambda store: store.engine.run(keyspace.random_key, 0),
    "strings alone": lambda store: store.engine.run(keyspace.scan, 0, 0, 100, "string"),
    "swap": lambda store: store.engine.run(keyspace.swap, 0, 1),
    "swap back": lambda store: store.engine.run(keyspace.swap, 3, 1),
    "plain read": lambda store: _plain(store).consumer("cid").read(),
    "plain history": lambda store: _plain(store).consumer("cid").history(),
    "plain ack": lambda store: _plain(store).ack(_pending(_plain(store))),
    "plain ack the first": lambda store: _plain(store).ack(_pending(_plain(store))[:1]),
    "plain nack": lambda store: _plain(store).nack(_pending(_plain(store))),
    "plain autoclaim": lambda store: _plain(store).autoclaim("cat"),
    "plain pending": lambda store: (_plain(store).pending(), _plain(store).info()),
    "plain consumers": lambda store: _plain(store).consumers(),
    "delete a plain consumer": lambda store: _plain(store).delete_consumer("cid"),
    "destroy plain": lambda store: _plain(store).destroy(),
    "expire keys": lambda store: store.engine.run(keyspace.delete_expired, 100),
}


def _pending(group: Any) -> list[Any]:
    return [each.id for each in group.pending_range(count=1000)]


def _plain(store: Store) -> Any:
    return store.stream("brief").group("plain")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    clock = ManualClock()
    stores = Stores(tmp_path_factory.mktemp("mutations"), clock)
    with small_pieces():
        # no sweep in the background; the keys of a flush are read by every check
        sizes = Thresholds(cycle_pause_s=3600, flush_keys=10)
        store = stores("store", sizes, stream_node_max_entries=NODE_ENTRIES)
        with small_trees(store):
            fill(store, clock)
        plain = store.stream("brief").create_group("plain", "0")
        plain.consumer("cid").read(count=3)
        plain.nack(plain.consumer("cid").read(count=1)[0])
        store.engine.run(strings.put, LOCK, b"12", clock.ms + 10**9)
        store.engine.run(strings.put, LARGE, b"a value of 3 pieces", clock.ms + 10**9)
        flushed = store.select(2)
        with store.transaction():
            for number in range(20):
                flushed.stream(f"s{number}").add({"n": number})
        flushed.flush()
        store.engine.run(keyspace.swap, 1, 3)
        flushed.stream("new").add({"a": "b"})
        clock.advance(10)
        yield Damaged(store, targets(store))
        stores.finish()


TITLES = (
    *("the first entry", "an entry", "the last entry", "an entry with repeated names", "a stream"),
    *("a string", "a large string", "a piece", "the allocator", "a number of keys"),
    *("a listed key", "an expiring key"),
    *("a flushed database", "numbers of databases", "the first node", "the last closed node"),
    *("a group", "a consumer"),
    *("a run", "a run given back", "a run by time", "a run of a consumer"),
    *("a group that is not indexed", "a consumer of it", "a run of it"),
    *("a producer", "an idempotent ID", "the order of an idempotent ID"),
)


def test_every_kind_of_row_is_damaged(damaged: Damaged) -> None:
    assert list(damaged.targets) == list(TITLES)
    assert all(len(mutants(title, each, b"x" * 8)) > 3 for title, each in damaged.targets.items())
    assert all(damaged.outcome(call) is None for call in CALLS.values())


@pytest.mark.parametrize("title", TITLES)
def test_each_call_on_a_damaged_row_returns_or_raises_an_error_of_ours(
    damaged: Damaged, title: str
) -> None:
    assert damaged.foreign_errors(title, CALLS) == []


@pytest.mark.parametrize("title", TITLES)
def test_a_check_reports_each_damaged_row_and_a_repair_does_what_it_reports(
    damaged: Damaged, title: str
) -> None:
    assert damaged.unseen_and_unmended(title) == ([], [])
    assert damaged.store.check() == []
