"""The rows of replicas: what they refuse to call a result; test_bench runs all of them."""

from pathlib import Path

import pytest

from bench.copies import replicas
from bench.copies.replicas import pair, wait_caught_up
from bench.load import WrongReply
from bench.processes import kvstream_server


def test_a_replica_that_stays_behind_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "BEHIND_S_MAX", 0.1)
    with kvstream_server(tmp_path / "alone", "no") as client, pytest.raises(WrongReply):
        wait_caught_up(client)


def test_a_pair_is_together_before_it_is_measured(tmp_path: Path) -> None:
    with pair(tmp_path) as primary:
        primary.xadd("orders", {"n": 1})
        assert wait_caught_up(primary) >= 0
        assert primary.info("replication")["slave0"]["state"] == "online"
