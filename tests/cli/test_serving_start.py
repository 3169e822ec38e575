"""``kvstream serve`` refuses what it cannot use, and warns of what it does otherwise than asked."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from kvstream.server.runtime.limits import DESCRIPTORS
from tests.cli.program import ENVIRONMENT, Program
from tests.cli.test_serving import port_of, served
from tests.server.asking import Asker
from tests.server.net.authorities import Authority
from tests.serving import ServerProcess

OPEN = "user default on nopass ~* &* +@all\n"
CLOSED = "user default on >secret ~* &* +@all\n"


def refused(
    kvstream: Program, tmp_path: Path, *options: str, env: dict[str, str | None] | None = None
) -> str:
    """Return the error of a server that does not start, and has made no store."""
    store = tmp_path / "made"
    shown = kvstream("serve", "--dir", str(store), "--port", "0", *options, code=2, env=env).stderr
    assert not store.exists()
    return shown.splitlines()[-1]


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """Paths that no setting can use, by what is wrong with them."""
    file, folder, link = tmp_path / "file", tmp_path / "folder", tmp_path / "link"
    file.write_text("nonsense\n")
    folder.mkdir()
    link.symlink_to(tmp_path / "gone")
    return {
        "missing": tmp_path / "missing",
        "in no folder": tmp_path / "missing" / "file",
        "below a file": file / "file",
        "folder": folder,
        "link to nothing": link,
        "nonsense": file,
    }


REASONS = {
    "missing": "No such file or directory",
    "in no folder": "No such file or directory",
    "below a file": "Not a directory",
    "folder": "is a directory",
    "link to nothing": "No such file or directory",
    "nonsense": "",
}


@pytest.mark.parametrize("wrong", REASONS)
@pytest.mark.parametrize("option", ["aclfile", "tls-cert-file", "tls-key-file", "tls-ca-cert-file"])
def test_a_file_that_cannot_be_used_is_refused(
    kvstream: Program, tmp_path: Path, paths: dict[str, Path], option: str, wrong: str
) -> None:
    """The files of TLS are looked at without a TLS port, too."""
    path = paths[wrong]
    shown = refused(kvstream, tmp_path, f"--{option}", str(path))
    assert option in shown
    assert str(path) in shown
    assert REASONS[wrong] in shown


@pytest.mark.parametrize("wrong", [*REASONS][:-1])
def test_a_file_of_users_named_in_the_file_of_settings_is_checked(
    kvstream: Program, tmp_path: Path, paths: dict[str, Path], wrong: str
) -> None:
    config = tmp_path / "kvstream.toml"
    config.write_text(f"aclfile = {str(paths[wrong])!r}\n")
    assert str(paths[wrong]) in refused(kvstream, tmp_path, "--config", str(config))


@pytest.mark.parametrize("wrong", ["in no folder", "below a file", "folder"])
def test_a_socket_needs_a_folder(
    kvstream: Program, tmp_path: Path, paths: dict[str, Path], wrong: str
) -> None:
    shown = refused(kvstream, tmp_path, "--unixsocket", str(paths[wrong]))
    assert str(paths[wrong]) in shown
    assert REASONS[wrong] in shown


def test_checkpoints_need_a_folder_that_can_be_made(
    kvstream: Program, tmp_path: Path, paths: dict[str, Path]
) -> None:
    path = paths["below a file"]
    shown = refused(kvstream, tmp_path, "--checkpoint-dir", str(path))
    assert "Not a directory" in shown
    deep = tmp_path / "a" / "b" / "c"
    with (
        served("--dir", str(tmp_path / "data"), "--port", "0", "--checkpoint-dir", str(deep)) as (
            _,
            lines,
        ),
        Asker(port_of(lines)) as asker,
    ):
        assert asker.ask("SAVE") == b"OK"
        assert len(os.listdir(deep)) == 1


def test_files_and_folders_without_permission_are_refused(
    kvstream: Program, tmp_path: Path
) -> None:
    secret, locked = tmp_path / "users.acl", tmp_path / "locked"
    secret.write_text(OPEN)
    secret.chmod(0)
    locked.mkdir(0o500)
    if os.access(secret, os.R_OK):
        pytest.skip("root may read and write everything")
    for option, path in (
        ("--aclfile", secret),
        ("--checkpoint-dir", locked),
        ("--unixsocket", locked / "socket"),
    ):
        shown = refused(kvstream, tmp_path, option, str(path))
        assert "Permission denied" in shown or "is not readable" in shown
        assert str(path) in shown


@pytest.mark.parametrize("option", ["dir", "aclfile", "checkpoint-dir", "logfile", "unixsocket"])
def test_an_empty_path_is_refused(kvstream: Program, tmp_path: Path, option: str) -> None:
    """The variable of a shell that was to hold it is not set."""
    assert "the path is empty" in refused(kvstream, tmp_path, f"--{option}", "")


def test_wrong_lines_of_the_file_of_users_are_named_without_passwords(
    kvstream: Program, tmp_path: Path
) -> None:
    path = tmp_path / "users.acl"
    path.write_text(f"{OPEN}user ann on <hidden\nuser bob +nosuch\n")
    shown = refused(kvstream, tmp_path, "--aclfile", str(path))
    assert f"{path}:2: " in shown
    assert f"{path}:3: " in shown
    assert "hidden" not in shown


# --- warnings -------------------------------------------------------------------------------------


def test_a_file_of_users_decides_and_its_open_default_user_is_reported(tmp_path: Path) -> None:
    users, options = tmp_path / "users.acl", ("--dir", str(tmp_path / "data"), "--port", "0")
    users.write_text(CLOSED)
    with served(*options, "--aclfile", str(users)) as (_, lines), Asker(port_of(lines)) as asker:
        assert asker.ask("PING").startswith("NOAUTH")
    warned = "requirepass is without effect"
    with served(*options, "--aclfile", str(users), "--requirepass", "x", warned=warned):
        pass
    for content in ("", OPEN):
        users.write_text(content)
        with served(*options, "--aclfile", str(users), warned=f"in {users} the user default"):
            pass


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ((), "protected mode: clients of other machines are refused"),
        (("--no-protected-mode",), "clients of other machines need no password"),
        (("--requirepass", "secret"), ""),
        (("--host", "127.0.0.1"), ""),
        (("--host", "127.0.0.1", "--no-protected-mode"), ""),
        (("--host", "::"), "protected mode: clients of other machines are refused"),
    ],
)
def test_the_start_tells_whether_other_machines_are_let_in(
    tmp_path: Path, options: Sequence[str], warned: str
) -> None:
    host = () if "--host" in options else ("--host", "0.0.0.0")
    with served("--dir", str(tmp_path), "--port", "0", *host, *options, warned=warned):
        pass


def test_certificates_without_a_tls_port_are_reported(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    identity = authority.certify("server")
    files = ("--tls-cert-file", identity.certificate, "--tls-key-file", identity.key)
    options = ("--dir", str(tmp_path / "data"), "--port", "0")
    with served(*options, *files, warned="tls-port is 0: no connection uses TLS"):
        pass


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("KVSTREAM_SERVE_REQUIREPAS", "did you mean 'KVSTREAM_SERVE_REQUIREPASS'?"),
        ("KVSTREAM_SERVE_ACL_FILE", "did you mean 'KVSTREAM_SERVE_ACLFILE'?"),
        ("kvstream_serve_requirepass", "did you mean 'KVSTREAM_SERVE_REQUIREPASS'?"),
        ("KVSTREAM_SERVE_CONFIG", ""),
    ],
)
def test_a_variable_of_the_environment_that_is_no_option_is_refused(
    kvstream: Program, tmp_path: Path, variable: str, near: str
) -> None:
    shown = refused(kvstream, tmp_path, env={variable: "hidden"})
    assert f"{variable} sets no option" in shown
    assert near in shown
    assert "hidden" not in shown


NEVER_EMPTY = [
    *("ACLFILE", "REQUIREPASS", "TLS_CERT_FILE", "TLS_KEY_FILE", "TLS_CA_CERT_FILE", "TLS_PORT"),
    *("CHECKPOINT_DIR", "LOGFILE", "UNIXSOCKET"),
]


@pytest.mark.parametrize("option", NEVER_EMPTY)
def test_an_empty_variable_of_an_option_that_protects_is_refused(
    kvstream: Program, tmp_path: Path, option: str
) -> None:
    variable = f"KVSTREAM_SERVE_{option}"
    assert f"{variable} is empty" in refused(kvstream, tmp_path, env={variable: ""})


def test_an_empty_variable_counts_neither_beside_an_argument_nor_for_other_options(
    tmp_path: Path,
) -> None:
    options = ("--dir", str(tmp_path), "--port", "0", "--requirepass", "secret")
    with (
        served(*options, KVSTREAM_SERVE_REQUIREPASS="", KVSTREAM_SERVE_HOST="") as (_, lines),
        Asker(port_of(lines)) as asker,
    ):
        assert asker.ask("PING").startswith("NOAUTH")


def test_the_error_of_a_served_store_shows_the_server_without_its_password(
    kvstream: Program, tmp_path: Path
) -> None:
    store = str(tmp_path / "data")
    for secret in (("--requirepass", "hid@den word"), ("--requirepass=hid@den word",)):
        command = [
            sys.executable,
            "-m",
            "kvstream",
            "serve",
            *secret,
            "--dir",
            store,
            "--port",
            "0",
        ]
        with subprocess.Popen(
            command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert "serves" in process.stdout.readline()
            shown = kvstream("serve", "--dir", store, "--port", "0", code=3).stderr
            process.terminate()
        assert re.search(r"is held by process \d+ \(python.* serve --requirepass[ =]\*\*\* ", shown)
        assert not any(word in shown for word in ("hid", "den", "word"))


# --- open files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("allowed", "clients"), [(64, 8), (128, 8), (256, 64)])
def test_few_open_files_lower_maxclients_and_are_reported(
    tmp_path: Path, allowed: int, clients: int
) -> None:
    server = _limited(tmp_path, allowed, allowed, "--maxclients", "10000")
    with server.asker() as asker:
        assert asker.ask("CONFIG GET maxclients") == [b"maxclients", b"%d" % clients]
        assert f"try with {clients}" in asker.ask("CONFIG SET maxclients 5000")
        assert asker.ask("CONFIG SET maxclients 5") == b"OK"
        assert asker.ask(f"CONFIG SET maxclients {clients}") == b"OK"
        others = [server.asker() for _ in range(4)]
        assert [other.ask("XADD s * f v")[:1] for other in others] == [b"1"] * 4
        for other in others:
            other.close()
    warned = f"maxclients is lowered from 10000 to {clients}: this process may open {allowed} files"
    server.stop(warned=warned)


@pytest.mark.parametrize("allowed", [16, 48, 63])
def test_a_server_that_may_open_too_few_files_does_not_start(
    kvstream: Program, tmp_path: Path, allowed: int
) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (allowed, allowed))
    store = tmp_path / "made"
    done = kvstream.run("serve", "--dir", str(store), "--port", "0", preexec_fn=limit)
    assert done.returncode == 2
    assert f"may open {allowed} files, and a server needs at least 64" in done.stderr.decode()
    assert not store.exists()


def test_the_soft_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 100 + DESCRIPTORS:
        pytest.skip("the system allows too few open files")
    server = _limited(tmp_path, 64, most, "--maxclients", "100")
    with server.asker() as asker:
        assert asker.ask("CONFIG GET maxclients") == [b"maxclients", b"100"]
    server.stop()


def _limited(directory: Path, soft: int, hard: int, *options: str) -> ServerProcess:
    """Start a server that may open so many files."""
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    return ServerProcess(directory / "store", *options, preexec_fn=limit)
