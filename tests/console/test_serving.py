"""``kvstream console`` as a process: its login URL, and its end."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from kvstream import Store
from kvstream.cli import main
from tests.cli.program import ENVIRONMENT, Program
from tests.forking import start
from tests.patience import PATIENCE_S, until


@contextmanager
def running(*words: str, **options: Any) -> Iterator[tuple[str, Any]]:
    """Run ``kvstream``; yield the first login URL and the process."""
    process = start(
        [sys.executable, "-m", "kvstream", *words],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if " http://" in line:
                break
        assert " http" in "".join(lines[-1:]), (lines, process.poll())
        yield "http" + lines[-1].partition(" http")[2].split()[0], process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def console(directory: Path, *words: str) -> Any:
    return running("console", "--store", str(directory), "--port", "0", *words)


def test_the_command_prints_a_login_url(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", durability="no") as store:
        store.stream("orders").add({"sku": "a1"})
    with console(tmp_path / "s") as (url, process), httpx.Client(timeout=PATIENCE_S) as browser:
        root = url.partition("login")[0]
        assert browser.get(root).status_code == 401
        assert browser.get(url).status_code == 200
        assert "orders" in browser.get(root + "streams").text
        assert browser.get(root, headers={"host": "evil.test"}).status_code == 421
        # another process opens the store meanwhile
        shown = Program(tmp_path / "s")("ls")
        assert "orders" in shown.stdout
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    with Store.open(tmp_path / "s") as store:
        assert store.check() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "make a tunnel"),
        (("--host", "0.0.0.0", "--auth", "acl"), "--auth acl is for the users of a server"),
        (("--port", "70000"), "not in the range"),
        (("--auth", "proxy"), "--auth proxy needs --proxy-from"),
        (("--auth", "proxy", "--proxy-from", "::1"), "--auth proxy needs --proxy-host"),
        (("--proxy-role", "*=viewer"), "are for --auth proxy"),
    ],
)
def test_it_starts_on_this_machine_alone(tmp_path: Path, words: tuple[str, str], said: str) -> None:
    result = Program(tmp_path / "s")("console", *words, code=2)
    assert said in " ".join(result.stderr.split())


def test_a_proxy_logs_users_in(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", durability="no") as store:
        store.stream("orders").add({"sku": "a1"})
    words = ("--auth", "proxy", "--proxy-from", "127.0.0.1", "--proxy-host", "ops.example.com")
    more = ("--proxy-role", "@staff=operator", "--host", "127.0.0.1", "--port", "0")
    options = ("console", "--store", str(tmp_path / "s"), *words, *more)
    with running(*options) as (url, _), httpx.Client(timeout=PATIENCE_S) as browser:
        named = {"host": "ops.example.com", "x-forwarded-user": "ann"}
        staff = {**named, "x-forwarded-groups": "staff,all"}
        assert "ann, operator" in browser.get(url + "streams", headers=staff).text
        assert browser.get(url + "api/v1/streams", headers=staff).json()["count"] == 1
        assert browser.get(url, headers=named).status_code == 403
        assert browser.get(url, headers={**staff, "host": "evil.test"}).status_code == 421
        assert browser.get(url, headers={"host": "ops.example.com"}).status_code == 401


def test_it_needs_a_store(tmp_path: Path) -> None:
    result = Program(tmp_path / "none")("console", "--port", "0", code=5)
    assert "no store" in result.stderr.lower()


def test_a_server_has_a_console_beside_it(tmp_path: Path) -> None:
    """It is a client of its own server, and ends with it."""
    words = ("--store", str(tmp_path / "s"), "serve", "--port", "0", "--console-port", "0")
    with running(*words) as (url, process), httpx.Client(timeout=PATIENCE_S) as browser:
        root = url.partition("login")[0]
        assert browser.get(root).status_code == 401
        assert browser.get(url).status_code == 200
        assert "No streams yet." in browser.get(root + "streams").text
        assert browser.get(root, headers={"host": "evil.test"}).status_code == 421
        assert "console: open" in process.stdout.readline()  # the next login
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")
        with pytest.raises(httpx.ConnectError):
            browser.get(root)
    with Store.open(tmp_path / "s") as store:
        assert store.check() == []


def test_users_of_a_server_log_in_to_the_console_beside_it(tmp_path: Path) -> None:
    words = ("--store", str(tmp_path / "s"), "serve", "--port", "0", "--console-port", "0")
    more = ("--requirepass", "s3cret", "--console-host", "0.0.0.0")
    with running(*words, *more) as (url, process), httpx.Client(timeout=PATIENCE_S) as browser:
        root = url.replace("0.0.0.0", "127.0.0.1")
        assert browser.get(root).status_code == 401
        token = re.search(r'name="csrf" value="(\w+)"', browser.get(root + "login").text)
        assert token is not None
        form = {"csrf": token[1], "name": "default", "password": "s3cret"}
        own = {"origin": root.rstrip("/")}
        reply = browser.post(root + "login", data=form, headers=own, follow_redirects=True)
        assert "default, admin" in reply.text
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "passwords go to this address unencrypted" in errors


APP = """
from kvstream import Jobs

jobs = Jobs("data")


@jobs.task
def mail(to):
    return to
"""


def test_workers_have_a_console_beside_them(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    words = ("work", "app:jobs", "--processes", "1", "--console-port", "0")
    with running(*words, cwd=tmp_path) as (url, process):
        with httpx.Client(timeout=PATIENCE_S) as browser:
            root = url.partition("login")[0]
            assert browser.get(url).status_code == 200
            until(lambda: "1 worker of <bdi>jobs" in browser.get(root + "workers").text, look_s=0.1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    with Store.open(tmp_path / "data") as store:
        assert store.check() == []


def test_a_console_beside_a_server_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path / "s")
    words = ("serve", "--port", "0", "--console-port", "0")
    result = program(*words, "--console-host", "0.0.0.0", code=2)
    assert "--console-host 0.0.0.0 would let others in" in " ".join(result.stderr.split())
    result = program("serve", "--port", "0", "--tls-port", "1", *words[3:], code=2)
    assert "give --unixsocket or --port" in " ".join(result.stderr.split())
    result = program(*words, "--requirepass", "s3cret", "--console-auth", "token", code=2)
    assert "leave it out, and users log in" in " ".join(result.stderr.split())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = program("serve", "--port", "0", "--console-port", port, code=1)
        assert f"cannot listen on 127.0.0.1:{port} for the console" in result.stderr
    monkeypatch.delitem(sys.modules, "kvstream.console.serving", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    serve = ["--store", str(tmp_path / "s"), "serve", "--port", "0"]
    for command in (serve, ["work", "app:jobs"]):
        result = CliRunner().invoke(main, [*command, "--console-port", "0"])
        assert result.exit_code == 5, result.output
        assert "pip install 'kvstream-db[console]'" in result.stderr
    assert not (tmp_path / "s").exists()
