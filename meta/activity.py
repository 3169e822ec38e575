"""Which of a group's consumers was active last, and when: told by the record of the group.

A delivery writes the group's record in any case. It tells the consumer's seen and active time as
well, so that the consumer's own record is written only when another one takes its place. An
activity has a number, that the record of a consumer bears as well: where it is behind that of the
group, and the group names the consumer, the times are those of the group.

::

    activity := number(u64) at_ms(i64, -1 none) length(u32) name
"""

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstream.meta.records import ConsumerMeta, GroupMeta
    from kvstream.meta.txn import Txn

_HEAD = Struct(">QqI")
_NOBODY = -1


@dataclass(slots=True)
class Activity:
    """The last activity of a group's consumers."""

    number: int = 0
    at_ms: int = _NOBODY
    name: bytes = b""

    @property
    def is_known(self) -> bool:
        """Whether there is such a consumer: it may have been deleted."""
        return self.at_ms != _NOBODY

    def encode(self) -> bytes:
        return _HEAD.pack(self.number, self.at_ms, len(self.name)) + self.name

    @classmethod
    def decode(cls, packed: bytes) -> "Activity":
        """Raises ValueError or struct.error for what is none."""
        number, at_ms, length = _HEAD.unpack_from(packed)
        name = packed[_HEAD.size :]
        if len(name) != length:
            raise ValueError(f"a name of {len(name)} bytes, not {length}")
        return cls(number, at_ms, name)

    def tell_nobody(self) -> None:
        self.at_ms, self.name = _NOBODY, b""


def note(txn: "Txn", group: "GroupMeta", consumer: "ConsumerMeta") -> None:
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


def recall(group: "GroupMeta", consumer: "ConsumerMeta") -> None:
    """Set the times of a consumer, as loaded from its record, to those that the group tells."""
    told = group.activity
    if told.name == consumer.name and told.is_known and consumer.activity < told.number:
        consumer.seen_ms = consumer.active_ms = told.at_ms
        consumer.activity = told.number


def forget(group: "GroupMeta", consumer: "ConsumerMeta") -> None:
    """Have a group's record tell nothing of a consumer that is no more."""
    if group.activity.name == consumer.name:
        group.activity.tell_nobody()
