"""One program, unchanged, on a directory, kvstream's server, Redis 7.0 and 8.2, and Valkey."""

import threading
import time
from typing import Any

import pytest

import kvstream
from kvstream import (
    BadPayload,
    BusyGroup,
    DeletedEntry,
    IDTooSmall,
    InvalidArgument,
    InvalidID,
    KeyExists,
    NoGroup,
    NoSuchKey,
    NotText,
    RequestError,
    ServerTooOld,
    Store,
    StoreClosed,
    StreamID,
)
from kvstream.engine import lease_renewal
from tests.patience import PATIENCE_S, until

TASKS = 40


class Worker(threading.Thread):
    """Takes tasks, gives every tenth back once, and moves the results in transactions."""

    def __init__(self, place: Store, name: str) -> None:
        super().__init__(daemon=True)
        self.store, self.consumer = place, name
        self.error: BaseException | None = None
        self.refused: set[StreamID] = set()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error
            raise

    def _work(self) -> None:
        group = self.store.stream("tasks").group("workers")
        worker, done = group.consumer(self.consumer), self.store.stream("done")
        while True:
            for entry in worker.read(3, block=PATIENCE_S):
                if entry.fields[b"n"] == b"stop":
                    group.ack(entry)
                    return
                with self.store.transaction():
                    done.add({"n": entry.fields[b"n"], "by": self.consumer})
                    group.ack(entry)


def test_a_producer_and_two_workers(place: str) -> None:
    with kvstream.open(place) as store:
        tasks = store.stream("tasks")
        tasks.create_group("workers", "0", exist_ok=True)
        workers = [Worker(store, name) for name in ("ann", "bob")]
        for worker in workers:
            worker.start()
        for n in range(TASKS):
            tasks.add({"n": n})
        until(lambda: len(store.stream("done")) >= TASKS)
        while any(worker.is_alive() for worker in workers):
            tasks.add({"n": "stop"})
            for worker in workers:
                worker.join(0.1)
        assert [worker.error for worker in workers] == [None, None]
        done = [int(entry.fields[b"n"]) for entry in store.stream("done")]
        assert sorted(done) == list(range(TASKS))


def test_entries_of_a_dead_worker_are_claimed(place: str) -> None:
    with kvstream.open(place) as store:
        jobs = store.stream("jobs")
        ids = jobs.add_many([{"n": n} for n in range(5)])
        group = jobs.create_group("g", "0")
        dead, live = group.consumer("dead"), group.consumer("live")
        assert [entry.id for entry in dead.read(3)] == ids[:3]
        assert [entry.id for entry in dead.history()] == ids[:3]
        assert jobs.delete(ids[0]) == 1
        assert isinstance(dead.history()[0], DeletedEntry)
        assert [entry.id for entry in live.claim(ids[1])] == [ids[1]]
        taken = live.autoclaim(count=10)
        assert [entry.id for entry in taken.entries] == ids[1:3]
        assert (taken.cursor, taken.deleted) == (StreamID(0, 0), [ids[0]])
        assert live.claim(ids[1], justid=True)[0].fields is None
        summary = group.pending()
        assert (summary.count, summary.min_id, summary.consumers) == (2, ids[1], {b"live": 2})
        (row, _) = live.pending()
        assert (row.id, row.consumer, row.deliveries) == (ids[1], b"live", 5)
        assert group.ack(ids[1], ids[2], ids[2]) == 2
        assert group.ack() == 0
        assert group.backlog() == 2


def test_a_blocked_read_is_woken(place: str) -> None:
    with kvstream.open(place) as store:
        stream = store.stream("s")
        group = stream.create_group("g")
        got: list[Any] = []
        reads = (
            lambda: got.append(stream.read(block=PATIENCE_S)),
            lambda: got.append(group.consumer("c").read(block=PATIENCE_S)),
            lambda: got.append(store.read({"s": "$", "t": "$"}, block=PATIENCE_S)[b"s"]),
        )
        threads = [threading.Thread(target=read, daemon=True) for read in reads]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            stream.add({"a": 1})
            for thread in threads:
                thread.join(0.05)
        assert [entries[0].fields for entries in got] == [{b"a": b"1"}] * 3
        assert stream.read(block=0.01) == []
        stream.add({"a": 2})
        assert store.read_group("g", "c", {"s": ">"})[b"s"][-1].fields == {b"a": b"2"}


def test_keys_and_their_expiry(place: str) -> None:
    with kvstream.open(place, db=2) as store:
        for key in ("a", "b", "c"):
            store.stream(key).add({"k": key}, id="5-1")
        assert sorted(store.keys()) == [b"a", b"b", b"c"]
        assert sorted(store.keys("[ab]*")) == [b"a", b"b"]
        assert (store.size(), "a" in store, store.type("a")) == (3, True, "stream")
        assert store.select(3).size() == 0
        assert store.expire("a", 100)
        assert 90 < (store.ttl("a") or 0) <= 100
        assert store.persist("a")
        assert store.ttl("a") is None
        assert not store.expire("none", 1)
        assert store.rename("a", "z")
        assert not store.rename("z", "b", replace=False)
        with pytest.raises(NoSuchKey):
            store.rename("none", "z")
        infos = {each.key: each for each in store.key_infos()}
        assert infos.keys() == {b"b", b"c", b"z"}
        assert infos[b"z"][1:6] == ("stream", 1, 0, StreamID(5, 1), None)
        assert store.delete("z", "b", "none") == 2
        assert store.delete() == 0
        assert store.flush() == 1
        assert store.flush_all() == 0


def test_entries_come_back_as_they_went(place: str) -> None:
    with kvstream.open(place) as store:
        stream = store.stream("s")
        assert stream.add({"n": 1}, nomkstream=True) is None
        first = stream.add([("a", 1), ("a", b"\xff\x00"), ("b", "ä")], id="1-1")
        assert stream.add({"x": "y"}, id="1-*") == StreamID(1, 2)
        last = stream.add({"x": 1.5}, maxlen=10)
        assert stream.range()[0].pairs == ((b"a", b"1"), (b"a", b"\xff\x00"), (b"b", "ä".encode()))
        assert [entry.id for entry in stream.revrange(count=2)] == [last, StreamID(1, 2)]
        assert [entry.id for entry in stream.range("(1-1", "1")] == [StreamID(1, 2)]
        assert stream.range(count=0) == []
        with pytest.warns(UserWarning, match="reads nothing"):
            assert (stream.read("0", count=0), store.read({"s": "0"}, count=-1)) == ([], {})
        assert stream.get(first) is not None
        assert stream.get("9-9") is None
        assert [entry.id for entry in stream.scan(page=2)] == [first, StreamID(1, 2), last]
        assert [entry.id for entry in stream.read("+")] == [last]
        assert (stream.count_after(first), stream.count_after("0"), len(stream)) == (2, 3, 3)
        assert (stream.info().entries_added, stream.info_full().info.length) == (3, 3)
        assert stream.trim(minid="1-2") == 1
        stream.set_id("9999999999999-0", entries_added=7)
        assert stream.info().entries_added == 7
        assert stream.delete() == 0


def test_errors_name_the_thing_on_every_place(place: str) -> None:
    with kvstream.open(place) as store:
        stream = store.stream("orders")
        stream.add({"n": 1}, id="5-0")
        with pytest.raises(IDTooSmall, match="last ID of stream 'orders' is 5-0; give a greater"):
            stream.add({"n": 1}, id="3-0")
        with pytest.raises(InvalidArgument, match=r"3-0: the last ID of stream 'orders' is 5-0$"):
            stream.set_id("3-0")
        for call in (store.rename, store.copy):
            with pytest.raises(NoSuchKey, match="no key 'order': did you mean 'orders'"):
                call("order", "x")
        with pytest.raises(NoSuchKey, match="'order': did you mean 'orders'"):
            store.stream("order").set_id("3-0")


def test_iterators_yield_entries_that_are_added_later(place: str) -> None:
    with kvstream.open(place) as store:
        stream = store.stream("s")
        first = stream.add({"n": 1})
        worker = stream.create_group("g", "0").consumer("c")
        worker.read()
        tail, heard = stream.tail("0"), worker.listen(poll=PATIENCE_S)
        assert (next(tail).id, next(heard).id) == (first, first)
        second = stream.add({"n": 2})
        assert (next(tail).id, next(heard).id) == (second, second)
        assert next(stream.tail("+")).id == second


def test_a_read_of_no_stream_is_empty(place: str) -> None:
    with kvstream.open(place) as store:
        assert store.read({}) == {}
        assert store.read_group("g", "c", {}) == {}


def test_groups_are_made_moved_and_listed(place: str) -> None:
    with kvstream.open(place) as store:
        stream = store.stream("s")
        group = stream.create_group("g", entries_read=None)
        stream.add_many([{"n": 1}, {"n": 2}], maxlen=10)
        assert group.create_consumer("c")
        assert not group.create_consumer("c")
        assert [each.name for each in group.consumers()] == [b"c"]
        assert stream.create_group("g", exist_ok=True).name == b"g"
        group.set_id("$")
        assert group.info().last_delivered_id == stream.info().last_generated_id
        assert [each.name for each in stream.groups()] == [b"g"]
        assert stream.info_full().groups[0].consumers[0].name == b"c"
        assert group.delete_consumer("c") == 0
        assert group.destroy()
        assert not group.destroy()


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (IDTooSmall, lambda store: store.stream("s").add({"a": 1}, id="1-0")),
        (IDTooSmall, lambda store: store.stream("s").add({"a": 1}, id="0-0")),
        (InvalidID, lambda store: store.stream("s").range("x")),
        (InvalidArgument, lambda store: store.stream("s").add({"a": None})),
        (InvalidArgument, lambda store: store.stream("s").add({})),
        (InvalidArgument, lambda store: store.stream("s").read(block=-1)),
        (NoSuchKey, lambda store: store.stream("none").info()),
        (NoSuchKey, lambda store: store.stream("none").groups()),
        (NoSuchKey, lambda store: store.stream("none").group("g").backlog()),
        (NoGroup, lambda store: store.stream("s").group("none").info()),
        (NoGroup, lambda store: store.stream("s").group("none").consumer("c").read()),
        (NoGroup, lambda store: store.stream("s").group("none").claim("c", "1-0")),
        (BusyGroup, lambda store: store.stream("s").create_group("g")),
        (KeyExists, lambda store: store.restore("s", store.dump("s"))),
        (BadPayload, lambda store: store.restore("t", b"nonsense")),
        (RequestError, lambda store: store.stream("none").create_group("g", mkstream=False)),
        (InvalidArgument, lambda store: store.select(1 << 20)),
        (InvalidArgument, lambda store: store.read(["s"])),
        (InvalidArgument, lambda store: store.copy("s", "s")),
        (InvalidArgument, lambda store: store.restore("t", None)),
        (InvalidArgument, lambda store: store.restore("t", store.dump("s"), expire_at_ms=-1)),
        (InvalidArgument, lambda store: store.stream("s").set_id("6-0", entries_added=0)),
        (InvalidArgument, lambda store: store.stream("s").create_group("h", entries_read=-2)),
    ],
)
def test_errors_have_the_same_classes(place: str, error: type[Exception], call: Any) -> None:
    with kvstream.open(place) as store:
        store.stream("s").add({"a": 1}, id="5-0")
        store.stream("s").create_group("g")
        with pytest.raises(error):
            call(store)
    with pytest.raises(StoreClosed):
        store.size()


def test_a_payload_is_restored(place: str) -> None:
    with kvstream.open(place) as store:
        store.stream("s").add({"a": 1}, id="5-0")
        payload = store.dump("s")
        assert payload is not None
        assert store.dump("none") is None
        assert store.restore("t", payload) == []
        assert store.restore("t", memoryview(payload), replace=True) == []
        assert store.restore("t", bytearray(payload), replace=True) == []
        assert store.stream("t").range() == store.stream("s").range()


def test_new_features_work_or_the_error_names_the_version(place: str) -> None:
    with kvstream.open(place) as store:
        stream = store.stream("s")
        ids = [stream.add({"n": n}) for n in range(5)]
        group = stream.create_group("g", "0")
        with pytest.warns(UserWarning, match="reads nothing"):
            assert group.consumer("c").read(0) == group.consumer("c").read(-1, block=1) == []
        group.consumer("c").read(4)
        tries: dict[str, Any] = {
            "8.2": lambda: stream.delete_entries(ids[0], ref_policy="DELREF"),
            " 8.2": lambda: group.ack_delete(ids[1]),
            "  8.2": lambda: stream.add({"n": 5}, maxlen=100, ref_policy="ACKED"),
            "8.4": lambda: group.consumer("d").read(1, claim_min_idle=0),
            "8.6": lambda: stream.add({"n": 6}, idmp=("p", "i")),
            " 8.6": lambda: stream.configure(idmp_maxsize=10),
            "8.10": lambda: stream.read("0", max_count=1),
        }
        lacking, found = set(), [True]
        for version, attempt in tries.items():
            try:
                assert attempt() or version == " 8.6"
            except ServerTooOld as error:
                lacking.add(version)
                found.append(f"needs Redis {version.strip()} or kvstream: the server" in str(error))
        assert all(found)
        wanted = {
            "redis-7.0": set(tries),
            "valkey": set(tries),
            "redis-8.2": {each for each in tries if "8.2" not in each},
        }
        assert lacking == wanted.get(_kind(store), set())


def test_what_is_given_back_is_read_again(place: str) -> None:
    with kvstream.open(place) as store:
        jobs = store.stream("jobs")
        ids = jobs.add_many([{"n": n} for n in range(6)])
        group = jobs.create_group("g", "0")
        ann, bob = group.consumer("ann"), group.consumer("bob")
        assert [entry.deliveries for entry in ann.read(4)] == [None] * 4
        assert group.nack(ids[2]) == 1
        assert ann.nack(ids[0], ids[1]) == 2
        (row, *_) = group.pending_range(ids[2], ids[2])
        assert (row.consumer, row.idle_ms, row.deliveries) == (b"", None, 1)
        assert group.pending().consumers == {b"ann": 1}
        first = bob.read(1)
        assert [(each.id, each.deliveries, each.idle_ms) for each in first] == [(ids[2], 1, None)]
        assert [each.id for each in bob.read(2)] == [*ids[:2]]
        assert [each.id for each in bob.read(10, block=0)] == ids[4:]
        assert bob.read(1) == []
        assert [row.deliveries for row in bob.pending()] == [2, 2, 2, 1, 1]
        assert group.nack(ids[2], mode="SILENT") == 1
        assert group.nack(ids[1], retrycount=7) == 1
        reply = store.read_group("g", "ann", {"jobs": ">"}, count=10)
        assert [(each.id, each.deliveries) for each in reply[b"jobs"]] == [(ids[2], 1), (ids[1], 7)]
        assert group.nack("1-1") == 0
        assert group.nack() == 0
        other = store.stream("other")
        other.create_group("g")
        mixed = store.read_group("g", "ann", {"jobs": "0", "other": ">"})
        assert [each.id for each in mixed[b"jobs"]] == ids[1:4]
        group.nack(ids[2])
        last = other.add({"n": 1})
        found: dict[bytes, Any] = {}
        for _ in range(2):  # before Redis 8.8 what was given back comes alone
            found |= store.read_group("g", "bob", {"other": ">", "jobs": ">"})
        assert {name: each[0].id for name, each in found.items()} == {
            b"jobs": ids[2],
            b"other": last,
        }
        group.claim("ann", ids[2])
        assert store.read_group("g", "ann", {"jobs": ids[0]})[b"jobs"][0].id == ids[1]


def test_what_must_not_be_tried_again_is_not_read(place: str) -> None:
    with kvstream.open(place) as store:
        jobs = store.stream("jobs")
        ids = jobs.add_many([{"n": n} for n in range(4)])
        group = jobs.create_group("g", "0")
        worker = group.consumer("ann")
        worker.read(3)
        assert group.nack(ids[0], mode="FATAL") == 1
        assert group.nack(ids[1], ids[2]) == 2
        jobs.delete(ids[1])
        assert worker.read(noack=True)[0].id == ids[3]
        assert [each.id for each in worker.read(1)] == [ids[2]]
        assert worker.read(5) == []
        assert worker.read(5, block=0.01) == []
        assert group.pending_range(ids[0], ids[0])[0].deliveries == 2**63 - 1
        assert [each.id for each in group.claim("bob", ids[0])] == [ids[0]]
        with pytest.raises(NoGroup):
            jobs.group("none").nack(ids[0])


def test_listen_extends_the_leases_of_its_messages(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_renewal, "RENEW_S", 0.05)
    with kvstream.open(place) as store:
        jobs = store.stream("jobs")
        ids = jobs.add_many([{"n": n} for n in range(5)])
        group = jobs.create_group("g", "0")
        heard = group.consumer("ann").listen(poll=PATIENCE_S)
        assert next(heard).id == ids[0]

        def renewed(*wanted: StreamID) -> None:
            """Return once the idle time of the entries was set back from now on."""
            begun = time.monotonic()

            def is_renewed() -> bool:
                rows = {row.id: row.idle_ms or 0 for row in group.pending_range()}
                return max(rows[eid] for eid in wanted) < (time.monotonic() - begun - 0.1) * 1000

            until(is_renewed)

        renewed(*ids)  # the one in work, and those read ahead
        assert {row.deliveries for row in group.pending_range()} == {1}
        assert next(heard).id == ids[1]
        group.ack(ids[1])
        assert [entry.id for entry in group.claim("bob", ids[3])] == [ids[3]]
        renewed(ids[2], ids[4])
        idle = {row.id: row.idle_ms or 0 for row in group.pending_range()}
        assert idle[ids[0]] > idle[ids[2]]  # done with, and not acknowledged
        assert group.pending().consumers == {b"ann": 3, b"bob": 1}
        assert [next(heard).id, next(heard).id] == [ids[2], ids[4]]
        last = jobs.add({"n": 5})
        assert next(heard).id == last
        heard.close()  # type: ignore[attr-defined]
        until(lambda: "kvstream-lease" not in {each.name for each in threading.enumerate()})


def test_listen_leaves_out_what_must_not_be_tried_again(place: str) -> None:
    with kvstream.open(place) as store:
        jobs = store.stream("jobs")
        ids = jobs.add_many([{"n": n} for n in range(4)])
        group = jobs.create_group("g", "0")
        worker = group.consumer("ann")
        stop = threading.Event()
        for entry in worker.listen(stop=stop):
            if entry.id == ids[1]:
                worker.nack(entry, mode="FATAL")
            elif entry.id == ids[2] and entry.deliveries is None:
                worker.nack(entry)
            elif entry.id == ids[2]:
                stop.set()
        assert [row.id for row in worker.pending()] == [ids[0], ids[1], ids[2], ids[3]]
        jobs.delete(ids[0])
        heard = worker.listen()
        assert [next(heard).id, next(heard).id] == [ids[2], ids[3]]


def test_a_read_returns_new_entries_after_what_was_given_back(place: str) -> None:
    with kvstream.open(place) as store:
        jobs = store.stream("jobs")
        ids = jobs.add_many([{"n": n} for n in range(6)])
        group = jobs.create_group("g", "0")
        ann, bob = group.consumer("ann"), group.consumer("bob")
        ann.read(1)
        ann.nack(ids[0])
        assert [(each.id, each.deliveries) for each in bob.read(3)] == [
            (ids[0], 1),
            (ids[1], None),
            (ids[2], None),
        ]
        bob.nack(*ids[:2])
        assert [each.id for each in ann.read(2, block=0)] == ids[:2]
        ann.nack(*ids[:2])
        assert [each.id for each in ann.read()] == [*ids[:2], *ids[3:]]


def test_a_blocked_read_is_woken_by_what_is_given_back(place: str) -> None:
    with kvstream.open(place) as store:
        jobs = store.stream("jobs")
        eid = jobs.add({"n": 1})
        group = jobs.create_group("g", "0")
        group.consumer("ann").read()
        got: list[StreamID] = []

        def read(name: str) -> None:
            got.extend(entry.id for entry in group.consumer(name).read(block=PATIENCE_S))

        threads = [threading.Thread(target=read, args=(name,), daemon=True) for name in "bc"]
        for thread in threads:
            thread.start()
        time.sleep(0.05)  # the reads have begun, or begin with what was given back
        assert group.nack(eid) == 1
        until(lambda: got == [eid])
        second = jobs.add({"n": 2})
        until(lambda: got == [eid, second])
        for thread in threads:
            thread.join(PATIENCE_S)


def _kind(store: Store) -> str:
    """Return which server a store is on."""
    about = store.stats().get("server", {})
    if "valkey_version" in about:
        return "valkey"
    if "redis_version" in about and "kvstream_version" not in about:
        return f"redis-{'.'.join(about['redis_version'].split('.')[:2])}"
    return "kvstream"


def test_names_and_fields_are_text(place: str) -> None:
    with kvstream.open(place, decode=True) as store:
        jobs = store.stream("jöbs")
        group = jobs.create_group("g", "0")
        worker = group.consumer("w")
        assert (jobs.key, group.name, worker.name) == ("jöbs", "g", "w")
        first = jobs.add([("a", "ä"), ("a", "1")])
        second, third = jobs.add_many([{"task": "mail"}, {"task": "ö"}])
        entries = jobs.range()
        assert [entry.fields for entry in entries] == [{"a": "1"}, {"task": "mail"}, {"task": "ö"}]
        assert entries[0].pairs == (("a", "ä"), ("a", "1"))
        same = (list(jobs), jobs.read("0"), jobs.revrange()[::-1], [*jobs.scan(page=2)])
        assert all(found == entries for found in same)
        assert jobs.get(second) == next(jobs.tail(first)) == entries[1]
        assert store.read({"jöbs": "0"}) == {"jöbs": entries}
        assert (store.keys(), [each.key for each in store.key_infos()]) == (["jöbs"], ["jöbs"])
        assert worker.read(1) == entries[:1]
        assert worker.read(1, block=PATIENCE_S) == entries[1:2]
        assert store.read_group("g", "w", {"jöbs": ">"}) == {"jöbs": entries[2:]}
        assert jobs.delete(first) == 1
        assert [entry.fields for entry in worker.history()] == [
            None,
            *[e.fields for e in entries[1:]],
        ]
        assert next(worker.listen()).fields == {"task": "mail"}
        other = group.consumer("ö")
        assert other.claim(second) == entries[1:2]
        assert other.claim(second, justid=True)[0].fields is None
        assert other.autoclaim(start=third).entries == entries[2:]
        assert group.pending().consumers == {"w": 1, "ö": 2}
        assert [row.consumer for row in group.pending_range()] == ["w", "ö", "ö"]
        assert [each.name for each in group.consumers()] == ["w", "ö"]
        assert (group.info().name, jobs.groups()[0].name) == ("g", "g")
        assert (jobs.info().first_entry, jobs.info().last_entry) == (entries[1], entries[2])
        detail = jobs.info_full()
        assert (detail.entries, detail.groups[0].name) == (entries[1:], "g")
        assert [each.name for each in detail.groups[0].consumers] == ["w", "ö"]
        assert detail.groups[0].pending[1].consumer == "ö"
        with store.transaction():
            assert jobs.get(third) == entries[2]
            jobs.add(entries[1].fields)
        assert jobs.range()[-1].fields == {"task": "mail"}


def test_bytes_that_are_no_text_are_named_or_replaced(place: str) -> None:
    with kvstream.open(place) as store:
        eid = store.stream("s").add({"sku": "a1", "raw": b"\xff"})
    with kvstream.open(place, decode=True) as texts:
        with pytest.raises(NotText, match=rf"^entry {eid} of stream 's': the value of field 'raw'"):
            texts.stream("s").range()
        texts.stream("s").delete(eid)
        texts.stream("s").add({b"\xfe": "x"})
        with pytest.raises(NotText, match=r"the field name b'\\xfe' is not UTF-8"):
            texts.stream("s").create_group("g", "0").consumer("c").read()
    with kvstream.open(place, decode=True, errors="replace") as replaced:
        assert replaced.stream("s").range()[0].fields == {"�": "x"}
