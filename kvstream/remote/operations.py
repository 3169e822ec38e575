"""One record for each operation of the library: how it is done on a server.

A record has the effect of an operation on the store, by which the engines of servers and of shared
stores decide whether to repeat it after a lost connection. It also has a function that makes its
commands (``remote/commands.py``, ``remote/queue_commands.py``), or one that runs it in several
round trips (``remote/procedures.py``). An operation without a record needs the files of a store.

The version that a server must have follows from the words of the commands: see ``needs_of``.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from kvstream.engine.blocking_reads import GroupRead, PlainRead, lease, read_new
from kvstream.operations import (
    ack,
    append,
    claim,
    delayed,
    delete,
    groups,
    info,
    keyspace,
    readgroup,
    strings,
    trim,
    watch,
)
from kvstream.operations.images import copy, dump
from kvstream.operations.queues import consumers, leases, policy, redrive, retention, schedules
from kvstream.operations.queues import info as queue_info
from kvstream.operations.reads import counts, read
from kvstream.operations.reads.range import scan
from kvstream.remote import commands as of_redis
from kvstream.remote import procedures, replies
from kvstream.remote import queue_commands as ours
from kvstream.remote.call import Call, Effect, Operation, Words, nothing, plain
from kvstream.remote.queue_commands import DELAYED, POLICY, REDRIVE, RETENTION, SCHEDULE

READ, WRITE = Effect.READ, Effect.WRITE
SAME_RESULT, SAME_STATE = Effect.SAME_RESULT, Effect.SAME_STATE

OPERATIONS: Mapping[Callable[..., Any], Operation] = {
    # entries
    append.add: Operation(WRITE, of_redis.xadd),  # once, with an ID of the request: SAME_RESULT
    append.add_many: Operation(WRITE, of_redis.xadd_all),
    append.add_under: Operation(WRITE, of_redis.xadd_under),
    append.configure: Operation(WRITE, of_redis.xcfgset),
    append.set_id: Operation(WRITE, of_redis.xsetid),
    delete.delete: Operation(SAME_STATE, of_redis.xdel),
    delete.delete_with_policy: Operation(WRITE, of_redis.xdelex),
    trim.trim: Operation(WRITE, of_redis.xtrim),
    counts.count: Operation(READ, steps=procedures.count),
    counts.length: Operation(READ, plain("XLEN")),
    scan: Operation(READ, of_redis.xrange),
    info.count_after: Operation(READ, steps=procedures.count_after),
    info.stream_detail: Operation(READ, of_redis.xinfo_stream_full),
    info.stream_info: Operation(READ, of_redis.xinfo_stream),
    read.resolve: Operation(READ, of_redis.resolve),
    PlainRead: Operation(READ, of_redis.xread),
    # groups
    groups.create_consumer: Operation(WRITE, plain("XGROUP", "CREATECONSUMER", result=bool)),
    groups.create_group: Operation(WRITE, of_redis.xgroup_create),
    groups.delete_consumer: Operation(WRITE, plain("XGROUP", "DELCONSUMER")),
    groups.destroy_group: Operation(WRITE, plain("XGROUP", "DESTROY", result=bool)),
    groups.seek: Operation(WRITE, plain(POLICY, "SEEK", result=replies.id_of)),
    groups.set_group_id: Operation(WRITE, of_redis.xgroup_setid),
    info.backlog: Operation(READ, steps=procedures.backlog),
    info.consumer_infos: Operation(READ, of_redis.xinfo_consumers),
    info.group_info: Operation(READ, of_redis.xinfo_group),
    info.group_infos: Operation(READ, of_redis.xinfo_groups),
    GroupRead: Operation(WRITE, of_redis.xreadgroup, immediate=True),
    readgroup.lease: Operation(WRITE, steps=lease, shares_steps=True),
    readgroup.read_new: Operation(WRITE, steps=read_new, shares_steps=True),
    # pending entries
    ack.acknowledge: Operation(SAME_STATE, of_redis.xack),
    ack.acknowledge_and_delete: Operation(SAME_STATE, of_redis.xackdel),
    ack.negative_acknowledge: Operation(WRITE, of_redis.xnack, steps=procedures.give_back),
    claim.autoclaim: Operation(WRITE, of_redis.xautoclaim, immediate=True),
    claim.claim: Operation(WRITE, of_redis.xclaim, immediate=True),
    claim.pending_range: Operation(READ, of_redis.xpending_range),
    claim.pending_summary: Operation(READ, plain("XPENDING", result=replies.pending_of)),
    claim.renew: Operation(SAME_STATE, steps=procedures.renew),
    # leases and policies
    leases.ack: Operation(SAME_STATE, ours.settle("KVSTREAM.ACK")),
    leases.ack_delete: Operation(SAME_STATE, ours.settle("KVSTREAM.ACK", "DELETE")),
    leases.extend: Operation(SAME_STATE, ours.settle("KVSTREAM.EXTEND")),
    leases.finish: Operation(WRITE, steps=procedures.finish),
    leases.nack: Operation(WRITE, ours.nack),
    watch.guard: Operation(Effect.GUARD, plain("KVSTREAM.GUARD", result=nothing)),
    consumers.pass_on: Operation(WRITE, plain(POLICY, "REMOVE")),
    policy.drop_policy: Operation(SAME_STATE, plain(POLICY, "DEL", result=bool)),
    policy.policy_of: Operation(READ, ours.policy_get),
    policy.resume: Operation(WRITE, plain(POLICY, "RESUME", result=bool)),
    policy.set_policy: Operation(SAME_RESULT, ours.policy_set, immediate=True),
    # queues
    delayed.add: Operation(WRITE, ours.add),
    delayed.add_many: Operation(WRITE, ours.add_many),
    delayed.cancel: Operation(WRITE, ours.delayed_cancel),
    delayed.length: Operation(READ, plain(DELAYED, "LEN")),
    delayed.list_messages: Operation(READ, ours.delayed_list),
    delayed.move: Operation(WRITE, plain(DELAYED, "MOVE", result=ours.id_or_ticket)),
    queue_info.queue_info: Operation(READ, ours.queue_info),
    redrive.cancel: Operation(WRITE, plain(REDRIVE, "CANCEL", result=bool)),
    redrive.dry_run: Operation(READ, partial(ours.redrive_start, dry_run=True)),
    redrive.move: Operation(WRITE, ours.redrive_move),
    redrive.start: Operation(WRITE, ours.redrive_start, immediate=True),
    redrive.status: Operation(READ, plain(REDRIVE, "STATUS", result=replies.redrive_of)),
    retention.begin_with: Operation(SAME_STATE, ours.retention_begin),
    retention.drop_rules: Operation(SAME_STATE, plain(RETENTION, "DEL", result=bool)),
    retention.rules_of: Operation(READ, plain(RETENTION, "GET", result=replies.retention_of)),
    retention.set_rules: Operation(SAME_RESULT, ours.retention_set),
    schedules.delete_schedule: Operation(SAME_STATE, plain(SCHEDULE, "DEL", result=bool)),
    schedules.run_schedule: Operation(WRITE, plain(SCHEDULE, "RUN", result=replies.id_of)),
    schedules.schedules: Operation(READ, plain(SCHEDULE, "LIST", result=replies.schedules_of)),
    schedules.set_schedule: Operation(SAME_RESULT, ours.schedule_set),
    # keys
    copy.copy: Operation(WRITE, of_redis.copy),
    dump.dump: Operation(READ, of_redis.dump),
    dump.restore: Operation(WRITE, of_redis.restore),
    keyspace.count_all: Operation(READ, of_redis.exists),
    keyspace.delete_all: Operation(SAME_STATE, of_redis.unlink),
    keyspace.exists: Operation(READ, plain("EXISTS", result=bool)),
    keyspace.expire_at: Operation(WRITE, plain("PEXPIREAT", result=bool)),
    keyspace.expiry: Operation(READ, plain("PEXPIRETIME", result=replies.expiry_of)),
    keyspace.flush: Operation(WRITE, of_redis.flushdb),
    keyspace.flush_all: Operation(WRITE, of_redis.flushall),
    keyspace.kind: Operation(READ, plain("TYPE", result=bytes.decode)),
    keyspace.persist: Operation(WRITE, plain("PERSIST", result=bool)),
    keyspace.rename: Operation(WRITE, of_redis.rename),
    keyspace.scan: Operation(READ, of_redis.scan),
    keyspace.size: Operation(READ, of_redis.dbsize),
    strings.add: Operation(WRITE, plain("INCRBY")),
    strings.get: Operation(READ, plain("GET")),
    strings.put: Operation(SAME_RESULT, of_redis.set_),
    strings.put_new: Operation(WRITE, of_redis.set_new),
    strings.take: Operation(WRITE, plain("GETDEL")),
}


def call_of(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    """Return the call of an operation that takes one round trip."""
    return OPERATIONS[operation].call_of(*args, **kwargs)


OURS = "KVSTREAM."
"""The prefix of kvstream's own commands, which no Redis has."""
SINCE = {
    "XACKDEL": "8.2",
    "XCFGSET": "8.6",
    "XDELEX": "8.2",
    "XNACK": "8.8",
}
"""Commands that a Redis 7.0 lacks, and the version that has them."""
OPTIONS_SINCE = {
    "XREADGROUP CLAIM": ("8.4", {"CLAIM"}),
    "MAXCOUNT or MAXSIZE": ("8.10", {"MAXCOUNT", "MAXSIZE"}),
    "IDMP": ("8.6", {"IDMP"}),
    "DELREF or ACKED": ("8.2", {"DELREF", "ACKED"}),
}
"""Options that a Redis 7.0 lacks, by their name in errors: the version that has them, and their
words."""


def needs_of(commands: Iterable[Words]) -> dict[str, str]:
    """Return the commands and options that a Redis 7.0 lacks, with the version that has them.

    The version of kvstream's own commands is empty.
    """
    needs: dict[str, str] = {}
    for command, *words in commands:
        name = str(command)
        if name.startswith(OURS):
            needs[name] = ""
        elif name in SINCE:
            needs[name] = SINCE[name]
        else:  # options are the words of type str: names and values are bytes
            options = {word for word in words if isinstance(word, str)}
            needs |= {n: v for n, (v, given) in OPTIONS_SINCE.items() if options & given}
    return needs
