"""``kvstream monitor``: the requests of a server's clients."""

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from kvstream.cli.requests.monitor import requests_of
from tests.cli.program import Program, RemoteProgram
from tests.patience import until

pytestmark = pytest.mark.places("server", "redis")


@pytest.fixture
def client(kvstream: RemoteProgram) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(kvstream.url) as client:
        yield client


def watch(program: Program, client: "redis.Redis", *words: str) -> "subprocess.Popen[bytes]":
    """Start the program, and return once the server has registered the monitor."""
    process = program.start("monitor", *words)
    until(lambda: any("O" in each["flags"] for each in client.client_list()))
    return process


def test_requests_are_shown_as_they_arrive(kvstream: RemoteProgram, client: "redis.Redis") -> None:
    with watch(kvstream, client, "--command", "x*", "--command", "SET", "--count", "3") as process:
        client.xadd("orders", {"sku": "a b", "note": b"\xff\n"})
        client.get("k")
        client.set("k", "")
        client.xlen("orders")
        out, err = process.communicate(timeout=30)
    lines = out.decode().splitlines()
    assert err == b""
    assert [line.split("  ", 3)[3] for line in lines] == [
        r'XADD orders * sku "a b" note \xff\n',
        'SET k ""',
        "XLEN orders",
    ]
    when, db, address, _ = lines[0].split("  ", 3)
    assert when.endswith("Z")
    assert db == "0"
    assert address.startswith("127.0.0.1:")


def test_json_has_every_byte(kvstream: RemoteProgram, client: "redis.Redis") -> None:
    with watch(kvstream, client, "--json", "-n", "1", "--command", "set") as process:
        client.set("k", b"\xff")
        found: Any = json.loads(process.communicate(timeout=30)[0])
    assert found["command"] == ["SET", "k", {"base64": "/w=="}]
    assert found["db"] == 0
    assert found["time_ms"] > 1_700_000_000_000


def test_a_client_can_be_selected(kvstream: RemoteProgram, client: "redis.Redis") -> None:
    own = str(client.client_info()["addr"])
    words = ["--client", own, "--command", "xlen", "-n", "1"]
    with watch(kvstream, client, *words) as process:
        kvstream("get", "nosuch", "1-1", code=1)  # from another address
        client.xlen("here")
        out = process.communicate(timeout=30)[0].decode()
    assert own in out


def test_ctrl_c_ends_it(kvstream: RemoteProgram, client: "redis.Redis") -> None:
    with watch(kvstream, client) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")


@pytest.mark.places("server")
def test_the_end_of_the_server_ends_it(kvstream: RemoteProgram, client: "redis.Redis") -> None:
    with watch(kvstream, client) as process:
        for each in client.client_list():
            if "O" in each["flags"]:
                client.client_kill(each["addr"])
        _, err = process.communicate(timeout=30)
    assert process.returncode == 5
    assert b"the server does not answer" in err


@pytest.mark.places("store")
def test_a_store_that_is_not_shared_has_no_clients(orders: Program) -> None:
    refused = orders("--wait", "0s", "monitor", code=1).stderr
    assert "no process shares the store" in refused
    assert "--url" in refused


@pytest.mark.places("store")
def test_lines_of_all_forms_are_parsed() -> None:
    lines = [
        b'1700000000.123456 [0 127.0.0.1:5000] "set" "k\\"" "\\xff"',
        b'1700000000.000001 [12 lua] "get" "k"',
        b"1700000000.5 [0 unix:/tmp/s]",
        b"nonsense",
        b'1700000000.999999 [0 [::1]:6379] "ping"',
    ]
    found = list(requests_of(iter(lines)))
    assert [(each.time_ms, each.db, each.client) for each in found] == [
        (1_700_000_000_123, 0, b"127.0.0.1:5000"),
        (1_700_000_000_000, 12, b"lua"),
        (1_700_000_000_999, 0, b"[::1]:6379"),
    ]
    assert found[0].command == [b"set", b'k"', b"\xff"]
