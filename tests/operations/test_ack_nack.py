"""XNACK (Redis 8.8): give pending entries back."""

from tests.operations.cases import (
    ANY,
    INVALID_ID,
    NOT_INT,
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
from tests.operations.replies import Error

NOW = START_MS
GREATEST = 9223372036854775807
ADDED = [*many("XADD s {}-0 f v", [1, 2, 3, 4]), "XGROUP CREATE s g 0", "OK"]
READ = [*ADDED, "XREADGROUP GROUP g c COUNT 3 STREAMS s >", ANY]
ROWS = "XPENDING s g - + 9"
CLAIM = "XREADGROUP GROUP g d COUNT {} CLAIM {} STREAMS s >".format
POSITIVE = err("numids must be a positive integer")


def no_group(key: str, group: str) -> Error:
    return Error(f"NOGROUP No such key '{key}' or consumer group '{group}'".encode())


@on_each(
    newer(
        "Entries given back stay pending and have no owner",
        *READ,
        "XNACK s g FAIL IDS 2 1-0 3-0", 2,
        wait(5),
        ROWS, [["1-0", "", -1, 1], ["2-0", "c", 5, 1], ["3-0", "", -1, 1]],
        "XPENDING s g", [3, "1-0", "3-0", [["c", "1"]]],
        "XINFO CONSUMERS s g", [Has(name="c", pending=1)],
        "XREADGROUP GROUP g c STREAMS s 0", [["s", [e("2-0", "f", "v")]]],
        "XINFO GROUPS s", [Has(pending=3, last_delivered_id="3-0")],
    ),
    newer(
        "SILENT undoes one delivery, not below 0; FAIL keeps the count; FATAL sets the greatest",
        *READ,
        "XNACK s g SILENT IDS 1 1-0", 1,
        "XNACK s g FAIL IDS 1 2-0", 1,
        "XNACK s g FATAL IDS 1 3-0", 1,
        ROWS, [["1-0", "", -1, 0], ["2-0", "", -1, 1], ["3-0", "", -1, GREATEST]],
        "XNACK s g SILENT IDS 3 1-0 2-0 3-0", 3,
        ROWS, [["1-0", "", -1, 0], ["2-0", "", -1, 0], ["3-0", "", -1, GREATEST - 1]],
    ),
    newer(
        "SILENT undoes one delivery, not all",
        *READ,
        "XREADGROUP GROUP g c STREAMS s 0", ANY,
        "XNACK s g SILENT IDS 1 1-0", 1,
        "XPENDING s g 1 1 9", [["1-0", "", -1, 1]],
    ),
    newer(
        "RETRYCOUNT wins over the mode",
        *READ,
        "XNACK s g FATAL IDS 1 1-0 RETRYCOUNT 3", 1,
        "XNACK s g silent ids 1 2-0 retrycount 0", 1,
        ROWS, [["1-0", "", -1, 3], ["2-0", "", -1, 0], ["3-0", "c", 0, 1]],
    ),
    newer(
        "Only pending entries count; any client may give back any entry",
        *READ,
        "XNACK s g FAIL IDS 3 1-0 4-0 9-9", 1,
        "XREADGROUP GROUP g d STREAMS s >", ANY,
        "XNACK s g FAIL IDS 1 4-0", 1,
        "XNACK s g FAIL IDS 1 1-0", 1,
        "XACK s g 1-0", 1,
        "XNACK s g FAIL IDS 1 1-0", 0,
    ),
    newer(
        "FORCE makes entries of the stream pending, with no delivery and no owner",
        *ADDED,
        "XNACK s g FAIL IDS 2 1-0 9-9 FORCE", 1,
        "XNACK s g SILENT IDS 1 2-0 FORCE RETRYCOUNT 5", 1,
        "XNACK s g FATAL IDS 1 3-0 FORCE", 1,
        ROWS, [["1-0", "", -1, 0], ["2-0", "", -1, 5], ["3-0", "", -1, GREATEST]],
        "XINFO GROUPS s", [Has(last_delivered_id="0-0", pending=3)],
        "XINFO CONSUMERS s g", [],
    ),
    newer(
        "XPENDING lists them for any IDLE, but not for a consumer",
        *READ,
        "XNACK s g FAIL IDS 1 2-0", 1,
        "XPENDING s g IDLE 999999 - + 9", [["2-0", "", -1, 1]],
        "XPENDING s g - + 9 c", [["1-0", "c", 0, 1], ["3-0", "c", 0, 1]],
        "XPENDING s g (2-0 + 9", [["3-0", "c", 0, 1]],
        "XPENDING s g - + 2", [["1-0", "c", 0, 1], ["2-0", "", -1, 1]],
        ["XPENDING", "s", "g", "-", "+", "9", ""], [],
    ),
    newer(
        "If all were given back, the summary counts them and names no consumer",
        *READ,
        "XNACK s g FAIL IDS 3 1-0 2-0 3-0", 3,
        "XPENDING s g", [3, "1-0", "3-0", []],
        "XGROUP DELCONSUMER s g c", 0,
        "XPENDING s g", [3, "1-0", "3-0", []],
    ),
    newer(
        "FULL counts them and lists them without a consumer, delivered at 0",
        *READ,
        "XNACK s g FAIL IDS 1 2-0", 1,
        "XINFO STREAM s FULL",
        Has(
            groups=[
                Has(
                    pel_count=3, nacked_count=1,
                    pending=[["1-0", "c", NOW, 1], ["2-0", "", 0, 1], ["3-0", "c", NOW, 1]],
                    consumers=[Has(pel_count=2, pending=[["1-0", NOW, 1], ["3-0", NOW, 1]])],
                )
            ]
        ),
    ),
    newer(
        "A CLAIM read takes them first, in the order they were given back, at any idle time",
        *READ,
        wait(100),
        "XNACK s g FAIL IDS 1 3-0", 1,
        "XNACK s g SILENT IDS 1 1-0", 1,
        CLAIM(3, 100),
        [
            [
                "s",
                [
                    ["3-0", ["f", "v"], NOW + 100, 1], ["1-0", ["f", "v"], NOW + 100, 0],
                    ["2-0", ["f", "v"], 100, 1],
                ],
            ]
        ],
        ROWS, [["1-0", "d", 0, 1], ["2-0", "d", 0, 2], ["3-0", "d", 0, 2]],
        "XINFO STREAM s FULL", Has(groups=[Has(nacked_count=0)]),
    ),
    newer(
        "The greatest idle time does not keep them back",
        *READ,
        "XNACK s g FAIL IDS 1 1-0", 1,
        CLAIM(1, GREATEST), [["s", [["1-0", ["f", "v"], NOW, 1]]]],
    ),
    newer(
        "XCLAIM and XAUTOCLAIM take them at any idle time",
        *READ,
        "XNACK s g FAIL IDS 2 1-0 2-0", 2,
        "XCLAIM s g d 999999 1-0 3-0", [e("1-0", "f", "v")],
        "XAUTOCLAIM s g d 999999 0", ["0-0", [e("2-0", "f", "v")], []],
        ROWS, [["1-0", "d", 0, 2], ["2-0", "d", 0, 2], ["3-0", "c", 0, 1]],
        "XINFO CONSUMERS s g", [Has(name="c", pending=1), Has(name="d", pending=2)],
    ),
    newer(
        "The greatest count does not grow",
        *READ,
        "XNACK s g FATAL IDS 3 1-0 2-0 3-0", 3,
        "XCLAIM s g d 0 1-0", ANY,
        "XAUTOCLAIM s g d 0 2-0 COUNT 1", ANY,
        CLAIM(1, 0), ANY,
        "XREADGROUP GROUP g d STREAMS s 0", ANY,
        ROWS, [[f"{n}-0", "d", 0, GREATEST] for n in (1, 2, 3)],
    ),
    newer(
        "Acknowledging and deleting work on them as on others",
        *READ,
        "XNACK s g FAIL IDS 3 1-0 2-0 3-0", 3,
        "XACK s g 1-0", 1,
        "XACKDEL s g IDS 1 2-0", [1],
        "XDEL s 3-0", 1,
        ROWS, [["3-0", "", -1, 1]],
        "XAUTOCLAIM s g d 0 0", ["0-0", [], ["3-0"]],
        "XPENDING s g", [0, None, None, None],
        "XINFO STREAM s FULL", Has(groups=[Has(nacked_count=0)]),
    ),
    newer(
        "A new reader after SETID gets them, with a new count",
        *READ,
        "XNACK s g FATAL IDS 1 1-0", 1,
        "XGROUP SETID s g 0", "OK",
        "XREADGROUP GROUP g d COUNT 1 STREAMS s >", [["s", [e("1-0", "f", "v")]]],
        "XPENDING s g 1 1 9", [["1-0", "d", 0, 1]],
        "XINFO STREAM s FULL", Has(groups=[Has(nacked_count=0)]),
    ),
    newer(
        "A read of new entries does not return them",
        *READ,
        "XNACK s g FAIL IDS 1 1-0", 1,
        "XREADGROUP GROUP g d STREAMS s >", [["s", [e("4-0", "f", "v")]]],
        "XREADGROUP GROUP g d STREAMS s >", None,
    ),
    newer(
        "XNACK checks its arguments, key and group first, before it gives anything back",
        *READ,
        "XNACK missing g FOO IDS 1 1-0", no_group("missing", "g"),
        "XNACK s nog FAIL IDS 1 1-0", no_group("s", "nog"),
        "XNACK s g FOO IDS 1 1-0", err("mode must be SILENT, FAIL, or FATAL"),
        "XNACK s g FAIL IDS 0 1-0", POSITIVE,
        "XNACK s g FAIL IDS x 1-0", POSITIVE,
        "XNACK s g FAIL IDS 2 1-0", err("number of IDs doesn't match numids"),
        "XNACK s g FAIL IDS 2 1-0 bad", INVALID_ID,
        "XNACK s g FAIL IDS 1 1-0 2-0", err("Unrecognized XNACK option '2-0'"),
        "XNACK s g FAIL IDS 1 1-0 FOO", err("Unrecognized XNACK option 'FOO'"),
        "XNACK s g FAIL IDS 1 1-0 RETRYCOUNT", err("Unrecognized XNACK option 'RETRYCOUNT'"),
        "XNACK s g FAIL IDS 1 1-0 RETRYCOUNT -1", err(
            "Invalid RETRYCOUNT value, must be >= 0"
        ),
        "XNACK s g FAIL IDS 1 1-0 RETRYCOUNT x", NOT_INT,
        "XNACK s g FAIL 1 1-0 2-0", err("syntax error, expected IDS keyword"),
        "XNACK s g FAIL IDS 1", wrong_arity("xnack"),
        ROWS, [[f"{n}-0", "c", 0, 1] for n in (1, 2, 3)],
    ),
)  # fmt: skip
def test_nack(subject: Subject, case: Case) -> None:
    case.play(subject)
