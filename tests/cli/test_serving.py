"""``kvstream serve`` as a process: real clients, signals, settings from all sources."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import redis

from kvstream import Store
from kvstream.cli.serve import serve
from kvstream.server.options import ServerOptions
from kvstream.server.serving import Places, run
from kvstream.types.options import StoreOptions
from tests import forking
from tests.cli.program import ENVIRONMENT, Program, examples_of
from tests.cli.test_examples import words_of
from tests.patience import PATIENCE_S
from tests.ports import free_port


@contextmanager
def served(
    *arguments: str, lines: int = 3, warned: str = "", **environment: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run the server during the block; yield it with its first lines.

    ``warned`` is a text of its only warning; empty: it warns of nothing.
    """
    process = forking.start(
        [sys.executable, "-m", "kvstream", "serve", *arguments],
        env={**os.environ, **ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, [process.stdout.readline().strip() for _ in range(lines)]
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors.count("\n")) == (0, int(bool(warned))), errors
        assert warned in errors


def port_of(lines: list[str]) -> int:
    found = re.search(r":(\d+)$", lines[0])
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_redis_client_finds_streams(tmp_path: Path, protocol: int) -> None:
    with served("--dir", str(tmp_path / "data"), "--port", "0") as (_, lines):
        client = redis.Redis(port=port_of(lines), protocol=protocol)
        added = client.xadd("orders", {"sku": "a1"})
        assert client.xrange("orders") == [(added, {b"sku": b"a1"})]
        client.close()
    with Store.open(tmp_path / "data") as store:
        assert len(store.stream("orders")) == 1


def test_the_first_line_names_the_store_the_port_and_the_durability(tmp_path: Path) -> None:
    with served("--dir", str(tmp_path / "data"), "--port", "0", "--durability", "always") as (
        _,
        lines,
    ):
        assert re.fullmatch(rf"kvstream \S+ serves {tmp_path}/data at 127.0.0.1:\d+", lines[0])
        assert lines[1] == "durability always: an acknowledged write survives power loss"
        assert lines[2] == f"connect with: redis-cli -h 127.0.0.1 -p {port_of(lines)}"


@pytest.mark.parametrize(
    ("host", "shown", "named"), [("0.0.0.0", "0.0.0.0", "127.0.0.1"), ("::", "[::]", "::1")]
)
def test_the_first_lines_name_an_address_that_clients_can_use(
    tmp_path: Path, host: str, shown: str, named: str
) -> None:
    words = ("--dir", str(tmp_path / "data"), "--host", host, "--requirepass", "secret")
    with served(*words, "--port", "0") as (_, lines):
        port = port_of(lines)
        assert lines[0].endswith(f"/data at {shown}:{port}")
        assert lines[2] == f"connect with: redis-cli -h {named} -p {port}"


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    config = tmp_path / "kvstream.toml"
    config.write_text('durability = "always"\nport = 0\nhost = "127.0.0.2"\n')
    arguments = ("--dir", str(tmp_path / "data"), "--config", str(config))
    with served(*arguments) as (_, lines):
        assert "at 127.0.0.2:" in lines[0]
        assert lines[1].startswith("durability always")
    with served(*arguments, KVSTREAM_SERVE_DURABILITY="no") as (_, lines):
        assert lines[1].startswith("durability no")
    with served(*arguments, "--durability", "everysec", KVSTREAM_SERVE_DURABILITY="no") as (
        _,
        lines,
    ):
        assert lines[1].startswith("durability everysec")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("prt = 1", "unknown settings: prt: did you mean 'port'?"),
        ("port = ", "Invalid value (at end of document)"),
        ("port = 70000", "kvstream.toml: port: 70000 is not in the range 0<=x<=65535"),
        ('durability = "often"', "'often' is not one of"),
        ("config = 5", "config must be a table"),
        ("[config]\nnosuch = 1", "unknown settings: config.nosuch"),
        ("[config]\ntimeout = 1", "timeout is an option: move it above the table config"),
        ('[config]\nslowlog-max-len = "x"', "argument couldn't be parsed into an integer"),
        ("[config]\nport = 1\nhz = 0", "port is an option"),
        ("[config]\nhz = -1", "argument must be between 0 and"),
        ("[config]\ndir = 'x'", "dir is an option"),
        ("[config]\ndatabases = 5", "databases is an option"),
        ("[config]\ntcp-backlog = 5", "can't set immutable config"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(
    kvstream: Program, tmp_path: Path, text: str, reason: str
) -> None:
    config = tmp_path / "kvstream.toml"
    config.write_text(text)
    assert reason in kvstream("serve", "--config", str(config), code=2).stderr


def test_a_missing_file_of_settings_is_reported(kvstream: Program, tmp_path: Path) -> None:
    shown = kvstream("serve", "--config", str(tmp_path / "gone.toml"), code=2).stderr
    assert shown.endswith(f"{tmp_path / 'gone.toml'}: No such file or directory\n")


def test_settings_apply_from_the_start_and_are_rewritten(tmp_path: Path) -> None:
    config = tmp_path / "kvstream.toml"
    config.write_text(
        "# ours\nport = 0\n\n[config]\nslowlog-max-len = 7 # few\naof-use-rdb-preamble = false\n"
    )
    arguments = ("--dir", str(tmp_path / "data"), "--config", str(config))
    with served(*arguments) as (_, lines), redis.Redis(port=port_of(lines)) as client:
        assert client.config_get("slowlog-max-len") == {"slowlog-max-len": "7"}
        assert client.config_get("aof-use-rdb-preamble") == {"aof-use-rdb-preamble": "no"}
        client.config_set("slowlog-max-len", 8)
        client.config_set("timeout", 9)
        assert client.config_rewrite() in (True, b"OK")
    assert config.read_text() == (
        "# ours\nport = 0\ntimeout = 9\n\n[config]\n"
        'slowlog-max-len = "8" # few\naof-use-rdb-preamble = false\n'
    )
    with served(*arguments) as (_, lines), redis.Redis(port=port_of(lines)) as client:
        reply = client.config_get("slowlog-max-len", "timeout")
        assert reply == {"slowlog-max-len": "8", "timeout": "9"}


def test_a_port_in_use_is_reported(kvstream: Program, tmp_path: Path) -> None:
    with served("--dir", str(tmp_path / "data"), "--port", "0") as (_, lines):
        result = kvstream(
            "serve", "--dir", str(tmp_path / "other"), "--port", str(port_of(lines)), code=5
        )
        where = f"127.0.0.1:{port_of(lines)}"
        assert result.stderr == f"Error: cannot listen at {where}: address already in use\n"


def test_a_host_of_another_machine_is_reported(kvstream: Program, tmp_path: Path) -> None:
    for host, reason in (
        ("192.0.2.77", "cannot assign requested address"),
        ("nowhere.invalid", "not known"),
    ):
        result = kvstream(
            *("serve", "--dir", str(tmp_path / "data"), "--port", "0", "--host", host), code=5
        )
        assert result.stderr.startswith(f"Error: cannot listen at {host}:0: ")
        assert reason in result.stderr


def test_the_end_of_a_server_restores_the_signal_handlers(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]

    def started(_: Places) -> None:
        assert signal.getsignal(signal.SIGTERM) != before[1]
        signal.raise_signal(signal.SIGTERM)

    run(tmp_path / "data", StoreOptions(), ServerOptions(port=0), started)
    assert [signal.getsignal(number) for number in numbers] == before


def test_acknowledged_writes_survive_a_kill(tmp_path: Path) -> None:
    process = forking.start(
        [sys.executable, "-m", "kvstream", "serve", "--dir", str(tmp_path / "data"), "--port", "0"],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    client = redis.Redis(port=port_of([process.stdout.readline().strip()]))
    added = [client.xadd("s", {"n": number}) for number in range(100)]
    process.kill()
    process.communicate()
    client.close()
    with Store.open(tmp_path / "data") as store:
        assert [str(entry.id).encode() for entry in store.stream("s").range()] == added
        assert store.check() == []


def test_the_default_port_is_that_of_redis() -> None:
    assert ServerOptions().port == 6379


def test_the_example_runs_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = examples_of(serve)
    port = str(free_port())  # a free port replaces the printed one, which may be in use
    assert "6390" in line
    with served(*words_of(line.replace("6390", port))[1:]) as (_, lines):
        assert re.fullmatch(rf"kvstream \S+ serves depot at 127.0.0.1:{port}", lines[0])


def test_a_password_is_required_and_never_printed(tmp_path: Path) -> None:
    secret = "correct horse"
    arguments = ("--dir", str(tmp_path / "data"), "--port", "0", "--maxclients", "2")
    with served(*arguments, KVSTREAM_SERVE_REQUIREPASS=secret) as (_, lines):
        assert secret not in "".join(lines)
        stranger = redis.Redis(port=port_of(lines), protocol=2)
        with pytest.raises(redis.AuthenticationError, match="Authentication required"):
            stranger.ping()
        stranger.close()
        friend = redis.Redis(port=port_of(lines), password=secret)
        assert friend.ping()
        assert friend.config_get("maxclients") == {"maxclients": "2"}
        friend.close()


def test_metrics_are_served_if_any_setting_enables_them(tmp_path: Path) -> None:
    config = tmp_path / "kvstream.toml"
    config.write_text("metrics-port = 0\nport = 0\nmetrics-streams = 7\n")
    arguments = ("--dir", str(tmp_path / "data"), "--config", str(config))
    with served(*arguments, lines=4, KVSTREAM_SERVE_METRICS_HOST="127.0.0.2") as (_, lines):
        found = re.fullmatch(r"metrics at (http://127\.0\.0\.2:\d+)/metrics", lines[3])
        assert found is not None
        with urlopen(f"{found[1]}/metrics") as scrape:
            assert b"\nkvstream_clients 0.0\n" in scrape.read()
        with urlopen(f"{found[1]}/healthz") as health:
            assert health.read() == b"ok\n"
        client = redis.Redis(port=port_of(lines))
        assert client.config_get("metrics-*") == {
            "metrics-host": "127.0.0.2",
            "metrics-port": found[1].rpartition(":")[2],
            "metrics-streams": "7",
        }
        client.close()


def test_a_port_for_metrics_in_use_is_reported(kvstream: Program, tmp_path: Path) -> None:
    with served("--dir", str(tmp_path / "data"), "--port", "0") as (_, lines):
        result = kvstream(
            *("serve", "--dir", str(tmp_path / "other"), "--port", "0"),
            *("--metrics-port", str(port_of(lines))),
            code=5,
        )
        where = f"127.0.0.1:{port_of(lines)}"
        assert result.stderr == f"Error: cannot listen at {where}: address already in use\n"


def _health(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url) as answer:
            return answer.status, answer.read()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read()


def test_a_server_that_is_stopping_is_not_healthy(tmp_path: Path) -> None:
    arguments = ["--dir", str(tmp_path / "data"), "--port", "0", "--metrics-port", "0"]
    arguments += ["--shutdown-timeout", "60"]
    with served(*arguments, lines=4) as (process, lines):
        url = lines[3].split()[-1].replace("/metrics", "/healthz")
        client = redis.Redis(port=port_of(lines))
        client.set("k", b"x" * 20_000_000)
        with socket.create_connection(("127.0.0.1", port_of(lines))) as lazy:
            lazy.sendall(b"GET k\r\n")  # nothing is read: the server waits
            while client.info("clients")["client_recent_max_output_buffer"] == 0:
                time.sleep(0.01)
            assert _health(url) == (200, b"ok\n")
            process.send_signal(signal.SIGTERM)
            while (reply := _health(url)) == (200, b"ok\n"):
                time.sleep(0.01)
            assert reply == (503, b"the server is stopping\n")
        client.close()
        process.wait(PATIENCE_S)


def _own_address() -> str:
    """Return an address of this machine other than the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # this sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        address: str = probe.getsockname()[0]
    return address


def test_without_a_password_only_local_clients_are_served(tmp_path: Path) -> None:
    arguments = ("--dir", str(tmp_path / "data"), "--port", "0", "--host", "0.0.0.0")
    address = _own_address()
    with served(*arguments, "--loglevel", "nothing") as (_, lines):  # refusals are logged
        with socket.create_connection((address, port_of(lines)), timeout=PATIENCE_S) as stranger:
            reply = b"".join(iter(lambda: stranger.recv(1000), b""))
        assert reply.startswith(b"-DENIED Redis is running in protected mode")
        friend = redis.Redis(port=port_of(lines))
        assert friend.ping()
        friend.close()
    with served(*arguments, KVSTREAM_SERVE_REQUIREPASS="secret") as (_, lines):
        friend = redis.Redis(host=address, port=port_of(lines), password="secret")
        assert friend.ping()
        friend.close()
    with served(*arguments, "--no-protected-mode", warned="need no password") as (_, lines):
        friend = redis.Redis(host=address, port=port_of(lines))
        assert friend.ping()
        friend.close()


def test_a_server_that_waits_for_its_store_reports_it_once(tmp_path: Path) -> None:
    place, words = tmp_path / "store", ("--loglevel", "notice")
    with Store.open(place):
        done = subprocess.run(
            [sys.executable, "-m", "kvstream", "serve", "--dir", place, "--port", "0", *words],
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr.count(", opens ") == 1
    assert f"held by process {os.getpid()}" in done.stderr
