"""INCREX: counters with bounds and an expiry, as rate limiters need them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.asking import Asker
from tests.server.conftest import Served

I64_MAX = (1 << 63) - 1


@pytest.fixture
def asker(served: Served, protocol: int) -> Iterator[Asker]:
    with served.asker(protocol) as asker:
        yield asker


def _numbers(reply: Any) -> list[float]:
    return [float(each) for each in reply]


@pytest.mark.parametrize(
    ("held", "request_", "reply", "kept"),
    [
        (None, "", [1, 1], "1"),
        ("10", "", [11, 1], "11"),
        ("100", "BYINT -10", [90, -10], "90"),
        ("10", "BYINT 5 UBOUND 12", [10, 0], "10"),
        ("10", "BYINT 5 UBOUND 12 SATURATE", [12, 2], "12"),
        ("10", "BYINT -100 LBOUND 0 SATURATE", [0, -10], "0"),
        ("10", "BYINT 2 LBOUND 12 UBOUND 12", [12, 2], "12"),
        ("50", "BYINT 0 UBOUND 20", [50, 0], "50"),
        ("50", "BYINT 0 UBOUND 20 SATURATE", [20, -30], "20"),
        (None, "BYINT 5 UBOUND 3", [0, 0], None),
        (None, "BYINT 5 UBOUND 3 SATURATE", [3, 3], "3"),
        (str(I64_MAX - 1), "BYINT 2", [I64_MAX - 1, 0], str(I64_MAX - 1)),
        (str(I64_MAX - 1), "BYINT 2 SATURATE", [I64_MAX, 1], str(I64_MAX)),
    ],
)
def test_integers_stay_within_their_bounds(
    asker: Asker, held: str | None, request_: str, reply: list[int], kept: str | None
) -> None:
    if held is not None:
        asker.ask("SET", "k", held)
    assert asker.ask(f"INCREX k {request_}") == reply
    assert asker.ask("GET k") == (None if kept is None else kept.encode())


@pytest.mark.parametrize(
    ("held", "request_", "reply", "kept"),
    [
        ("1.5", "BYFLOAT 0.25", [1.75, 0.25], b"1.75"),
        ("10", "BYFLOAT 100 UBOUND 42.5 SATURATE", [42.5, 32.5], b"42.5"),
        ("10", "BYFLOAT 100 UBOUND 42.5", [10, 0], b"10"),
        ("0", "BYFLOAT -9 LBOUND -5.5 SATURATE", [-5.5, -5.5], b"-5.5"),
    ],
)
def test_fractions_stay_within_their_bounds(
    asker: Asker, held: str, request_: str, reply: list[float], kept: bytes
) -> None:
    asker.ask("SET", "k", held)
    found = asker.ask(f"INCREX k {request_}")
    assert all(isinstance(each, bytes) for each in found)
    assert _numbers(found) == reply
    assert asker.ask("GET k") == kept


def test_the_expiry_is_set_if_the_counter_changed(asker: Asker) -> None:
    assert asker.ask("INCREX k UBOUND 2 EX 60 ENX") == [1, 1]
    assert 0 < asker.ask("TTL k") <= 60
    asker.ask("INCREX k UBOUND 2 EX 600 ENX")
    assert asker.ask("TTL k") <= 60
    assert asker.ask("INCREX k UBOUND 2 EX 600") == [2, 0]
    assert asker.ask("TTL k") <= 60
    assert asker.ask("INCREX k UBOUND 2 SATURATE EX 600") == [2, 0]
    assert 60 < asker.ask("TTL k") <= 600
    asker.ask("INCREX k BYINT -1 PERSIST")
    assert asker.ask("TTL k") == -1
    asker.ask("INCREX k PXAT 1")
    assert asker.ask("EXISTS k") == 0


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        ("FOO", "syntax error"),
        ("BYINT 1 BYFLOAT 1", "syntax error"),
        ("BYINT", "syntax error"),
        ("EX 10 PX 5000", "syntax error"),
        ("PERSIST EX 10", "syntax error"),
        ("PERSIST ENX", "syntax error"),
        ("ENX ENX EX 10", "syntax error"),
        ("PERSIST PERSIST", "syntax error"),
        ("ENX", "ENX flag requires an expiration"),
        ("EX 0", "invalid expire time in 'increx' command"),
        ("BYINT 1.5", "Increment is not an integer or out of range"),
        ("UBOUND x", "UBOUND is not an integer or out of range"),
        ("LBOUND 1.5", "LBOUND is not an integer or out of range"),
        ("BYFLOAT abc", "Increment is not a valid float"),
        ("BYFLOAT 1 LBOUND x", "LBOUND is not a valid float"),
        ("BYFLOAT -inf", "BYFLOAT increment cannot be Infinity"),
        ("BYINT 1 LBOUND inf", "LBOUND is not an integer or out of range"),
        ("BYFLOAT 1 LBOUND inf", "LBOUND can't be greater than UBOUND"),
        ("BYFLOAT 1 UBOUND -inf", "LBOUND can't be greater than UBOUND"),
        ("BYFLOAT 1 LBOUND inf UBOUND inf SATURATE", "applied increment would be Infinity"),
        ("SATURATE SATURATE", "syntax error"),
        ("EX 10 ex 10", "syntax error"),
        ("BYINT 1 BYINT 1", "syntax error"),
        ("UBOUND 9 UBOUND 8", "syntax error"),
        ("LBOUND 10 UBOUND 5", "LBOUND can't be greater than UBOUND"),
        ("BYFLOAT 1 LBOUND 10.5 UBOUND 1.5", "LBOUND can't be greater than UBOUND"),
        ("BYINT -9223372036854775808 LBOUND 5 SATURATE", "applied increment would overflow"),
    ],
)
def test_invalid_arguments_are_refused(asker: Asker, request_: str, refusal: str) -> None:
    asker.ask("SET", "k", "-9223372036854775808" if "BYINT -9" in request_ else "1")
    before = asker.ask("GET k")
    assert asker.ask(f"INCREX k {request_}") == f"ERR {refusal}"
    assert asker.ask("GET k") == before


def test_a_sum_without_an_end_changes_nothing(asker: Asker) -> None:
    most = "1" + 4932 * "0"
    asker.ask("SET", "k", most)
    assert asker.ask("INCREX", "k", "BYFLOAT", most, "EX", "60")[1] == b"0"
    assert (asker.ask("GET k").decode(), asker.ask("TTL k")) == (most, -1)
    asker.ask("SET", "k", f"-{most}")
    refusal = "ERR applied increment would be Infinity"
    assert asker.ask("INCREX", "k", "BYFLOAT", most, "LBOUND", most, "SATURATE") == refusal
    asker.ask("SET k 10")
    assert asker.ask("INCREX k BYFLOAT 1 LBOUND -inf UBOUND inf") == [b"11", b"1"]
    assert asker.ask("INCREX k BYFLOAT 1 LBOUND inf UBOUND inf") == [b"11", b"0"]


def test_an_expiry_that_has_passed_deletes_the_counter(asker: Asker, served: Served) -> None:
    with served.asker() as listener:
        listener.ask("CONFIG SET notify-keyspace-events EA")
        listener.ask("PSUBSCRIBE __keyevent@*__:*")
        asker.ask("SET k 10")
        assert asker.ask("INCREX k EXAT 1") == [11, 1]
        assert asker.ask("INCREX k EXAT 1") == [1, 1]
        assert asker.ask("EXISTS k") == 0
        asker.ask("SET k 10 EX 100")
        assert asker.ask("INCREX k EXAT 1 ENX") == [11, 1]
        assert asker.ask("TTL k") > 0
        asker.ask("PUBLISH __keyevent@0__:end k")
        events: list[str] = []
        while not events or events[-1] != "end":
            events.append(listener.read()[2].decode().partition(":")[2])
    assert events == ["set", "del", "set", "expire", "incrby", "end"]


def test_other_values_are_refused(asker: Asker) -> None:
    asker.ask("SET k inf")
    assert asker.ask("INCREX k BYFLOAT 1") == "ERR value cannot be Infinity"
    asker.ask("SET k abc")
    assert asker.ask("INCREX k BYFLOAT 1") == "ERR value is not a valid float"
    asker.ask("SET k 1.5")
    assert "not an integer" in asker.ask("INCREX k")
    assert asker.ask("INCREX k BYINT x").startswith("ERR Increment is not")
    asker.ask("XADD s 1-1 f v")
    assert asker.ask("INCREX s").startswith("WRONGTYPE")
