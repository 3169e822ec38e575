"""kvstream with what Python has on macOS: no epoll, no /proc, no extended attributes, and so on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvstream import Store
from tests.patience import PATIENCE_S
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join((str(ROOT / "tests" / "macos"), str(ROOT))),
}

LIBRARY = """
import sitecustomize, sys
import kvstream

with kvstream.open(sys.argv[1], durability="always") as store:
    stream = store.stream("s")
    group = stream.create_group("g", "0")
    before = sitecustomize.synced
    id = stream.add({"f": "v"})
    assert sitecustomize.synced > before, "always has left the write in the cache of the drive"
    [entry] = group.consumer("c").read()
    assert group.ack(entry.id) == 1
    assert store.check() == []
    store.checkpoint(sys.argv[1] + "-copy")
"""
ASYNCIO = """
import asyncio, sys
import kvstream.aio

async def main():
    async with await kvstream.aio.open(sys.argv[1], shared=True) as store:
        waits = asyncio.create_task(store.stream("a").read(after="$", block=60))
        while not waits.done():
            await store.stream("a").add({"f": "v"})
            await asyncio.sleep(0.01)
        assert waits.result()
asyncio.run(main())
"""
SHARED = """
import subprocess, sys
import kvstream

with kvstream.open(sys.argv[1], shared=True) as store:
    store.stream("s").add({"n": 1})
    code = "import sys, kvstream\\n" \\
        "with kvstream.open(sys.argv[1], shared=True) as store: store.stream('s').add({'n': 2})"
    subprocess.run([sys.executable, "-c", code, sys.argv[1]], check=True)
    assert len(store.stream("s").range()) == 2
"""
SERVER = """
import subprocess, sys, time
import kvstream, redis

directory, port = sys.argv[1:]
command = [sys.executable, "-m", "kvstream", "serve", "--dir", directory, "--port", port]
server = subprocess.Popen(command)
try:
    client = redis.Redis(port=int(port))
    for _ in range(600):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    pipe = client.pipeline(transaction=False)
    for n in range(100):
        pipe.xadd("s", {"n": n})
    assert len(pipe.execute()) == 100
    info = client.info("everything")
    assert info["used_memory_rss"] > 10 << 20 and info["used_cpu_user_main_thread"] > 0
    with kvstream.open(f"redis://127.0.0.1:{port}") as store:
        assert len(store.stream("s").range()) == 100
    client.shutdown()
except redis.ConnectionError:
    pass
finally:
    assert server.wait(60) == 0
"""
CLI = """
kvstream() { "$PYTHON" -m kvstream --store "$1" "${@:2}"; }
set -e
kvstream "$1" add orders sku=a1
kvstream "$1" group create orders g --start 0
kvstream "$1" read orders --group g --consumer c
kvstream "$1" check
kvstream "$1" ls --json
"""


def run(command: list[str], *arguments: object) -> str:
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env=ENVIRONMENT | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("program", [LIBRARY, ASYNCIO, SHARED], ids=["library", "aio", "shared"])
def test_the_library_runs(program: str, tmp_path: Path) -> None:
    run([sys.executable, "-c", program], tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        assert store.check() == []


def test_processes_share_a_directory_whose_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120) / "store"
    directory.parent.mkdir()
    run([sys.executable, "-c", SHARED], directory)
    with Store.open(directory) as store:
        assert store.check() == []


def test_the_server_runs(tmp_path: Path) -> None:
    run([sys.executable, "-c", SERVER], tmp_path / "store", free_port())
    with Store.open(tmp_path / "store") as store:
        assert store.check() == []


def test_the_command_line_runs(tmp_path: Path) -> None:
    said = run(["bash", "-c", CLI, "bash"], tmp_path / "store")
    assert '"orders"' in said
