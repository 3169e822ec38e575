"""redis-benchmark runs unchanged against kvstream."""

import csv
from contextlib import closing

import pytest
import redis

from tests.clients.debian import run

REQUESTS = 3000
XADD = ("XADD", "mystream", "*", "field", "value")


def rates(printed: bytes) -> dict[str, float]:
    """Return the requests per second of each test."""
    text = printed.decode()
    rows = csv.DictReader(text[text.index('"test"') :].splitlines())
    return {row["test"]: float(row["rps"]) for row in rows}


@pytest.mark.parametrize("pipeline", ["1", "16"])
def test_its_own_tests_run(port: int, pipeline: str) -> None:
    tests = "ping_inline,ping_mbulk,set,get,incr"
    printed = run(
        *("redis-benchmark", port, "--csv", "-n", str(REQUESTS), "-c", "20"),
        *("-P", pipeline, "-r", "100", "-t", tests),
    )
    found = rates(printed)
    assert set(found) == {"PING_INLINE", "PING_MBULK", "SET", "GET", "INCR"}
    assert all(rate > 0 for rate in found.values())


@pytest.mark.parametrize("pipeline", ["1", "16"])
def test_every_counted_append_is_stored(port: int, pipeline: str) -> None:
    arguments = ("--csv", "-n", str(REQUESTS), "-c", "50", "-P", pipeline)
    assert rates(run("redis-benchmark", port, *arguments, *XADD))[" ".join(XADD)] > 0
    with closing(redis.Redis(port=port)) as client:
        # It sends complete pipelines, and so maybe more than requested.
        assert REQUESTS <= client.xlen("mystream") <= REQUESTS + 50 * int(pipeline)
