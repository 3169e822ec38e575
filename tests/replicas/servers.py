"""A primary and replicas as processes, and what tests compare."""

import signal
from collections.abc import Mapping
from pathlib import Path

import redis

from kvstream import Store
from tests.patience import until
from tests.replicas.conftest import rows_of
from tests.serving import ServerProcess


class Node(ServerProcess):
    """A server of its own, on a port that stays."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = ["--port", str(port)] if port else []
        quiet = ["--loglevel", "nothing"]
        super().__init__(directory, *quiet, *given, *arguments, environment=environment)

    def client(self, **options: object) -> redis.Redis:
        """Return a client of redis-py."""
        return redis.Redis(port=self.port, **options)  # type: ignore[arg-type]

    def again(self) -> "Node":
        """Start it again, once it has ended."""
        return Node(self.directory, port=self.port)

    def freeze(self) -> None:
        """Stop it by SIGSTOP; return once no thread of it runs any more."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        until(lambda: {_state(task) for task in tasks.iterdir()} == {"T"}, "that it stands")

    def replication(self) -> dict[str, str]:
        """Return the section Replication of INFO."""
        return self.information("replication")

    def offset(self) -> int:
        """Return the position of its last row."""
        return int(self.replication()["master_repl_offset"])

    def copies_taken(self) -> bool:
        """Return whether it has the data of its primary."""
        return self.replication()["master_link_status"] == "up"

    def copies(self) -> int:
        """Return how many copies it has given."""
        return int(self.information("stats")["sync_full"])


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def replica_of(primary: ServerProcess, directory: Path, *arguments: str) -> Node:
    """Start a replica, and wait until it follows."""
    node = Node(directory, "--replicaof", f"127.0.0.1:{primary.port}", *arguments)
    wait_linked(node)
    return node


def wait_linked(node: Node) -> None:
    """Wait until a replica gets the log."""
    until(lambda: _has_link(node), "the link", 0.02)


def _has_link(node: Node) -> bool:
    try:
        return node.replication().get("master_link_status") == "up"
    except (OSError, EOFError):  # a change of role ends connections
        assert node.process.poll() is None
        return False


def wait_equal(*nodes: Node) -> None:
    """Wait until all have the same position; nobody writes any more."""
    try:
        until(lambda: len({node.offset() for node in nodes}) == 1, "equal positions", 0.02)
    except AssertionError as error:
        raise AssertionError(*(node.replication() for node in nodes)) from error


def refuse_differences(*directories: Path) -> None:
    """Check that stores are sound, and have the same rows."""
    found = []
    for directory in directories:
        with Store.open(directory, read_only=True) as store:
            assert store.check() == []
            found.append(rows_of(store))
    for other in found[1:]:
        assert set(found[0].items()) ^ set(other.items()) == set()
