"""Three unmodified redis-sentinel that watch a primary and its replica."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import redis
from redis.sentinel import Sentinel

from tests.crash.clients import Redis, connected
from tests.patience import until
from tests.ports import free_port

NAME = "watched"
TOLD_S = 240.0
"""The longest that a promotion, or the end of a former primary's role, takes on a busy machine."""
SHORTER = ("INFO-PERIOD", 1000, "PUBLISH-PERIOD", 500, "TILT-TRIGGER", 20_000)
"""Times of Sentinel for which it looks and speaks: a former primary is told to follow after two
seconds, not eight, and a pause of the machine does not stop a Sentinel for half a minute."""


def sentinel_program() -> str:
    """Return the program; skip the test where it is missing."""
    found = shutil.which("redis-sentinel") or shutil.which("redis-server")
    if found is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail("redis-sentinel is not installed")
        pytest.skip("redis-sentinel is not installed: apt-get install redis-sentinel")
    return found


class Sentinels:
    """Three of them, and what they say; each has a folder and a configuration of its own."""

    def __init__(self, program: str, place: Path, port: int, down_ms: int) -> None:
        """Watch the primary at ``port``."""
        self.ports = [free_port() for _ in range(3)]
        self._processes = []
        for own in self.ports:
            folder = place / f"sentinel-{own}"
            folder.mkdir()
            file = folder / "sentinel.conf"
            file.write_text(
                f"port {own}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor {NAME} 127.0.0.1 {port} 2\n"
                f"sentinel down-after-milliseconds {NAME} {down_ms}\n"
                f"sentinel failover-timeout {NAME} 5000\n"
            )
            command = [program, str(file), "--sentinel"]
            self._processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        places = [("127.0.0.1", each) for each in self.ports]
        self._asked = Sentinel(places, socket_timeout=2)  # type: ignore[no-untyped-call]

    @property
    def url(self) -> str:
        """The URL of the primary, for the library."""
        places = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"redis+sentinel://{places}/{NAME}?socket_timeout=2"

    def hurry(self) -> None:
        """Shorten the periods in which they look, where they can."""
        for port in self.ports:
            until(lambda port=port: _is_hurried(port), "a Sentinel", 0.05)  # type: ignore[misc]

    def primary(self) -> int:
        """Return the port of the primary by redis-py; redis.ConnectionError if it has none."""
        return int(self._asked.discover_master(NAME)[1])  # type: ignore[no-untyped-call]

    def wait_known(self, replicas: int) -> None:
        """Wait until each knows the others and the replicas."""
        for port in self.ports:
            until(lambda port=port: _knows(port, replicas), "the others", 0.1)  # type: ignore[misc]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _is_hurried(port: int) -> bool:
    try:
        with connected(port, 2) as client:
            client.execute_command("SENTINEL", "DEBUG", *SHORTER)
    except redis.ResponseError:  # before Redis 7
        return True
    except redis.RedisError:
        return False
    return True


def _knows(port: int, replicas: int) -> bool:
    """Return whether a Sentinel could promote each of the replicas."""
    try:
        with connected(port, 2) as client:
            client.response_callbacks.clear()
            state = _fields(client.execute_command("SENTINEL", "master", NAME))
            found = client.execute_command("SENTINEL", "replicas", NAME)
    except redis.RedisError:
        return False
    good = [each for each in map(_fields, found) if each[b"flags"] == b"slave"]
    linked = [each for each in good if each.get(b"master-link-status") == b"ok"]
    return state[b"num-other-sentinels"] == b"2" and len(linked) >= replicas


def _fields(flat: Redis) -> dict[bytes, bytes]:
    """Return the fields that a Sentinel has told, of RESP2 or RESP3."""
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
