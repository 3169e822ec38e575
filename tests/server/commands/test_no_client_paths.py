"""T18: no client can name a file; the command line decides where files are written."""

import os
from pathlib import Path

import pytest

from tests.server.asking import Failure
from tests.server.conftest import Serve, Served

PATHS = ["../out", "/tmp/out", "out\0", "x" * 5000, ".", "", "%n", "a/../../b"]
SETTINGS = ["dir", "dbfilename", "aclfile", "appendfilename", "appenddirname", "logfile", "pidfile"]


def files_under(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize("path", PATHS)
def test_no_setting_moves_a_file(served: Served, tmp_path: Path, path: str) -> None:
    with served.asker() as asker:
        for name in (*SETTINGS, "unixsocket", "tls-cert-file", "tls-key-file"):
            answer = asker.ask("CONFIG", "SET", name, path)
            assert isinstance(answer, Failure), name
        assert files_under(tmp_path) == {
            name for name in files_under(tmp_path) if name.startswith("store0")
        }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("command", ["SAVE", "BGSAVE", "ACL SAVE", "ACL LOAD", "BGREWRITEAOF"])
def test_no_command_accepts_a_path(served: Served, command: str, path: str) -> None:
    with served.asker() as asker:
        assert isinstance(asker.ask(*command.split(), path), Failure)
        assert asker.ask("PING") == b"PONG"


def test_checkpoints_are_only_written_to_their_directory(serve: Serve, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    served = serve(checkpoint_dir=kept)
    with served.asker() as asker:
        asker.ask("XADD s 1-1 f v")
        assert asker.ask("SAVE") == b"OK"
        (checkpoint,) = kept.iterdir()
        assert checkpoint.name.startswith("checkpoint-")
        assert (kept.stat().st_mode & 0o777, checkpoint.stat().st_mode & 0o777) == (0o700, 0o700)


def test_old_checkpoints_that_are_links_are_not_followed(serve: Serve, tmp_path: Path) -> None:
    kept, precious = tmp_path / "kept", tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    kept.mkdir(0o700)
    for number in range(3):
        (kept / f"checkpoint-{number:020}").symlink_to(precious)
    served = serve(checkpoint_dir=kept)
    with served.asker() as asker:
        asker.ask("SAVE")
        assert (precious / "file").exists()
        assert asker.ask("PING") == b"PONG"


def test_the_file_of_users_is_written_through_no_link(serve: Serve, tmp_path: Path) -> None:
    aclfile, precious = tmp_path / "users.acl", tmp_path / "precious"
    precious.write_text("x")
    aclfile.touch()
    (tmp_path / "users.acl.partial").symlink_to(precious)
    served = serve(aclfile=aclfile)
    with served.asker() as asker:
        assert isinstance(asker.ask("ACL SAVE"), Failure)
        assert precious.read_text() == "x"
        (tmp_path / "users.acl.partial").unlink()
        assert asker.ask("ACL SAVE") == b"OK"
    assert aclfile.stat().st_mode & 0o777 == 0o600
    assert aclfile.stat().st_uid == os.geteuid()
