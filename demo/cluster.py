"""``python -m demo.cluster``: a pair of servers and three Sentinels, and the primary is killed.

It all runs on this machine, in a new folder, for some twenty seconds. The writers use the library
with the addresses of the Sentinels; ``replica-acks 1`` is set, so what was acknowledged is on both
servers. It fails unless all of that is in the new primary, once.
"""

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import redis

import kvstream
from demo.job import DemoFailed

NAME = "orders"
"""The name under which the Sentinels watch the pair, and that of the stream."""
DOWN_MS = 1500
"""After how long a silent server is down; above ``replica-lease-ms``, which is 1000."""
WRITERS = 2
PAUSE_S = 0.002
DEADLINE_S = 300.0
"""It all takes some twenty seconds; on a busy machine more."""
MISSING = """redis-sentinel is not installed: it decides which server is the primary.
  Debian, Ubuntu:  apt-get install redis-sentinel
  Fedora:          dnf install valkey
Then start this again."""
HURRY = ("INFO-PERIOD", 1000, "PUBLISH-PERIOD", 500)
"""Sentinel looks every ten seconds at servers that are well; a demo need not wait for that."""


class Pair:
    """Two servers and three Sentinels, each a process, until ``stop``."""

    def __init__(self, program: str, folder: Path) -> None:
        ports = iter(_free_ports(5))
        self.ports = [next(ports), next(ports)]
        self._sentinel_ports = list(ports)
        self._folder = folder
        self.servers: dict[int, subprocess.Popen[Any]] = {}
        self._sentinels: list[subprocess.Popen[Any]] = []
        first, second = self.ports
        self.start(first)
        self.start(second, f"127.0.0.1:{first}")
        for port in self._sentinel_ports:
            own = folder / f"sentinel-{port}"
            own.mkdir()
            file = own / "sentinel.conf"  # each its own: Sentinel writes into it
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {own}\n"
                f"sentinel monitor {NAME} 127.0.0.1 {first} 2\n"
                f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\n"
                f"sentinel failover-timeout {NAME} 5000\n"
            )
            command = [program, str(file), "--sentinel"]
            self._sentinels.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    @property
    def url(self) -> str:
        """The URL of the primary, whichever it is."""
        places = ",".join(f"127.0.0.1:{port}" for port in self._sentinel_ports)
        return f"redis+sentinel://{places}/{NAME}"

    def start(self, port: int, primary: str = "") -> None:
        """Start a server; ``primary`` is for its first start alone."""
        own = self._folder / f"server-{port}"
        own.mkdir(exist_ok=True)
        config = own / "kvstream.toml"
        config.write_text("[config]\nreplica-acks = 1\n")
        command = [sys.executable, "-m", "kvstream", "serve", "--dir", str(own / "store")]
        command += ["--config", str(config), "--port", str(port), "--log-level", "nothing"]
        command += ["--replicaof", primary] if primary else []
        self.servers[port] = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _wait(lambda: bool(self.role(port)), "a server")

    def role(self, port: int) -> str:
        """Return what a server says that it is, with the state of its link; empty: nothing."""
        with suppress(redis.RedisError), redis.Redis(port=port, socket_timeout=2) as client:
            shown = client.info("replication")
            return f"{shown['role']} {shown.get('master_link_status', '')}".strip()
        return ""

    def are_ready(self) -> bool:
        """Return whether each Sentinel knows the others, and the replica."""
        for port in self._sentinel_ports:
            try:
                with redis.Redis(port=port, socket_timeout=2) as client:
                    with suppress(redis.ResponseError):  # before Redis 7
                        client.execute_command("SENTINEL", "DEBUG", *HURRY)
                    state: Any = client.sentinel_master(NAME)
            except redis.RedisError:
                return False
            if state["num-other-sentinels"] != 2 or state["num-slaves"] != 1:
                return False
        return True

    def stop(self) -> None:
        for process in (*self._sentinels, *self.servers.values()):
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


class Writers:
    """Threads that add entries, and remember those that were acknowledged."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self.acknowledged: list[bytes] = []
        self.longest_s = 0.0
        """The longest time that an acknowledgement took."""
        self.unknown = 0
        """Writes whose outcome the library could not find out."""
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        count = 0
        with kvstream.open(self._url) as store:
            stream = store.stream(NAME)
            while not self._stop.wait(PAUSE_S):
                count += 1
                value = b"%d-%d" % (number, count)
                begun = time.monotonic()
                try:
                    stream.add({"order": value})
                except kvstream.StoreError:
                    self.unknown += 1
                    continue
                self.acknowledged.append(value)
                self.longest_s = max(self.longest_s, time.monotonic() - begun)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited in vain for {what}")
        time.sleep(0.05)


def _fail_over(pair: Pair, say: Callable[[str], None]) -> None:
    """Kill the primary, and wait until both servers are together again."""
    former, successor = pair.ports
    pair.servers[former].kill()
    pair.servers[former].wait()
    killed = time.monotonic()
    say(f"the primary, at port {former}, is killed with -9")
    _wait(lambda: pair.role(successor) == "master", "the promotion")
    say(f"port {successor} is the primary after {time.monotonic() - killed:.1f} s")
    pair.start(former)
    _wait(lambda: pair.role(former) == "slave up", "the return of the former primary")
    say(f"port {former} is back, as its replica, after {time.monotonic() - killed:.1f} s")


def run(program: str, folder: Path, say: Callable[[str], None]) -> None:
    """Show a failover in a folder; raise DemoFailed if an acknowledged entry is lost, or twice."""
    pair = Pair(program, folder)
    try:
        _wait(lambda: pair.role(pair.ports[1]) == "slave up" and pair.are_ready(), "the Sentinels")
        say(f"a primary at port {pair.ports[0]}, its replica at {pair.ports[1]}, three Sentinels")
        writers = Writers(pair.url)
        try:
            time.sleep(2)
            _fail_over(pair, say)
            time.sleep(1)
        finally:
            writers.stop()
        with kvstream.open(pair.url) as store:
            found = [entry.fields[b"order"] for entry in store.stream(NAME)]
    finally:
        pair.stop()
    lost = set(writers.acknowledged) - set(found)
    say(
        f"{len(writers.acknowledged):,} writes were acknowledged, {writers.unknown} were not; "
        f"the longest took {writers.longest_s:.1f} s"
    )
    if lost or len(found) != len(set(found)) or not writers.acknowledged:
        raise DemoFailed(f"{len(lost)} are lost, {len(found) - len(set(found))} are there twice")
    say(f"nothing is lost, and nothing is there twice: {len(found):,} entries in the new primary")


@click.command()
def main() -> None:
    """Build a pair under three Sentinels on this machine, and kill the primary."""
    program = shutil.which("redis-sentinel") or shutil.which("valkey-sentinel")
    if program is None:
        raise click.ClickException(MISSING)
    with tempfile.TemporaryDirectory(prefix="kvstream-cluster-") as folder:
        try:
            run(program, Path(folder), click.echo)
        except DemoFailed as error:
            raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
