"""Numbers and durations: wrong types are refused by the library's own error."""

from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvstream import InvalidArgument, ManualClock, Store, Stream
from tests.engine.waiting import ms_of

COUNT_MAX = (1 << 63) - 1
HUGE = 10**400
TOO_LONG_TO_SHOW = 10**5000
NO_NUMBERS: tuple[Any, ...] = ("5", b"5", [], object(), 1j)
NO_WHOLE_NUMBERS = (*NO_NUMBERS, True, False, 2.5, 2.0, float("nan"), Decimal(2))
NO_DURATIONS = (*NO_NUMBERS, True, False, float("nan"), Decimal("nan"))
WITHOUT_END = (float("inf"), 1e300, HUGE, 1 << 53)

Call = Callable[[Stream, Any], object]


def group_of(stream: Stream) -> Any:
    return stream.create_group("g", "0", exist_ok=True)


def consumer_of(stream: Stream) -> Any:
    return group_of(stream).consumer("c")


def store_of(stream: Stream) -> Store:
    return Store(stream._engine)


OPTIONAL: dict[str, Call] = {
    "add maxlen": lambda s, n: s.add({"f": "v"}, maxlen=n),
    "add limit": lambda s, n: s.add({"f": "v"}, maxlen=9, approximate=True, limit=n),
    "add_many maxlen": lambda s, n: s.add_many([{"f": "v"}], maxlen=n),
    "add_many limit": lambda s, n: s.add_many([{"f": "v"}], minid=1, approximate=True, limit=n),
    "trim limit": lambda s, n: s.trim(maxlen=9, approximate=True, limit=n),
    "set_id": lambda s, n: s.set_id("5-0", entries_added=n),
    "idmp_duration": lambda s, n: s.configure(idmp_duration=n, idmp_maxsize=5),
    "idmp_maxsize": lambda s, n: s.configure(idmp_duration=5, idmp_maxsize=n),
    "range": lambda s, n: s.range(count=n),
    "revrange": lambda s, n: s.revrange(count=n),
    "read": lambda s, n: s.read("0", n),
    "read and wait": lambda s, n: s.read("0", n, block=0.001),
    "read max_count": lambda s, n: s.read("0", max_count=n),
    "read max_size": lambda s, n: s.read("0", max_size=n),
    "create_group": lambda s, n: s.create_group("h", entries_read=n, exist_ok=True),
    "group set_id": lambda s, n: group_of(s).set_id("0", entries_read=n),
    "nack": lambda s, n: group_of(s).nack("1-0", retrycount=n),
    "claim": lambda s, n: group_of(s).claim("d", "1-0", retrycount=n),
    "group read": lambda s, n: consumer_of(s).read(n),
    "group read and wait": lambda s, n: consumer_of(s).read(n, 0.001),
    "group read max_count": lambda s, n: consumer_of(s).read(max_count=n),
    "group read max_size": lambda s, n: consumer_of(s).read(max_size=n),
    "history": lambda s, n: consumer_of(s).history(count=n),
    "store read": lambda s, n: store_of(s).read({"s": "0"}, n),
    "store read_group": lambda s, n: (
        group_of(s) and store_of(s).read_group("g", "c", {"s": ">"}, n)
    ),
}
"""Calls whose number is optional."""

REQUIRED: dict[str, Call] = {
    "scan": lambda s, n: s.scan(page=n),
    "info_full": lambda s, n: s.info_full(n),
    "group autoclaim": lambda s, n: group_of(s).autoclaim("d", count=n),
    "pending_range": lambda s, n: group_of(s).pending_range(count=n),
    "listen": lambda s, n: consumer_of(s).listen(n),
    "consumer autoclaim": lambda s, n: consumer_of(s).autoclaim(count=n),
    "consumer pending": lambda s, n: consumer_of(s).pending(n),
    "select": lambda s, n: store_of(s).select(n),
    "database": lambda s, n: Store(s._engine, n),
}
"""Calls whose number has a default that is a number."""


@pytest.mark.parametrize(
    "call", [*OPTIONAL.values(), *REQUIRED.values()], ids=[*OPTIONAL, *REQUIRED]
)
def test_a_value_that_is_no_integer_is_refused(five: Stream, call: Call) -> None:
    for wrong in NO_WHOLE_NUMBERS:
        with pytest.raises(InvalidArgument, match=r"^\w+ must be a whole number, not .+"):
            call(five, wrong)
    assert len(five) == 5


@pytest.mark.parametrize("call", REQUIRED.values(), ids=REQUIRED)
def test_none_is_refused_for_a_required_number(five: Stream, call: Call) -> None:
    with pytest.raises(InvalidArgument, match=r"must be a whole number, not None$"):
        call(five, None)


@pytest.mark.parametrize("call", OPTIONAL.values(), ids=OPTIONAL)
def test_none_means_no_number(five: Stream, call: Call) -> None:
    call(five, None)


def test_a_trim_needs_a_bound_that_is_one(five: Stream) -> None:
    for wrong in (*NO_WHOLE_NUMBERS, None):
        with pytest.raises(InvalidArgument):
            five.trim(maxlen=wrong)
    assert len(five) == 5


@pytest.mark.filterwarnings("ignore:count=-1 reads nothing")
@pytest.mark.parametrize(
    "call", [*OPTIONAL.values(), *REQUIRED.values()], ids=[*OPTIONAL, *REQUIRED]
)
def test_numbers_of_any_size_are_accepted_or_refused(five: Stream, call: Call) -> None:
    for number in (COUNT_MAX, COUNT_MAX + 1, 1 << 64, HUGE, -1, -HUGE):
        with suppress(InvalidArgument):
            call(five, number)
    assert store_of(five).check() == []


class Number:
    """Not an int, but an integer like those of numpy."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


def test_other_types_of_integers_are_accepted(five: Stream) -> None:
    two: Any = Number(2)
    assert ms_of(five.range(count=two)) == [1, 2]
    assert ms_of(consumer_of(five).read(two)) == [1, 2]
    assert five.trim(maxlen=two) == 3


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("5", "count must be a whole number, not '5'"),
        (None, "count must be a whole number, not None"),
        (2.0, "count must be a whole number, not 2.0"),
        ("x" * 1000, f"count must be a whole number, not '{'x' * 59}..."),
        (HUGE, "count is out of range"),
    ],
)
def test_a_wrong_number_is_shown_shortened(five: Stream, number: Any, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        five.group("g").pending_range(count=number) if number != HUGE else five.range(count=number)
    assert str(refused.value) == text


# --- durations ----------------------------------------------------------------------------------

WAITS: dict[str, Call] = {
    "read": lambda s, n: s.read("0", block=n),
    "tail": lambda s, n: s.tail("0", poll=n),
    "group read": lambda s, n: consumer_of(s).read(1, n),
    "listen": lambda s, n: consumer_of(s).listen(poll=n),
    "store read": lambda s, n: store_of(s).read({"s": "0"}, block=n),
    "store read_group": lambda s, n: (
        group_of(s) and store_of(s).read_group("g", "c", {"s": ">"}, 1, n)
    ),
}
SPANS: dict[str, Call] = {
    "min_idle of claim": lambda s, n: group_of(s).claim("d", "1-0", min_idle=n),
    "idle of claim": lambda s, n: group_of(s).claim("d", "1-0", idle=n),
    "time of claim": lambda s, n: group_of(s).claim("d", "1-0", time=n),
    "min_idle of autoclaim": lambda s, n: group_of(s).autoclaim("d", n),
    "min_idle of pending_range": lambda s, n: group_of(s).pending_range(min_idle=n),
    "min_idle of a consumer's claim": lambda s, n: consumer_of(s).claim("1-0", min_idle=n),
    "min_idle of a consumer's autoclaim": lambda s, n: consumer_of(s).autoclaim(n),
    "min_idle of a consumer's pending": lambda s, n: consumer_of(s).pending(min_idle=n),
    "claim_min_idle": lambda s, n: consumer_of(s).read(1, claim_min_idle=n),
    "claim_min_idle and block": lambda s, n: consumer_of(s).read(1, 0.001, claim_min_idle=n),
}


@pytest.mark.parametrize("call", [*WAITS.values(), *SPANS.values()], ids=[*WAITS, *SPANS])
def test_an_invalid_duration_is_refused(five: Stream, call: Call) -> None:
    for wrong in NO_DURATIONS:
        with pytest.raises(InvalidArgument, match=r"^\w+ is not a number of seconds: .+"):
            call(five, wrong)
    for wrong in (-1, -0.001, float("-inf"), -HUGE):
        with pytest.raises(InvalidArgument, match=r"^\w+ is negative: "):
            call(five, wrong)


@pytest.mark.parametrize("call", SPANS.values(), ids=SPANS)
def test_an_infinite_span_is_refused(five: Stream, call: Call) -> None:
    group_of(five).consumer("c").read()
    for wrong in WITHOUT_END:
        with pytest.raises(InvalidArgument, match=r"^\w+ is too long: "):
            call(five, wrong)
    assert {entry.consumer for entry in group_of(five).pending_range()} == {b"c"}


@pytest.mark.parametrize("call", WAITS.values(), ids=WAITS)
def test_a_wait_may_be_infinite(five: Stream, call: Call) -> None:
    consumer_of(five).listen()
    for block in WITHOUT_END:
        five.add({"f": "v"})
        assert call(five, block)


@pytest.mark.parametrize("seconds", [0.25, Decimal("0.25"), Fraction(1, 4)], ids=repr)
def test_other_types_of_durations_are_accepted(
    five: Stream, clock: ManualClock, seconds: Any
) -> None:
    group = group_of(five)
    group.consumer("c").read(1)
    clock.advance(249)
    assert group.pending_range(min_idle=seconds) == []
    clock.advance(1)
    assert ms_of(group.claim("d", "1-0", min_idle=seconds)) == [1]
    assert five.read(block=seconds / 100) == []


def test_an_expiry_is_a_finite_number_of_seconds(store: Store, five: Stream) -> None:
    for wrong in (*NO_DURATIONS, *WITHOUT_END, None, -HUGE, float("-inf")):
        for expire in (store.expire, store.expire_at):
            with pytest.raises(InvalidArgument, match=r"^invalid expire time: "):
                expire("s", wrong)
    with pytest.raises(InvalidArgument, match=r"^invalid expire time: <int>$"):
        store.expire("s", TOO_LONG_TO_SHOW)
    assert store.ttl("s") is None
    assert store.expire("s", Fraction(5, 2))  # type: ignore[arg-type]
    assert store.ttl("s") == 2.5


# --- options of a store -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("db", "1"),
        ("db", None),
        ("db", True),
        ("databases", 2.0),
        ("databases", 1 << 16 | 1),
        ("block_cache_bytes", "64M"),
        ("block_cache_bytes", -1),
        ("write_buffer_bytes", None),
        ("wal_bytes_max", 1 << 64),
        ("stream_node_max_entries", True),
        ("stream_node_max_bytes", -1),
        ("stream_idmp_maxsize", 10_001),
        ("stream_idmp_maxsize", 0),
        ("stream_idmp_duration_s", 86_401),
        ("stall_seconds_max", "10"),
        ("stall_seconds_max", -1.0),
        ("stall_seconds_max", None),
    ],
)
def test_an_option_of_the_wrong_type_is_refused_before_any_file_is_created(
    tmp_path: Path, option: str, wrong: Any
) -> None:
    with pytest.raises(InvalidArgument, match=f"^{option} "):
        Store.open(tmp_path / "new", **{option: wrong})
    assert not (tmp_path / "new").exists()


def test_a_stalled_write_may_wait_for_ever(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", stall_seconds_max=float("inf")) as store:
        assert store.stream("s").add({"f": "v"})
