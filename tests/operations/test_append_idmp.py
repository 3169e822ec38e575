"""XADD IDMP and IDMPAUTO, XCFGSET and XIDMPRECORD (Redis 8.6, 8.8)."""

import xxhash

from kvstream import ManualClock
from tests.opening import Stores
from tests.operations.cases import (
    ANY,
    INVALID_ID,
    NO_KEY,
    NOT_INT,
    SYNTAX,
    Case,
    Has,
    e,
    err,
    many,
    newer,
    on_each,
    wait,
    wrong_arity,
)
from tests.operations.implementations import START_MS, Subject

NOW = START_MS
ONLY_AUTO = err("syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
TWICE = err("syntax error, IDMP/IDMPAUTO specified multiple times")
DURATION = err("IDMP-DURATION must be between 1 and 86400 seconds")
MAXSIZE = err("IDMP-MAXSIZE must be between 1 and 10000 entries")
SHORT = err("IID already exists for this producer with a different stream ID")


def needs(what: str) -> object:
    return err(f"syntax error, {what}")


def counts(pids: int, iids: int, added: int, duplicates: int) -> Has:
    return Has(pids_tracked=pids, iids_tracked=iids, iids_added=added, iids_duplicates=duplicates)


def content_iid(*pairs: tuple[bytes, bytes]) -> bytes:
    """Return the 16 bytes that IDMPAUTO derives from an entry, by the rule of the specification."""
    mask = (1 << 64) - 1
    digests = [
        xxhash.xxh3_128_intdigest(field + len(field).to_bytes(8, "little") + value)
        for field, value in pairs
    ]
    lows, highs = [d & mask for d in digests], [d >> 64 for d in digests]
    low_xor = high_xor = 0
    for low, high in zip(lows, highs, strict=True):
        low_xor, high_xor = low_xor ^ low, high_xor ^ high
    low = (sum(lows) & mask) ^ ((high_xor << 1 | high_xor >> 63) & mask)
    high = (sum(highs) & mask) ^ ((low_xor << 1 | low_xor >> 63) & mask)
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


@on_each(
    newer(
        "A second append of one producer and ID returns the first ID and adds nothing",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        wait(5),
        "XADD s IDMP p i * other fields", f"{NOW}-0",
        "XRANGE s - +", [e(f"{NOW}-0", "f", "v")],
        "XINFO STREAM s", counts(1, 1, 1, 1),
        "XINFO STREAM s FULL", counts(1, 1, 1, 1),
    ),
    newer(
        "Another ID, another producer or no producer appends",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        "XADD s IDMP p j * f v", f"{NOW}-1",
        "XADD s IDMP q i * f v", f"{NOW}-2",
        "XADD s * f v", f"{NOW}-3",
        "XADD t IDMP p i * f v", f"{NOW}-0",
        "XINFO STREAM s", counts(2, 3, 3, 0),
    ),
    newer(
        "Names of producers and IDs are any bytes",
        ["XADD", "s", "IDMP", b"\x00\xff", b"\xff\x00", "*", "f", "v"], f"{NOW}-0",
        ["XADD", "s", "IDMP", b"\x00\xff", b"\xff\x00", "*", "f", "w"], f"{NOW}-0",
        ["XADD", "s", "IDMP", "*", "*", "*", "f", "v"], f"{NOW}-1",
        ["XADD", "s", "IDMP", "p", "x" * 65536, "*", "f", "v"], f"{NOW}-2",
        ["XADD", "s", "IDMP", "p", "x" * 65536, "*", "f", "v"], f"{NOW}-2",
        "XADD s IDMP IDMP IDMP * f v", f"{NOW}-3",
    ),
    newer(
        "IDMPAUTO identifies an entry by its fields and values, in any order",
        "XADD s IDMPAUTO p * a 1 b 2", f"{NOW}-0",
        "XADD s IDMPAUTO p * b 2 a 1", f"{NOW}-0",
        "XADD s IDMPAUTO p * a 1 b 3", f"{NOW}-1",
        "XADD s IDMPAUTO p * a 2 b 1", f"{NOW}-2",
        "XADD s IDMPAUTO p * a 1", f"{NOW}-3",
        "XADD s IDMPAUTO p * a 1 a 1", f"{NOW}-4",
        "XADD s IDMPAUTO q * a 1 b 2", f"{NOW}-5",
        ["XADD", "s", "IDMPAUTO", "p", "*", "ab", ""], f"{NOW}-6",
        ["XADD", "s", "IDMPAUTO", "p", "*", "a", "b"], f"{NOW}-7",
        "XINFO STREAM s", counts(2, 8, 8, 1),
    ),
    newer(
        "IDMPAUTO's ID is 16 bytes of XXH3, which IDMP may name",
        "XADD s IDMPAUTO p * a 1 b 2", f"{NOW}-0",
        ["XADD", "s", "IDMP", "p", content_iid((b"a", b"1"), (b"b", b"2")), "*", "x", "y"],
        f"{NOW}-0",
        ["XADD", "s", "IDMP", "p", content_iid((b"x", b"")), "*", "a", "1"], f"{NOW}-1",
        ["XADD", "s", "IDMPAUTO", "p", "*", "x", ""], f"{NOW}-1",
    ),
    newer(
        "A duplicate does not trim",
        *many("XADD s {}-0 f v", [1, 2, 3]),
        "XADD s IDMP p i MAXLEN 4 * f v", f"{NOW}-0",
        "XADD s IDMP p i MAXLEN 1 * f v", f"{NOW}-0",
        "XLEN s", 4,
        "XADD s MAXLEN 1 IDMP p j * f v", f"{NOW}-1",
        "XLEN s", 1,
    ),
    newer(
        "A duplicate is known though its entry was deleted or trimmed",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        "XADD s IDMP p j MAXLEN 0 * f v", f"{NOW}-1",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        "XADD s IDMP p j * f v", f"{NOW}-1",
        "XLEN s", 0,
    ),
    newer(
        "NOMKSTREAM on a missing key returns null and records nothing",
        "XADD s NOMKSTREAM IDMP p i * f v", None,
        "EXISTS s", 0,
        "XADD s IDMP p i * f v", f"{NOW}-0",
        "XADD s NOMKSTREAM IDMP p i * f v", f"{NOW}-0",
        "XINFO STREAM s", counts(1, 1, 1, 1),
    ),
    newer(
        "A refused append records nothing",
        "XADD s 18446744073709551615-18446744073709551615 f v", ANY,
        "XADD s IDMP p i * f v", err(
            "The stream has exhausted the last possible ID, unable to add more items"
        ),
        "XINFO STREAM s", counts(0, 0, 0, 0),
    ),
    newer(
        "IDs are forgotten after 100 seconds, by the clock and not by the entry's ID",
        f"XADD s {NOW + 10**9}-0 f v", ANY,
        "XADD s IDMP p i * f v", f"{NOW + 10**9}-1",
        wait(99_999),
        "XADD s IDMP p i * f v", f"{NOW + 10**9}-1",
        wait(1),
        "XINFO STREAM s", counts(0, 0, 1, 1),
        "XADD s IDMP p i * f v", f"{NOW + 10**9}-2",
        "XINFO STREAM s", counts(1, 1, 2, 1),
    ),
    newer(
        "A duplicate does not lengthen the time",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        wait(60_000),
        "XADD s IDMP p i * f v", f"{NOW}-0",
        wait(40_000),
        "XADD s IDMP p i * f v", f"{NOW + 100_000}-0",
    ),
    newer(
        "Each producer keeps at most IDMP-MAXSIZE IDs and drops the oldest first",
        "XADD s * f v", ANY,
        "XCFGSET s IDMP-MAXSIZE 2", "OK",
        "XADD s IDMP p a * f v", f"{NOW}-1",
        "XADD s IDMP p b * f v", f"{NOW}-2",
        "XADD s IDMP q a * f v", f"{NOW}-3",
        "XADD s IDMP p a * f v", f"{NOW}-1",
        "XADD s IDMP p c * f v", f"{NOW}-4",
        "XADD s IDMP p b * f v", f"{NOW}-2",
        "XADD s IDMP q a * f v", f"{NOW}-3",
        "XADD s IDMP p a * f v", f"{NOW}-5",
        "XADD s IDMP p b * f v", f"{NOW}-6",
        "XINFO STREAM s", counts(2, 3, 6, 3),
    ),
    newer(
        "By default 100 IDs are kept for 100 seconds",
        *[step for n in range(101) for step in (f"XADD s IDMP p i{n} * f v", f"{NOW}-{n}")],
        "XINFO STREAM s", Has(idmp_duration=100, idmp_maxsize=100, iids_tracked=100),
        "XADD s IDMP p i1 * f v", f"{NOW}-1",
        "XADD s IDMP p i0 * f v", f"{NOW}-101",
    ),
    newer(
        "IDMP and IDMPAUTO take only * as the ID",
        "XADD s IDMP p i 1-1 f v", ONLY_AUTO,
        "XADD s IDMP p i 5-* f v", ONLY_AUTO,
        "XADD s IDMPAUTO p 1-1 f v", ONLY_AUTO,
        "XADD s IDMP p * f v", INVALID_ID,
        "EXISTS s", 0,
    ),
    newer(
        "Each option is given once and has no empty arguments",
        "XADD s IDMP p i IDMP q j * f v", TWICE,
        "XADD s IDMPAUTO p IDMP q j * f v", TWICE,
        "XADD s IDMP p i IDMPAUTO q * f v", TWICE,
        "XADD s IDMPAUTO p IDMPAUTO q * f v", TWICE,
        ["XADD", "s", "IDMP", "", "i", "*", "f", "v"], needs(
            "IDMP requires a non-empty producer ID"
        ),
        ["XADD", "s", "IDMP", "p", "", "*", "f", "v"], needs(
            "IDMP requires a non-empty idempotent ID"
        ),
        ["XADD", "s", "IDMPAUTO", "", "*", "f", "v"], needs(
            "IDMPAUTO requires a non-empty producer ID"
        ),
        "EXISTS s", 0,
    ),
    newer(
        "The options combine with the others in any order and case",
        "XADD s MAXLEN ~ 100 idmp p i KEEPREF * f v", f"{NOW}-0",
        "XADD s NOMKSTREAM IdmpAuto p MINID ~ 5 LIMIT 10 * f v", f"{NOW}-1",
        "XADD s KEEPREF IDMP p i MAXLEN ~ 100 * f v", f"{NOW}-0",
        "XLEN s", 2,
    ),
    newer(
        "XCFGSET sets the given values, within bounds",
        "XADD s * f v", ANY,
        "XINFO STREAM s", Has(idmp_duration=100, idmp_maxsize=100),
        "XCFGSET s IDMP-DURATION 300", "OK",
        "XCFGSET s idmp-maxsize 10000", "OK",
        "XINFO STREAM s", Has(idmp_duration=300, idmp_maxsize=10000),
        "XCFGSET s IDMP-MAXSIZE 1 IDMP-DURATION 86400", "OK",
        "XINFO STREAM s FULL", Has(idmp_duration=86400, idmp_maxsize=1),
        "XCFGSET s IDMP-DURATION 0", DURATION,
        "XCFGSET s IDMP-DURATION 86401", DURATION,
        "XCFGSET s IDMP-DURATION -100", DURATION,
        "XCFGSET s IDMP-MAXSIZE 0", MAXSIZE,
        "XCFGSET s IDMP-MAXSIZE 10001", MAXSIZE,
        "XINFO STREAM s", Has(idmp_duration=86400, idmp_maxsize=1),
    ),
    newer(
        "XCFGSET checks its arguments",
        "XCFGSET s IDMP-DURATION 5", NO_KEY,
        "XCFGSET s FOO", NO_KEY,
        "EXISTS s", 0,
        "XADD s * f v", ANY,
        "XCFGSET s", err("At least one parameter must be specified"),
        "XCFGSET s IDMP-DURATION", SYNTAX,
        "XCFGSET s FOO 5", SYNTAX,
        "XCFGSET s IDMP-DURATION x", NOT_INT,
        "XCFGSET s IDMP-MAXSIZE 3.14", NOT_INT,
        "XCFGSET s IDMP-MAXSIZE 00", NOT_INT,
        "XCFGSET s IDMP-DURATION INVALID IDMP-MAXSIZE", NOT_INT,
        "XCFGSET s IDMP-DURATION 5 IDMP-DURATION 6",
        err("IDMP-DURATION specified multiple times"),
        "XCFGSET s IDMP-MAXSIZE 5 IDMP-MAXSIZE 5",
        err("IDMP-MAXSIZE specified multiple times"),
        "XCFGSET", wrong_arity("xcfgset"),
    ),
    newer(
        "A changed value drops all producers, an equal one none; the totals stay",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        "XADD s IDMP q i * f v", f"{NOW}-1",
        "XCFGSET s IDMP-DURATION 100 IDMP-MAXSIZE 100", "OK",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        "XINFO STREAM s", counts(2, 2, 2, 1),
        "XCFGSET s IDMP-DURATION 50", "OK",
        "XINFO STREAM s", counts(0, 0, 2, 1),
        "XADD s IDMP p i * f v", f"{NOW}-2",
        "XCFGSET s IDMP-MAXSIZE 99", "OK",
        "XADD s IDMP p i * f v", f"{NOW}-3",
        "XADD s IDMP p i * f v", f"{NOW}-3",
        "XINFO STREAM s", counts(1, 1, 4, 2),
    ),
    newer(
        "A deleted and recreated stream has no recorded IDs",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        "DEL s", 1,
        wait(1),
        "XADD s IDMP p i * f v", f"{NOW + 1}-0",
    ),
    newer(
        "A renamed stream keeps its recorded IDs",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        "RENAME s t", "OK",
        "XADD t IDMP p i * f v", f"{NOW}-0",
        "XADD s IDMP p i * f v", f"{NOW}-0",
        "XLEN s", 1,
    ),
    newer(
        "XIDMPRECORD records an entry of the stream",
        "XADD s 1-1 f v", "1-1",
        "XADD s 2-1 f v", "2-1",
        "XIDMPRECORD s p i 1-1", "OK",
        "XADD s IDMP p i * f v", "1-1",
        "XIDMPRECORD s p i 1-1", "OK",
        "XIDMPRECORD s p i 2-1", SHORT,
        "XIDMPRECORD s q i 2-1", "OK",
        "XIDMPRECORD s p j 9-9", err("No such message in stream"),
        "XTRIM s MAXLEN 0", 2,
        "XIDMPRECORD s p k 2-1", err("No such message in stream"),
        "XIDMPRECORD s p i 1-1", "OK",
        "XIDMPRECORD missing p i 1-1", NO_KEY,
        ["XIDMPRECORD", "s", "", "i", "1-1"], err("producer ID must be non-empty"),
        ["XIDMPRECORD", "s", "p", "", "1-1"], err("idempotent ID must be non-empty"),
        "XIDMPRECORD s p i bad", INVALID_ID,
        "XIDMPRECORD s p i", wrong_arity("xidmprecord"),
        "XINFO STREAM s", Has(pids_tracked=2, iids_tracked=2, iids_added=2),
    ),
)  # fmt: skip
def test_idempotency(subject: Subject, case: Case) -> None:
    case.play(subject)


def test_new_producers_remove_the_old_ids_of_others(open_store: Stores, clock: ManualClock) -> None:
    stream = open_store().stream("s")
    for n in range(12):
        stream.add({"n": n}, idmp=(f"old-{n}", "1"))
    stream.add({"n": 12}, idmp=("old-5", "2"))
    assert stream.info().pids_tracked == 12
    clock.advance(200_000)
    for n in range(4):
        stream.add({"n": n}, idmp=(f"new-{n}", "1"))
    assert stream.info().pids_tracked == 4
    assert stream.info().iids_tracked == 4
