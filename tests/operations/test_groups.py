"""XGROUP: groups and consumers are created, moved and deleted."""

from tests.operations.cases import (
    ANY,
    INVALID_ID,
    NO_KEY,
    NOT_INT,
    Case,
    Has,
    case,
    e,
    err,
    many,
    newer,
    on_each,
    wrong_arity,
)
from tests.operations.implementations import Subject
from tests.operations.replies import Error

NEEDS_KEY = err(
    "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)
BUSY = Error(b"BUSYGROUP Consumer Group name already exists")
NOT_READ = err("value for ENTRIESREAD must be positive or -1")
ADDED = many("XADD s {}-0 f v", [1, 2, 3])
READ = "XREADGROUP GROUP g {} STREAMS s >".format


def no_group(group: str, key: str = "s") -> Error:
    return Error(f"NOGROUP No such consumer group '{group}' for key name '{key}'".encode())


def bad(subcommand: str) -> Error:
    wrong = f"unknown subcommand or wrong number of arguments for '{subcommand}'"
    return err(f"{wrong}. Try XGROUP HELP.")


@on_each(
    case(
        "CREATE needs the key, unless MKSTREAM creates it",
        "XGROUP CREATE s g $", NEEDS_KEY,
        "EXISTS s", 0,
        "XGROUP CREATE s g $ MKSTREAM", "OK",
        "TYPE s", "stream",
        "XLEN s", 0,
        "XINFO STREAM s", Has(groups=1, last_generated_id="0-0", entries_added=0),
    ),
    case(
        "A second group of the same name is refused and changes nothing",
        *ADDED,
        "XGROUP CREATE s g 1", "OK",
        "XGROUP CREATE s g $", BUSY,
        "XGROUP CREATE s g 2 MKSTREAM ENTRIESREAD 1", BUSY,
        "XINFO GROUPS s", [Has(name="g", last_delivered_id="1-0")],
        "XGROUP CREATE s G $", "OK",
    ),
    case(
        "$ is the last generated ID, other IDs are taken literally",
        *ADDED,
        "XDEL s 3-0", 1,
        "XGROUP CREATE s a $", "OK",
        "XGROUP CREATE s b 2", "OK",
        "XGROUP CREATE s c 99-5", "OK",
        "XGROUP CREATE s d 0", "OK",
        "XINFO GROUPS s",
        [
            Has(name="a", last_delivered_id="3-0"), Has(name="b", last_delivered_id="2-0"),
            Has(name="c", last_delivered_id="99-5"), Has(name="d", last_delivered_id="0-0"),
        ],
    ),
    case(
        "CREATE takes an ID or $, no - and no +",
        *ADDED,
        "XGROUP CREATE s g -", INVALID_ID,
        "XGROUP CREATE s g +", INVALID_ID,
        "XGROUP CREATE s g bad", INVALID_ID,
        "XGROUP CREATE t g bad MKSTREAM", INVALID_ID,
        "EXISTS t", 0,
    ),
    case(
        "ENTRIESREAD is a count, or -1 for unknown",
        *ADDED,
        "XGROUP CREATE s a 1 ENTRIESREAD 1", "OK",
        "XGROUP CREATE s b 1 ENTRIESREAD -1", "OK",
        "XGROUP CREATE s c 1", "OK",
        "XGROUP CREATE s d 1 ENTRIESREAD -2", NOT_READ,
        "XGROUP CREATE s d 1 ENTRIESREAD x", NOT_INT,
        "XINFO GROUPS s",
        [
            Has(name="a", entries_read=1), Has(name="b", entries_read=None),
            Has(name="c", entries_read=None),
        ],
    ),
    newer(
        "ENTRIESREAD above the entries ever added is reduced to their number",
        *ADDED,
        "XGROUP CREATE s a 1 ENTRIESREAD 100", "OK",
        "XGROUP CREATE s b 1 ENTRIESREAD 3", "OK",
        "XGROUP CREATE t g 0 MKSTREAM ENTRIESREAD 5", "OK",
        "XINFO GROUPS s", [Has(name="a", entries_read=3), Has(name="b", entries_read=3)],
        "XINFO GROUPS t", [Has(name="g", entries_read=0)],
        "XGROUP SETID s b 1 ENTRIESREAD 99", "OK",
        "XINFO GROUPS s", [Has(name="a", entries_read=3), Has(name="b", entries_read=3)],
    ),
    case(
        "SETID takes an ID, $, - or +",
        *ADDED,
        "XGROUP CREATE s g 0", "OK",
        "XGROUP SETID s g 2", "OK",
        "XINFO GROUPS s", [Has(last_delivered_id="2-0")],
        "XGROUP SETID s g $", "OK",
        "XINFO GROUPS s", [Has(last_delivered_id="3-0")],
        "XGROUP SETID s g -", "OK",
        "XINFO GROUPS s", [Has(last_delivered_id="0-0")],
        "XGROUP SETID s g +", "OK",
        "XINFO GROUPS s", [Has(last_delivered_id="18446744073709551615-18446744073709551615")],
        READ("c"), None,
        "XGROUP SETID s g bad", INVALID_ID,
    ),
    case(
        "SETID makes entries-read unknown unless it is given, and leaves pending entries",
        *ADDED,
        "XGROUP CREATE s g 0", "OK",
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >", ANY,
        "XINFO GROUPS s", [Has(entries_read=2, pending=2)],
        "XGROUP SETID s g 1", "OK",
        "XINFO GROUPS s", [Has(entries_read=None, pending=2, last_delivered_id="1-0")],
        "XGROUP SETID s g 1 ENTRIESREAD 1", "OK",
        "XINFO GROUPS s", [Has(entries_read=1, pending=2)],
        "XGROUP SETID s g 1 ENTRIESREAD -2", NOT_READ,
    ),
    case(
        "CREATECONSUMER returns whether the consumer is new",
        *ADDED,
        "XGROUP CREATE s g 0", "OK",
        "XGROUP CREATECONSUMER s g c", 1,
        "XGROUP CREATECONSUMER s g c", 0,
        "XGROUP CREATECONSUMER s g C", 1,
        "XINFO CONSUMERS s g", [Has(name="C", pending=0), Has(name="c", pending=0)],
    ),
    case(
        "DELCONSUMER returns the number of pending entries and removes them from the group too",
        *ADDED,
        "XGROUP CREATE s g 0", "OK",
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >", ANY,
        READ("d"), ANY,
        "XGROUP DELCONSUMER s g c", 2,
        "XPENDING s g", [1, "3-0", "3-0", [["d", "1"]]],
        "XINFO GROUPS s", [Has(consumers=1, pending=1)],
        "XACK s g 1-0", 0,
        "XGROUP DELCONSUMER s g c", 0,
        "XGROUP DELCONSUMER s g nobody", 0,
        "XGROUP CREATECONSUMER s g c", 1,
        "XREADGROUP GROUP g c STREAMS s 0", [["s", []]],
    ),
    case(
        "DESTROY returns whether the group existed, and leaves other groups and the entries",
        *ADDED,
        "XGROUP CREATE s g 0", "OK",
        "XGROUP CREATE s g2 0", "OK",
        "XGROUP CREATE s a 0", "OK",
        READ("c"), ANY,
        "XREADGROUP GROUP g2 c STREAMS s >", ANY,
        "XGROUP DESTROY s g", 1,
        "XGROUP DESTROY s g", 0,
        "XGROUP DESTROY s nog", 0,
        "XLEN s", 3,
        "XINFO GROUPS s", [Has(name="a", pending=0), Has(name="g2", pending=3, consumers=1)],
        "XGROUP CREATE s g 0", "OK",
        "XPENDING s g", [0, None, None, None],
        "XINFO CONSUMERS s g", [],
    ),
    case(
        "A missing group is named in the refusal",
        *ADDED,
        "XGROUP SETID s nog $", no_group("nog"),
        "XGROUP CREATECONSUMER s nog c", no_group("nog"),
        "XGROUP DELCONSUMER s nog c", no_group("nog"),
        "XINFO CONSUMERS s nog", no_group("nog"),
    ),
    case(
        "A missing key is refused, in XGROUP otherwise than in XINFO",
        "XGROUP SETID s g $", NEEDS_KEY,
        "XGROUP DESTROY s g", NEEDS_KEY,
        "XGROUP CREATECONSUMER s g c", NEEDS_KEY,
        "XGROUP DELCONSUMER s g c", NEEDS_KEY,
        "XINFO STREAM s", NO_KEY,
        "XINFO GROUPS s", NO_KEY,
        "XINFO CONSUMERS s g", NO_KEY,
    ),
    case(
        "Names of groups and consumers are any bytes",
        *ADDED,
        ["XGROUP", "CREATE", "s", b"\x00\xff", "0"], "OK",
        ["XGROUP", "CREATE", "s", "7", "0"], "OK",
        ["XGROUP", "CREATE", "s", "", "0"], "OK",
        ["XREADGROUP", "GROUP", b"\x00\xff", b"\r\n", "COUNT", "1", "STREAMS", "s", ">"],
        [["s", [e("1-0", "f", "v")]]],
        ["XINFO", "CONSUMERS", "s", b"\x00\xff"], [Has(name=b"\r\n", pending=1)],
        "XREADGROUP GROUP 7 -12 COUNT 1 STREAMS s >", [["s", [e("1-0", "f", "v")]]],
        "XINFO GROUPS s", [Has(name=""), Has(name=b"\x00\xff"), Has(name="7")],
        ["XGROUP", "DESTROY", "s", ""], 1,
    ),
    case(
        "XGROUP checks its arguments",
        *ADDED,
        "XGROUP CREATE s g", wrong_arity("xgroup|create"),
        "XGROUP SETID s g", wrong_arity("xgroup|setid"),
        "XGROUP DESTROY s", wrong_arity("xgroup|destroy"),
        "XGROUP DESTROY s g h", wrong_arity("xgroup|destroy"),
        "XGROUP CREATECONSUMER s g", wrong_arity("xgroup|createconsumer"),
        "XGROUP DELCONSUMER s g c d", wrong_arity("xgroup|delconsumer"),
        "XGROUP", wrong_arity("xgroup"),
        "XGROUP FOO s g", err("unknown subcommand 'FOO'. Try XGROUP HELP."),
        "XGROUP CREATE s g 0 FOO", bad("CREATE"),
        "XGROUP CREATE s g 0 ENTRIESREAD", bad("CREATE"),
        "xgroup Setid s g 0 MKSTREAM", bad("Setid"),
        "XGROUP CREATE s g 0", "OK",
        "XGROUP SETID s g 0 ENTRIESREAD", bad("SETID"),
    ),
    case(
        "HELP stands alone",
        "XGROUP HELP extra", wrong_arity("xgroup|help"),
        "XINFO HELP extra", wrong_arity("xinfo|help"),
    ),
)  # fmt: skip
def test_groups(subject: Subject, case: Case) -> None:
    case.play(subject)


USAGE = """XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
CREATE <key> <groupname> <id|$> [option]
CREATECONSUMER <key> <groupname> <consumer>
DELCONSUMER <key> <groupname> <consumer>
DESTROY <key> <groupname>
SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]
HELP"""


@on_each(case("HELP names each subcommand with its arguments, in lines of their own"))
def test_help(subject: Subject, case: Case) -> None:
    case.play(subject)
    lines = [line.decode() for line in subject("xgroup", "help") if not line.startswith(b" ")]
    assert lines == USAGE.splitlines()
    assert b"CONSUMERS <key> <groupname>" in subject("XINFO", "HELP")
