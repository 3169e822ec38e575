"""ioredis and node-redis: their programs have the same results on kvstream and on redis-server."""

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S

FOLDER = Path(__file__).with_name("node")


@pytest.fixture(scope="module")
def node() -> str:
    """The path of Node.js, if it and the clients of npm are installed."""
    path = shutil.which("node", path=f"{os.environ['PATH']}:{sysconfig.get_path('scripts')}")
    if path is not None and (FOLDER / "node_modules").is_dir():
        return path
    reason = "Node.js and its clients are not installed: make clients"
    required = os.environ.get("KVSTREAM_REQUIRE_ALL") == "1"
    if required and "KVSTREAM_WITHOUT_NPM" not in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


def findings(node: str, script: str, port: int, *arguments: str) -> dict[str, Any]:
    """Return the results of a program of ``node/``."""
    done = subprocess.run(
        [node, str(FOLDER / script), str(port), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_ioredis_has_the_same_results_as_on_redis(node: str, port: int, redis_port: int) -> None:
    ours, theirs = (findings(node, "ioredis.js", each) for each in (port, redis_port))
    assert ours == theirs
    assert ours["added"] == ["1-1", [["1-1", ["sku", "a1", "qty", "2"]]], 1]
    assert len(ours["pipeline"]) == 100
    assert len(ours["heard"][0]) == 5


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_node_redis_has_the_same_results_as_on_redis(
    node: str, port: int, redis_port: int, protocol: str
) -> None:
    ours, theirs = (findings(node, "redis.js", each, protocol) for each in (port, redis_port))
    assert ours == theirs
    assert ours["added"][0] == "1-1"
    assert ours["lock"] == ["OK", None]
    assert len(ours["heard"][0]) == 5
