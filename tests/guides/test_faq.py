"""The messages that docs/faq.md explains are those of the program."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstream
from kvstream.errors import install_command
from tests import forking
from tests.guides.reader import ROOT
from tests.patience import PATIENCE_S
from tests.ports import free_port

PAGE = (ROOT / "docs" / "faq.md").read_text()
HEADINGS = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)


def open_twice(path: Path) -> None:
    program = "import kvstream, sys; kvstream.open(sys.argv[1])"
    with kvstream.open(path):
        done = forking.run(
            [sys.executable, "-c", program, str(path)], text=True, cwd=ROOT, timeout=PATIENCE_S
        )
    raise kvstream.StoreLocked(done.stderr)


def open_foreign(path: Path) -> None:
    path.mkdir(mode=0o700)
    (path / "notes.txt").write_text("mine")
    kvstream.open(path)


def open_later(path: Path) -> None:
    kvstream.open(path).close()
    (path / "KVSTREAM").write_text("kvstream store\nlayout 4\n")
    kvstream.open(path)


def read_as_no_group(path: Path) -> None:
    with kvstream.open(path) as store:
        store.stream("orders").group("billing").consumer("worker-1").read()


def make_a_group_twice(path: Path) -> None:
    with kvstream.open(path) as store:
        store.stream("orders").create_group("billing")
        store.stream("orders").create_group("billing")


def add_an_old_id(path: Path) -> None:
    with kvstream.open(path) as store:
        store.stream("orders").add({"a": 1}, id=(5, 0))
        store.stream("orders").add({"a": 1}, id=(4, 0))


def acknowledge_too_late(path: Path) -> None:
    clock = kvstream.ManualClock(1_700_000_000_000)
    with kvstream.Store.open(path, clock=clock) as store:
        mails = kvstream.Queue(store, "mails", lease=1, consumer="worker-1")
        mails.put({"to": "ann"})
        (message,) = mails.get()
        clock.advance(2000)
        assert len(kvstream.Queue(store, "mails", lease=1, consumer="worker-2").get()) == 1
        message.ack()


def send_a_hash(path: Path) -> None:
    with kvstream.connect(path) as client:
        client.hset("prices", "a1", 5)


def read_a_string_as_a_stream(path: Path) -> None:
    with kvstream.connect(path) as client:
        client.set("name", "ann")
        client.xlen("name")


PROVOKED: list[tuple[str, Callable[[Path], object]]] = [
    ("holds the store in", open_twice),
    ("is no store of kvstream, and not empty", open_foreign),
    ("there is no store in", lambda path: kvstream.open(path, read_only=True)),
    ("has layout 4; this version of kvstream knows layouts 1 to 3", open_later),
    ("or consumer group 'billing'", read_as_no_group),
    ("Consumer Group name already exists", make_a_group_twice),
    ("is equal or smaller than the target stream top item", add_an_old_id),
    ("is not leased to 'worker-1' any more", acknowledge_too_late),
    ("unknown command 'HSET'", send_a_hash),
    ("Operation against a key holding the wrong kind of value", read_a_string_as_a_stream),
    ("no connection to localhost", lambda _: kvstream.open(f"redis://localhost:{free_port()}")),
]


@pytest.mark.parametrize(("text", "provoke"), PROVOKED, ids=[text for text, _ in PROVOKED])
def test_the_page_has_the_message(
    tmp_path: Path, text: str, provoke: Callable[[Path], object]
) -> None:
    assert any(text in heading for heading in HEADINGS)
    with pytest.raises(Exception, match=re.escape(text)):
        provoke(tmp_path / "data")


def test_every_error_that_the_page_names_exists() -> None:
    named = set(re.findall(r"^`([A-Z]\w+)`", PAGE, re.MULTILINE))
    assert len(named) >= 12
    assert named <= set(kvstream.__all__)
    assert len(HEADINGS) >= 20
    assert install_command("x").split("'")[0].strip() in " ".join(HEADINGS)
