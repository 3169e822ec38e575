"""XREAD without blocking."""

from tests.operations.cases import (
    INVALID_ID,
    NOT_INT,
    SYNTAX,
    Case,
    case,
    e,
    err,
    many,
    newer,
    on_each,
    wrong_arity,
)
from tests.operations.implementations import Subject

MAX = 18446744073709551615
UNBALANCED = err(
    "Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified."
)
NEW_ONLY = err(
    "The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> "
    "option."
)
ONE, TWO, THREE = e("1-0", "f", "v"), e("2-0", "f", "v"), e("3-0", "f", "v")
ADDED = many("XADD s {}-0 f v", [1, 2, 3])


def other_command(option: str) -> object:
    text = f"The {option} option is only supported by XREADGROUP. You called XREAD instead."
    return err(text)


@on_each(
    case(
        "A read returns the entries above the ID",
        *ADDED,
        "XREAD STREAMS s 0", [["s", [ONE, TWO, THREE]]],
        "XREAD STREAMS s 0-0", [["s", [ONE, TWO, THREE]]],
        "XREAD STREAMS s 1", [["s", [TWO, THREE]]],
        "XREAD STREAMS s 1-99", [["s", [TWO, THREE]]],
        f"XREAD STREAMS s 1-{MAX}", [["s", [TWO, THREE]]],
        "XREAD COUNT 1 STREAMS s 1", [["s", [TWO]]],
    ),
    case(
        "Without new entries the reply is null, never an empty array",
        "XREAD STREAMS s 0", None,
        *ADDED,
        "XREAD STREAMS s 3", None,
        "XREAD STREAMS s 99", None,
        f"XREAD STREAMS s {MAX}-{MAX}", None,
        "XREAD STREAMS missing other 0 0", None,
    ),
    case(
        "A stream whose entries were all deleted returns nothing, at any last ID",
        *ADDED,
        "XDEL s 2-0 3-0", 2,
        "XREAD STREAMS s 1", None,
        "XREAD STREAMS s 0", [["s", [ONE]]],
        "XDEL s 1-0", 1,
        "XREAD STREAMS s 0", None,
    ),
    case(
        "Streams without news are left out, the order is the caller's",
        *ADDED,
        "XADD t 1-0 f v", "1-0",
        "XREAD STREAMS t s 0 0", [["t", [ONE]], ["s", [ONE, TWO, THREE]]],
        "XREAD STREAMS t missing s 1 0 2", [["s", [THREE]]],
        "XREAD COUNT 1 STREAMS s t 0 0", [["s", [ONE]], ["t", [ONE]]],
    ),
    case(
        "A key may be named more than once",
        *ADDED,
        "XREAD STREAMS s s 1 2", [["s", [TWO, THREE]], ["s", [THREE]]],
    ),
    case(
        "COUNT 0 and less are no bound",
        *ADDED,
        "XREAD COUNT 0 STREAMS s 1", [["s", [TWO, THREE]]],
        "XREAD COUNT -5 STREAMS s 1", [["s", [TWO, THREE]]],
    ),
    case(
        "$ is the last ID, so there is nothing new",
        *ADDED,
        "XREAD STREAMS s $", None,
        "XREAD STREAMS missing $", None,
        "XREAD STREAMS s s $ 2", [["s", [THREE]]],
    ),
    case(
        "$ after the last entry was deleted is still the last ID",
        *ADDED,
        "XSETID s 9-0", "OK",
        "XREAD STREAMS s $", None,
        "XADD s 9-1 f v", "9-1",
        "XREAD STREAMS s 9-0", [["s", [e("9-1", "f", "v")]]],
    ),
    newer(
        "+ is the last entry, and only that one, for any COUNT",
        *ADDED,
        "XREAD STREAMS s +", [["s", [THREE]]],
        "XREAD COUNT 3 STREAMS s +", [["s", [THREE]]],
        "XREAD STREAMS missing +", None,
        "XADD t 0-1 f v", "0-1",
        "XREAD STREAMS s t + +", [["s", [THREE]], ["t", [e("0-1", "f", "v")]]],
    ),
    newer(
        "+ on an emptied stream is a null",
        *ADDED,
        "XTRIM s MAXLEN 0", 3,
        "XREAD STREAMS s +", None,
    ),
    newer(
        "+ is the last live entry if a later one was deleted",
        *ADDED,
        "XDEL s 3-0", 1,
        "XREAD STREAMS s +", [["s", [TWO]]],
    ),
    case(
        "XREAD checks its arguments",
        *ADDED,
        "XREAD STREAMS s >", NEW_ONLY,
        "XREAD STREAMS s bad", INVALID_ID,
        "XREAD STREAMS s -", INVALID_ID,
        "XREAD COUNT 1 STREAMS s", UNBALANCED,
        "XREAD STREAMS s t 0", UNBALANCED,
        "XREAD COUNT x STREAMS s 0", NOT_INT,
        "XREAD COUNT 5 s 0", SYNTAX,
        "XREAD COUNT 1 STREAMS", SYNTAX,
        "XREAD FOO STREAMS s 0", SYNTAX,
        "XREAD STREAMS s", wrong_arity("xread"),
        "XREAD GROUP g c STREAMS s 0", other_command("GROUP"),
        "XREAD NOACK STREAMS s 0", other_command("NOACK"),
    ),
    case(
        "BLOCK is checked, and does not block where there is news",
        *ADDED,
        "XREAD BLOCK -1 STREAMS s 0", err("timeout is negative"),
        "XREAD BLOCK x STREAMS s 0", err("timeout is not an integer or out of range"),
        "XREAD BLOCK 1.5 STREAMS s 0", err("timeout is not an integer or out of range"),
        "XREAD BLOCK 0 STREAMS s 2", [["s", [THREE]]],
    ),
    newer(
        "CLAIM is for groups",
        *ADDED,
        "XREAD CLAIM 5 STREAMS s 0", other_command("CLAIM"),
    ),
)  # fmt: skip
def test_reads(subject: Subject, case: Case) -> None:
    case.play(subject)
