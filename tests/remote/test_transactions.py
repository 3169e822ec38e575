"""``transaction()``: its common behaviour on every place, and the differences of servers."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Conflict, IDTooSmall, InvalidArgument, RequestError, ServerTooOld, StreamID
from tests.remote.conftest import SERVERS, Places


@pytest.fixture(params=("socket", *SERVERS))
def server(request: pytest.FixtureRequest, places: Places) -> str:
    """Each server in turn, without any key."""
    return places.of(request.param)


def test_writes_are_one_commit_with_results_at_its_end(place: str) -> None:
    with kvstream.open(place) as store, kvstream.open(place) if "://" in place else store as other:
        one, two = store.stream("one"), store.stream("two")
        group = one.create_group("g", "0")
        one.add({"n": 1})
        entries = group.consumer("c").read()
        with store.transaction() as same:
            assert same is store
            assert len(one) == 1
            made = two.add({"n": 2})
            many = two.add_many([{"n": 3}, {"n": 4}])
            later = two.add({"n": 5})
            acked = group.ack(entries)
            assert store.expire("one", 100) is not None
            copied = store.copy("one", "three")
            if other is not store:
                assert other.stream("two").range() == []
        assert isinstance(made, StreamID)
        assert [made, *many, later] == [entry.id for entry in other.stream("two").range()]
        assert (len(many), made < many[0], str(made)) == (2, True, f"{made.ms}-{made.seq}")
        assert acked == copied == 1
        assert two.delete(made, many, later) == 4
        assert (sorted([later, made]), acked == copied) == ([made, later], True)
        store.stream("sums").add({"acked": acked})
        assert store.stream("sums").range()[0].fields == {b"acked": b"1"}
        assert hash(made) == hash(StreamID.parse(made))


def test_an_exception_undoes_it(place: str) -> None:
    with kvstream.open(place) as store:

        def fail() -> None:
            with store.transaction():
                store.stream("s").add({"n": 1})
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert not store.exists("s")
        with pytest.raises(InvalidArgument), store.transaction(), store.transaction():
            pass
        with store.transaction():
            pass
        store.stream("s").add({"n": 1})
        assert store.stream("s").read("0", block=0)


def test_a_result_that_is_not_known_yet_is_refused(server: str) -> None:
    with kvstream.open(server) as store, store.transaction():
        stream = store.stream("s")
        eid = stream.add({"n": 1})
        assert repr(eid) == "<known when the transaction ends>"
        uses: list[Any] = [str, lambda x: x.ms, bool, list, lambda x: x == 1, stream.delete]
        for use in uses:
            with pytest.raises(InvalidArgument, match="known when its block has ended"):
                use(eid)


def test_calls_that_need_a_result_are_refused(server: str) -> None:
    with kvstream.open(server) as store:
        stream = store.stream("s")
        group = stream.create_group("g", "0")
        eid = stream.add({"n": 1})
        calls: list[Any] = [
            lambda: group.consumer("c").read(),
            lambda: group.consumer("c").read(block=1),
            lambda: group.claim("c", eid),
            lambda: group.autoclaim("c"),
        ]
        with store.transaction():
            for call in calls:
                with pytest.raises(InvalidArgument, match="do it before the block"):
                    call()
            stream.add({"n": 2})
            for call in (stream.info, lambda: len(stream), store.size, store.keys):
                with pytest.raises(InvalidArgument, match="read a stream before you write"):
                    call()
            assert store.stream("other").range() == []
            with pytest.raises(InvalidArgument, match="works on one database"):
                store.select(3).stream("s").add({"n": 3})
        assert len(stream) == 2


def test_a_flush_is_a_write_of_all_keys(server: str) -> None:
    with kvstream.open(server) as store:
        for flush in (store.flush, store.flush_all):
            store.stream("old").add({"n": 1})
            with store.transaction():
                store.stream("new").add({"n": 1})
                flushed = flush()
                store.stream("new").add({"n": 2})
                with pytest.raises(InvalidArgument, match="read a stream before you write"):
                    store.exists("old")
            assert flushed == 2
            assert [entry.fields for entry in store.stream("new").range()] == [{b"n": b"2"}]
            store.flush()
        with store.transaction():
            store.flush()
            with pytest.raises(InvalidArgument, match="read a stream before you write"):
                store.size()


def test_another_client_that_changes_what_was_read_is_a_conflict(server: str) -> None:
    with kvstream.open(server) as store, kvstream.open(server) as other:
        stream = store.stream("s")
        stream.add({"n": 1})

        def overtaken() -> None:
            with store.transaction():
                number = len(stream)
                other.stream("s").add({"n": "theirs"})
                store.stream("log").add({"had": number})

        with pytest.raises(Conflict, match="run it again"):
            overtaken()
        assert not store.exists("log")
        with store.transaction():
            store.stream("log").add({"had": len(stream)})
        assert len(store.stream("log")) == 1


def test_a_refused_write_is_raised_and_the_others_stay(server: str) -> None:
    with kvstream.open(server) as store:
        stream = store.stream("s")
        stream.add({"n": 1}, id="5-0")
        bad: list[StreamID] = []

        def refused() -> None:
            with store.transaction():
                store.stream("other").add({"n": 1})
                bad.append(stream.add({"n": 2}, id="4-0"))

        text = (
            "a server undoes nothing: 1 of 2 writes of the transaction were done and stay; "
            "refused: XADD 's'; the last ID of stream 's' is 5-0; give a greater one, or '*'"
        )
        with pytest.raises(IDTooSmall, match=f": {re.escape(text)}$"):
            refused()
        assert store.exists("other")
        with pytest.raises(InvalidArgument):
            str(bad[0])


def test_a_refused_id_of_a_shared_store_names_the_stream(tmp_path: Path) -> None:
    with kvstream.open(tmp_path / "d", shared=True) as store:
        stream = store.stream("s")
        stream.add({"n": 1}, id="5-0")
        with pytest.raises(IDTooSmall, match="stream 's' is 5-0"), store.transaction():
            stream.add({"n": 2}, id="4-0")


def test_entries_under_ids_that_are_refused_in_part_are_named(server: str) -> None:
    with kvstream.open(server) as store:
        stream = store.stream("s")
        rows = [{"n": at} for at in range(4)]
        text = (
            "a server undoes nothing: 3 of 4 entries were added and stay; refused: entry 3 (4-0); "
            "the last ID of stream 's' is 7-0; give a greater one, or '*'"
        )
        with pytest.raises(IDTooSmall, match=re.escape(text)):
            stream.add_many(rows, ids=["3-0", "5-0", "4-0", "7-0"])
        assert [str(entry.id) for entry in stream.range()] == ["3-0", "5-0", "7-0"]
        with pytest.raises(IDTooSmall, match="top item: the last ID of stream 's' is 7-0"):
            stream.add_many(rows, ids=["1-0", "2-0", "3-0", "4-0"])


def test_an_unsupported_command_undoes_it(old: str) -> None:
    with kvstream.open(old) as store:
        stream = store.stream("s")
        eid = stream.add({"n": 1})

        def lacking() -> None:
            with store.transaction():
                store.stream("other").add({"n": 1})
                stream.delete_entries(eid)

        with pytest.raises(ServerTooOld, match=r"XDELEX needs Redis 8\.2"):
            lacking()
        assert not store.exists("other")
        with pytest.raises(RequestError), store.transaction():
            store.stream("s").add({"n": 2}, id="1-0")


def test_it_ends_in_the_thread_that_began_it(server: str) -> None:
    with kvstream.open(server) as store, ThreadPoolExecutor(1) as other:
        block = store.transaction()
        block.__enter__()
        store.stream("s").add({"n": 1})
        with pytest.raises(InvalidArgument, match="nothing was written"):
            other.submit(block.__exit__, None, None, None).result()
        assert not store.exists("s")
        store.stream("s").add({"n": 2})
        assert [entry.fields for entry in store.stream("s").range()] == [{b"n": b"2"}]
