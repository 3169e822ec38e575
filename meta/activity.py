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
