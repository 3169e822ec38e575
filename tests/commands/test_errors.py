"""Every error text of the commands, and which of two errors is returned."""

import pytest

from tests.commands.conftest import Say

ID = "ERR Invalid stream ID specified as stream command argument"
INTEGER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"
NO_KEY = "ERR no such key"
SMALLER = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
ZERO = "ERR The ID specified in XADD must be greater than 0-0"
XADD = "ERR wrong number of arguments for 'xadd' command"
BOTH = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
NO_TILDE = "ERR syntax error, LIMIT cannot be used without the special ~ option"
NO_STRATEGY = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
ONCE = "ERR syntax error, IDMP/IDMPAUTO"
POSITIVE_IDS = "ERR Number of IDs must be a positive integer"
MATCH_IDS = "ERR The `numids` parameter must match the number of arguments"
KEY_REQUIRED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)
UNBALANCED = "list of streams: for each stream key"
ONLY_GROUP = "option is only supported by XREADGROUP. You called XREAD instead."
MEANINGLESS = (
    "ERR The {0} ID is meaningless in the context of XREADGROUP: you want to read the history of "
    "this consumer by specifying a proper ID, or use the > ID to get new messages. The {0} ID "
    "would just return an empty result set."
)


def no_group(key: str, group: str, where: str = "") -> str:
    return f"NOGROUP No such key '{key}' or consumer group '{group}'{where}"


def no_group_of(key: str, group: str) -> str:
    return f"NOGROUP No such consumer group '{group}' for key name '{key}'"


def bad_subcommand(container: str, name: str) -> str:
    return (
        f"ERR unknown subcommand or wrong number of arguments for '{name}'. Try {container} HELP."
    )


IN_XREADGROUP = " in XREADGROUP with GROUP option"

APPENDING = [
    ("XADD s abc f v", ID),
    ("XADD s 1-x f v", ID),
    ("XADD s 1-2-3 f v", ID),
    ("XADD s -1 f v", ID),
    ("XADD s 1-2-* f v", ID),
    ("XADD s x-* f v", ID),
    ("XADD s 18446744073709551616 f v", ID),
    ("XADD s + f v", ID),
    ("XADD s - f v", ID),
    ("XADD s $ f v", ID),
    ("XADD s > f v", ID),
    ("XADD s 3-1 f v", SMALLER),
    ("XADD s 1-* f v", SMALLER),
    ("XADD s 0-0 f v", ZERO),
    ("XADD new 0-0 f v", ZERO),
    ("XADD s 0-0 f", XADD),
    ("XADD s abc f v w", ID),
    ("XADD s * f v w", XADD),
    ("XADD s 9-9 f v w", XADD),
    ("XADD s MAXLEN 3 *", XADD),
    ("XADD s MAXLEN ~ 3 *", XADD),
    ("XADD s NOMKSTREAM KEEPREF NOMKSTREAM", XADD),
    ("XADD s MAXLEN x * f v", INTEGER),
    ("XADD s MAXLEN 07 * f v", INTEGER),
    ("XADD s MAXLEN -1 * f v", "ERR The MAXLEN argument must be >= 0."),
    ("XADD s MINID x * f v", ID),
    ("XADD s MINID - * f v", ID),
    ("XADD s MAXLEN 1 MINID 1 * f v", BOTH),
    ("XADD s MAXLEN 1 MAXLEN 1 * f v", BOTH),
    ("XADD s MAXLEN ~ 1 LIMIT x * f v", INTEGER),
    ("XADD s MAXLEN ~ 1 LIMIT -1 * f v", "ERR The LIMIT argument must be >= 0."),
    ("XADD s MAXLEN 1 LIMIT 1 * f v", NO_TILDE),
    ("XADD s MAXLEN = 1 LIMIT 0 * f v", NO_TILDE),
    ("XADD s LIMIT 1 * f v", NO_STRATEGY),
    ("XADD s LIMIT 0 * f v", NO_TILDE),
    ("XADD s LIMIT 1 * f", NO_STRATEGY),
    ("XADD s IDMP p i IDMP p j * f v", f"{ONCE} specified multiple times"),
    ("XADD s IDMPAUTO p IDMP p j * f v", f"{ONCE} specified multiple times"),
    ("XADD s IDMP p i 9-* f v", f"{ONCE} can be used only with auto-generated IDs"),
    ("XADD s IDMPAUTO p 9-9 f v", f"{ONCE} can be used only with auto-generated IDs"),
    ("XADD s IDMPAUTO p x f v", ID),
    ("XADD s KEEPREF ACKED * f v", ID),
    ("XTRIM s MAXLEN x", INTEGER),
    ("XTRIM s MAXLEN -1", "ERR The MAXLEN argument must be >= 0."),
    ("XTRIM s MAXLEN ~", INTEGER),
    ("XTRIM s MINID x", ID),
    ("XTRIM s MAXLEN 1 FOO", SYNTAX),
    ("XTRIM s NOMKSTREAM MAXLEN 1", SYNTAX),
    ("XTRIM s MAXLEN 1 MINID 1", BOTH),
    ("XTRIM s MAXLEN 1 LIMIT 1", NO_TILDE),
    ("XTRIM s MAXLEN ~ 1 LIMIT -1", "ERR The LIMIT argument must be >= 0."),
    ("XTRIM s LIMIT 1", NO_STRATEGY),
    ("XTRIM s LIMIT 0", "ERR syntax error, XTRIM must be called with a trimming strategy"),
    ("XTRIM s KEEPREF LIMIT 0", "ERR syntax error, XTRIM must be called with a trimming strategy"),
    ("XTRIM s KEEPREF ACKED MAXLEN 1", SYNTAX),
    ("XTRIM nokey MAXLEN x", INTEGER),
]
DELETING = [
    ("XDEL s bad", ID),
    ("XDEL s 1 (2", ID),
    ("XDELEX s IDS x 1", POSITIVE_IDS),
    ("XDELEX s IDS 0 1", POSITIVE_IDS),
    ("XDELEX s IDS -1 1", POSITIVE_IDS),
    ("XDELEX s IDS 2 1", MATCH_IDS),
    ("XDELEX s IDS 1 1 2", SYNTAX),
    ("XDELEX s IDS 1 bad", ID),
    ("XDELEX s ACKED KEEPREF IDS", SYNTAX),
    ("XDELEX s ACKED KEEPREF IDS 1 1", SYNTAX),
    ("XDELEX s FOO IDS 1 1", SYNTAX),
    ("XACKDEL s g IDS x 1", POSITIVE_IDS),
    ("XACKDEL s g IDS 2 1", MATCH_IDS),
    ("XACKDEL s g IDS 1 bad", ID),
    ("XACKDEL s g ACKED FOO BAR", SYNTAX),
    ("XACKDEL nokey g FOO IDS 1 1", SYNTAX),
    ("XACK s g bad", ID),
    ("XACK s g 2 bad", ID),
    ("XNACK nokey g FOO IDS 1 1", no_group("nokey", "g")),
    ("XNACK s nog FAIL IDS 1 1", no_group("s", "nog")),
    ("XNACK s g FOO IDS 1 1", "ERR mode must be SILENT, FAIL, or FATAL"),
    ("XNACK s g FAIL FORCE 1 1", "ERR syntax error, expected IDS keyword"),
    ("XNACK s g FAIL IDS 0 1", "ERR numids must be a positive integer"),
    ("XNACK s g FAIL IDS x 1", "ERR numids must be a positive integer"),
    ("XNACK s g FAIL IDS 2 1", "ERR number of IDs doesn't match numids"),
    ("XNACK s g FAIL IDS 1 bad", ID),
    ("XNACK s g FAIL IDS 1 1 2", "ERR Unrecognized XNACK option '2'"),
    ("XNACK s g FAIL IDS 1 1 Foo", "ERR Unrecognized XNACK option 'Foo'"),
    ("XNACK s g FAIL IDS 1 1 RETRYCOUNT", "ERR Unrecognized XNACK option 'RETRYCOUNT'"),
    ("XNACK s g FAIL IDS 1 1 RETRYCOUNT -1", "ERR Invalid RETRYCOUNT value, must be >= 0"),
    ("XNACK s g FAIL IDS 1 1 RETRYCOUNT x", INTEGER),
]
READING = [
    ("XRANGE s bad +", ID),
    ("XRANGE s - bad", ID),
    ("XRANGE s ( +", ID),
    ("XRANGE s (- +", ID),
    ("XRANGE s - (+", ID),
    ("XRANGE s $ +", ID),
    (
        "XRANGE s (18446744073709551615-18446744073709551615 +",
        "ERR invalid start ID for the interval",
    ),
    ("XRANGE s - (0-0", "ERR invalid end ID for the interval"),
    (
        "XRANGE s (18446744073709551615-18446744073709551615 bad",
        "ERR invalid start ID for the interval",
    ),
    ("XRANGE s - + COUNT", SYNTAX),
    ("XRANGE s - + FOO 1", SYNTAX),
    ("XRANGE s - + COUNT x", INTEGER),
    ("XRANGE s - + COUNT 1 FOO", SYNTAX),
    ("XRANGE nokey bad +", ID),
    ("XRANGE nokey - + COUNT x", INTEGER),
    ("XREVRANGE s bad -", ID),
    ("XREVRANGE s (0-0 bad", ID),
    ("XREVRANGE s (0-0 -", "ERR invalid end ID for the interval"),
    ("XREAD STREAMS s", "ERR wrong number of arguments for 'xread' command"),
    ("XREAD COUNT 1 STREAMS", SYNTAX),
    ("XREAD COUNT x STREAMS s 0", INTEGER),
    ("XREAD FOO 1 STREAMS s 0", SYNTAX),
    ("XREAD COUNT 1 COUNT 1", SYNTAX),
    ("XREAD BLOCK x STREAMS s 0", "ERR timeout is not an integer or out of range"),
    ("XREAD BLOCK 1.5 STREAMS s 0", "ERR timeout is not an integer or out of range"),
    ("XREAD BLOCK -1 STREAMS s 0", "ERR timeout is negative"),
    ("XREAD BLOCK 9223372036854775807 STREAMS s 0", "ERR timeout is out of range"),
    ("XREAD MAXCOUNT 0 STREAMS s 0", "ERR MAXCOUNT must be a positive integer"),
    ("XREAD MAXCOUNT x STREAMS s 0", INTEGER),
    ("XREAD MAXSIZE 9223372036854775808 STREAMS s 0", INTEGER),
    ("XREAD MAXSIZE 0 STREAMS s 0", "ERR MAXSIZE must be a positive integer"),
    (
        "XREAD COUNT 3 MAXCOUNT 2 STREAMS s 0",
        "ERR MAXCOUNT must be greater than or equal to COUNT",
    ),
    (
        "XREAD COUNT 3 MAXCOUNT 2 STREAMS s t 0",
        f"ERR Unbalanced 'xread' {UNBALANCED} an ID, '+', or '$' must be specified.",
    ),
    (
        "XREAD COUNT 1 STREAMS s",
        f"ERR Unbalanced 'xread' {UNBALANCED} an ID, '+', or '$' must be specified.",
    ),
    ("XREAD STREAMS s bad", ID),
    ("XREAD STREAMS s -", ID),
    ("XREAD STREAMS s (1", ID),
    (
        "XREAD STREAMS s >",
        "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
        "<consumer> option.",
    ),
    ("XREAD STREAMS s t bad >", ID),
    ("XREAD GROUP g c STREAMS s 0", f"ERR The GROUP {ONLY_GROUP}"),
    ("XREAD NOACK STREAMS s 0", f"ERR The NOACK {ONLY_GROUP}"),
    ("XREAD CLAIM 1 STREAMS s 0", f"ERR The CLAIM {ONLY_GROUP}"),
    ("XREAD GROUP g STREAMS", f"ERR The GROUP {ONLY_GROUP}"),
    ("XREAD CLAIM 1 GROUP g", f"ERR The CLAIM {ONLY_GROUP}"),
    ("XREAD COUNT 1 GROUP g", SYNTAX),
    ("XREADGROUP COUNT 1 NOACK STREAMS s >", "ERR Missing GROUP option for XREADGROUP"),
    (
        "XREADGROUP COUNT 1 NOACK NOACK STREAMS s",
        f"ERR Unbalanced 'xreadgroup' {UNBALANCED} an ID or '>' must be specified.",
    ),
    ("XREADGROUP GROUP g c NOACK NOACK NOACK", SYNTAX),
    (
        "XREADGROUP GROUP g c CLAIM x STREAMS s >",
        "ERR min-idle-time is not an integer or out of range",
    ),
    ("XREADGROUP GROUP g c CLAIM -1 STREAMS s >", "ERR min-idle-time must be a positive integer"),
    ("XREADGROUP GROUP g c STREAMS s $", MEANINGLESS.format("$")),
    ("XREADGROUP GROUP g c STREAMS s +", MEANINGLESS.format("+")),
    ("XREADGROUP GROUP g c STREAMS s bad", ID),
    ("XREADGROUP GROUP nog c STREAMS s >", no_group("s", "nog", IN_XREADGROUP)),
    ("XREADGROUP GROUP nog c STREAMS s $", no_group("s", "nog", IN_XREADGROUP)),
    ("XREADGROUP GROUP nog c STREAMS s bad", no_group("s", "nog", IN_XREADGROUP)),
    ("XREADGROUP GROUP g c STREAMS nokey 0", no_group("nokey", "g", IN_XREADGROUP)),
    ("XREADGROUP GROUP g c STREAMS nokey s > bad", no_group("nokey", "g", IN_XREADGROUP)),
    ("XREADGROUP GROUP g c STREAMS s nokey bad >", ID),
    ("XREADGROUP GROUP g c BLOCK 100000 STREAMS nokey >", no_group("nokey", "g", IN_XREADGROUP)),
]
GROUPS = [
    ("XGROUP CREATE nokey g $", KEY_REQUIRED),
    ("XGROUP CREATE nokey g bad", KEY_REQUIRED),
    ("XGROUP CREATE nokey g bad MKSTREAM", ID),
    ("XGROUP CREATE s g 0", "BUSYGROUP Consumer Group name already exists"),
    ("XGROUP CREATE s g bad", ID),
    ("XGROUP CREATE s h -", ID),
    ("XGROUP CREATE s h +", ID),
    ("XGROUP CREATE s h 0 FOO", bad_subcommand("XGROUP", "CREATE")),
    ("XGROUP CREATE s h 0 ENTRIESREAD", bad_subcommand("XGROUP", "CREATE")),
    (
        "XGROUP create s h 0 MKSTREAM MKSTREAM MKSTREAM MKSTREAM",
        bad_subcommand("XGROUP", "create"),
    ),
    ("XGROUP CREATE s h 0 ENTRIESREAD x", INTEGER),
    ("XGROUP CREATE s h 0 ENTRIESREAD -2", "ERR value for ENTRIESREAD must be positive or -1"),
    ("XGROUP CREATE nokey h 0 ENTRIESREAD -2", "ERR value for ENTRIESREAD must be positive or -1"),
    ("XGROUP SETID nokey g 0", KEY_REQUIRED),
    ("XGROUP SETID s nog 0", no_group_of("s", "nog")),
    ("XGROUP SETID s nog bad", no_group_of("s", "nog")),
    ("XGROUP SETID s g bad", ID),
    ("XGROUP SETID s g 0 MKSTREAM", bad_subcommand("XGROUP", "SETID")),
    ("XGROUP SETID s g 0 ENTRIESREAD 1 ENTRIESREAD 1", bad_subcommand("XGROUP", "SETID")),
    ("XGROUP DESTROY nokey g", KEY_REQUIRED),
    ("XGROUP CREATECONSUMER nokey g c", KEY_REQUIRED),
    ("XGROUP CREATECONSUMER s nog c", no_group_of("s", "nog")),
    ("XGROUP DELCONSUMER nokey g c", KEY_REQUIRED),
    ("XGROUP DELCONSUMER s nog c", no_group_of("s", "nog")),
    ("XINFO STREAM nokey", NO_KEY),
    ("XINFO STREAM nokey FOO", NO_KEY),
    ("XINFO STREAM s FOO", bad_subcommand("XINFO", "STREAM")),
    ("XINFO STREAM s FULL COUNT", bad_subcommand("XINFO", "STREAM")),
    ("XINFO STREAM s FULL FOO 1", bad_subcommand("XINFO", "STREAM")),
    ("XINFO STREAM s FULL COUNT x", INTEGER),
    ("XINFO GROUPS nokey", NO_KEY),
    ("XINFO CONSUMERS nokey g", NO_KEY),
    ("XINFO CONSUMERS s nog", no_group_of("s", "nog")),
]
CLAIMING = [
    ("XPENDING nokey g", no_group("nokey", "g")),
    ("XPENDING s nog", no_group("s", "nog")),
    ("XPENDING s g -", SYNTAX),
    ("XPENDING s g - +", SYNTAX),
    ("XPENDING s g IDLE 1 - +", SYNTAX),
    ("XPENDING s g IDLE 1 - + 1 c d", SYNTAX),
    ("XPENDING s g IDLE x - + 1", INTEGER),
    ("XPENDING s g IDLE 1.5 - + 1", INTEGER),
    ("XPENDING s g bad + x", INTEGER),
    ("XPENDING s g bad + 1", ID),
    ("XPENDING s g - bad 1", ID),
    ("XPENDING s g - (0-0 1", "ERR invalid end ID for the interval"),
    ("XPENDING nokey g - + x", INTEGER),
    ("XPENDING nokey g - + 1", no_group("nokey", "g")),
    ("XCLAIM nokey g c x 1", no_group("nokey", "g")),
    ("XCLAIM s nog c 0 1", no_group("s", "nog")),
    ("XCLAIM s g c x 1", "ERR Invalid min-idle-time argument for XCLAIM"),
    ("XCLAIM s g c 0 bad", "ERR Unrecognized XCLAIM option 'bad'"),
    ("XCLAIM s g c 0 1 IDLE", "ERR Unrecognized XCLAIM option 'IDLE'"),
    ("XCLAIM s g c 0 1 IDLE x", "ERR Invalid IDLE option argument for XCLAIM"),
    ("XCLAIM s g c 0 1 TIME x", "ERR Invalid TIME option argument for XCLAIM"),
    ("XCLAIM s g c 0 1 RETRYCOUNT x", "ERR Invalid RETRYCOUNT option argument for XCLAIM"),
    ("XCLAIM s g c 0 1 LASTID bad", ID),
    ("XCLAIM s g c 0 1 FORCE 2", "ERR Unrecognized XCLAIM option '2'"),
    ("XAUTOCLAIM nokey g c x 0", "ERR Invalid min-idle-time argument for XAUTOCLAIM"),
    ("XAUTOCLAIM s g c x bad", "ERR Invalid min-idle-time argument for XAUTOCLAIM"),
    ("XAUTOCLAIM nokey g c 0 bad", ID),
    (
        "XAUTOCLAIM s g c 0 (18446744073709551615-18446744073709551615",
        "ERR invalid start ID for the interval",
    ),
    ("XAUTOCLAIM nokey g c 0 0 COUNT 0", "ERR COUNT must be > 0"),
    ("XAUTOCLAIM s g c 0 0 COUNT x", "ERR COUNT must be > 0"),
    ("XAUTOCLAIM s g c 0 0 COUNT 8070450532247928833", "ERR COUNT must be > 0"),
    ("XAUTOCLAIM s g c 0 0 COUNT", SYNTAX),
    ("XAUTOCLAIM s g c 0 0 FOO", SYNTAX),
    ("XAUTOCLAIM nokey g c 0 0", no_group("nokey", "g")),
    ("XAUTOCLAIM s nog c 0 0", no_group("s", "nog")),
]
SETTING = [
    ("XSETID nokey 1-1", NO_KEY),
    ("XSETID nokey 1-1 0", SYNTAX),
    ("XSETID nokey bad", ID),
    ("XSETID s bad", ID),
    ("XSETID s 9 ENTRIESADDED", SYNTAX),
    ("XSETID s 9 ENTRIESADDED x", INTEGER),
    ("XSETID s 9 ENTRIESADDED -1", "ERR entries_added must be positive"),
    ("XSETID s 9 MAXDELETEDID bad", ID),
    (
        "XSETID nokey 9 MAXDELETEDID 10",
        "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
    ),
    ("XSETID s 2", "ERR The ID specified in XSETID is smaller than the target stream top item"),
    (
        "XSETID s 9 ENTRIESADDED 1",
        "ERR The entries_added specified in XSETID is smaller than the target stream length",
    ),
    (
        "XSETID dead 3",
        "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
    ),
    ("XCFGSET s", "ERR At least one parameter must be specified"),
    ("XCFGSET nokey IDMP-MAXSIZE 5", NO_KEY),
    ("XCFGSET nokey IDMP-MAXSIZE x", NO_KEY),
    ("XCFGSET s IDMP-MAXSIZE x", INTEGER),
    ("XCFGSET s IDMP-DURATION", SYNTAX),
    ("XCFGSET s FOO 1", SYNTAX),
    ("XCFGSET s IDMP-DURATION 0", "ERR IDMP-DURATION must be between 1 and 86400 seconds"),
    ("XCFGSET s IDMP-DURATION 86401", "ERR IDMP-DURATION must be between 1 and 86400 seconds"),
    ("XCFGSET s IDMP-MAXSIZE 0", "ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
    ("XCFGSET s IDMP-MAXSIZE 10001", "ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
    ("XCFGSET s IDMP-MAXSIZE 5 idmp-maxsize 5", "ERR IDMP-MAXSIZE specified multiple times"),
    ("XIDMPRECORD nokey p i 1", NO_KEY),
    ("XIDMPRECORD nokey p i bad", ID),
    ("XIDMPRECORD s p i 99", "ERR No such message in stream"),
    (
        "XIDMPRECORD s producer iid 2-0",
        "ERR IID already exists for this producer with a different stream ID",
    ),
]


@pytest.fixture(scope="module")
def prepared(shared_say: Say) -> Say:
    """Streams ``s``, with a group ``g``, and ``dead``, whose only entry was deleted."""
    for number in (1, 2, 3):
        shared_say(f"XADD s {number}-0 f v")
    shared_say("XADD s 3-5 f v")
    shared_say("XGROUP CREATE s g 0")
    shared_say("XADD dead 5-0 f v")
    shared_say("XDEL dead 5-0")
    shared_say("XIDMPRECORD s producer iid 1-0")
    return shared_say


@pytest.mark.parametrize(
    ("line", "error"),
    [*APPENDING, *DELETING, *READING, *GROUPS, *CLAIMING, *SETTING],
)
def test_a_faulty_request_gets_the_error_of_redis(line: str, error: str, prepared: Say) -> None:
    before = prepared("XINFO STREAM s FULL")
    assert prepared(line) == error
    assert prepared("XINFO STREAM s FULL") == before, "a refused request changed something"
    assert prepared("EXISTS new nokey") == 0, "a refused request made a key"


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (("XADD", "s", "IDMP", "", "i", "*", "f", "v"), "IDMP requires a non-empty producer ID"),
        (("XADD", "s", "IDMP", "p", "", "*", "f", "v"), "IDMP requires a non-empty idempotent ID"),
        (("XADD", "s", "idmpauto", "", "*", "f", "v"), "IDMPAUTO requires a non-empty producer ID"),
    ],
)
def test_idempotency_needs_names(argv: tuple[str, ...], error: str, say: Say) -> None:
    assert say(*argv) == f"ERR syntax error, {error}"


def test_a_record_of_idempotency_needs_names(say: Say) -> None:
    assert say("XIDMPRECORD", "nokey", "", "i", "1") == "ERR producer ID must be non-empty"
    assert say("XIDMPRECORD", "nokey", "p", "", "1") == "ERR idempotent ID must be non-empty"


def test_ids_are_not_checked_for_a_missing_key_or_group(prepared: Say) -> None:
    assert prepared("XACK nokey g bad") == 0
    assert prepared("XACK s nog bad") == 0
    assert prepared("XDEL nokey bad") == 0
    assert prepared("XDELEX nokey IDS 1 bad") == [-1]
    assert prepared("XACKDEL s nog IDS 2 bad bad") == [-1, -1]


def test_the_greatest_id_leaves_no_room_for_another(say: Say) -> None:
    top = "18446744073709551615-18446744073709551615"
    exhausted = "ERR The stream has exhausted the last possible ID, unable to add more items"
    assert say(f"XADD s {top} f v") == top.encode()
    assert say("XADD s * f v") == exhausted
    assert say("XADD s 5-5 f v") == exhausted
    assert say("XADD s 18446744073709551615-* f v") == exhausted


def test_an_entry_above_the_limit_is_refused(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstream.layout.values.ENTRY_BYTES_MAX", 100)
    assert say("XADD", "s", "*", "f", "v" * 200) == "ERR Elements are too large to be stored"
    assert say("EXISTS s") == 0


def test_names_in_an_error_are_the_bytes_that_were_sent(say: Say) -> None:
    assert say("XCLAIM", b"k\xff\xfe", "gr\u00fc\u00df", "c", "0", "1") == (
        b"NOGROUP No such key 'k\xff\xfe' or consumer group 'gr\xc3\xbc\xc3\x9f'"
    ).decode("utf-8", "surrogateescape")


def test_an_error_is_always_one_line(say: Say) -> None:
    assert say("XCLAIM", "a\r\nb", "g\n", "c", "0", "1") == (
        "NOGROUP No such key 'a  b' or consumer group 'g '"
    )
