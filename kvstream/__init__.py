"""kvstream: durable message streams in your own process, with the semantics of Redis Streams.

::

    import kvstream

    with kvstream.open("data") as store:
        jobs = store.stream("jobs")
        jobs.add({"task": "mail", "to": "ann"})
        workers = jobs.create_group("workers", start="0", exist_ok=True)
        for job in workers.consumer("worker-1").read(count=10):
            workers.ack(job)

``open("redis://...")`` gives the same classes on a server. A ``Store`` has ``Stream``s, a stream
has ``Group``s, a group has ``Consumer``s. Every error is a ``KVStreamError``. ``aio.open`` is for
asyncio. ``connect`` and ``connect_async`` return redis-py clients on a store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvstream.errors import (
    AccessDenied,
    ArchiveDamaged,
    ArchiveTaken,
    ArchiveUnavailable,
    BadPayload,
    BusyGroup,
    ClientMissing,
    Conflict,
    Corruption,
    DataError,
    IDsExhausted,
    IDTooSmall,
    InvalidArgument,
    InvalidID,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobSkipped,
    JobUnknown,
    KeyExists,
    KVStreamError,
    LeaseLost,
    LostWrites,
    NoGroup,
    NonDeterministic,
    NoSuchKey,
    NoSuchLoad,
    NoSuchStore,
    NotText,
    ProtocolError,
    ReentrantCall,
    ReplicaReadOnly,
    ReplicationRefused,
    ReplyTooLarge,
    RequestError,
    ServerLoading,
    ServerTooOld,
    ServerUnavailable,
    SourceNotReady,
    StepFailed,
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
    WrongArchiveKey,
    WrongType,
)
from kvstream.version import VERSION as __version__

if TYPE_CHECKING:
    from kvstream import aio as aio
    from kvstream.archive.restore import restore
    from kvstream.engine.lease_renewal import stop_on_signals
    from kvstream.engine.queue_arguments import Backoff
    from kvstream.group import Consumer, Group
    from kvstream.inbox import Inbox
    from kvstream.inprocess import connect, connect_async
    from kvstream.jobs.application import Jobs
    from kvstream.jobs.handle import JobHandle
    from kvstream.jobs.job import current_job
    from kvstream.meta.policy import GroupPolicy, Retention
    from kvstream.opening import open
    from kvstream.queue import Message, Queue
    from kvstream.store import Store
    from kvstream.stream import Stream
    from kvstream.types.clock import Clock, ManualClock, SystemClock
    from kvstream.types.ids import StreamID, Ticket
    from kvstream.types.options import Durability, NackMode, RefPolicy, StoreOptions
    from kvstream.types.records import (
        BareEntry,
        Claimed,
        ClaimedIDs,
        ConsumerDetail,
        ConsumerInfo,
        DeadLetter,
        DelayedMessage,
        DeletedEntry,
        Entry,
        Fault,
        GroupDetail,
        GroupInfo,
        KeyInfo,
        LeaseOutcome,
        Outcome,
        PendingDetail,
        PendingEntry,
        PendingSummary,
        QueueInfo,
        RedriveInfo,
        Schedule,
        StreamDetail,
        StreamInfo,
    )

__all__ = [
    "AccessDenied",
    "ArchiveDamaged",
    "ArchiveTaken",
    "ArchiveUnavailable",
    "Backoff",
    "BadPayload",
    "BareEntry",
    "BusyGroup",
    "Claimed",
    "ClaimedIDs",
    "ClientMissing",
    "Clock",
    "Conflict",
    "Consumer",
    "ConsumerDetail",
    "ConsumerInfo",
    "Corruption",
    "DataError",
    "DeadLetter",
    "DelayedMessage",
    "DeletedEntry",
    "Durability",
    "Entry",
    "Fault",
    "Group",
    "GroupDetail",
    "GroupInfo",
    "GroupPolicy",
    "IDTooSmall",
    "IDsExhausted",
    "Inbox",
    "InvalidArgument",
    "InvalidID",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobHandle",
    "JobSkipped",
    "JobUnknown",
    "Jobs",
    "KVStreamError",
    "KeyExists",
    "KeyInfo",
    "LeaseLost",
    "LeaseOutcome",
    "LostWrites",
    "ManualClock",
    "Message",
    "NackMode",
    "NoGroup",
    "NoSuchKey",
    "NoSuchLoad",
    "NoSuchStore",
    "NonDeterministic",
    "NotText",
    "Outcome",
    "PendingDetail",
    "PendingEntry",
    "PendingSummary",
    "ProtocolError",
    "Queue",
    "QueueInfo",
    "RedriveInfo",
    "ReentrantCall",
    "RefPolicy",
    "ReplicaReadOnly",
    "ReplicationRefused",
    "ReplyTooLarge",
    "RequestError",
    "Retention",
    "Schedule",
    "ServerLoading",
    "ServerTooOld",
    "ServerUnavailable",
    "SourceNotReady",
    "StepFailed",
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
    "Ticket",
    "Unblocked",
    "UnknownLayout",
    "UnknownOutcome",
    "UnsafeDirectory",
    "WriteStalled",
    "WrongArchiveKey",
    "WrongType",
    "__version__",
    "connect",
    "connect_async",
    "current_job",
    "open",
    "restore",
    "stop_on_signals",
]

_LAZY = {
    "archive.restore": ("restore",),
    "engine.lease_renewal": ("stop_on_signals",),
    "engine.queue_arguments": ("Backoff",),
    "group": ("Consumer", "Group"),
    "inbox": ("Inbox",),
    "inprocess": ("connect", "connect_async"),
    "jobs.application": ("Jobs",),
    "jobs.handle": ("JobHandle",),
    "jobs.job": ("current_job",),
    "meta.policy": ("GroupPolicy", "Retention"),
    "opening": ("open",),
    "queue": ("Message", "Queue"),
    "store": ("Store",),
    "stream": ("Stream",),
    "types.clock": ("Clock", "ManualClock", "SystemClock"),
    "types.ids": ("StreamID", "Ticket"),
    "types.options": ("Durability", "NackMode", "RefPolicy", "StoreOptions"),
    "types.records": (
        "BareEntry",
        "Claimed",
        "ClaimedIDs",
        "ConsumerDetail",
        "ConsumerInfo",
        "DeadLetter",
        "DelayedMessage",
        "DeletedEntry",
        "Entry",
        "Fault",
        "GroupDetail",
        "GroupInfo",
        "KeyInfo",
        "LeaseOutcome",
        "Outcome",
        "PendingDetail",
        "PendingEntry",
        "PendingSummary",
        "QueueInfo",
        "RedriveInfo",
        "Schedule",
        "StreamDetail",
        "StreamInfo",
    ),
}
"""The names that are imported when they are first used, by module: see TYPE_CHECKING above."""
_PACKAGES = ("adapters", "aio", "console", "errors", "inbox", "jobs", "migration", "spark")
"""The public modules, which are imported when they are first used, too."""
_REDIS = ("Redis", "StrictRedis", "from_url")
_MODULES = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that a small program starts fast."""
    module = _MODULES.get(name)
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if module is None:
        hint = ": use kvstream.connect(place), which returns a client" if name in _REDIS else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, *_PACKAGES]
