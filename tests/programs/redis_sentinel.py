"""redis-sentinel of Debian: two of them watch a server, and find each other through it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from redis.sentinel import Sentinel

from tests.patience import until
from tests.ports import free_port
from tests.programs.environment import Missing
from tests.programs.outcomes import Outcome, Program, checks

_NAME = "watched"


@contextmanager
def _sentinels(port: int) -> Iterator[list[Any]]:
    program = shutil.which("redis-server")  # the same file as redis-sentinel
    if program is None:
        raise Missing("redis-sentinel is not installed: apt-get install redis-server")
    processes, clients = [], []
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        try:
            for n in range(2):
                own = free_port()
                file = Path(place) / f"{n}.conf"
                file.write_text(
                    f"port {own}\nbind 127.0.0.1\ndir {place}\n"
                    f"sentinel monitor {_NAME} 127.0.0.1 {port} 2\n"
                    f"sentinel down-after-milliseconds {_NAME} 5000\n"
                )
                command = [program, str(file), "--sentinel"]
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
                clients.append(redis.Redis(port=own, decode_responses=True))
            yield clients
        finally:
            for client in clients:
                client.close()
            for process in processes:
                process.kill()
                process.wait()


def _run(port: int) -> list[Outcome]:
    with _sentinels(port) as clients:

        def state(client: Any) -> dict[str, Any]:
            try:
                found: dict[str, Any] = client.sentinel_master(_NAME)
            except redis.ConnectionError:
                return {}
            return found

        def is_master() -> None:
            until(lambda: all(state(x).get("flags") == "master" for x in clients), "masters", 0.1)

        def find_each_other() -> None:
            others = "num-other-sentinels"
            until(lambda: all(state(x).get(others) == 1 for x in clients), "the others", 0.1)
            reply = clients[0].execute_command("SENTINEL", "CKQUORUM", _NAME)
            assert "2 usable" in str(reply), reply

        def clients_find_the_server() -> None:
            ports = [client.connection_pool.connection_kwargs["port"] for client in clients]
            sentinel: Any = Sentinel([("127.0.0.1", each) for each in ports])  # type: ignore[no-untyped-call]
            assert sentinel.discover_master(_NAME) == ("127.0.0.1", port)
            with sentinel.master_for(_NAME) as master:
                master.xadd("events", {"n": 1})
                assert master.xlen("events") == 1

        def stays_master() -> None:
            assert [state(each)["flags"] for each in clients] == ["master"] * 2

        return checks(
            master_and_connected=is_master,
            sentinels_find_each_other=find_each_other,
            clients_find_the_server=clients_find_the_server,
            master_still=stays_master,
        )


def _version() -> str:
    program = shutil.which("redis-server")
    shown = subprocess.run([program or "true", "--version"], capture_output=True, text=True).stdout
    return shown.partition("v=")[2].partition(" ")[0]


PROGRAMS = (
    Program(
        "redis-sentinel",
        _version(),
        "Debian",
        "two sentinels watch the server, find each other through its channels, agree on a quorum, "
        "and lead redis-py to it",
        _run,
        core=True,
    ),
)
