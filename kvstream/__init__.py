"""kvstream: durable message streams in your own process, with the semantics of Redis Streams."""

from kvstream.clock import Clock, ManualClock, SystemClock
from kvstream.consumer import Consumer
from kvstream.errors import (
    BusyGroup,
    Corruption,
    DataError,
    IDsExhausted,
    IDTooSmall,
    InvalidArgument,
    InvalidID,
    KVStreamError,
    LostWrites,
    NoGroup,
    NoSuchKey,
    NoSuchStore,
    ProtocolError,
    RequestError,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    Unblocked,
    UnknownLayout,
    UnknownOutcome,
    UnsafeDirectory,
    WriteStalled,
    WrongType,
)
from kvstream.group import Group
from kvstream.ids import StreamID
from kvstream.operations.acks import NackMode
from kvstream.operations.delete import Outcome
from kvstream.operations.references import RefPolicy
from kvstream.options import Durability, StoreOptions
from kvstream.records import (
    Claimed,
    ConsumerDetail,
    ConsumerInfo,
    Entry,
    Fault,
    GroupDetail,
    GroupInfo,
    PendingDetail,
    PendingEntry,
    PendingSummary,
    StreamDetail,
    StreamInfo,
)
from kvstream.store import Store
from kvstream.stream import Stream

__version__ = "0.1.0"

__all__ = [
    "BusyGroup",
    "Claimed",
    "Clock",
    "Consumer",
    "ConsumerDetail",
    "ConsumerInfo",
    "Corruption",
    "DataError",
    "Durability",
    "Entry",
    "Fault",
    "Group",
    "GroupDetail",
    "GroupInfo",
    "IDTooSmall",
    "IDsExhausted",
    "InvalidArgument",
    "InvalidID",
    "KVStreamError",
    "LostWrites",
    "ManualClock",
    "NackMode",
    "NoGroup",
    "NoSuchKey",
    "NoSuchStore",
    "Outcome",
    "PendingDetail",
    "PendingEntry",
    "PendingSummary",
    "ProtocolError",
    "RefPolicy",
    "RequestError",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreOptions",
    "StoreReadOnly",
    "Stream",
    "StreamDetail",
    "StreamID",
    "StreamInfo",
    "SystemClock",
    "Unblocked",
    "UnknownLayout",
    "UnknownOutcome",
    "UnsafeDirectory",
    "WriteStalled",
    "WrongType",
    "__version__",
]
