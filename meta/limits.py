"""The settings that commands ask for: Redis's ``stream-*``, and what a reply may be."""

from dataclasses import dataclass
from typing import Self

from kvstream.errors import ReplyTooLarge
from kvstream.options import ENTRY_BYTES_MAX, StoreOptions


@dataclass(slots=True)
class Limits:
    """The settings in force: they may change while the store is open."""

    node_max_entries: int
    node_max_bytes: int
    idmp_duration_s: int
    idmp_maxsize: int
    dump_target: str
    """The server that payloads are meant for, or ``auto``."""
    entry_max_bytes: int = ENTRY_BYTES_MAX
    """Bytes of the names and values of an entry that XADD takes; what is restored may have more."""
    reply_max: int = 0
    """Bytes of memory that one reply of a read may take; 0: as many as there are."""
    reply_held: int = 0
    """Bytes of memory that the replies before it in the same EXEC take: all of them are one."""

    @property
    def reply_left(self) -> int:
        """Bytes of memory that the next reply may take; 0: as many as there are."""
        return max(self.reply_max - self.reply_held, 1) if self.reply_max else 0

    def too_large(self) -> ReplyTooLarge:
        """Return the error of a reply that would take more."""
        return ReplyTooLarge.beyond(self.reply_max)

    @classmethod
    def of(cls, options: StoreOptions) -> Self:
        """Return those that a store is opened with."""
        return cls(
            options.stream_node_max_entries,
            options.stream_node_max_bytes,
            options.stream_idmp_duration_s,
            options.stream_idmp_maxsize,
            options.dump_target,
        )
