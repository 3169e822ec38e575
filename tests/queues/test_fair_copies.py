"""Keys that take turns, after a promotion, a restore, a copy, and a redrive of dead letters."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import kvstream
from kvstream import ManualClock, Queue, Store
from kvstream.cli import main
from kvstream.commands.replies import OK
from kvstream.layout.keys import qualified
from kvstream.operations.queues import image
from tests.commands.dispatcher import Dispatcher
from tests.opening import Stores, change_thresholds
from tests.replicas.conftest import Piping
from tests.replicas.conftest import open_one as open_one
from tests.replicas.conftest import pair as pair

KEYS = "aaaaaaa" + "bbb" + "c"


def fair_queue(store: Store, **options: Any) -> Queue:
    """Return a queue whose tenants take turns, two messages of each at a time."""
    return Queue(store, "calls", order_by="tenant", max_per_key=2, fair=True, **options)


def fill(store: Store) -> Queue:
    """Put messages of three tenants; two are in work."""
    queue = fair_queue(store)
    queue.prepare()
    for n, tenant in enumerate(KEYS):
        queue.put({"tenant": tenant, "n": n})
    assert take(queue, 2) == "ab"
    return queue


def take(queue: Queue, count: int) -> str:
    """Return the tenants of the next messages, one read each, without an end of their work."""
    got = [message for _ in range(count) for message in queue.get(1)]
    return "".join(message.fields[b"tenant"].decode() for message in got)


def work(queue: Queue) -> str:
    """Return the tenants of all messages, each done before the next one is read."""
    done = ""
    while got := queue.get(1):
        done += got[0].fields[b"tenant"].decode()
        got[0].ack()
    return done


def goes_on(store: Store) -> None:
    """Check that turns, order and limits are those of before the copy."""
    assert store.check() == []
    queue = fair_queue(store, consumer="other")
    info = queue.info()
    assert (info.leased, info.held, info.ready) == (2, 6, 3)
    assert take(queue, 9) == "cab", "two of each tenant are in work"
    queue.put({"tenant": "d", "n": 99})
    assert take(queue, 2) == "d"
    assert store.check() == []


def test_a_promoted_replica_keeps_turns_and_limits(pair: tuple[Store, Store]) -> None:
    primary, replica = pair
    piping = Piping(primary, replica)
    fill(primary)
    piping.catch_up()
    assert fair_queue(replica).info().held == 6
    assert replica.check() == []
    piping.close()
    replica.engine.following.promote()
    goes_on(replica)


def test_a_restored_archive_keeps_turns_and_limits(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/objects"
    with Store.open(tmp_path / "data", archive=url) as store:
        fill(store)
    kvstream.restore(url, tmp_path / "back")
    with Store.open(tmp_path / "back") as store:
        goes_on(store)


@pytest.mark.parametrize("how", ["checkpoint", "copy", "rename", "image"])
def test_a_copy_in_the_store_or_beside_it_keeps_turns_and_limits(
    open_store: Stores, tmp_path: Path, clock: ManualClock, how: str
) -> None:
    store = open_store()
    fill(store)
    if how == "checkpoint":
        store.checkpoint(tmp_path / "copy")
        with Store.open(tmp_path / "copy", clock=clock) as copy:
            goes_on(copy)
        return
    if how == "copy":
        store.copy("calls", "t")
        store.delete("calls")
        store.rename("t", "calls")
    elif how == "rename":
        store.rename("calls", "t")
        store.rename("t", "calls")
    else:  # the rows that a migration sends
        rows, _ = store.engine.run(image.page, qualified(0, b"calls"))
        dump = dumped(store, "calls")
        store.delete("calls")
        restored(store, "calls", dump)
        assert store.engine.run(image.restore, qualified(0, b"calls"), rows) == 0
    goes_on(store)


def dumped(store: Store, key: str) -> bytes:
    dump = Dispatcher(store.engine).execute([b"DUMP", key.encode()])
    assert isinstance(dump, bytes)
    return dump


def restored(store: Store, key: str, dump: bytes) -> None:
    assert Dispatcher(store.engine).execute([b"RESTORE", key.encode(), b"0", dump]) == OK


def test_a_dump_has_all_messages_and_no_turns(open_store: Stores, clock: ManualClock) -> None:
    store = open_store()
    fill(store)
    restored(store, "other", dumped(store, "calls"))
    assert store.check() == []
    assert store.stream("other").group("workers").policy() is None
    queue = Queue(store, "other", order_by="tenant", max_per_key=2, fair=True)
    queue.prepare()
    queue.put({"tenant": "d"})
    clock.advance(3_600_000)
    assert Counter(work(queue)) == Counter(KEYS + "d")
    assert store.check() == []


def test_exported_messages_are_sorted_where_they_are_imported(
    tmp_path: Path, clock: ManualClock
) -> None:
    places = [["--store", str(tmp_path / name)] for name in ("one", "two")]
    for name in ("one", "two"):
        with Store.open(tmp_path / name) as store:
            fair_queue(store).prepare()
            for tenant in KEYS if name == "one" else "":
                store.stream("calls").add({"tenant": tenant})
    file = str(tmp_path / "calls.jsonl")
    for words in ([*places[0], "export", "calls", file], [*places[1], "import", "calls", file]):
        found = CliRunner().invoke(main, words)
        assert found.exit_code == 0, found.output
    with Store.open(tmp_path / "two") as store:
        assert work(fair_queue(store)) == "abcababaaaa"
        assert store.check() == []


def test_a_redrive_puts_dead_letters_into_the_turns(open_store: Stores) -> None:
    store = open_store()
    queue = fair_queue(store, max_deliveries=1)
    queue.prepare()
    for tenant in "aaaaaabbb":
        queue.put({"tenant": tenant})
    while got := queue.get(1):
        got[0].nack(error="no", fatal=True)
    assert len(queue.dead()) == 9
    queue.put({"tenant": "c"})
    change_thresholds(store.engine, ordered_entries=3)
    assert queue.redrive().moved == 9
    assert work(queue) == "cabababaaa"
    assert store.check() == []
