"""Set, show and drop the policies of consumer groups."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kvstream.errors import InvalidArgument
from kvstream.layout.keys import key_of
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.timers import DELAY_MAX_MS
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.delivery.ordering import follow_policy, release_some
from kvstream.operations.groups import existing_group
from kvstream.operations.plans import Plan, Planning, Progress
from kvstream.operations.queues import consumers
from kvstream.operations.turns import refuse_long
from kvstream.types.options import KEY_BYTES_MAX

BACKOFF_MAX = 64
"""Delays of one backoff: each commit of the group writes them."""

SHOWN = tuple(name for name in GroupPolicy.__dataclass_fields__ if name != "keyed_tree")
"""The names of the rules, in order."""
RULES = frozenset(SHOWN)


def set_policy(txn: Txn, name: bytes, group: bytes, changes: Mapping[str, Any]) -> GroupPolicy:
    """Change some rules of a group, and return all of them; NoGroup if there is no group.

    An unchanged policy writes nothing. Readers that wait for the group try again.
    """
    refuse_wrong(changes, key_of(name))
    stream, meta = existing_group(txn, name, group)
    before = meta.policy or GroupPolicy()
    policy = before.with_rules(changes)
    if policy.fair and not policy.order_by:
        if changes.get("fair"):
            raise InvalidArgument("fair goes with order_by, which names the field of the key")
        policy = policy.with_rules({"fair": False})  # the order ends
    if policy != before or (changes and meta.policy is None):
        refuse_long(txn, meta, before, policy)
        meta.policy, meta.owned_since = policy, 0
        follow_policy(txn, stream, meta, before)
        if policy.fair:
            txn.catalog.with_turns.add(name)
        if policy.reap_idle_ms != before.reap_idle_ms:
            consumers.watch(txn, stream, meta)
        txn.member_changed(meta)
        txn.signal(name, Wake.POLICY)
    return _rules(meta.policy or policy)


def ends_order(txn: Txn, name: bytes, group: bytes, changes: Mapping[str, Any]) -> bool:
    """Return whether changes end the order of a group that delivers in order."""
    refuse_wrong(changes, key_of(name))
    _, meta = existing_group(txn, name, group)
    before = meta.policy
    if meta.keyed is None or before is None:
        return False
    return bool(before.order_by) and not before.with_rules(changes).order_by


T = TypeVar("T")


def plan_end_of_order(name: bytes, group: bytes, change: Callable[[Txn], T]) -> Plan[T]:
    """Plan a change that ends the order of a group: make held entries ready in steps before it.

    Readers see each step. Entries held in the meantime become ready with the change itself, which
    is also made if the plan is abandoned.
    """

    def plan(txn: Txn) -> Planning[T]:
        _, meta = existing_group(txn, name, group)
        last = meta.last_delivered.packed
        while release_some(txn, meta, last):
            txn = yield Progress(undo=change)
            _, meta = existing_group(txn, name, group)
        return change(txn)

    return plan


def policy_of(txn: Txn, name: bytes, group: bytes) -> GroupPolicy | None:
    """Return the policy of a group; None if it has none."""
    policy = existing_group(txn, name, group)[1].policy
    return None if policy is None else _rules(policy)


def _rules(policy: GroupPolicy) -> GroupPolicy:
    """Return a policy without the number of its tree, so that equal rules compare equal."""
    return policy.with_rules({"keyed_tree": 0})


def drop_policy(txn: Txn, name: bytes, group: bytes) -> bool:
    """Remove the policy of a group; return whether it had one."""
    stream, meta = existing_group(txn, name, group)
    before, meta.policy = meta.policy, None
    if before is None:
        return False
    follow_policy(txn, stream, meta, before)
    consumers.watch(txn, stream, meta)
    txn.member_changed(meta)
    txn.signal(name, Wake.POLICY)
    return True


def resume(txn: Txn, name: bytes, group: bytes) -> bool:
    """End the pause of a group; return whether there was one."""
    _, meta = existing_group(txn, name, group)
    if meta.policy is None or not meta.policy.paused:
        return False
    set_policy(txn, name, group, {"paused": False})
    if meta.policy.is_empty:
        drop_policy(txn, name, group)
    return True


def refuse_wrong(changes: Mapping[str, Any], key: bytes) -> None:
    """Raise InvalidArgument for a rule that is unknown or cannot hold."""
    for rule, value in changes.items():
        if rule not in RULES:
            raise InvalidArgument(f"a policy has no rule {rule!r}: it has {', '.join(SHOWN)}")
        if type(value) is int and not 0 <= value <= DELAY_MAX_MS:
            raise InvalidArgument(f"the rule {rule} must be between 0 and 100 years, not {value}")
    delays = changes.get("backoff_ms", ())
    if len(delays) > BACKOFF_MAX:
        raise InvalidArgument(f"a backoff has at most {BACKOFF_MAX} delays, not {len(delays)}")
    if not all(0 <= delay <= DELAY_MAX_MS for delay in delays):
        raise InvalidArgument("the delays of a backoff must be between 0 and 100 years")
    if changes.get("max_per_key", 1) < 1:
        raise InvalidArgument("max_per_key must be at least 1")
    if changes.get("jitter_percent", 0) > 100:
        raise InvalidArgument("the jitter must be at most 100 percent")
    if bool(changes.get("rate_count", 0)) != bool(changes.get("rate_ms", 0)):
        raise InvalidArgument("a rate needs a count and a time, both above 0, or both 0 for none")
    dead = changes.get("dead_letter", b"")
    if len(dead) > KEY_BYTES_MAX:
        raise InvalidArgument(f"the key of the dead letters is longer than {KEY_BYTES_MAX} bytes")
    if dead == key:
        raise InvalidArgument("the dead letters of a stream must be another stream")
