"""One session with the replies of a real server of the 7.4 line, command by command."""

from tests.operations.cases import (
    ANY,
    INVALID_ID,
    NO_KEY,
    SMALLER,
    Case,
    Has,
    case,
    e,
    err,
    newer,
    on_each,
    wait,
    wrong_arity,
)
from tests.operations.implementations import Subject
from tests.operations.replies import Error

ENTRY, SECOND = e("1-1", "a", "b"), e("2-2", "f", "v")
NO_TILDE = err("syntax error, LIMIT cannot be used without the special ~ option")
NEEDS_KEY = err(
    "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)
BELOW_GIVEN = err("The ID specified in XSETID is smaller than the provided max_deleted_entry_id")


def no_group(text: str) -> Error:
    return Error(f"NOGROUP {text}".encode())


NAMED = no_group("No such consumer group 'nog' for key name 's'")
UNNAMED = no_group("No such key 's' or consumer group 'nog'")


@on_each(
    case(
        "The session",
        "XREAD STREAMS s 0", None,
        "XADD s NOMKSTREAM * a b", None,
        "XADD s 1-1 a b", "1-1",
        "XREAD STREAMS s 0", [["s", [ENTRY]]],
        "XRANGE s - +", [ENTRY],
        "XGROUP CREATE s g 0", "OK",
        "XPENDING s g", [0, None, None, None],
        "XREADGROUP GROUP g c STREAMS s 0", [["s", []]],
        "XREADGROUP GROUP g c STREAMS s >", [["s", [ENTRY]]],
        "XREADGROUP GROUP g c STREAMS s >", None,
        "XPENDING s g", [1, "1-1", "1-1", [["c", "1"]]],
        "XPENDING s g - + 10", [["1-1", "c", ANY, 1]],
        "XDEL s 1-1", 1,
        "XREADGROUP GROUP g c STREAMS s 0", [["s", [["1-1", None]]]],
        "XINFO STREAM s",
        Has(
            length=0, radix_tree_keys=0, last_generated_id="1-1", max_deleted_entry_id="1-1",
            entries_added=1, recorded_first_entry_id="0-0", groups=1, first_entry=None,
            last_entry=None,
        ),
        "XINFO STREAM s FULL",
        Has(
            entries=[],
            groups=[
                Has(
                    name="g", last_delivered_id="1-1", entries_read=1, lag=0, pel_count=1,
                    pending=[["1-1", "c", ANY, 1]],
                    consumers=[Has(name="c", pel_count=1, pending=[["1-1", ANY, 1]])],
                )
            ],
        ),
        "XINFO GROUPS s",
        [
            ["name", "g", "consumers", 1, "pending", 1, "last-delivered-id", "1-1",
             "entries-read", 1, "lag", 0],
        ],
        "XINFO CONSUMERS s g", [Has(name="c", pending=1)],
        "XAUTOCLAIM s g d 0 0", ["0-0", [], ["1-1"]],
        "XADD s 2-2 f v", "2-2",
        "XREADGROUP GROUP g c STREAMS s >", [["s", [SECOND]]],
        "XCLAIM s g e 0 2-2", [SECOND],
        "XCLAIM s g e 0 2-2 JUSTID", ["2-2"],
        "XAUTOCLAIM s g d 0 0", ["0-0", [SECOND], []],
        "XAUTOCLAIM s g d 0 0 JUSTID", ["0-0", ["2-2"], []],
        "XACK s g 2-2 3-3", 1,
        "XRANGE s + - COUNT 0", None,
        "XRANGE s - + COUNT 0", None,
        "XRANGE s - + COUNT -1", None,
        "XRANGE nokey - +", [],
        "XRANGE s (5 (6", [],
        "XRANGE s 5 5-5", [],
        "XRANGE s bad +", INVALID_ID,
        "XADD s 1-1 a b", SMALLER,
        "XADD s 0-0 a b", err("The ID specified in XADD must be greater than 0-0"),
        "XADD s 5-* a b", "5-0",
        "XADD s abc a b", INVALID_ID,
        "XADD s MAXLEN 10 LIMIT 5 * a b", NO_TILDE,
        "XADD s MAXLEN ~ -1 * a b", err("The MAXLEN argument must be >= 0."),
        "XADD s MAXLEN 5 MINID 5 * a b",
        err("syntax error, MAXLEN and MINID options at the same time are not compatible"),
        "XTRIM s MAXLEN = 1 LIMIT 3", NO_TILDE,
        "XTRIM s MAXLEN ~ 0 LIMIT 0", 2,
        "XSETID s 1-1", "OK",
        "XSETID nokey 1-1", NO_KEY,
        "XSETID s 9-9 ENTRIESADDED -1 MAXDELETEDID 0-0", err("entries_added must be positive"),
        "XSETID s 9-9 ENTRIESADDED 100 MAXDELETEDID 10-0", BELOW_GIVEN,
        "XSETID s 9-9 ENTRIESADDED 0 MAXDELETEDID 0-0", "OK",
        "XGROUP CREATE s g $", Error(b"BUSYGROUP Consumer Group name already exists"),
        "XGROUP CREATE nokey g $", NEEDS_KEY,
        "XGROUP CREATE s g3 $ ENTRIESREAD -3",
        err("value for ENTRIESREAD must be positive or -1"),
        "XGROUP SETID s nog $", NAMED,
        "XGROUP DESTROY s nog", 0,
        "XGROUP DELCONSUMER s g nobody", 0,
        "XGROUP DELCONSUMER s g e", 0,
        "XGROUP DELCONSUMER s nog e", NAMED,
        "XGROUP CREATECONSUMER s nog e", NAMED,
        "XGROUP help xxx", wrong_arity("xgroup|help"),
        "XREAD BLOCK -1 STREAMS s 0", err("timeout is negative"),
        "XREAD BLOCK x STREAMS s 0", err("timeout is not an integer or out of range"),
        "XREADGROUP STREAMS s >", wrong_arity("xreadgroup"),
        "XACK s g bad", INVALID_ID,
        "XACK nokey g 1", 0,
        "XCLAIM s nog c 0 1", UNNAMED,
        "XPENDING s nog", UNNAMED,
        "XPENDING nokey g", no_group("No such key 'nokey' or consumer group 'g'"),
        "XAUTOCLAIM s g c 0 0 COUNT 0", err("COUNT must be > 0"),
        "XAUTOCLAIM s g c x 0", err("Invalid min-idle-time argument for XAUTOCLAIM"),
        "XAUTOCLAIM s nog c 0 0", UNNAMED,
        "XINFO STREAM nokey", NO_KEY,
        "XINFO GROUPS nokey", NO_KEY,
        "XINFO CONSUMERS s nog", NAMED,
        "XINFO CONSUMERS nokey g", NO_KEY,
        "XDEL nokey 1", 0,
        "XDEL s bad", INVALID_ID,
        "XLEN nokey", 0,
        "XADD s * a", wrong_arity("xadd"),
        "XADD s MAXLEN 3", wrong_arity("xadd"),
        "TYPE s", "stream",
    ),
    newer(
        "Idle is the time since it was seen, inactive the time since a delivery",
        "XADD s 1-1 a b", "1-1",
        "XGROUP CREATE s g 0", "OK",
        "XREADGROUP GROUP g c STREAMS s >", [["s", [ENTRY]]],
        wait(151),
        "XREADGROUP GROUP g c STREAMS s 0", [["s", [ENTRY]]],
        wait(121),
        "XINFO CONSUMERS s g", [["name", "c", "pending", 1, "idle", 121, "inactive", 272]],
    ),
)  # fmt: skip
def test_session(subject: Subject, case: Case) -> None:
    case.play(subject)
