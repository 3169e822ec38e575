"""Regression cases for the faults of Pika and Kvrocks, the other streams on RocksDB.

The letters refer to the list of faults found in their sources. Faults that the tests of a command
cover have no case here.
"""

from tests.operations.cases import (
    ANY,
    SMALLER,
    Case,
    Has,
    case,
    e,
    many,
    newer,
    on_each,
    wait,
)
from tests.operations.implementations import START_MS, Subject

NOW = START_MS
ADDED = many("XADD s {}-0 f v", [1, 2, 3])
GROUP = [*ADDED, "XGROUP CREATE s g 0", "OK"]
READ = "XREADGROUP GROUP g c STREAMS s >"
HISTORY = "XREADGROUP GROUP g c STREAMS s 0"
NOTHING = [0, None, None, None]


@on_each(
    case(
        "Pika a: the append, its trim and the counters of both are committed together",
        *ADDED,
        "XADD s MAXLEN 2 4-0 f v", "4-0",
        "XINFO STREAM s",
        Has(length=2, entries_added=4, recorded_first_entry_id="3-0", last_generated_id="4-0"),
        "XRANGE s - +", [e("3-0", "f", "v"), e("4-0", "f", "v")],
    ),
    case(
        "Pika b: a stream emptied to 0 is not a new one, its IDs do not repeat",
        *ADDED,
        "XTRIM s MAXLEN 0", 3,
        "XADD s NOMKSTREAM 3-0 f v", SMALLER,
        "XADD s NOMKSTREAM 3-* f v", "3-1",
        "XINFO STREAM s", Has(length=1, entries_added=4, last_generated_id="3-1"),
        "XDEL s 3-1", 1,
        "XADD s 3-* f v", "3-2",
        "XINFO STREAM s", Has(length=1, entries_added=5, max_deleted_entry_id="3-1"),
    ),
    case(
        "Pika f: trims continue from where the last one ended",
        *many("XADD s {}-0 f v", range(1, 301)),
        *[step for n in range(1, 301, 7) for step in (f"XTRIM s MINID {n}", ANY)],
        "XINFO STREAM s", Has(recorded_first_entry_id="295-0", length=6),
        "XRANGE s - + COUNT 1", [e("295-0", "f", "v")],
    ),
    newer(
        "Pika j: with the clock behind, the sequence of the last ID continues, with its carry",
        "XADD s * f v", f"{NOW}-0",
        wait(-5),
        "XADD s * f v", f"{NOW}-1",
        f"XADD s {NOW}-18446744073709551615 f v", ANY,
        "XADD s * f v", f"{NOW + 1}-0",
        wait(5),
        "XADD s * f v", f"{NOW + 1}-1",
    ),
    case(
        "Pika k, l: recreated groups and consumers start empty",
        *GROUP,
        *[
            step
            for _ in range(5)
            for step in (
                READ, ANY,
                "XPENDING s g", [3, "1-0", "3-0", [["c", "3"]]],
                "XGROUP DELCONSUMER s g c", 3,
                HISTORY, [["s", []]],
                "XGROUP DESTROY s g", 1,
                "XGROUP CREATE s g 0", "OK",
                "XPENDING s g", NOTHING,
            )
        ],
    ),
    case(
        "Kvrocks: XINFO GROUPS shows no group of another key, deleted or alive",
        *GROUP,
        "XADD t 1-0 f v", "1-0",
        "XGROUP CREATE t h 0", "OK",
        "DEL s", 1,
        "XADD s 1-0 f v", "1-0",
        "XINFO GROUPS s", [],
        "XINFO GROUPS t", [Has(name="h")],
        "XADD s2 1-0 f v", "1-0",
        "XINFO GROUPS s2", [],
    ),
    case(
        "Kvrocks: claiming one's own entries counts nothing twice",
        *GROUP,
        READ, ANY,
        "XCLAIM s g c 0 1-0 2-0", ANY,
        "XAUTOCLAIM s g c 0 0", ANY,
        "XINFO CONSUMERS s g", [Has(name="c", pending=3)],
        "XGROUP DELCONSUMER s g c", 3,
        "XPENDING s g", NOTHING,
    ),
    case(
        "Kvrocks: claiming many entries of one owner takes each from it",
        *GROUP,
        READ, ANY,
        "XCLAIM s g d 0 1-0 2-0 3-0", ANY,
        "XINFO CONSUMERS s g", [Has(name="c", pending=0), Has(name="d", pending=3)],
        "XAUTOCLAIM s g e 0 0", ANY,
        "XINFO CONSUMERS s g",
        [Has(name="c", pending=0), Has(name="d", pending=0), Has(name="e", pending=3)],
    ),
    case(
        "Kvrocks: claiming a deleted message removes it from the pending list",
        *GROUP,
        READ, ANY,
        "XDEL s 1-0 2-0", 2,
        "XCLAIM s g d 0 1-0", [],
        "XAUTOCLAIM s g d 0 0 COUNT 1", ["3-0", [], ["2-0"]],
        "XPENDING s g", [1, "3-0", "3-0", [["c", "1"]]],
    ),
    case(
        "Kvrocks: milliseconds of 2^64-1 are as good as others, beside groups",
        "XGROUP CREATE s g 0 MKSTREAM", "OK",
        "XADD s 18446744073709551615-0 f v", "18446744073709551615-0",
        "XADD s 18446744073709551615-18446744073709551614 f v", ANY,
        READ, [["s", ANY]],
        "XPENDING s g",
        [2, "18446744073709551615-0", "18446744073709551615-18446744073709551614", [["c", "2"]]],
        "XLEN s", 2,
        "XRANGE s 18446744073709551615 +", [ANY, ANY],
    ),
)  # fmt: skip
def test_peers(subject: Subject, case: Case) -> None:
    case.play(subject)
