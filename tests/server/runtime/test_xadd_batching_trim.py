"""XADDs that trim run together too, if the result is the same and no slower."""

from unittest.mock import patch

import pytest

from kvstream.operations.trim import trim_stream
from tests.server.runtime.test_xadd_batching import ids, plain, send, values
from tests.server.talking import Server


@pytest.mark.parametrize(
    ("trim", "left"),
    [
        ("MAXLEN ~ 5", b"3456789"),
        ("MAXLEN 5", b"56789"),
        ("MINID ~ 5-4", b"3456789"),
        ("MINID 5-4", b"456789"),
    ],
)
def test_entries_that_trim_their_stream_are_one_append(
    server: Server, trim: str, left: bytes
) -> None:
    ann, bob = server.client(), server.client()
    server.engine._now_ms = lambda: 5
    ann.ask("CONFIG", "SET", "stream-node-max-entries", "3")
    send(server, ann, plain(*"01234"))
    server.turn()
    ann.heard()
    with patch("kvstream.operations.append.trim_stream", wraps=trim_stream) as trims:
        send(server, ann, plain("5", "6", trim=trim))
        send(server, ann, plain("7", trim=trim))
        send(server, bob, plain("8", "9", trim=trim))
        server.turn()
    assert trims.call_count == 1
    assert len(ids(ann.heard())) == 3
    assert b"".join(values(server)) == left
    assert server.executor.statistics.of("xadd").calls == 10


def test_trims_that_may_be_long_run_one_by_one(server: Server) -> None:
    ann = server.client()
    ann.ask("CONFIG", "SET", "stream-node-max-entries", "2")
    send(server, ann, plain(*map(str, range(1000))))
    server.turn()
    ann.heard()
    with patch("kvstream.server.runtime.xadd_batching.add_each") as together:
        send(server, ann, plain("a", "b", trim="MAXLEN ~ 4"))  # 200 entries each, by default
        send(server, ann, plain("c", key="t", trim="MAXLEN ~ 4"))  # the cost is unknown
        server.turn()
    together.assert_not_called()
    assert len(ids(ann.heard())) == 3
    assert ann.ask("XLEN", "s") == b":602\r\n"
