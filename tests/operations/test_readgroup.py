"""XREADGROUP without blocking, and XACK."""

from tests.operations.cases import (
    ANY,
    INVALID_ID,
    NOT_INT,
    SYNTAX,
    Case,
    Has,
    case,
    e,
    err,
    many,
    newer,
    on_each,
    wait,
    wrong_arity,
)
from tests.operations.implementations import Subject
from tests.operations.replies import Error

UNBALANCED = err(
    "Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified."
)
ONE, TWO, THREE = (e(f"{n}-0", "f", "v") for n in (1, 2, 3))
ADDED = [*many("XADD s {}-0 f v", [1, 2, 3]), "XGROUP CREATE s g 0", "OK"]
READ = "XREADGROUP GROUP g {} STREAMS s >".format
HISTORY = "XREADGROUP GROUP g {} STREAMS s 0".format


def meaningless(id: str) -> Error:
    return err(
        f"The {id} ID is meaningless in the context of XREADGROUP: you want to read the history "
        f"of this consumer by specifying a proper ID, or use the > ID to get new messages. The "
        f"{id} ID would just return an empty result set."
    )


def no_group(key: str, group: str) -> Error:
    text = f"No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"
    return Error(f"NOGROUP {text}".encode())


@on_each(
    case(
        "> returns the entries new to the group and makes them pending for the reader",
        *ADDED,
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >", [["s", [ONE, TWO]]],
        "XINFO GROUPS s", [Has(last_delivered_id="2-0", pending=2, entries_read=2, lag=1)],
        READ("d"), [["s", [THREE]]],
        READ("c"), None,
        "XPENDING s g", [3, "1-0", "3-0", [["c", "2"], ["d", "1"]]],
        "XADD s 4-0 f v", "4-0",
        READ("d"), [["s", [e("4-0", "f", "v")]]],
    ),
    newer(
        "A delivery counts 1 and is of now",
        *ADDED,
        READ("c"), ANY,
        wait(70),
        "XPENDING s g - + 1", [["1-0", "c", 70, 1]],
    ),
    case(
        "NOACK makes nothing pending but moves the group forward",
        *ADDED,
        "XREADGROUP GROUP g c NOACK COUNT 2 STREAMS s >", [["s", [ONE, TWO]]],
        "XINFO GROUPS s", [Has(last_delivered_id="2-0", pending=0, entries_read=2, consumers=1)],
        HISTORY("c"), [["s", []]],
    ),
    case(
        "An entry that is pending already moves to its new reader",
        *many("XADD s {}-0 f v", [1, 2, 3, 4]),
        "XGROUP CREATE s g $", "OK",
        "XADD s 5-0 f v", "5-0",
        READ("c"), [["s", [e("5-0", "f", "v")]]],
        "XGROUP SETID s g -", "OK",
        READ("d"), [["s", [e(f"{n}-0", "f", "v") for n in range(1, 6)]]],
        HISTORY("c"), [["s", []]],
        "XPENDING s g", [5, "1-0", "5-0", [["d", "5"]]],
    ),
    newer(
        "The new reader starts a new count",
        *ADDED,
        READ("c"), ANY,
        HISTORY("c"), ANY,
        wait(5),
        "XPENDING s g 1 1 1", [["1-0", "c", 5, 2]],
        "XGROUP SETID s g 0", "OK",
        READ("d"), ANY,
        "XPENDING s g 1 1 1", [["1-0", "d", 0, 1]],
    ),
    case(
        "Any other ID returns the history of this consumer above the ID, in order",
        *ADDED,
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >", ANY,
        READ("d"), ANY,
        HISTORY("c"), [["s", [ONE, TWO]]],
        "XREADGROUP GROUP g c STREAMS s 1", [["s", [TWO]]],
        "XREADGROUP GROUP g c STREAMS s 1-0", [["s", [TWO]]],
        "XREADGROUP GROUP g c COUNT 1 STREAMS s 0", [["s", [ONE]]],
        "XREADGROUP GROUP g d STREAMS s 0", [["s", [THREE]]],
    ),
    case(
        "A history always answers with its key, if need be with an empty list",
        *ADDED,
        HISTORY("c"), [["s", []]],
        "XREADGROUP GROUP g c STREAMS s 600", [["s", []]],
        "XREADGROUP GROUP g c BLOCK 0 STREAMS s 0", [["s", []]],
        READ("c"), ANY,
        "XREADGROUP GROUP g c BLOCK 0 STREAMS s 3", [["s", []]],
        "XREADGROUP GROUP g c STREAMS s 2", [["s", [THREE]]],
        "XACK s g 1 2 3", 3,
        HISTORY("c"), [["s", []]],
    ),
    case(
        "Deleted entries appear in a history with a null for their fields",
        *ADDED,
        READ("c"), ANY,
        "XDEL s 2-0", 1,
        HISTORY("c"), [["s", [ONE, ["2-0", None], THREE]]],
        "XTRIM s MAXLEN 0", 2,
        HISTORY("c"), [["s", [["1-0", None], ["2-0", None], ["3-0", None]]]],
        "XREADGROUP GROUP g c COUNT 2 STREAMS s 0", [["s", [["1-0", None], ["2-0", None]]]],
    ),
    newer(
        "A history counts each entry that is still there as delivered again, now",
        *ADDED,
        READ("c"), ANY,
        "XDEL s 2-0", 1,
        wait(100),
        HISTORY("c"), ANY,
        wait(30),
        "XPENDING s g - + 9",
        [["1-0", "c", 30, 2], ["2-0", "c", 130, 1], ["3-0", "c", 30, 2]],
    ),
    case(
        "In a history COUNT limits the reply, and NOACK is ignored",
        *ADDED,
        READ("c"), ANY,
        "XREADGROUP GROUP g c NOACK COUNT 2 STREAMS s 0", [["s", [ONE, TWO]]],
        "XPENDING s g", [3, "1-0", "3-0", [["c", "3"]]],
    ),
    newer(
        "Any XREADGROUP creates the consumer and updates seen; only a delivery updates active",
        *ADDED,
        "XGROUP CREATE s h $", "OK",
        "XREADGROUP GROUP h empty STREAMS s >", None,
        "XREADGROUP GROUP h history STREAMS s 0", [["s", []]],
        "XADD s 4-0 f v", "4-0",
        wait(40),
        "XREADGROUP GROUP h busy STREAMS s >", ANY,
        wait(2),
        "XINFO CONSUMERS s h",
        [
            Has(name="busy", pending=1, idle=2, inactive=2),
            Has(name="empty", pending=0, idle=42, inactive=-1),
            Has(name="history", pending=0, idle=42, inactive=-1),
        ],
    ),
    newer(
        "Reading its history updates seen of a consumer, not active",
        *ADDED,
        READ("c"), ANY,
        wait(100),
        HISTORY("c"), ANY,
        wait(10),
        "XINFO CONSUMERS s g", [Has(name="c", idle=10, inactive=110)],
    ),
    newer(
        "NOACK updates seen of a consumer, not active",
        *ADDED,
        "XREADGROUP GROUP g c NOACK STREAMS s >", ANY,
        wait(10),
        "XINFO CONSUMERS s g", [Has(name="c", idle=10, inactive=-1)],
    ),
    newer(
        "NOACK with COUNT 1 updates seen of a consumer that was there",
        *ADDED,
        "XREADGROUP GROUP g c COUNT 1 NOACK STREAMS s >", ANY,
        wait(100),
        "XREADGROUP GROUP g c COUNT 1 NOACK STREAMS s >", ANY,
        wait(10),
        "XINFO CONSUMERS s g", [Has(name="c", idle=10, inactive=-1)],
    ),
    case(
        "Several streams are read in the caller's order, with a group of that name in each",
        *ADDED,
        "XADD t 9-0 f v", "9-0",
        "XGROUP CREATE t g 0", "OK",
        "XREADGROUP GROUP g c COUNT 1 STREAMS t s > >",
        [["t", [e("9-0", "f", "v")]], ["s", [ONE]]],
        "XREADGROUP GROUP g c STREAMS t s > 0", [["s", [ONE]]],
        "XREADGROUP GROUP g c STREAMS t s > >", [["s", [TWO, THREE]]],
        "XREADGROUP GROUP g c STREAMS t s > >", None,
    ),
    case(
        "A missing key or group is refused, and nothing is read from the others",
        *ADDED,
        "XREADGROUP GROUP nog c STREAMS s >", no_group("s", "nog"),
        "XREADGROUP GROUP g c STREAMS missing >", no_group("missing", "g"),
        "XREADGROUP GROUP g c STREAMS s missing > >", no_group("missing", "g"),
        "XREADGROUP GROUP g c STREAMS missing 0", no_group("missing", "g"),
        "XINFO GROUPS s", [Has(pending=0, last_delivered_id="0-0")],
        "EXISTS missing", 0,
    ),
    case(
        "XREADGROUP checks its arguments",
        *ADDED,
        "XREADGROUP GROUP g c STREAMS s $", meaningless("$"),
        "XREADGROUP GROUP g c COUNT 1 STREAMS s", UNBALANCED,
        "XREADGROUP STREAMS s >", wrong_arity("xreadgroup"),
        "XREADGROUP NOACK COUNT 1 STREAMS s >", err("Missing GROUP option for XREADGROUP"),
        "XREADGROUP GROUP g c STREAMS s bad", INVALID_ID,
        "XREADGROUP GROUP g c COUNT x STREAMS s >", NOT_INT,
        "XREADGROUP GROUP g c BLOCK -1 STREAMS s >", err("timeout is negative"),
        "XREADGROUP GROUP g c FOO STREAMS s >", SYNTAX,
    ),
    newer(
        "+ is invalid for a group",
        *ADDED,
        "XREADGROUP GROUP g c STREAMS s +", meaningless("+"),
    ),
    case(
        "XACK counts the pending entries, each ID once, and removes them everywhere",
        *ADDED,
        READ("c"), ANY,
        "XACK s g 1-0 1-0 9-9", 1,
        "XACK s g 1-0", 0,
        "XPENDING s g", [2, "2-0", "3-0", [["c", "2"]]],
        HISTORY("c"), [["s", [TWO, THREE]]],
        "XACK s g 2 3", 2,
        "XPENDING s g", [0, None, None, None],
        "XINFO CONSUMERS s g", [Has(name="c", pending=0)],
    ),
    case(
        "XACK of a deleted entry removes it from the pending list",
        *ADDED,
        READ("c"), ANY,
        "XDEL s 2-0", 1,
        "XACK s g 2-0", 1,
        "XPENDING s g", [2, "1-0", "3-0", [["c", "2"]]],
    ),
    case(
        "A bad ID ends XACK before anything is acknowledged",
        *ADDED,
        READ("c"), ANY,
        "XACK s g 1-0 bad", INVALID_ID,
        "XPENDING s g", [3, "1-0", "3-0", [["c", "3"]]],
        "XACK s g", wrong_arity("xack"),
    ),
    case(
        "XACK of unknown IDs returns 0",
        *ADDED,
        "XACK missing g 1-0", 0,
        "XACK s nog 1-0", 0,
        "XACK s nog bad", 0,
        "XACK s g 1-0", 0,
    ),
    case(
        "Groups of one stream are independent",
        *ADDED,
        "XGROUP CREATE s h 2", "OK",
        READ("c"), [["s", [ONE, TWO, THREE]]],
        "XREADGROUP GROUP h c STREAMS s >", [["s", [THREE]]],
        "XACK s g 3-0", 1,
        "XPENDING s h", [1, "3-0", "3-0", [["c", "1"]]],
    ),
)  # fmt: skip
def test_group_reads(subject: Subject, case: Case) -> None:
    case.play(subject)
