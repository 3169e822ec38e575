"""Commands of queues that write to other streams need permissions for these streams."""

from typing import Any

import pytest
import redis

from tests.server.conftest import Served


@pytest.fixture
def clients(served: Served) -> tuple[Any, Any]:
    """A client with all rights, and one of a user with only the keys ``mine*``."""
    free = served.client()
    free.acl_setuser("ann", enabled=True, nopass=True, keys=["mine*"], commands=["+@all"])
    own = served.client(username="ann", password="")
    own.xgroup_create("mine", "g", "0", mkstream=True)
    return free, own


@pytest.mark.parametrize(
    "rules",
    [
        ["DEAD", "other"],
        ["LEASE", 5, "BACKOFF", "EXP", 1, 2, "JITTER", 5, "DEAD", "other"],
        ["ORDERBY", "DEAD", "PERKEY", 2, "RATE", 1, 2, "dead", "other"],
    ],
)
def test_dead_letters_go_only_to_streams_of_the_user(
    clients: tuple[Any, Any], rules: list[Any]
) -> None:
    free, own = clients
    with pytest.raises(redis.exceptions.NoPermissionError):
        own.execute_command("KVSTREAM.POLICY SET", "mine", "g", *rules)
    assert free.execute_command("KVSTREAM.POLICY GET", "mine", "g") in ([], {})
    own.execute_command("KVSTREAM.POLICY SET", "mine", "g", "ORDERBY", "DEAD", "DEAD", "mine:dead")


def test_a_redrive_to_named_streams_needs_all_keys(clients: tuple[Any, Any]) -> None:
    free, own = clients
    forged = {"f": "v", "dead:stream": "other", "dead:id": "1-1", "dead:group": "g"}
    own.xadd("mine:dead", forged)
    with pytest.raises(redis.exceptions.NoPermissionError):
        own.execute_command("KVSTREAM.REDRIVE START", "mine:dead")
    with pytest.raises(redis.exceptions.NoPermissionError):
        own.execute_command("KVSTREAM.REDRIVE START", "mine:dead", "TO", "other")
    assert own.xlen("mine:dead") == 1
    assert free.exists("other") == 0
    assert own.execute_command("KVSTREAM.REDRIVE START", "mine:dead", "TO", "mine")
    assert free.execute_command("KVSTREAM.REDRIVE START", "mine:dead")
