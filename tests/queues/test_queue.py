"""Queues on every place: leases, failures, dead letters, delays, priorities, transactions."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import (
    InvalidArgument,
    LeaseLost,
    LeaseOutcome,
    Message,
    Queue,
    ServerTooOld,
    Store,
    StreamID,
    Ticket,
)
from kvstream.aio import AsyncQueue
from tests.patience import PATIENCE_S, until

SHORT_S = 0.15
"""A lease that ends while a test waits."""
HELD_S = 0.8
"""A lease that is extended, also on a busy machine."""


@contextmanager
def two(place: str, **rules: Any) -> Iterator[tuple[Queue, Queue]]:
    """Open a queue for two consumers."""
    with kvstream.open(place) as store:
        yield Queue(store, "q", consumer="ann", **rules), Queue(store, "q", consumer="bob", **rules)


def names(messages: list[Message]) -> list[bytes]:
    return [message.fields[b"n"] for message in messages]


def the(messages: list[Message]) -> Message:
    (message,) = messages
    return message


# --- life of a message --------------------------------------------------------------------------


def test_a_message_is_leased_and_acknowledged(place: str) -> None:
    with two(place) as (ann, bob):
        first = ann.put({"n": 1})
        second = ann.put({"n": 2})
        message = the(ann.get())
        assert (message.id, message.fields, message.deliveries) == (first, {b"n": b"1"}, 1)
        assert (message.consumer, message.key, message.queue) == (b"ann", b"q", ann)
        assert 0 <= message.age < PATIENCE_S
        assert [each.id for each in bob.get(5)] == [second]
        assert bob.get() == []
        info = bob.info()
        assert (info.ready, info.leased, info.waiting, info.dead) == (0, 2, 0, 0)
        message.ack()
        assert bob.info().leased == 1
        with pytest.raises(LeaseLost, match="it was acknowledged, or moved to the dead letters"):
            message.ack()


def test_messages_put_before_the_first_reader_are_read(place: str) -> None:
    with two(place) as (ann, bob):
        ann.put_many([{"n": n} for n in range(3)])
        assert ann.info().ready == 3
        assert ann.info().oldest_age is not None
        assert names(bob.get(5)) == [b"0", b"1", b"2"]


def test_a_late_acknowledgement_does_not_affect_the_next_consumer(place: str) -> None:
    with two(place, lease=SHORT_S) as (ann, bob):
        ann.put({"n": 1})
        late = the(ann.get())
        again = the(bob.get(block=PATIENCE_S))
        assert (again.id, again.deliveries) == (late.id, 2)
        for call in (late.ack, late.nack, late.extend):
            with pytest.raises(LeaseLost, match="delivered again after its lease had ended"):
                call()
        again.extend()
        again.ack()
        assert bob.info().leased == 0


def test_a_batch_has_an_outcome_for_each(place: str) -> None:
    with two(place, priorities=("high", "normal")) as (ann, bob):
        ann.put_many([{"n": n} for n in range(3)])
        ann.put({"n": "high"}, priority="high")
        found = ann.get(4)
        assert names(found) == [b"high", b"0", b"1", b"2"]
        found[1].ack()
        found[2].nack()
        assert names(bob.get()) == [b"1"]
        done, gone, lost = LeaseOutcome.DONE, LeaseOutcome.NOT_PENDING, LeaseOutcome.LOST
        assert ann.extend(*found) == [done, gone, lost, done]
        assert ann.nack(found[0], delay=60) == [done]
        assert ann.ack(*reversed(found)) == [done, lost, gone, lost]
        assert ann.ack() == []
        info = ann.info()
        assert (info.ready, info.leased, info.waiting) == (0, 1, 1)


def test_a_message_that_is_twice_in_a_batch_is_settled_by_the_first(place: str) -> None:
    with two(place) as (ann, _):
        ann.put_many([{"n": n} for n in range(2)])
        first, second = ann.get(2)
        done, gone, lost = LeaseOutcome.DONE, LeaseOutcome.NOT_PENDING, LeaseOutcome.LOST
        assert ann.extend(first, second, first) == [done, done, done]
        assert ann.nack(second, first, second) == [done, done, lost]
        first = the(ann.get())
        assert ann.ack(first, first) == [done, gone]


def test_a_failed_message_is_delivered_again_after_its_backoff(place: str) -> None:
    with two(place, backoff=[0, 60]) as (ann, bob):
        ann.put({"n": 1})
        the(ann.get()).nack()
        again = the(bob.get())
        assert again.deliveries == 2
        again.nack()
        assert bob.get(block=0.05) == []
        assert bob.info().waiting == 1
    with two(place, backoff=()) as (ann, bob):
        ann.put({"n": 2})
        message = the(ann.get())
        message.nack(delay=SHORT_S)
        assert ann.get() == []
        again = the(bob.get(block=PATIENCE_S))
        assert (again.id, again.deliveries) == (message.id, 2)


def test_a_message_that_fails_too_often_is_a_dead_letter_and_is_redriven(place: str) -> None:
    with two(place, max_deliveries=2) as (ann, bob):
        ann.put([("n", "1"), ("n", "2"), ("to", "x")])
        origin = the(ann.get())
        origin.nack()
        assert ann.dead() == []
        try:
            raise ValueError("no such user")
        except ValueError as error:
            the(bob.get()).nack(error=error)
        assert bob.get() == []
        (letter,) = ann.dead()
        assert (letter.origin, letter.origin_id, letter.group) == (b"q", origin.id, b"workers")
        assert (letter.consumer, letter.deliveries) == (b"bob", 2)
        assert (letter.reason, letter.error) == ("max-deliveries", b"ValueError: no such user")
        assert b"Traceback (most recent call last)" in letter.traceback
        assert letter.fields == {b"n": b"2", b"to": b"x"}
        assert abs(datetime.now(UTC) - letter.at) < timedelta(seconds=PATIENCE_S)
        assert ann.info().dead == 1
        tried = ann.redrive(letter, dry_run=True)
        assert (tried.state, tried.moved, tried.streams) == ("dry-run", 1, {b"q": 1})
        assert ann.redrive(where=("dead:reason", "fatal")).moved == 0
        assert ann.redrive(letter).state == "done"
        status = ann.redrive_status()
        assert status is not None
        assert status.moved == 1
        assert ann.dead() == []
        back = the(ann.get())
        assert (back.deliveries, back.pairs[:2]) == (1, ((b"n", b"1"), (b"n", b"2")))


def test_a_fatal_failure_is_a_dead_letter_at_once(place: str) -> None:
    with two(place, dead_letter="lost") as (ann, _):
        ann.put({"n": 1})
        the(ann.get()).nack(fatal=True, error="not a number", traceback="line 1")
        (letter,) = ann.dead()
        assert (ann.dead_stream().key, letter.reason, letter.deliveries) == (b"lost", "fatal", 1)
        assert (letter.error, letter.traceback) == (b"not a number", b"line 1")
        assert ann.redrive(to="other", rate=(10, 1)).streams == {b"other": 1}
        assert ann.store.stream("other").range()[0].fields == {b"n": b"1"}


def test_dead_letters_are_counted_after_a_restart(directory: Path) -> None:
    with Store.open(directory) as store:
        queue = Queue(store, "q")
        for n in range(20):
            queue.put({"n": n})
            the(queue.get()).nack(fatal=True)
            if n == 9:
                assert queue.info().dead == 10
    with Store.open(directory) as store:
        queue = Queue(store, "q")
        assert queue.info().dead == 20
        assert len(queue.dead()) == 20


def test_a_delayed_message_is_listed_moved_and_cancelled(place: str) -> None:
    with two(place) as (ann, bob):
        ticket = ann.put({"n": 1}, delay=60)
        later = ann.put({"n": 2}, at=datetime.now(UTC) + timedelta(hours=1))
        soon = ann.put({"n": 3}, delay=timedelta(seconds=SHORT_S))
        assert isinstance(ticket, Ticket)
        assert isinstance(later, Ticket)
        assert ann.get() == []
        (stream,) = ann.streams()
        assert [each.fields[b"n"] for each in stream.delayed()][-2:] == [b"1", b"2"]
        assert stream.delayed(later)[0].ticket == later
        assert names(bob.get(block=PATIENCE_S)) == [b"3"]
        assert isinstance(soon, Ticket)
        moved = stream.move(ticket, delay=0)
        assert isinstance(moved, Ticket)
        assert names(bob.get(block=PATIENCE_S)) == [b"1"]
        assert stream.move(ticket, delay=5) is None
        assert ann.info().delayed == 1
        assert ann.cancel(later, str(soon)) == 1
        assert ann.info().delayed == 0
        assert isinstance(ann.put({"n": 4}, at=1.5), StreamID)


def test_messages_that_are_delayed_together_have_a_ticket_each(place: str) -> None:
    with two(place) as (ann, bob):
        tickets = ann.put_many([{"n": n} for n in range(3)], delay=SHORT_S, ttl=60)
        assert all(isinstance(ticket, Ticket) for ticket in tickets)
        assert len(set(tickets)) == 3
        assert ann.cancel(tickets[1]) == 1
        read: list[bytes] = []
        while len(read) < 2:
            read += names(bob.get(5, block=PATIENCE_S))
        assert read == [b"0", b"2"]
        assert ann.put_many([], delay=1) == []


def test_a_message_that_is_too_old_is_deleted(place: str) -> None:
    with two(place) as (ann, bob):
        ann.put({"n": 1}, ttl=SHORT_S)
        until(lambda: len(ann.streams()[0]) == 0)
        assert bob.get() == []


def test_a_unique_message_keeps_others_out_until_it_is_done(place: str) -> None:
    with two(place) as (ann, bob):
        first = ann.put({"n": 1}, unique="welcome:7")
        assert ann.put({"n": 2}, unique="welcome:7") == first
        message = the(bob.get())
        after = ann.put({"n": 3}, unique="welcome:7", on_conflict="after")
        assert after != first
        assert ann.put({"n": 4}, unique="welcome:7", on_conflict="after") == after
        message.ack()
        assert names(bob.get(5)) == [b"3"]
        delayed = ann.put({"n": 5}, unique="search", delay=60, window=120)
        again = ann.put({"n": 6}, unique="search", delay=90, window=120, on_conflict="debounce")
        assert again != delayed
        assert [each.fields[b"n"] for each in ann.streams()[0].delayed()] == [b"6"]
        other = ann.put({"n": 7}, unique="x", window=timedelta(minutes=1))
        replacing = ann.put({"n": 8}, unique="x", on_conflict="replace", window=60)
        assert replacing != other
        assert names(bob.get(5)) == [b"8"]


# --- schedules and retention --------------------------------------------------------------------


def test_a_schedule_adds_messages_and_is_listed(place: str) -> None:
    with two(place) as (ann, bob):
        (stream,) = ann.streams()
        fields = [("n", "tick"), ("n", "tack")]
        stream.schedule("every", "@every 1s", fields, misfire="all", most=3)
        stream.schedule("nightly", "0 3 * * *", {"n": "night"}, tz="Europe/Berlin")
        assert names(bob.get(block=PATIENCE_S)) == [b"tack"]
        every, nightly = stream.schedules()
        assert (every.name, every.cron, every.tz, every.error) == (b"every", "@every 1s", "UTC", "")
        assert (every.misfire, every.most, every.fields) == ("all", 3, {b"n": b"tack"})
        assert every.last is not None
        assert nightly.last is None
        assert nightly.next is not None
        assert (nightly.tz, nightly.next > datetime.now(UTC)) == ("Europe/Berlin", True)
        assert stream.delete_schedule("every")
        assert not stream.delete_schedule("every")
        assert isinstance(stream.run_schedule("nightly"), StreamID)
        assert b"night" in names(bob.get(10))
        with pytest.raises(kvstream.NoSuchKey):
            stream.run_schedule("every")


def test_messages_that_are_done_leave_the_stream(place: str) -> None:
    with two(place) as (ann, _):
        ann.put_many([{"n": n} for n in range(5)])
        done = ann.get(3)
        (stream,) = ann.streams()
        assert stream.retention() == kvstream.Retention(acked=True)
        ann.ack(*done)
        until(lambda: len(stream) == 2)
        stream.set_retention(max_age=60, max_length=10, max_bytes=1000, latest="n", force=True)
        assert stream.retention() == kvstream.Retention(60_000, 10, 1000, False, b"n", True)
        assert stream.drop_retention()
        assert not stream.drop_retention()
        assert stream.retention() is None


def test_messages_stay_in_existing_streams(place: str, caplog: pytest.LogCaptureFixture) -> None:
    with kvstream.open(place) as store:
        for name in ("kept", "read", "ruled", "old", "given"):
            store.stream(name).add({"n": 1})
        store.stream("read").create_group("others")
        store.stream("ruled").set_retention(max_length=10)
        queues = [
            *(Queue(store, "kept", keep=True), Queue(store, "read"), Queue(store, "ruled")),
            *(Queue(store, "old"), Queue(store, "given", keep=False)),
        ]
        for queue in queues:
            queue.put({"n": 2})
            the(queue.get()).ack()
        rules = [queue.streams()[0].retention() for queue in queues]
        goes = kvstream.Retention(acked=True)
        assert rules == [None, None, kvstream.Retention(max_length=10), None, goes]
        (record,) = [each for each in caplog.records if each.name == "kvstream.queue"]
        assert "the stream 'old' was there before its queue" in record.getMessage()


def test_a_stream_begins_as_a_queue_with_its_first_put_or_its_schedule(place: str) -> None:
    goes = kvstream.Retention(acked=True)
    with kvstream.open(place) as store:
        Queue(store, "put").put({"n": 1}, delay=60)
        inside, undone = (
            Queue(store, "inside", priorities=("high", "normal")),
            Queue(store, "undone"),
        )
        with store.transaction():
            inside.put({"n": 1}, priority="high")
        with suppress(ZeroDivisionError), store.transaction():
            undone.put({"n": 1})
            raise ZeroDivisionError
        assert not store.exists("undone")
        undone.put({"n": 1})
        store.stream("cron").schedule("nightly", "0 3 * * *", {"n": 1})
        assert Queue(store, "cron").get() == []
        store.stream("mine").set_retention(max_length=5)
        Queue(store, "mine").put({"n": 1})
        Queue(store, "kept", keep=True).put({"n": 1})
        names = ("put", "inside:high", "undone", "cron", "mine", "kept")
        rules = [store.stream(name).retention() for name in names]
        assert rules == [goes, goes, goes, goes, kvstream.Retention(max_length=5), None]


# --- groups -------------------------------------------------------------------------------------


def test_the_messages_of_a_removed_consumer_are_delivered_again_and_a_group_can_seek(
    place: str,
) -> None:
    with two(place) as (ann, bob):
        ann.put_many([{"n": n} for n in range(3)])
        ann.get(3)
        (group,) = ann.groups()
        assert group.remove_consumer("ann") == 3
        found = bob.get(5)
        assert (found[0].fields[b"n"], found[0].deliveries) == (b"0", 2)
        bob.ack(*found[1:])
        assert group.seek(timedelta(hours=1)) < found[0].id
        assert b"0" not in names(bob.get(5))  # a consumer works on it
        time.sleep(0.002)  # a time is the beginning of its millisecond
        assert group.seek(datetime.now(UTC)) > found[2].id


# --- listening ----------------------------------------------------------------------------------


def test_listening_keeps_the_leases_of_current_and_read_ahead_messages(place: str) -> None:
    with two(place, lease=HELD_S) as (ann, bob):
        ann.put_many([{"n": n} for n in range(3)])
        heard = ann.listen(3, poll=PATIENCE_S)
        first = next(heard)
        assert bob.get(5, block=2 * HELD_S) == []
        first.ack()
        second = next(heard)
        assert second.deliveries == 1
        heard.close()  # type: ignore[attr-defined]
        again: dict[bytes, int] = {}
        while len(again) < 2:
            found = bob.get(5, block=PATIENCE_S)
            again.update((message.fields[b"n"], message.deliveries) for message in found)
            bob.ack(*found)
        assert again == {b"1": 2, b"2": 1}  # the program has not seen the last one
        until(lambda: "kvstream-lease" not in {each.name for each in threading.enumerate()})


def test_listening_ends_on_request(place: str) -> None:
    with two(place) as (ann, _):
        stop = threading.Event()
        ann.put_many([{"n": n} for n in range(5)])
        for message in ann.listen(stop=stop, poll=0.01):
            message.ack()
            if message.fields[b"n"] == b"2":
                stop.set()
        assert ann.info().ready == 2
        assert list(ann.listen(stop=stop)) == []


# --- priorities ---------------------------------------------------------------------------------


def test_urgent_messages_come_first_and_each_lower_priority_at_every_tenth_read(place: str) -> None:
    with two(place, priorities=("high", "normal", "low")) as (ann, bob):
        for n in range(21):
            ann.put({"n": f"h{n}"}, priority="high")
        ann.put({"n": "n0"})
        for n in range(3):
            ann.put({"n": f"l{n}"}, priority="low")
        assert [stream.key for stream in ann.streams()] == [b"q:high", b"q", b"q:low"]
        read = [names(bob.get())[0].decode() for _ in range(21)]
        urgent = [f"h{n}" for n in range(21)]
        assert read == [*urgent[:8], "n0", "l0", *urgent[8:17], "l1", "h17"]
        assert names(bob.get(10)) == [b"h18", b"h19", b"h20", b"l2"]
        assert bob.get(10) == []
        with pytest.raises(InvalidArgument, match="the queue has no priority 'hihg': did you mean"):
            ann.put({"n": 1}, priority="hihg")


def test_no_priority_is_starved_by_others(store: Store) -> None:
    names = ("a", "b", "c", "normal", "d")
    queue = Queue(store, "q", priorities=names)
    for name in names:
        queue.put_many([{"of": name}] * 200, priority=name)
    first = Counter(queue.get()[0].fields[b"of"].decode() for _ in range(100))
    assert first == {"a": 60, "b": 10, "c": 10, "normal": 10, "d": 10}


# --- policies -----------------------------------------------------------------------------------


def test_rules_that_are_not_given_stay_and_later_ones_win(place: str) -> None:
    with kvstream.open(place) as store:
        first = Queue(store, "q", lease=10, max_deliveries=3)
        assert first.get() == []
        (group,) = first.groups()
        policy = group.policy()
        assert policy is not None
        assert (policy.lease_ms, policy.max_deliveries) == (10_000, 3)
        assert policy.reap_idle_ms == 86_400_000
        Queue(store, "q").get()
        assert group.policy() == policy
        Queue(store, "q", max_deliveries=5).get()
        policy = group.policy()
        assert policy is not None
        assert (policy.lease_ms, policy.max_deliveries) == (10_000, 5)
        Queue(store, "fresh").get()
        fresh = store.stream("fresh").group("workers").policy()
        assert fresh is not None
        assert fresh.lease_ms == 30_000


def test_a_deleted_queue_is_recreated_by_its_next_reader(place: str) -> None:
    with two(place) as (ann, _):
        ann.put({"n": 1})
        assert names(ann.get()) == [b"1"]
        ann.store.delete("q")
        ann.put({"n": 2})
        assert names(ann.get()) == [b"2"]


def test_a_paused_queue_delivers_nothing(place: str) -> None:
    with two(place) as (ann, bob):
        ann.put_many([{"n": 1}, {"n": 2}])
        leased = the(ann.get())
        ann.pause()
        assert ann.info().paused
        assert bob.get() == []
        leased.ack()
        bob.resume()
        assert names(bob.get()) == [b"2"]
        assert not bob.info().paused


def test_a_purge_deletes_all_but_dead_letters(place: str) -> None:
    with two(place, priorities=("normal", "low")) as (ann, bob):
        ann.put_many([{"n": n} for n in range(5)])
        ann.put({"n": 5}, priority="low", delay=60)
        leased, dead = ann.get(2)
        dead.nack(fatal=True)
        assert bob.purge() == 4
        leased.ack()
        info = bob.info()
        assert (info.ready, info.delayed, info.leased, info.dead) == (0, 0, 0, 1)
        assert bob.get(10) == []


def test_a_purge_leaves_nothing_of_messages_that_wait_or_are_held(place: str) -> None:
    with two(place, order_by="k", backoff=60) as (ann, bob):
        ann.put_many([{"k": "a", "n": n} for n in range(1500)])
        ann.put({"k": "b"})
        held_up, waiting = ann.get(2)
        waiting.nack()
        before = bob.info()
        assert (before.leased, before.waiting, before.held) == (1, 1, 1499)
        assert bob.purge() == 1500
        after = bob.info()
        assert (after.leased, after.ready, after.waiting, after.held) == (1, 0, 0, 0)
        held_up.ack()
        assert bob.info().oldest_age is None


# --- transactions -------------------------------------------------------------------------------


def test_a_transaction_acknowledges_and_adds_in_one_commit(place: str) -> None:
    with two(place) as (ann, _):
        ann.put({"n": 1})
        message = the(ann.get())
        with message.transaction() as store:
            store.stream("done").add({"n": message.fields[b"n"]})
        assert len(ann.store.stream("done")) == 1
        assert ann.info().leased == 0


def test_an_exception_undoes_a_transaction_and_the_lease_stays(place: str) -> None:
    with two(place) as (ann, _):
        ann.put({"n": 1})
        message = the(ann.get())

        def fail() -> None:
            with message.transaction() as store:
                store.stream("done").add({"n": 1})
                message.ack()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert "done" not in ann.store
        with message.transaction() as store:
            store.stream("done").add({"n": 1})
            message.ack()
        assert ann.info().leased == 0


def test_a_lost_lease_undoes_a_transaction(place: str) -> None:
    with two(place) as (ann, bob):
        ann.put({"n": 1})
        message = the(ann.get())
        message.nack()
        the(bob.get())
        with pytest.raises(LeaseLost), message.transaction() as store:
            store.stream("done").add({"n": 1})
        assert "done" not in ann.store


def test_a_lease_that_is_lost_inside_undoes_a_transaction(place: str) -> None:
    with two(place) as (ann, bob):
        ann.put({"n": 1})
        message = the(ann.get())

        def steal() -> None:
            with kvstream.open(place) as other:
                other.stream("q").group("workers").claim("bob", message.id)

        def lose() -> None:
            with message.transaction() as store:
                store.stream("done").add({"n": 1})
                thread = threading.Thread(target=steal)
                thread.start()
                thread.join()

        if isinstance(ann.store._engine, kvstream.engine.engine.Engine):
            return  # other threads wait until the block ends
        with pytest.raises(LeaseLost):
            lose()
        assert "done" not in ann.store
        assert bob.info().leased == 1


def test_an_acknowledgement_in_a_transaction_of_the_store_is_guarded_as_well(place: str) -> None:
    with two(place) as (ann, bob):
        ann.put_many([{"n": 1}, {"n": 2}])
        late, held = ann.get(2)
        late.nack()
        the(bob.get())

        def acknowledge() -> None:
            with ann.store.transaction():
                ann.store.stream("done").add({"n": 1})
                late.ack()

        with pytest.raises(LeaseLost):
            acknowledge()
        assert "done" not in ann.store
        with ann.store.transaction():
            ann.put({"n": 3})
            held.ack()
        assert ann.info().ready == 1
        assert names(bob.get(5)) == [b"3"]


def test_an_undone_acknowledgement_can_be_repeated(place: str) -> None:
    with two(place) as (ann, _):
        ann.put({"n": 1})
        message = the(ann.get())

        def fail() -> None:
            with ann.store.transaction():
                message.ack()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert ann.info().leased == 1
        with message.transaction() as store:
            store.stream("done").add({"n": 1})
        assert ann.info().leased == 0


def test_a_batch_of_several_priorities_is_settled_in_a_transaction(place: str) -> None:
    with two(place, priorities=("high", "normal")) as (ann, _):
        ann.put({"n": 1})
        ann.put({"n": 2}, priority="high")
        found = ann.get(2)
        with ann.store.transaction():
            ann.ack(*found)
        assert ann.info().leased == 0


def test_each_process_has_its_own_consumer(store: Store) -> None:
    queue = Queue(store, "q")
    mine = queue.consumer
    assert queue.consumer == mine != Queue(store, "q").consumer
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, queue.consumer)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000) not in (b"", mine)
    os.close(reading)
    os.close(writing)


# --- text, and mistakes -------------------------------------------------------------------------


def test_names_and_fields_are_text_in_a_store_of_text(place: str) -> None:
    with kvstream.open(place, decode=True) as store:
        queue = Queue(store, "q", consumer="ann", max_deliveries=1)
        queue.put({"to": "ä"}, delay=60)
        queue.put({"to": "ä"})
        (message,) = queue.get()
        assert (queue.name, queue.group, message.consumer) == ("q", "workers", "ann")
        assert (message.fields, message.key) == ({"to": "ä"}, "q")
        message.nack(error="wröng")
        (letter,) = queue.dead()
        assert (letter.origin, letter.error, letter.fields) == ("q", "wröng", {"to": "ä"})
        assert queue.redrive(dry_run=True).streams == {"q": 1}
        assert queue.streams()[0].delayed()[0].fields == {"to": "ä"}


def put_and_get(store: Store) -> Message:
    queue = Queue(store, "q")
    queue.put({"n": 1})
    return the(queue.get())


WRONG: dict[str, tuple[Callable[[Store], Any], str]] = {
    "delay and at": (
        lambda store: Queue(store, "q").put({"a": 1}, delay=1, at=5),
        "give delay or at, not both",
    ),
    "at in milliseconds": (
        lambda store: Queue(store, "q").put({"a": 1}, at=1_700_000_000_000),
        "at is in Unix seconds: 1700000000000 is most likely milliseconds",
    ),
    "at as a time span": (
        lambda store: Queue(store, "q").put({"a": 1}, at=timedelta(seconds=5)),  # type: ignore[arg-type]
        "at is a moment, not a time span: give delay=datetime.timedelta(seconds=5)",
    ),
    "a negative delay": (
        lambda store: Queue(store, "q").put({"a": 1}, delay=timedelta(seconds=-5)),
        "delay is negative: -5.0",
    ),
    "a delay and a trim": (
        lambda store: store.stream("q").add({"a": 1}, delay=5, maxlen=10),  # type: ignore[call-overload]
        "maxlen does not go with delay, at, ttl and unique",
    ),
    "a window alone": (
        lambda store: Queue(store, "q").put({"a": 1}, window=5),
        "window, max_wait and on_conflict go with unique: the ID of the message",
    ),
    "an unknown rule of unique": (
        lambda store: Queue(store, "q").put({"a": 1}, unique="x", on_conflict="skipp"),  # type: ignore[arg-type]
        "on_conflict cannot be 'skipp': did you mean 'skip'?",
    ),
    "a number as an error": (
        lambda store: put_and_get(store).nack(error=5),  # type: ignore[arg-type]
        "error is an exception or its text, not 5",
    ),
    "a time zone that is no text": (
        lambda store: store.stream("q").schedule("n", "@daily", {"a": 1}, tz=UTC),  # type: ignore[arg-type]
        "the time zone cannot be datetime.timezone.utc: give its name, such as Europe/Berlin",
    ),
    "an expression that is no cron": (
        lambda store: store.stream("q").schedule("n", "daily", {"a": 1}),
        "the cron expression 'daily' is wrong: it has 1 fields, not 5, or 6 with seconds",
    ),
    "an expression that is no text": (
        lambda store: store.stream("q").schedule("n", None, {"a": 1}),  # type: ignore[arg-type]
        "a cron expression is a text, not None",
    ),
    "an unknown misfire rule": (
        lambda store: store.stream("q").schedule("n", "@daily", {"a": 1}, misfire="never"),  # type: ignore[arg-type]
        "misfire cannot be 'never': it is one of skip, once, all",
    ),
    "no lease": (
        lambda store: Queue(store, "q", lease=0),
        "lease must be above 0: without one, a lost message stays lost",
    ),
    "priorities that are text": (
        lambda store: Queue(store, "q", priorities="high"),
        'priorities are names, the most urgent first, as ("high", "normal", "low"), not \'high\'',
    ),
    "priorities without the plain one": (
        lambda store: Queue(store, "q", priorities=("high", "low")),
        'one of the priorities is "normal", that of messages put without one: '
        "('high', 'low') lack it",
    ),
    "count=0": (
        lambda store: Queue(store, "q").get(0),
        "count must be at least 1, not 0",
    ),
    "a list in place of messages": (
        lambda store: Queue(store, "q").ack(Queue(store, "q").get()),  # type: ignore[arg-type]
        "[] is not a message: put a * before the list",
    ),
    "listen(count=0)": (
        lambda store: Queue(store, "q").listen(0),
        "count must be at least 1, not 0",
    ),
    "a seek by text": (
        lambda store: store.stream("q").create_group("g").seek("1h"),  # type: ignore[arg-type]
        "seek takes a datetime, Unix seconds, or a timedelta (that long ago), not '1h'; set_id() "
        "takes an ID",
    ),
    "a redrive by text": (
        lambda store: Queue(store, "q").redrive(where="n=2"),  # type: ignore[arg-type]
        'where is a field and its value, ("dead:reason", "fatal"), not \'n=2\'',
    ),
    "no rule of retention": (
        lambda store: store.stream("q").set_retention(),
        "give one of max_age, max_length, max_bytes, acked and latest",
    ),
    "retention of no entry": (
        lambda store: store.stream("q").set_retention(max_length=0),
        "max_length must be above 0: drop_retention() removes rules",
    ),
    "a path in place of a store": (
        lambda store: Queue("data", "q"),  # type: ignore[arg-type]
        "a Queue has a Store, not 'data': open one with kvstream.open; kvstream.aio.AsyncQueue has "
        "an AsyncStore",
    ),
    "a store that blocks in an AsyncQueue": (
        lambda store: AsyncQueue("data", "q"),  # type: ignore[arg-type]
        "an AsyncQueue has an AsyncStore, not 'data': open one with kvstream.aio.open; "
        "kvstream.Queue has a Store",
    ),
    "no queue": (lambda store: kvstream.queue.take([]), "take needs at least one queue"),
    "a ticket that is none": (
        lambda store: Queue(store, "q").cancel("1-1"),
        "a ticket of a delayed message is '@ms-number': '1-1'",
    ),
}


@pytest.mark.parametrize(("wrong", "says"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_explained(store: Store, wrong: Callable[[Store], Any], says: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        wrong(store)
    assert str(error.value) == says


@pytest.mark.parametrize(
    "wrong",
    [
        lambda store: store.stream("q").schedule("n", "0 25 * * *", {"a": 1}),
        lambda store: store.stream("q").schedule("n", "@daily", {"a": 1}, tz="Europe/Berln"),
        lambda store: store.stream("q").schedule("n", "@daily", {"a": 1}, misfire="all", most=0),
        lambda store: store.stream("q").schedule("", "@daily", {"a": 1}),
        lambda store: store.stream("q").schedule("n", "@daily", {}),
        lambda store: store.stream("q").add({"a": 1}, unique=""),
        lambda store: store.stream("q").add({"a": 1}, delay=timedelta(days=40_000)),
        lambda store: store.stream("q").configure(),
        lambda store: store.stream("q").create_group("g").set_policy(dead_letter="q"),
        lambda store: Queue(store, "q", rate=(1, 0)).get(),
        lambda store: Queue(store, "q").redrive(count=0),
        lambda store: Queue(store, "q").redrive(rate=(0, 1)),
    ],
)
def test_a_mistake_has_the_same_class_in_every_place(
    place: str, wrong: Callable[[Store], Any]
) -> None:
    with kvstream.open(place) as store:
        store.stream("q").add({"a": 1})
        with pytest.raises(InvalidArgument):
            wrong(store)


def test_a_redis_has_no_queues(old: str) -> None:
    with kvstream.open(old) as store:
        queue = Queue(store, "q")
        queue.put({"n": 1})
        with pytest.raises(ServerTooOld, match=r"^KVSTREAM.POLICY is a command of kvs"):
            queue.get()
        with pytest.raises(ServerTooOld, match=r"^KVSTREAM.ADD is a command of kvs"):
            queue.put({"n": 1}, delay=1)


def test_a_message_that_expires_after_a_failure_has_its_error(place: str) -> None:
    with two(place, max_deliveries=5) as (ann, bob):
        ann.put({"n": 1}, ttl=1)
        the(ann.get()).nack(delay=3600, error="no such host", traceback="line 1")
        until(bob.dead)
        (letter,) = bob.dead()
        assert (letter.reason, letter.error) == ("expired", b"no such host")
        assert letter.traceback == b"line 1"


def test_a_message_whose_lease_has_ended_is_ready(place: str) -> None:
    with two(place, lease=0.05) as (ann, bob):
        ann.put_many([{"n": 1}, {"n": 2}])
        ann.get()
        until(lambda: bob.info().leased == 0)
        info = bob.info()
        assert (info.ready, info.waiting) == (2, 0)
        assert len(bob.get(5)) == 2


def test_a_stream_whose_entries_timers_have_added_begins_as_a_queue(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    goes = kvstream.Retention(acked=True)
    with kvstream.open(place) as store:
        for name in ("cron", "late", "mixed", "read"):
            store.stream(name).schedule("nightly", "0 3 * * *", {"n": 1})
        store.stream("mixed").add({"n": 1})
        store.stream("read").create_group("others", "0")
        for name in ("cron", "mixed", "read"):
            store.stream(name).run_schedule("nightly")
        for _ in range(2):
            store.stream("late").add({"n": 1}, delay=0.5)  # once due it would be added at once
        until(lambda: len(store.stream("late")) == 2)
        store.stream("late").run_schedule("nightly")
        queues = [Queue(store, name) for name in ("cron", "late", "mixed", "read")]
        for queue in queues:
            queue.ack(*queue.get(10))
        assert [queue.streams()[0].retention() for queue in queues] == [goes, goes, None, None]
        until(lambda: len(store.stream("cron")) == len(store.stream("late")) == 0)
        assert len(store.stream("mixed")) == 2
        (record,) = [each for each in caplog.records if each.name == "kvstream.queue"]
        assert "the stream 'mixed' was there before its queue" in record.getMessage()


def test_a_group_with_a_policy_does_not_keep_a_queue_from_its_rule(place: str) -> None:
    with kvstream.open(place) as store:
        for name in ("put", "got", "events"):
            store.stream(name).create_group("workers", "0").set_policy(lease=30)
        store.stream("events").create_group("others", "0")
        Queue(store, "put").put({"n": 1})
        assert Queue(store, "got").get() == []
        Queue(store, "events").put({"n": 1})
        rules = [store.stream(name).retention() for name in ("put", "got", "events")]
        assert rules == [kvstream.Retention(acked=True), kvstream.Retention(acked=True), None]


def test_dead_letters_are_grouped_by_their_errors(place: str) -> None:
    with two(place) as (ann, _):
        assert ann.dead_by_error() == ([], 0, None)
        errors = ["KeyError: 'a'", "KeyError: 'b'\nmore", "TimeoutError: after 30 s", "", "x" * 900]
        for error in errors:
            ann.put({"n": 1})
            the(ann.get()).nack(fatal=True, error=error)
        found = ann.dead_by_error()
        assert [(each.error, each.number) for each in found.groups] == [
            ("KeyError: '…'", 2),
            ("x" * 200, 1),
            ("", 1),
            ("TimeoutError: after N s", 1),
        ]
        first, last = found.groups[0].first, found.groups[0].last
        assert first <= last <= datetime.now(UTC) + timedelta(minutes=1)
        letters = ann.dead()
        assert found.groups[0].example == letters[1].id
        assert (found.looked, found.after) == (5, None)
        newest = ann.dead_by_error(count=3)
        assert (newest.looked, newest.after) == (3, letters[2].id)
        older = ann.dead_by_error(after=newest.after)
        assert ([each.number for each in older.groups], older.after) == ([2], None)


def test_errors_beyond_a_bound_are_counted_together(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.dead_letters.ERRORS_MAX", 1)
    with two(place) as (ann, _):
        for error in "abc":
            ann.put({"n": 1})
            the(ann.get()).nack(fatal=True, error=error)
        found = ann.dead_by_error().groups
        assert [(each.error, each.number) for each in found] == [("(other errors)", 2), ("c", 1)]
