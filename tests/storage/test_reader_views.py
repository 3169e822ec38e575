"""The views of readers: a new reader removes those of killed ones, and keeps those in use."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream.storage import directory as views
from kvstream.storage.database import Database
from tests.patience import PATIENCE_S
from tests.storage.stores import SMALL, keys, put_one_by_one

ROOT = Path(__file__).parents[2]
READER = replace(SMALL, read_only=True)
NOBODY = 65534

READING = """
import os
import sys
from dataclasses import replace
from pathlib import Path
from kvstream.storage.database import Database
from tests.storage.stores import SMALL
database = Database.open(Path(sys.argv[1]), replace(SMALL, read_only=True))
print("open", flush=True)
sys.stdin.read()
"""

FORKING = READING.replace(
    "sys.stdin",
    "if not os.fork():\n    print(os.getpid(), flush=True)\n    signal.pause()\nsys.stdin",
).replace("import os\n", "import os\nimport signal\n")
"""The same, with a child that runs until it is killed."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the views of this process, and for all temporary files of its children."""
    folder = tmp_path / "temporary"
    folder.mkdir(mode=0o700)
    in_folder = SimpleNamespace(
        gettempdir=lambda: str(folder), mkdtemp=partial(tempfile.mkdtemp, dir=folder)
    )
    monkeypatch.setattr(views, "tempfile", in_folder)  # other threads have their own files
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def store(directory: Path) -> Path:
    """A closed store of ten rows."""
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(10))
    database.close()
    return directory


def rows_seen(store: Path) -> int:
    database = Database.open(store, READER)
    try:
        return len(keys(database))
    finally:
        database.close()


@contextmanager
def reader(store: Path, program: str = READING) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that has the store open for reading; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program, str(store)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            yield process
        finally:
            process.kill()


def test_a_reader_that_closes_leaves_nothing(store: Path, temporary: Path) -> None:
    database = Database.open(store, READER)
    (view,) = temporary.iterdir()
    assert view.stat().st_mode & 0o777 == 0o700
    database.close()
    assert list(temporary.iterdir()) == []


def test_a_new_reader_removes_the_views_of_killed_ones(store: Path, temporary: Path) -> None:
    for left in (1, 1):  # the second reader removes the view of the first
        with reader(store):
            pass
        assert len(list(temporary.iterdir())) == left
    assert rows_seen(store) == 10
    assert list(temporary.iterdir()) == []


def test_a_view_in_use_is_kept(store: Path, temporary: Path) -> None:
    own = Database.open(store, READER)
    with reader(store):
        in_use = set(temporary.iterdir())
        assert len(in_use) == 2
        assert rows_seen(store) == 10
        assert set(temporary.iterdir()) == in_use
    assert len(keys(own)) == 10
    own.close()
    assert rows_seen(store) == 10
    assert list(temporary.iterdir()) == []


def test_a_forked_child_does_not_end_the_view_of_its_parent(store: Path, temporary: Path) -> None:
    with reader(store, FORKING) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert child > 1
        (view,) = temporary.iterdir()
        assert rows_seen(store) == 10
        assert "CURRENT" in os.listdir(view)
    try:
        assert rows_seen(store) == 10
        assert list(temporary.iterdir()) == []
        os.kill(child, 0)  # it was alive all the time
    finally:
        os.kill(child, signal.SIGKILL)


def test_only_own_folders_with_that_name_are_removed(
    store: Path, temporary: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (temporary / "kvstream-view-link").symlink_to(elsewhere)
    (temporary / "kvstream-view-file").touch()
    (temporary / "other").mkdir()
    before = set(temporary.iterdir())
    (temporary / "kvstream-view-left").mkdir()
    (temporary / "kvstream-view-left" / "CURRENT").symlink_to(elsewhere / "precious")
    assert rows_seen(store) == 10
    assert set(temporary.iterdir()) == before
    assert os.listdir(elsewhere) == ["precious"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_view_of_another_user_stays(store: Path, temporary: Path) -> None:
    theirs = temporary / "kvstream-view-theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    assert rows_seen(store) == 10
    assert theirs.is_dir()


def act_before_the_lock(
    monkeypatch: pytest.MonkeyPatch, folder: Path, act: Callable[[Path], None]
) -> list[Path]:
    """Call ``act`` with the first view once it is made; return a list that gets all views."""
    made: list[Path] = []

    def make(prefix: str) -> str:
        path = folder / f"{prefix}{len(made)}"
        path.mkdir(mode=0o700)
        made.append(path)
        if len(made) == 1:
            act(path)
        return str(path)

    monkeypatch.setattr("kvstream.storage.directory.tempfile.mkdtemp", make)
    return made


def test_a_view_removed_before_it_is_locked_is_made_again(
    store: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_another_reader(path: Path) -> None:
        views.sweep()
        assert not path.exists()

    made = act_before_the_lock(monkeypatch, temporary, start_another_reader)
    assert rows_seen(store) == 10
    assert len(made) == 2


def test_a_reader_waits_while_another_removes_its_view(
    store: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, go_on = threading.Event(), threading.Event()
    remove = shutil.rmtree

    def slowly(path: Path, **options: Any) -> None:
        if threading.current_thread() is sweeper:
            found.set()
            go_on.wait(PATIENCE_S)
        remove(path, **options)

    def start_sweeper(_: Path) -> None:
        sweeper.start()
        assert found.wait(PATIENCE_S)
        threading.Timer(0.05, go_on.set).start()

    sweeper = threading.Thread(target=views.sweep)
    monkeypatch.setattr(views, "shutil", SimpleNamespace(rmtree=slowly))
    made = act_before_the_lock(monkeypatch, temporary, start_sweeper)
    assert rows_seen(store) == 10
    sweeper.join(PATIENCE_S)
    assert len(made) == 2


def test_readers_that_open_and_close_at_once_do_not_disturb_each_other(
    store: Path, temporary: Path
) -> None:
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.extend(rows_seen(store) for _ in range(5)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert seen == [10] * 20
    assert list(temporary.iterdir()) == []
