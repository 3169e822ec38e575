"""XINFO, the counters, and the lag of groups."""

from tests.operations.cases import (
    ANY,
    NO_KEY,
    NOT_INT,
    Case,
    Fields,
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
from tests.operations.implementations import START_MS, Subject

NOW = START_MS
ADDED = many("XADD s {}-0 f v", [1, 2, 3])
FIVE = [*many("XADD s {}-0 f v", range(1, 6)), "XGROUP CREATE s g 0", "OK"]
READ = "XREADGROUP GROUP g c STREAMS s >"
ONE_MORE = "XREADGROUP GROUP g c COUNT 1 STREAMS s >"
LAG = "XINFO GROUPS s"


def lag(lag: int | None, read: int | None) -> list[object]:
    return [Has(lag=lag, entries_read=read)]


def bad(subcommand: str) -> object:
    wrong = f"unknown subcommand or wrong number of arguments for '{subcommand}'"
    return err(f"{wrong}. Try XINFO HELP.")


@on_each(
    newer(
        "XINFO STREAM has these fields in this order",
        *ADDED,
        "XINFO STREAM s",
        Fields(
            "length radix-tree-keys radix-tree-nodes last-generated-id max-deleted-entry-id "
            "entries-added recorded-first-entry-id idmp-duration idmp-maxsize pids-tracked "
            "iids-tracked iids-added iids-duplicates groups first-entry last-entry"
        ),
    ),
    newer(
        "XINFO STREAM FULL has these fields in this order",
        *FIVE,
        READ, ANY,
        "XINFO STREAM s FULL",
        Fields(
            "length radix-tree-keys radix-tree-nodes last-generated-id max-deleted-entry-id "
            "entries-added recorded-first-entry-id idmp-duration idmp-maxsize pids-tracked "
            "iids-tracked iids-added iids-duplicates entries groups"
        ),
        "XINFO STREAM s FULL",
        Has(
            groups=[
                Fields(
                    "name last-delivered-id entries-read lag pel-count nacked-count pending "
                    "consumers"
                )
            ]
        ),
        "XINFO STREAM s FULL",
        Has(
            groups=[
                Has(consumers=[Fields("name seen-time active-time pel-count pending")]),
            ],
        ),
        "XINFO GROUPS s",
        [Fields("name consumers pending last-delivered-id entries-read lag")],
        "XINFO CONSUMERS s g", [Fields("name pending idle inactive")],
    ),
    case(
        "XINFO STREAM shows the counters and the first and last entries",
        *ADDED,
        "XGROUP CREATE s g 0", "OK",
        "XINFO STREAM s",
        Has(
            length=3, radix_tree_keys=1, last_generated_id="3-0", max_deleted_entry_id="0-0",
            entries_added=3, recorded_first_entry_id="1-0", groups=1,
            first_entry=e("1-0", "f", "v"), last_entry=e("3-0", "f", "v"),
        ),
        "XDEL s 1-0 2-0 3-0", 3,
        "XINFO STREAM s",
        Has(
            length=0, radix_tree_keys=0, last_generated_id="3-0", max_deleted_entry_id="3-0",
            entries_added=3, recorded_first_entry_id="0-0", first_entry=None, last_entry=None,
        ),
    ),
    case(
        "radix-tree-keys grows with the nodes, one for each hundred entries",
        *many("XADD s {}-0 f v", range(1, 101)),
        "XINFO STREAM s", Has(radix_tree_keys=1),
        "XADD s 101-0 f v", ANY,
        "XINFO STREAM s", Has(radix_tree_keys=2),
        *many("XADD s {}-0 f v", range(102, 302)),
        "XINFO STREAM s", Has(radix_tree_keys=4, length=301),
    ),
    case(
        "entries-added counts every append, also of entries deleted since",
        *ADDED,
        "XDEL s 1-0", 1,
        "XTRIM s MAXLEN 1", 1,
        "XADD s MAXLEN 0 4-0 f v", "4-0",
        "XINFO STREAM s", Has(length=0, entries_added=4),
    ),
    newer(
        "FULL shows all of groups, consumers and pending entries",
        *ADDED,
        "XGROUP CREATE s g 0", "OK",
        "XGROUP CREATECONSUMER s g a", 1,
        wait(10),
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >", ANY,
        "XINFO STREAM s FULL",
        Has(
            entries=[e("1-0", "f", "v"), e("2-0", "f", "v"), e("3-0", "f", "v")],
            groups=[
                Has(
                    name="g", last_delivered_id="2-0", entries_read=2, lag=1, pel_count=2,
                    nacked_count=0,
                    pending=[["1-0", "c", NOW + 10, 1], ["2-0", "c", NOW + 10, 1]],
                    consumers=[
                        Has(name="a", seen_time=NOW, active_time=-1, pel_count=0, pending=[]),
                        Has(
                            name="c", seen_time=NOW + 10, active_time=NOW + 10, pel_count=2,
                            pending=[["1-0", NOW + 10, 1], ["2-0", NOW + 10, 1]],
                        ),
                    ],
                )
            ],
        ),
    ),
    case(
        "COUNT limits entries and pending lists of FULL; the default is 10, and 0 means all",
        *many("XADD s {}-0 f v", range(1, 13)),
        "XGROUP CREATE s g 0", "OK",
        READ, ANY,
        "XINFO STREAM s FULL COUNT 1",
        Has(
            entries=[e("1-0", "f", "v")],
            groups=[
                Has(
                    pel_count=12, pending=[["1-0", "c", ANY, 1]],
                    consumers=[Has(pel_count=12, pending=[["1-0", ANY, 1]])],
                )
            ],
        ),
        "XINFO STREAM s FULL", Has(entries=[e(f"{n}-0", "f", "v") for n in range(1, 11)]),
        "XINFO STREAM s FULL COUNT 0", Has(entries=[e(f"{n}-0", "f", "v") for n in range(1, 13)]),
        "XINFO STREAM s full count -3", Has(entries=[e(f"{n}-0", "f", "v") for n in range(1, 11)]),
    ),
    case(
        "Groups and consumers are sorted by the bytes of their names",
        *ADDED,
        "XGROUP CREATE s b 0", "OK",
        "XGROUP CREATE s B 0", "OK",
        "XGROUP CREATE s aa 0", "OK",
        "XGROUP CREATE s a 0", "OK",
        "XINFO GROUPS s", [Has(name="B"), Has(name="a"), Has(name="aa"), Has(name="b")],
        "XGROUP CREATECONSUMER s a z", 1,
        "XGROUP CREATECONSUMER s a 10", 1,
        "XGROUP CREATECONSUMER s a 9", 1,
        "XINFO CONSUMERS s a", [Has(name="10"), Has(name="9"), Has(name="z")],
    ),
    case(
        "A stream without groups has an empty list of them",
        *ADDED,
        "XINFO GROUPS s", [],
        "XINFO STREAM s FULL", Has(groups=[]),
        "XGROUP CREATE s g 0", "OK",
        "XINFO CONSUMERS s g", [],
        "XGROUP DESTROY s g", 1,
        "XINFO GROUPS s", [],
    ),
    case(
        "XINFO checks its arguments, the key first",
        "XINFO STREAM s FOO", NO_KEY,
        *ADDED,
        "XINFO STREAM s FOO", bad("STREAM"),
        "XINFO STREAM s FULL COUNT", bad("STREAM"),
        "XINFO STREAM s FULL FOO 1", bad("STREAM"),
        "XINFO STREAM s FULL COUNT x", NOT_INT,
        "XINFO STREAM s FULL COUNT 1 2", bad("STREAM"),
        "XINFO STREAM", wrong_arity("xinfo|stream"),
        "XINFO GROUPS s g", wrong_arity("xinfo|groups"),
        "XINFO CONSUMERS s", wrong_arity("xinfo|consumers"),
        "XINFO", wrong_arity("xinfo"),
        "XINFO FOO s", err("unknown subcommand 'FOO'. Try XINFO HELP."),
    ),
    case(
        "The lag of a group that reads everything in order is known",
        *FIVE,
        "XINFO GROUPS s", lag(5, None),
        ONE_MORE, ANY,
        LAG, lag(4, 1),
        ONE_MORE, ANY,
        LAG, lag(3, 2),
        READ, ANY,
        LAG, lag(0, 5),
        "XADD s 6-0 f v", "6-0",
        LAG, lag(1, 5),
    ),
    case(
        "A group created at the end has no lag; the lag of one in the middle is unknown",
        *many("XADD s {}-0 f v", range(1, 6)),
        "XGROUP CREATE s a $", "OK",
        "XGROUP CREATE s b 3", "OK",
        "XGROUP CREATE s c 1", "OK",
        "XINFO GROUPS s",
        [
            Has(lag=0, entries_read=None), Has(lag=None, entries_read=None),
            Has(lag=4, entries_read=None),
        ],
    ),
    case(
        "A stream that never had an entry has no lag",
        "XGROUP CREATE s g $ MKSTREAM", "OK",
        LAG, lag(0, None),
    ),
    case(
        "A tombstone ahead makes the lag unknown until the group has read past all",
        *FIVE,
        "XDEL s 3-0", 1,
        LAG, lag(None, None),
        ONE_MORE, ANY,
        LAG, lag(None, None),
        ONE_MORE, ANY,
        LAG, lag(None, None),
        ONE_MORE, ANY,
        LAG, lag(None, None),
        ONE_MORE, ANY,
        LAG, lag(0, 5),
    ),
    newer(
        "Once the tombstone is trimmed, the lag is the number of live entries",
        *FIVE,
        "XGROUP CREATE s h 0", "OK",
        "XDEL s 3-0", 1,
        READ, ANY,
        "XADD s 6-0 f v", "6-0",
        "XTRIM s MINID = 3", 2,
        "XINFO GROUPS s", [Has(name="g", lag=1), Has(name="h", lag=3, entries_read=None)],
        "XTRIM s MINID = 5", 1,
        "XINFO GROUPS s", [Has(name="g", lag=1), Has(name="h", lag=2)],
    ),
    newer(
        "A group behind the first entry lags by the length",
        *FIVE,
        ONE_MORE, ANY,
        "XTRIM s MAXLEN 2", 3,
        LAG, lag(2, 1),
        ONE_MORE, ANY,
        LAG, lag(1, 4),
    ),
    newer(
        "Emptied streams have no lag, and the next entry counts",
        *FIVE,
        ONE_MORE, ANY,
        "XTRIM s MAXLEN 0", 5,
        LAG, lag(0, 1),
        "XADD s 6-0 f v", "6-0",
        LAG, lag(1, 1),
        READ, ANY,
        LAG, lag(0, 6),
    ),
    newer(
        "A wrong entries-read gives a wrong lag, also a negative one",
        *FIVE,
        READ, ANY,
        "XGROUP SETID s g 5-0 ENTRIESREAD 3", "OK",
        LAG, lag(2, 3),
        "XSETID s 5-0 ENTRIESADDED 5", "OK",
        "XGROUP SETID s g 5-0 ENTRIESREAD 5", "OK",
        "XADD s 6-0 f v", "6-0",
        READ, ANY,
        "XSETID s 6-0 ENTRIESADDED 5 ", err(
            "The entries_added specified in XSETID is smaller than the target stream length"
        ),
        "XTRIM s MAXLEN 5", 1,
        "XSETID s 6-0 ENTRIESADDED 5", "OK",
        LAG, lag(-1, 6),
    ),
    newer(
        "The lag of a group moved into the future is unknown",
        *FIVE,
        "XGROUP SETID s g 99", "OK",
        LAG, lag(None, None),
    ),
    newer(
        "Times of consumers are since they were seen and since they got something",
        *FIVE,
        ONE_MORE, ANY,
        wait(30),
        "XREADGROUP GROUP g c STREAMS s 0", ANY,
        "XGROUP CREATECONSUMER s g d", 1,
        wait(12),
        "XINFO CONSUMERS s g",
        [
            ["name", "c", "pending", 1, "idle", 12, "inactive", 42],
            ["name", "d", "pending", 0, "idle", 12, "inactive", -1],
        ],
        wait(-1000),
        "XINFO CONSUMERS s g", [Has(name="c", idle=0), Has(name="d", idle=0, inactive=-1)],
    ),
)  # fmt: skip
def test_info(subject: Subject, case: Case) -> None:
    case.play(subject)
