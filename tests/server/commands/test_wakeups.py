"""KVSTREAM.WAKEUPS: each end of a blocked read has its reason."""

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from kvstream import StoreClosed
from kvstream import open as open_store
from kvstream.meta.wakeups import LAST_MAX, Wake
from tests.engine.waiting import blocked
from tests.patience import PATIENCE_S, until
from tests.server.conftest import Served

READ = ["XREADGROUP", "GROUP", "g", "b", "BLOCK", 0, "STREAMS", "s", ">"]
XREAD = ["XREAD", "BLOCK", 0, "STREAMS", "s", "$"]
POLICY = ["KVSTREAM.POLICY", "SET", "s", "g"]
ADD = ["XADD", "s", "1-0", "f", "v"]
TAKE = ["XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">"]
UNBLOCK = ["CLIENT", "UNBLOCK", "<reader>"]

CASES: list[tuple[Wake, list[Any], list[Any], list[list[Any]]]] = [
    # reason, the blocked command, what ends its wait, what runs before it
    (Wake.ADDED, READ, ADD, []),
    (Wake.ADDED, XREAD, ADD, []),
    (Wake.DUE, READ, ["KVSTREAM.ADD", "s", "DELAY", 20, "f", "v"], []),
    (Wake.DELETED, READ, ["DEL", "s"], []),
    (Wake.DELETED, READ, ["FLUSHALL"], []),
    (Wake.EXPIRED, READ, ["PEXPIRE", "s", 20], []),
    (Wake.REPLACED, READ, ["SET", "s", "v"], []),
    (Wake.REPLACED, READ, ["RENAME", "other", "s"], [["SET", "other", "v"]]),
    (Wake.REPLACED, READ, ["SWAPDB", 0, 1], []),
    (Wake.GROUP_CHANGED, READ, ["XGROUP", "SETID", "s", "g", "0"], [ADD, TAKE]),
    (Wake.GROUP_DESTROYED, READ, ["XGROUP", "DESTROY", "s", "g"], []),
    (Wake.POLICY, READ, ["KVSTREAM.POLICY", "RESUME", "s", "g"],
        [ADD, ["KVSTREAM.POLICY", "PAUSE", "s", "g"]]),
    (Wake.GIVEN_BACK, READ, ["XNACK", "s", "g", "FAIL", "IDS", 1, "1-0"],
        [[*POLICY, "DELIVERIES", 9], ADD, TAKE]),
    (Wake.RETRY, READ, ["XNACK", "s", "g", "FAIL", "IDS", 1, "1-0"],
        [[*POLICY, "BACKOFF", 20], ADD, TAKE]),
    (Wake.FREED, READ, ["XACK", "s", "g", "1-0"],
        [[*POLICY, "INFLIGHT", 1], ADD, TAKE, ["XADD", "s", "2-0", "f", "v"]]),
    (Wake.LEASE, READ, ["PING"], [[*POLICY, "LEASE", 200], ADD, TAKE]),
    (Wake.RATE, READ, ["PING"],
        [[*POLICY, "RATE", 1, 200], ADD, TAKE, ["XADD", "s", "2-0", "f", "v"]]),
    (Wake.IDLE, [*READ[:6], "CLAIM", 200, *READ[6:]], ["PING"], [ADD, TAKE]),
    (Wake.TIMEOUT, [*READ[:5], 20, *READ[6:]], ["PING"], []),
    (Wake.UNBLOCKED, READ, UNBLOCK, []),
    (Wake.CANCELLED, READ, ["CLIENT", "KILL", "ID", "<reader>"], []),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "read", "end", "before"), CASES)
def test_a_wakeup_has_its_reason(
    served: Served, reason: Wake, read: list[Any], end: list[Any], before: list[list[Any]]
) -> None:
    client: Any = served.client(protocol=3)
    reader: Any = served.client(retry=Retry(NoBackoff(), 0))
    client.execute_command("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for command in before:
        client.execute_command(*command)
    number = reader.client_id()

    def block() -> None:
        with suppress(RedisError):
            reader.execute_command(*read)

    thread = threading.Thread(target=block, daemon=True)
    thread.start()
    until(lambda: wakeups(client)[1] or len(served.engine.waiters), "the reader to wait")
    client.execute_command(*[number if word == "<reader>" else word for word in end])
    until(lambda: wakeups(client)[1], "a wake-up")
    counts, ((at_ms, *last),) = wakeups(client)
    assert at_ms > 0
    assert last == [0, b"s", None if read is XREAD else b"g", reason.encode()]
    assert {why: count for why, count in counts.items() if count} == {reason.encode(): 1}
    thread.join(PATIENCE_S)


def wakeups(client: Any) -> tuple[dict[bytes, int], list[list[Any]]]:
    shown = client.execute_command("KVSTREAM.WAKEUPS")
    return shown[b"counts"], shown[b"last"]


def test_wakeups_of_the_library_are_logged_and_the_last_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kvstream.meta.wakeups")
    with open_store(tmp_path / "store") as store:
        stream = store.stream("s")
        for _ in range(LAST_MAX + 1):
            assert stream.read("$", block=0.001) == []
        found = store.engine.catalog.wakeups
        assert (found.counts[Wake.TIMEOUT], len(found.last)) == (LAST_MAX + 1, LAST_MAX)
        stream.create_group("g", mkstream=True)
        call = blocked(store, lambda: stream.group("g").consumer("c").read(block=0))
    with pytest.raises(StoreClosed):
        call.result()
    assert found.last[-1].reason is Wake.CLOSED
    assert caplog.messages[0] == "a reader of 's' wakes: timeout"
    assert caplog.messages[-1] == "a reader of group 'g' of 's' wakes: closed"
