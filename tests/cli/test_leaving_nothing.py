"""A command that fails before it writes creates no store and no parent folder."""

import socket
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.cli.exit_codes import ExitCode
from kvstream.errors import InvalidArgument
from tests.cli.program import Program


@pytest.fixture
def nowhere(tmp_path: Path) -> Program:
    """The program on a missing store in a missing folder."""
    return Program(tmp_path / "new" / "folder" / "store")


def logged(tmp_path: Path, *lines: str) -> Path:
    """Write an append-only file."""
    file = tmp_path / "made.aof"
    words = [line.encode().split() for line in lines]
    file.write_bytes(
        b"".join(
            b"*%d\r\n" % len(each) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in each)
            for each in words
        )
    )
    return file


def assert_nothing(program: Program, tmp_path: Path, *others: Path) -> None:
    assert set(tmp_path.iterdir()) == set(others)
    assert not program.directory.exists()


def test_a_refused_add(nowhere: Program, tmp_path: Path) -> None:
    nowhere("add", "s", "a=1", "--id", "0-0", code=1)
    assert_nothing(nowhere, tmp_path)


def test_a_refused_import(nowhere: Program, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("no JSON\n")
    nowhere("import", "s", str(rows), "-q", code=1)
    assert_nothing(nowhere, tmp_path, rows)


def test_a_refused_migration(nowhere: Program, tmp_path: Path) -> None:
    log, state = logged(tmp_path, "XADD s 1-1 f v", "NEWEST s"), tmp_path / "state"
    words = ("migrate", "run", str(log), str(nowhere.directory), "--state", str(state), "-q")
    Program.__call__(_bare(nowhere), *words, code=1)
    assert_nothing(nowhere, tmp_path, log, state)
    Program.__call__(_bare(nowhere), *words, "--match", "none")
    assert nowhere.directory.exists()  # it was not refused: there was nothing to migrate


class _Bare(Program):
    """The program without a store before the command."""

    @property
    def place(self) -> list[str]:
        return []


def _bare(program: Program) -> Program:
    return _Bare(program.directory)


def test_a_server_whose_port_is_taken(nowhere: Program, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with nowhere.start("serve", "--port", port) as process:
            _, stderr = process.communicate()
    assert process.returncode == ExitCode.UNAVAILABLE
    assert port.encode() in stderr
    assert_nothing(nowhere, tmp_path)


def test_a_program_that_fails_before_it_writes(tmp_path: Path) -> None:
    for work in (lambda store: store.stream("s").add({}), lambda store: 1 / 0):
        with (
            pytest.raises((InvalidArgument, ZeroDivisionError)),
            Store.open(tmp_path / "new" / "store") as store,
        ):
            work(store)
        assert list(tmp_path.iterdir()) == []


def test_written_and_existing_files_are_kept(tmp_path: Path) -> None:
    written, there, beside = (tmp_path / name for name in ("written", "there", "beside"))
    there.mkdir(0o700)

    def work(path: Path) -> None:
        with Store.open(path) as store:
            if path == written:
                store.stream("s").add({"a": "1"})
            if path.parent == beside:
                (beside / "of somebody else").touch()
            raise ZeroDivisionError

    for path in (written, there, beside / "store"):
        with pytest.raises(ZeroDivisionError):
            work(path)
    with Store.open(written, read_only=True) as store:
        assert len(store.stream("s")) == 1
    assert there.is_dir()
    assert [path.name for path in beside.iterdir()] == ["of somebody else"]
    with Store.open(tmp_path / "empty"):
        pass
    with pytest.raises(ZeroDivisionError), Store.open(tmp_path / "empty"):
        raise ZeroDivisionError
    assert (tmp_path / "empty").is_dir()
