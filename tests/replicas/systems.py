"""The servers that fail over in a test: kvstream, or Debian's redis-server, with one interface."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import redis

from tests.crash.clients import ALL, Redis, connected
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.replicas.cutting import CuttingProxy
from tests.replicas.load import GROUP, ORDERS, Level
from tests.replicas.servers import Node, refuse_differences


class Machine:
    """One server of a pair, its folder, and the network between it and all others."""

    process: subprocess.Popen[Any]

    def __init__(self, folder: Path, level: Level, is_cut: bool) -> None:
        """``is_cut``: its network will be cut."""
        self.folder, self.level = folder, level
        folder.mkdir()
        self.own_port = free_port()
        self.proxy = CuttingProxy(self.own_port) if is_cut else None
        self.port = self.proxy.port if self.proxy is not None else self.own_port
        """Where others reach it."""

    def start(self, primary_port: int | None = None) -> None:
        """Start its server, for the first time as a replica of a primary."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop its server in order."""
        raise NotImplementedError

    def client(self) -> Redis:
        """Return a client on its side of the network."""
        return connected(self.own_port)

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kill its server as ``kill -9`` does."""
        self.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE_S)

    def replication(self) -> dict[str, Any]:
        """Return the section Replication of INFO; empty if it does not answer."""
        try:
            with self.client() as client:
                return dict(client.info("replication"))
        except redis.RedisError:
            return {}

    def close(self) -> None:
        """End what still runs."""
        if self.process.poll() is None:
            self.kill()
        if self.proxy is not None:
            self.proxy.close()


class KvstreamMachine(Machine):
    """``kvstream serve``; ``replica-acks`` if that is the level."""

    def start(self, primary_port: int | None = None) -> None:
        file = self.folder / "kvstream.toml"
        acks = int(self.level is Level.ACKS)
        file.write_text(
            "[config]\n"
            f'replica-announce-ip = "127.0.0.1"\nreplica-announce-port = {self.port}\n'
            f"replica-acks = {acks}\n"
        )
        words = ["--replicaof", f"127.0.0.1:{primary_port}"] if primary_port else []
        node = Node(self.folder / "store", "--config", str(file), *words, port=self.own_port)
        self.node, self.process = node, node.process

    def stop(self) -> None:
        self.node.stop()


class RedisMachine(Machine):
    """``redis-server`` with an append-only file; the kernel has what it wrote before a kill."""

    def start(self, primary_port: int | None = None) -> None:
        file = self.folder / "redis.conf"
        if not file.exists():  # Sentinel's CONFIG REWRITE keeps the role in it
            file.write_text(
                f"port {self.own_port}\nbind 127.0.0.1\ndir {self.folder}\n"
                'appendonly yes\nsave ""\nenable-debug-command yes\n'
                "repl-diskless-sync yes\nrepl-diskless-sync-delay 0\n"
                f"replica-announce-ip 127.0.0.1\nreplica-announce-port {self.port}\n"
                + (f"replicaof 127.0.0.1 {primary_port}\n" if primary_port else "")
            )
        program = shutil.which("redis-server")
        assert program is not None, "redis-server is not installed"
        self.process = subprocess.Popen([program, str(file)], stdout=subprocess.DEVNULL)
        until(lambda: self.replication(), "redis-server", 0.05)

    def stop(self) -> None:
        self.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=PATIENCE_S)


def is_primary(machine: Machine) -> bool:
    return machine.replication().get("role") == "master"


def follows(replica: Machine, primary: Machine) -> bool:
    """Return whether a replica gets the log of a primary."""
    shown = replica.replication()
    return (
        shown.get("role") == "slave"
        and shown["master_port"] == primary.port
        and shown["master_link_status"] == "up"
    )


def wait_equal(primary: Machine, replica: Machine) -> None:
    """Wait until both have the same position; only timers write any more."""

    def are_equal() -> bool:
        offsets = [each.replication().get("master_repl_offset") for each in (primary, replica)]
        return offsets[0] is not None and offsets[0] == offsets[1]

    until(are_equal, "equal positions", 0.05)


def compare_and_stop(primary: Machine, replica: Machine) -> None:
    """Stop both; fail if they differ: in a row, or for Redis in an entry or a pending one."""
    if isinstance(primary, KvstreamMachine):
        primary.stop()  # first: it fires timers until then
        replica.stop()
        refuse_differences(*(each.folder / "store" for each in (primary, replica)))
        return
    states = []
    for each in (primary, replica):
        with each.client() as client:
            rows = client.xpending_range(ORDERS, GROUP, "-", "+", ALL)
            pending = [(r["message_id"], r["consumer"], r["times_delivered"]) for r in rows]
            states.append((client.execute_command("DEBUG", "DIGEST"), pending))
    assert states[0] == states[1], "the replica differs from its primary"
    primary.stop()
    replica.stop()


SYSTEMS: dict[str, type[Machine]] = {"kvstream": KvstreamMachine, "redis": RedisMachine}
