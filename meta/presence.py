"""Consumers that are active: what a group's record tells of the last one (meta/activity.py)."""

from kvstream.meta.records import ConsumerMeta, GroupMeta
from kvstream.meta.txn import Txn


def note(txn: Txn, group: GroupMeta, consumer: ConsumerMeta) -> None:
    """Have a group's record tell that a consumer is active now; its own then need not."""
    told = group.activity
    if told.name != consumer.name:
        former = txn.catalog.consumer(txn, group, told.name) if told.is_known else None
        if former is not None:
            txn.member_changed(former)
        told.name = consumer.name
    told.number += 1
    told.at_ms = consumer.seen_ms = consumer.active_ms = txn.now_ms
    consumer.activity = told.number
    txn.catalog.seen.pop(consumer.row, None)
    txn.member_changed(group)


def recall(group: GroupMeta, consumer: ConsumerMeta) -> None:
    """Set the times of a consumer, as loaded from its record, to those that the group tells."""
    told = group.activity
    if told.name == consumer.name and told.is_known and consumer.activity < told.number:
        consumer.seen_ms = consumer.active_ms = told.at_ms
        consumer.activity = told.number


def forget(group: GroupMeta, consumer: ConsumerMeta) -> None:
    """Have a group's record tell nothing of a consumer that is no more."""
    if group.activity.name == consumer.name:
        group.activity.tell_nobody()
