"""Programs of npm: ioredis, socket.io's adapter of streams, redis-commander."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.patience import until
from tests.ports import free_port
from tests.programs.environment import clean_environment, node_modules, node_program
from tests.programs.outcomes import Outcome, Program, checks, node_scenario

IOREDIS = "6.0.0"
ADAPTER = "0.3.1"
COMMANDER = "0.9.0"


def _ioredis_modules() -> Path:
    return node_modules("ioredis", f"ioredis@{IOREDIS}")


def _ioredis(port: int) -> list[Outcome]:
    return node_scenario(_ioredis_modules(), "check_ioredis.js", port)


def _socket_io_modules() -> Path:
    return node_modules(
        "socket.io",
        f"@socket.io/redis-streams-adapter@{ADAPTER}",
        "socket.io@4.8.4",
        "socket.io-client@4.8.4",
        "redis@5.9.0",
        "ioredis@5.9.3",
    )


def _socket_io(port: int) -> list[Outcome]:
    return node_scenario(_socket_io_modules(), "check_socket_io.js", port)


def _commander_modules() -> Path:
    return node_modules("redis-commander", f"redis-commander@{COMMANDER}")


@contextmanager
def _commander(port: int) -> Iterator[str]:
    """Yield the address of a redis-commander that shows the server."""
    program = _commander_modules()
    own = free_port()
    script = program / "redis-commander" / "bin" / "redis-commander.js"
    options = ["--redis-host", "127.0.0.1", "--redis-port", str(port), "--redis-label", "it"]
    options += ["--address", "127.0.0.1", "--port", str(own), "--nosave", "--noload"]
    process = subprocess.Popen(
        [node_program(), str(script), *options],
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{own}"

    def serves() -> bool:
        assert process.poll() is None, "redis-commander has ended"
        try:
            return bool(_asked(f"{address}/connections"))
        except OSError:
            return False

    try:
        until(serves, "redis-commander", 0.1)
        yield address
    finally:
        process.kill()
        process.wait()


def _asked(url: str, **form: str) -> Any:
    data = urllib.parse.urlencode(form).encode() if form else None
    with urllib.request.urlopen(url, data, timeout=20) as reply:
        text = reply.read().decode()
    return json.loads(text) if text[:1] in '[{"' else text


def _redis_commander(port: int) -> list[Outcome]:
    with redis.Redis(port=port, decode_responses=True) as client, _commander(port) as address:
        client.flushall()
        client.set("text", "value")
        client.xadd("stream", {"a": "1"}, id="1-1")
        client.xadd("stream", {"a": "2"}, id="2-1")
        api = f"{address}/apiv2"
        (connection,) = _asked(f"{address}/connections")["connections"]
        place = connection["conId"]

        def shows_the_server() -> None:
            assert "Redis version" in str(_asked(f"{api}/server/info"))

        def shows_keys() -> None:
            tree = _asked(f"{api}/keystree/{place}")
            kinds = {each["keyName"]: each["rel"] for each in tree["data"]}
            assert kinds == {"text": "string", "stream": "stream"}

        def shows_text() -> None:
            found = _asked(f"{api}/key/{place}/text")
            assert (found["type"], found["value"]) == ("string", "value")

        def shows_stream() -> None:
            found = _asked(f"{api}/key/{place}/stream")
            assert [each["timestamp"] for each in found["items"]] == ["1-1", "2-1"]

        def adds_and_deletes_entries() -> None:
            entry = {"key": "stream", "connectionId": place, "timestamp": "3-1"}
            _asked(f"{api}/xset/member", field="a", value="3", **entry)
            assert client.xlen("stream") == 3
            _asked(f"{api}/xset/member/delete", **entry)
            assert client.xlen("stream") == 2

        def writes_text() -> None:
            _asked(f"{api}/key/{place}/text", keyType="string", stringValue="other")
            assert client.get("text") == "other"

        def runs_commands() -> None:
            for command, reply in (("ping", "PONG"), ('eval "return ARGV[1]" 0 x', "x")):
                assert _asked(f"{api}/exec/{place}", cmd=command) == {"data": reply}

        return checks(
            shows_the_server=shows_the_server,
            shows_keys=shows_keys,
            shows_a_string=shows_text,
            shows_a_stream=shows_stream,
            writes_a_string=writes_text,
            adds_and_deletes_entries=adds_and_deletes_entries,
            runs_commands=runs_commands,
        )


PROGRAMS = (
    Program(
        "ioredis",
        IOREDIS,
        "npm",
        "a program of ours: scripts, functions, channels, transactions, monitor, groups "
        "(its package has no tests)",
        _ioredis,
        install=_ioredis_modules,
    ),
    Program(
        "@socket.io/redis-streams-adapter",
        ADAPTER,
        "npm",
        "a program of ours: two servers of socket.io 4.8.4 with clients, on node-redis and "
        "ioredis: broadcasts, rooms, replies, recovered connections (its package has no tests)",
        _socket_io,
        install=_socket_io_modules,
    ),
    Program(
        "redis-commander",
        COMMANDER,
        "npm",
        "a program of ours: its pages show and change keys and streams, and run commands",
        _redis_commander,
        install=_commander_modules,
    ),
)
