"""CONFIG."""

import pytest

from tests.commands.conftest import Say

FAILED = "ERR CONFIG SET failed (possibly related to argument '{}') - {}"
BYTES, ENTRIES = "stream-node-max-bytes", "stream-node-max-entries"


def test_settings_are_found_by_patterns_each_once(say: Say) -> None:
    assert say(f"CONFIG GET stream-node-* {BYTES.upper()}") == [
        *(BYTES.encode(), b"4096"),
        *(ENTRIES.encode(), b"100"),
    ]
    assert say("CONFIG GET stream-idmp-duration") == [b"stream-idmp-duration", b"100"]
    assert say("CONFIG GET stream-idmp-maxsize") == [b"stream-idmp-maxsize", b"100"]
    assert say("CONFIG GET maxmemory") == []


def test_a_setting_applies_to_later_commands(say: Say) -> None:
    assert say(f"CONFIG SET {ENTRIES} 2") == b"OK"
    for number in range(1, 6):
        say(f"XADD s {number} f v")
    assert say("XTRIM s MAXLEN ~ 2") == 2
    assert say("CONFIG SET stream-idmp-duration 5 Stream-Idmp-Maxsize 7") == b"OK"
    say("XADD t IDMP p i * f v")
    info = say("XINFO STREAM t")
    assert info[14:18] == [b"idmp-duration", 5, b"idmp-maxsize", 7]


SIZES = {
    **{"0": 0, "5": 5, "5b": 5, "2k": 2000, "2kb": 2048, "3m": 3 * 10**6, "1MB": 1 << 20},
    **{"1g": 10**9, "1gb": 1 << 30},
}


@pytest.mark.parametrize(("text", "number"), SIZES.items())
def test_bytes_may_be_written_with_a_unit(text: str, number: int, say: Say) -> None:
    assert say(f"CONFIG SET {BYTES} {text}") == b"OK"
    assert say(f"CONFIG GET {BYTES}") == [BYTES.encode(), str(number).encode()]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("foo 1", "ERR Unknown option or number of arguments for CONFIG SET - 'foo'"),
        (f"{ENTRIES} 1 foo 2", "ERR Unknown option or number of arguments for CONFIG SET - 'foo'"),
        (f"{ENTRIES} 1 {BYTES}", "ERR syntax error"),
        (f"{ENTRIES} x", FAILED.format(ENTRIES, "argument couldn't be parsed into an integer")),
        (
            f"{ENTRIES} -1",
            FAILED.format(ENTRIES, "argument must be between 0 and 9223372036854775807 inclusive"),
        ),
        (f"{BYTES} x", FAILED.format(BYTES, "argument must be a memory value")),
        (f"{BYTES} -1", FAILED.format(BYTES, "argument must be a memory value")),
        (f"{ENTRIES} 7 {BYTES} x", FAILED.format(BYTES, "argument must be a memory value")),
        (f"{ENTRIES} 7 {ENTRIES} 8", FAILED.format(ENTRIES, "duplicate parameter")),
        (
            "stream-idmp-duration 0",
            FAILED.format("stream-idmp-duration", "argument must be between 1 and 86400 inclusive"),
        ),
        (
            "stream-idmp-maxsize 10001",
            FAILED.format("stream-idmp-maxsize", "argument must be between 1 and 10000 inclusive"),
        ),
    ],
)
def test_an_error_changes_nothing(arguments: str, error: str, shared_say: Say) -> None:
    before = shared_say("CONFIG GET *")
    assert shared_say(f"CONFIG SET {arguments}") == error
    assert shared_say("CONFIG GET *") == before


@pytest.mark.parametrize("container", ["CONFIG", "XGROUP", "XINFO"])
def test_help_names_every_subcommand(container: str, shared_say: Say) -> None:
    lines = [line.decode() for line in shared_say(f"{container} HELP")]
    assert lines[0].startswith(f"{container} <subcommand> ")
    found = {line.split()[0] for line in lines[1:] if not line.startswith(" ")}
    expected = {
        "CONFIG": {"GET", "SET", "HELP"},
        "XGROUP": {"CREATE", "CREATECONSUMER", "DELCONSUMER", "DESTROY", "SETID", "HELP"},
        "XINFO": {"CONSUMERS", "GROUPS", "STREAM", "HELP"},
    }
    assert found == expected[container]
