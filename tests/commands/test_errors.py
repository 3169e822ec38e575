"""Error texts of commands and options since Redis 8.4; test_as_redis.py has those before."""

import pytest

from tests.commands.conftest import Say

ID = "ERR Invalid stream ID specified as stream command argument"
INTEGER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"
NO_KEY = "ERR no such key"
XADD = "ERR wrong number of arguments for 'xadd' command"
ONCE = "ERR syntax error, IDMP/IDMPAUTO"
UNBALANCED = "list of streams: for each stream key"
ONLY_GROUP = "option is only supported by XREADGROUP. You called XREAD instead."


def no_group(key: str, group: str, where: str = "") -> str:
    return f"NOGROUP No such key '{key}' or consumer group '{group}'{where}"


FAULTY = [
    ("XADD s IDMP p i IDMP p j * f v", f"{ONCE} specified multiple times"),
    ("XADD s IDMPAUTO p IDMP p j * f v", f"{ONCE} specified multiple times"),
    ("XADD s IDMP p i 9-* f v", f"{ONCE} can be used only with auto-generated IDs"),
    ("XADD s IDMPAUTO p 9-9 f v", f"{ONCE} can be used only with auto-generated IDs"),
    ("XADD s IDMPAUTO p x f v", ID),
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
    ("XREAD CLAIM 1 STREAMS s 0", f"ERR The CLAIM {ONLY_GROUP}"),
    ("XREAD CLAIM 1 GROUP g", f"ERR The CLAIM {ONLY_GROUP}"),
    (
        "XREADGROUP GROUP g c CLAIM x STREAMS s >",
        "ERR min-idle-time is not an integer or out of range",
    ),
    ("XREADGROUP GROUP g c CLAIM -1 STREAMS s >", "ERR min-idle-time must be a positive integer"),
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
    FAULTY,
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
