"""The table of commands: names, numbers of words, keys."""

import pytest

from kvstream.commands.command import Command, Flag, every
from kvstream.commands.table import COMMANDS, find
from kvstream.errors import RequestError
from tests.commands.conftest import Say, words

ALL = every(COMMANDS)


LONG = [row for row in ALL if abs(row.arity) > len(row.name.split("|"))]
"""Commands whose name alone is not a valid number of words."""


def name_of(command: Command) -> str:
    return command.name


def request(command: Command, length: int) -> str:
    """Return a request of the command with this number of words in total."""
    name = command.name.upper().split("|")
    return " ".join(name + ["x"] * (length - len(name)))


@pytest.mark.parametrize("command", LONG, ids=name_of)
def test_too_few_words_are_refused_with_the_name_of_the_command(
    command: Command, shared_say: Say
) -> None:
    refusal = f"ERR wrong number of arguments for '{command.name}' command"
    assert shared_say(request(command, abs(command.arity) - 1)) == refusal


@pytest.mark.parametrize("command", [row for row in ALL if row.arity > 0], ids=name_of)
def test_too_many_words_are_refused_if_the_number_is_fixed(
    command: Command, shared_say: Say
) -> None:
    refusal = f"ERR wrong number of arguments for '{command.name}' command"
    assert shared_say(request(command, command.arity + 1)) == refusal


@pytest.mark.parametrize("command", ALL, ids=name_of)
def test_the_least_number_of_words_gets_past_the_table(command: Command) -> None:
    assert find(words(request(command, abs(command.arity)))) is command


@pytest.mark.parametrize("container", ["XGROUP", "XINFO"])
def test_a_container_alone_is_refused_by_its_own_name(container: str, shared_say: Say) -> None:
    assert (
        shared_say(container) == f"ERR wrong number of arguments for '{container.lower()}' command"
    )


def test_names_are_taken_in_any_case(shared_say: Say) -> None:
    assert shared_say("xLeN s") == 0
    assert shared_say("XLEN s") == 0
    assert shared_say("xInfo gRoups s") == "ERR no such key"


def test_an_unknown_command_is_quoted_with_the_beginning_of_its_arguments(shared_say: Say) -> None:
    assert shared_say("FOO a b") == "ERR unknown command 'FOO', with args beginning with: 'a' 'b' "
    assert shared_say("foo") == "ERR unknown command 'foo'"  # as since Redis 8.6


def test_an_unknown_command_is_quoted_up_to_128_bytes(shared_say: Say) -> None:
    refusal = shared_say("x" * 200, "y" * 100, "z" * 100, "w")
    cut = "z" * (128 - 103)
    assert refusal == (
        f"ERR unknown command '{'x' * 128}', with args beginning with: '{'y' * 100}' '{cut}' "
    )


def test_an_unknown_subcommand_points_at_help(shared_say: Say) -> None:
    assert shared_say("XGROUP FOO a b") == "ERR unknown subcommand 'FOO'. Try XGROUP HELP."
    assert (
        shared_say("xinfo", "y" * 200) == f"ERR unknown subcommand '{'y' * 128}'. Try XINFO HELP."
    )


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("XADD s * f v", "s"),
        ("DEL a b c", "a b c"),
        ("RENAME a b", "a b"),
        ("XGROUP CREATE s g 0", "s"),
        ("XREAD COUNT 1 STREAMS a b 0 0", "a b"),
        ("XREADGROUP GROUP g c streams a >", "a"),
        ("XREAD COUNT 1 STREAMS", ""),
        ("XREAD COUNT 1 FOO a", ""),
        ("PING", ""),
    ],
)
def test_the_table_has_the_keys_of_a_request(line: str, keys: str) -> None:
    argv = words(line)
    assert find(argv).keys_of(argv) == keys.encode().split()


def test_every_command_has_a_summary_and_is_read_only_or_writes_or_touches_no_key() -> None:
    for command in ALL:
        assert command.summary.endswith("."), command.name
        if command.keys is not None:
            assert (Flag.WRITE in command.flags) is not (Flag.READONLY in command.flags), (
                command.name
            )


def test_find_raises_the_error_that_the_dispatcher_returns() -> None:
    with pytest.raises(RequestError, match="unknown command"):
        find([b"NOPE"])
    assert set(COMMANDS) == {row.name.split("|")[0].encode() for row in ALL}


@pytest.mark.parametrize("container", ["XGROUP", "XINFO"])
def test_help_names_every_subcommand(container: str, shared_say: Say) -> None:
    lines = [line.decode() for line in shared_say(f"{container} HELP")]
    assert lines[0].startswith(f"{container} <subcommand> ")
    found = {line.split()[0] for line in lines[1:] if not line.startswith(" ")}
    expected = {
        "XGROUP": {"CREATE", "CREATECONSUMER", "DELCONSUMER", "DESTROY", "SETID", "HELP"},
        "XINFO": {"CONSUMERS", "GROUPS", "STREAM", "HELP"},
    }
    assert found == expected[container]
