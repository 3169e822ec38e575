"""KVSTREAM.POLICY: rules of groups are kept, shown and refused."""

import pytest

from kvstream import InvalidArgument, ManualClock, NoGroup, Store
from kvstream.commands.replies import ErrorReply, Map
from kvstream.layout.keys import qualified
from kvstream.meta.policy import GroupPolicy
from kvstream.operations.queues import policy
from tests.commands.dispatcher import Dispatcher
from tests.opening import Stores

NAME = qualified(0, b"s")


@pytest.fixture
def grouped(store: Store) -> Store:
    store.stream("s").create_group("g", mkstream=True)
    return store


def run(store: Store, command: str) -> object:
    reply = Dispatcher(store.engine).execute([word.encode() for word in command.split()])
    return dict(reply.pairs) if isinstance(reply, Map) else reply


def test_rules_are_set_one_by_one_and_shown(grouped: Store) -> None:
    run(grouped, "KVSTREAM.POLICY SET s g LEASE 30000 DELIVERIES 5 DEAD dead")
    shown = run(grouped, "KVSTREAM.POLICY SET s g BACKOFF 1000,10000 JITTER 20")
    assert shown == run(grouped, "KVSTREAM.POLICY GET s g")
    assert isinstance(shown, dict)
    assert (shown[b"lease_ms"], shown[b"max_deliveries"]) == (30000, 5)
    assert (shown[b"backoff_ms"], shown[b"jitter_percent"]) == ([1000, 10000], 20)
    assert shown[b"dead_letter"] == b"dead"
    assert run(grouped, "KVSTREAM.POLICY DEL s g") == 1
    assert run(grouped, "KVSTREAM.POLICY DEL s g") == 0
    assert run(grouped, "KVSTREAM.POLICY GET s g") == {}


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("SET s g", "syntax error"),
        ("SET s g LEASE", "syntax error"),
        ("SET s g LEASE -1", "lease_ms must be between 0 and 100 years"),
        ("SET s g BACKOFF 5,x", "BACKOFF must be a list of milliseconds"),
        ("SET s g BACKOFF EXP 10 5", "the base must be above 0"),
        ("SET s g BACKOFF 1 JITTER 101", "at most 100 percent"),
        ("SET s g DEAD s", "must be another stream"),
        ("SET s g ORDERBY user PERKEY 0", "max_per_key must be at least 1"),
        ("SET s g RATE 5 0", "a rate needs a count and a time"),
        ("SET s g " + "BACKOFF " + ",".join(["1"] * 65), "at most 64 delays"),
        ("SET s other LEASE 5", "No such consumer group 'other'"),
        ("GET none g", "requires the key to exist"),
    ],
)
def test_impossible_rules_are_refused(grouped: Store, command: str, error: str) -> None:
    reply = run(grouped, f"KVSTREAM.POLICY {command}")
    assert isinstance(reply, ErrorReply)
    assert error in reply.text
    assert run(grouped, "KVSTREAM.POLICY GET s g") == {}


def test_a_policy_survives_a_restart(open_store: Stores, clock: ManualClock) -> None:
    store = open_store("own")
    store.stream("s").create_group("g", mkstream=True)
    rules = {"lease_ms": 5, "backoff_ms": (1, 2), "dead_letter": b"d", "order_by": b"user"}
    kept = store.engine.run(policy.set_policy, NAME, b"g", rules)
    store.close()
    store = open_store("own")
    assert store.engine.run(policy.policy_of, NAME, b"g") == kept == GroupPolicy(**rules)  # type: ignore[arg-type]
    assert store.check() == []


def test_unknown_rules_and_groups_are_named(grouped: Store) -> None:
    with pytest.raises(InvalidArgument, match="has no rule 'lease'"):
        grouped.engine.run(policy.set_policy, NAME, b"g", {"lease": 5})
    with pytest.raises(NoGroup):
        grouped.engine.run(policy.drop_policy, NAME, b"none")


def test_destroying_a_group_deletes_its_policy(grouped: Store) -> None:
    run(grouped, "KVSTREAM.POLICY SET s g LEASE 5")
    grouped.stream("s").group("g").destroy()
    grouped.stream("s").create_group("g")
    assert run(grouped, "KVSTREAM.POLICY GET s g") == {}


def test_a_copy_has_the_policies_of_its_groups(grouped: Store) -> None:
    run(grouped, "KVSTREAM.POLICY SET s g LEASE 5")
    grouped.copy("s", "t")
    assert run(grouped, "KVSTREAM.POLICY GET t g") == run(grouped, "KVSTREAM.POLICY GET s g")


@pytest.mark.parametrize(
    ("rules", "delays"),
    [
        ({}, [0, 0]),
        ({"backoff_ms": (1, 10, 60)}, [1, 10, 60, 60, 60]),
        ({"backoff_ms": (100,), "backoff_cap_ms": 1000}, [100, 200, 400, 800, 1000, 1000]),
    ],
)
def test_the_backoff_grows_by_the_policy(
    rules: dict[str, tuple[int, ...] | int], delays: list[int]
) -> None:
    found = GroupPolicy().with_rules(rules)
    assert [found.delay_ms(failed) for failed in range(1, len(delays) + 1)] == delays
    assert found.delay_ms(10_000) == delays[-1]


def test_jitter_shortens_a_delay_within_its_share() -> None:
    found = GroupPolicy(backoff_ms=(1000,), jitter_percent=30)
    delays = {found.delay_ms(1) for _ in range(300)}
    assert 700 <= min(delays) < 800
    assert 950 < max(delays) <= 1000


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x81\xa1x\x01", b"\x81\xa8lease_ms\xa1x"])
def test_a_damaged_policy_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="a policy"):
        GroupPolicy.decode(packed)
