"""The commands beside the pages: copied into a shell they do what the page says."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import kvstream
from kvstream import Queue, Store
from kvstream.cli.app import main
from kvstream.console import User, app
from kvstream.console.actions.table import ACTIONS
from kvstream.console.command_lines import line, program_of, word
from kvstream.console.names import segment_of
from tests.console.browser import Browser, Page
from tests.console.conftest import HOSTILE, Open
from tests.server.conftest import Served, serve, served

__all__ = ["serve", "served"]
NAMES = (*HOSTILE, b"", b"-x", b"--all", b"it's $HOME `x`; #", b"a\nb", b"\x1b[31m", b"\\")


def words_in(command: str) -> list[list[bytes]]:
    """Return the arguments of each kvstream in a command line, as bash reads it."""
    script = f"kvstream() {{ printf '%s\\0' \"$@\" $'\\n'; }}; {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stderr == b"", command
    return [each.split(b"\0")[:-1] for each in done.stdout.split(b"\n\0")[:-1]]


def parsed(words: list[bytes]) -> dict[str, Any]:
    """Return the parameters of the command that the program takes the words for."""
    given = [each.decode("utf-8", "surrogateescape") for each in words]
    context = main.make_context("kvstream", given)
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert command is not None, given
        context = command.make_context(name, rest, parent=context)
    return context.params


def command_on(page: Page) -> str:
    rest = page.text.partition(" same as ")[2]
    return rest.partition(" It is written")[0].partition(" kvstream 0")[0]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_one_word(name: bytes) -> None:
    if b"\0" in name:
        assert "\\x00" in word(name)  # which no shell can give to a program
        return
    command = f"kvstream {line('queue put', ('--unique', name), name, b'a=1')}"
    (found,) = words_in(command)
    assert found[:4] == [b"queue", b"put", b"--unique", name]
    assert found[-2:] == [name, b"a=1"]
    assert command.isprintable()


def test_the_place_of_a_command_has_no_password(tmp_path: Path) -> None:
    assert program_of("my data", 0) == f"kvstream --store '{Path.cwd()}/my data'"
    assert program_of("redis://h:1/2", 2) == "kvstream --url redis://h:1/2"
    assert program_of("redis://h:1", 3) == "kvstream --url redis://h:1 --db 3"
    assert program_of("redis://...", 0) == "kvstream"


def test_the_program_takes_the_command_of_each_action(opened: Open, full: Store) -> None:
    browser = opened()
    letters = [each.id for each in full.stream("emails:dead").range()]
    ids = [each.id for each in full.stream("orders").group("billing").pending_range(count=7)]
    chosen = "".join(f"&id={each}" for each in ids)
    paths = {
        "redrive": "stream=emails:dead" + "".join(f"&id={each}" for each in letters),
        "delete-letters": "stream=emails:dead" + "".join(f"&id={each}" for each in letters),
        "put": f"stream=orders&id={ids[0]}",
        "seek": "stream=orders&group=billing&to=-",
        "trim": "stream=orders&minid=now-1h",
        "retention": "stream=orders&max_age=7d&max_length=9&max_bytes=9&latest=-x&acked=1&force=1",
        "add": "stream=orders",
        "delete-consumer": "stream=orders&group=billing&consumer=b1",
        "run-schedule": "stream=emails&schedule=nightly",
        "delete-schedule": "stream=emails&schedule=nightly",
    }
    paths |= dict.fromkeys(("ack", "nack", "claim"), f"stream=orders&group=billing{chosen}")
    paths |= dict.fromkeys(("pause", "resume", "policy", "purge"), "queue=emails")
    paths |= dict.fromkeys(("delete-entries", "delete-stream"), f"stream=orders{chosen}")
    paths |= dict.fromkeys(("cancel-redrive",), "stream=emails:dead")
    paths |= dict.fromkeys(("pause-all", "resume-all"), "")
    others = {"retry-jobs", "cancel-jobs", "delete-jobs", "drain-worker", "stop-worker"}
    assert {*paths} == {*ACTIONS} - others
    for action, query in paths.items():
        command = command_on(browser.page(f"/do/{action}?{query}"))
        if action == "resume-all":
            assert command == ""  # nothing is paused
            continue
        for words in words_in(command):
            assert words[:2] == [b"--store", full._engine.place.encode()]
            given = parsed(words)
            if action in ("ack", "nack", "claim", "delete-entries", "redrive", "delete-letters"):
                asked = letters if "letters" in action or action == "redrive" else ids
                assert str(asked[-1]).encode() in words
                assert len(words) > len(asked)
        assert given
    for name in HOSTILE[:4]:
        (words,) = words_in(command_on(browser.page(f"/streams/{segment_of(name)}/entries")))
        assert parsed(words)["stream"] == name


def test_copied_commands_do_what_the_action_does(served: Served) -> None:
    url = f"redis://127.0.0.1:{served.port}"
    program = f'kvstream() {{ {shlex.quote(sys.executable)} -m kvstream "$@"; }}'

    def copy(path: str) -> None:
        command = command_on(browser.page(path))
        subprocess.run(["bash", "-c", f"{program}; {command}"], check=True, capture_output=True)

    with kvstream.open(url, db=3) as store:
        queue = Queue(store, b"a b\xff", max_deliveries=1, priorities=("high", "normal"))
        queue.get()
        queue.put({"to": "it's"})
        (message,) = queue.get()
        message.nack(fatal=True)
        letters = queue.dead_stream()
        browser = Browser(app(store, auth=lambda _: User("ann", "operator")))
        copy("/do/pause?queue=a~20b~FF")
        assert [rules.paused for each in queue.groups() if (rules := each.policy())] == [True] * 2
        copy(f"/do/put?stream={segment_of(letters.key)}&id={letters.range()[0].id}")
        assert [len(letters), *map(len, queue.streams())] == [0, 0, 1]
        assert queue.streams()[1].range()[0].flat == (b"to", b"it's")
