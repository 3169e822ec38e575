"""KVSTREAM.ADDONCE: a client's request is carried out once, however often it is repeated."""

import struct
from hashlib import sha1
from pathlib import Path

import pytest

from kvstream import Corruption, ManualClock, Store
from kvstream.commands.replies import ErrorReply
from kvstream.layout.keys import REQUEST_TAG, request_row, successor
from kvstream.meta import idempotency
from kvstream.meta.idempotency import CLIENT_BYTES_MAX, REQUEST_KEPT_MS
from kvstream.meta.txn import Txn
from kvstream.operations import checks
from kvstream.storage.batch import Family
from tests.commands.dispatcher import Dispatcher
from tests.opening import Stores
from tests.operations.queue_commands import error, ok, opened, values


@pytest.fixture
def quiet(open_store: Stores) -> Store:
    return opened(open_store)


def clients(store: Store) -> list[bytes]:
    """Return the clients whose last requests are kept."""

    def names(txn: Txn) -> list[bytes]:
        rows = txn.batch.scan(Family.METADATA, REQUEST_TAG, successor(REQUEST_TAG))
        return [row[1:] for row, _ in rows]

    return store.engine.run(names)


def test_a_repeated_request_returns_the_id_of_its_entry(quiet: Store) -> None:
    first = ok(quiet, "KVSTREAM.ADDONCE s ann 1 * n 1")
    assert ok(quiet, "KVSTREAM.ADDONCE s ann 1 * n 1") == first
    second = ok(quiet, "KVSTREAM.ADDONCE s ann 2 * n 2")
    assert ok(quiet, "KVSTREAM.ADDONCE s ann 2 * n 2") == second
    assert values(quiet) == ["1", "2"]
    assert quiet.stream("s").info().iids_tracked == 0
    assert quiet.check() == []


def test_numbers_are_those_of_a_client_whatever_the_stream(quiet: Store) -> None:
    first = ok(quiet, "KVSTREAM.ADDONCE s ann 1 * n 1")
    other = ok(quiet, "KVSTREAM.ADDONCE s bob 1 * n 2")
    assert other != first
    assert ok(quiet, "KVSTREAM.ADDONCE t ann 1 * n 3") == first  # not added again, to any stream
    assert len(quiet.stream("t")) == 0
    ok(quiet, "KVSTREAM.ADDONCE t ann 2 * n 4")
    assert [len(quiet.stream(name)) for name in "st"] == [2, 1]
    assert clients(quiet) == [b"ann", b"bob"]


def test_a_number_below_the_last_one_is_refused(quiet: Store) -> None:
    ok(quiet, "KVSTREAM.ADDONCE s ann 7 * n 1")
    text = error(quiet, "KVSTREAM.ADDONCE s ann 6 * n 1")
    assert text == "request 6 is over: the client has made request 7 since"
    assert values(quiet) == ["1"]


def test_a_refused_request_may_be_made_again(quiet: Store) -> None:
    ok(quiet, "SET k v")
    assert error(quiet, "KVSTREAM.ADDONCE k ann 1 * n 1").startswith("Operation against a key")
    assert error(quiet, "KVSTREAM.ADDONCE s ann 1 0-0 n 1").startswith("The ID specified")
    assert clients(quiet) == []
    ok(quiet, "KVSTREAM.ADDONCE s ann 1 * n 1")
    assert values(quiet) == ["1"]


def test_the_options_are_those_of_xadd_without_producers(quiet: Store) -> None:
    assert ok(quiet, "KVSTREAM.ADDONCE s ann 1 NOMKSTREAM * n 1") is None
    assert ok(quiet, "KVSTREAM.ADDONCE s ann 1 * n 1") is None  # it was carried out, and added none
    assert ok(quiet, "KVSTREAM.ADDONCE s ann 2 5-1 n 1") == b"5-1"
    assert ok(quiet, "KVSTREAM.ADDONCE s ann 2 5-1 n 1") == b"5-1"
    assert ok(quiet, "KVSTREAM.ADDONCE s ann 3 MAXLEN 1 6-* n 2") == b"6-0"
    assert values(quiet) == ["2"]
    for words in ("IDMP p i *", "IDMPAUTO p *"):
        assert error(quiet, f"KVSTREAM.ADDONCE s ann 4 {words} n 3") == "syntax error"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("ann 0", "the number of a request must be positive"),
        ("ann -1", "the number of a request must be positive"),
        ("ann one", "value is not an integer or out of range"),
    ],
)
def test_the_number_of_a_request_is_positive(quiet: Store, words: str, text: str) -> None:
    assert error(quiet, f"KVSTREAM.ADDONCE s {words} * n 1") == text
    assert clients(quiet) == []


@pytest.mark.parametrize("name", [b"", b"x" * (CLIENT_BYTES_MAX + 1)])
def test_the_client_of_a_request_has_a_short_name(quiet: Store, name: bytes) -> None:
    words = [b"KVSTREAM.ADDONCE", b"s", name, b"1", b"*", b"n", b"1"]
    reply = Dispatcher(quiet.engine).execute(words)
    assert isinstance(reply, ErrorReply)
    assert reply.text == "the client of a request must have a name of 1 to 64 bytes"
    assert clients(quiet) == []
    words[2] = b"x" * CLIENT_BYTES_MAX
    assert isinstance(Dispatcher(quiet.engine).execute(words), bytes)


def test_last_requests_outlive_the_keys_and_the_process(open_store: Stores) -> None:
    store = open_store()
    first = ok(store, "KVSTREAM.ADDONCE s ann 1 * n 1")
    ok(store, "FLUSHALL")
    store = open_store.reopen(store)
    assert ok(store, "KVSTREAM.ADDONCE s ann 1 * n 1") == first
    assert len(store.stream("s")) == 0


def name_of(number: int) -> str:
    """Return a name as random as that of a client of the library."""
    return sha1(b"%d" % number).hexdigest()[:16]


def test_new_clients_remove_the_rows_of_old_ones(open_store: Stores, clock: ManualClock) -> None:
    store, old, new = open_store(), range(100), range(100, 200)
    for n in old:
        ok(store, f"KVSTREAM.ADDONCE s {name_of(n)} 1 * n {n}")
    clock.advance(REQUEST_KEPT_MS)
    ok(store, f"KVSTREAM.ADDONCE s {name_of(50)} 2 * n 0")
    assert len(clients(store)) == 100
    clock.advance(1)
    for n in new:
        ok(store, f"KVSTREAM.ADDONCE s {name_of(n)} 1 * n {n}")
    left = {name.decode() for name in clients(store)}
    assert left >= {name_of(50), *map(name_of, new)}
    assert len(left) < 120
    assert error(store, f"KVSTREAM.ADDONCE s {name_of(50)} 1 * n 0").startswith("request 1 is over")


def test_check_finds_and_repairs_a_damaged_row(tmp_path: Path) -> None:
    good = struct.pack(">QQ", 5, 1)
    damaged = {
        request_row(b"short"): b"\0" * 15,
        request_row(b"long"): good + b"\0" * 17,
        request_row(b"zero"): struct.pack(">QQ", 5, 0),
        REQUEST_TAG: good,
    }
    with Store.open(tmp_path / "store") as store:
        with store.engine.transaction() as txn:
            for row, value in damaged.items():
                txn.batch.put(Family.METADATA, row, value)
            txn.batch.put(Family.METADATA, request_row(b"good"), good)
        with pytest.raises(Corruption, match="the last request of the client b'zero' is damaged"):
            store.engine.run(idempotency.last_request, b"zero")
        found = store.engine.run(checks.check)
        assert len(found) == 1
        kind, _, rows = found[0].message.partition(": ")
        assert kind == "the last request of a client cannot be decoded"
        assert rows.endswith("and 1 more")
        store.check(repair=True)
        assert store.check() == []
        assert clients(store) == [b"good"]
