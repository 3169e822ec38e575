"""XINFO, and the commands on whole keys."""

from tests.model.arguments import Args, fail, integer
from tests.model.database import Redis
from tests.model.groups import bad_subcommand
from tests.model.replies import Reply, entry, flat, id_text
from tests.model.stream import Group, Stream


def xinfo_stream(db: Redis, argv: Args) -> Reply:
    s, full, count = db.existing(argv[2]), len(argv) > 3, 10
    if full and (len(argv) not in (4, 6) or argv[3].upper() != b"FULL"):
        raise fail(bad_subcommand(argv))
    if len(argv) == 6:
        if argv[4].upper() != b"COUNT":
            raise fail(bad_subcommand(argv))
        count = integer(argv[5]) if integer(argv[5]) >= 0 else 10
    head = stream_head(db, s)
    if not full:
        ends = [entry(id, s.entries[id]) if s.entries else None for id in (s.first(), s.top())]
        return head + flat(groups=len(s.groups), first_entry=ends[0], last_entry=ends[1])
    limit = count or None
    entries = [entry(*item) for item in list(s.entries.items())[:limit]]
    groups = [full_group(db, s, name, limit) for name in sorted(s.groups)]
    return head + flat(entries=entries, groups=groups)


def stream_head(db: Redis, s: Stream) -> list[Reply]:
    head = flat(
        length=len(s.entries),
        radix_tree_keys=len(s.nodes),
        radix_tree_nodes=len(s.nodes) + 1,  # not modelled: it hangs on the bytes of the IDs
        last_generated_id=id_text(s.last),
        max_deleted_entry_id=id_text(s.max_deleted),
        entries_added=s.added,
        recorded_first_entry_id=id_text(s.first()),
    )
    if db.old:
        return head
    s.expire_iids(db.now())
    return head + flat(
        idmp_duration=s.idmp_duration,
        idmp_maxsize=s.idmp_maxsize,
        pids_tracked=len(s.producers),
        iids_tracked=sum(map(len, s.producers.values())),
        iids_added=s.iids_added,
        iids_duplicates=s.iids_duplicates,
    )


def full_group(db: Redis, s: Stream, name: bytes, limit: int | None) -> Reply:
    g = s.groups[name]
    consumers: list[Reply] = []
    for consumer, times in sorted(g.consumers.items()):
        own = full_pending(g, consumer, limit)
        active = {} if db.old else flat(active_time=times.active)
        consumers.append(
            flat(name=consumer, seen_time=times.seen)
            + list(active)
            + flat(pel_count=len(g.ids(consumer)), pending=[[row[0], *row[2:]] for row in own])
        )
    head = flat(
        name=name,
        last_delivered_id=id_text(g.last),
        entries_read=g.read,
        lag=s.lag(g, db.old),
        pel_count=len(g.pel),
    )
    nacked = [] if db.old else flat(nacked_count=len(g.nacked))
    return head + nacked + flat(pending=full_pending(g, None, limit), consumers=consumers)


def full_pending(g: Group, owner: bytes | None, limit: int | None) -> list[list[Reply]]:
    rows = [(id, g.pel[id]) for id in g.ids(owner)[:limit]]
    return [[id_text(id), row.owner or b"", row.time, row.count] for id, row in rows]


def xinfo_groups(db: Redis, argv: Args) -> Reply:
    s = db.existing(argv[2])
    return [
        flat(
            name=name,
            consumers=len(g.consumers),
            pending=len(g.pel),
            last_delivered_id=id_text(g.last),
            entries_read=g.read,
            lag=s.lag(g, db.old),
        )
        for name, g in sorted(s.groups.items())
    ]


def xinfo_consumers(db: Redis, argv: Args) -> Reply:
    group, now = db.group_of(db.existing(argv[2]), argv[2], argv[3]), db.now()
    rows: list[Reply] = []
    for name, times in sorted(group.consumers.items()):
        # Decided: a clock that went back makes neither of the two times negative.
        inactive = -1 if times.active == -1 else max(0, now - times.active)
        newer = [] if db.old else flat(inactive=inactive)
        held, idle = len(group.ids(name)), max(0, now - times.seen)
        rows.append(flat(name=name, pending=held, idle=idle) + newer)
    return rows


def config_set(db: Redis, argv: Args) -> Reply:
    db.config.update(zip(argv[2::2], map(integer, argv[3::2]), strict=True))
    return b"OK"


XGROUP_HELP = b"""XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
CREATE <key> <groupname> <id|$> [option]
    Create a new consumer group. Options are:
    * MKSTREAM
      Create the empty stream if it does not exist.
    * ENTRIESREAD entries_read
      Set the group's entries_read counter (internal use).
CREATECONSUMER <key> <groupname> <consumer>
    Create a new consumer in the specified group.
DELCONSUMER <key> <groupname> <consumer>
    Remove the specified consumer.
DESTROY <key> <groupname>
    Remove the specified group.
SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]
    Set the current group ID and entries_read counter.
HELP
    Print this help."""
XINFO_HELP = b"""XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
CONSUMERS <key> <groupname>
    Show consumers of <groupname>.
GROUPS <key>
    Show the stream consumer groups.
STREAM <key> [FULL [COUNT <count>]
    Show information about the stream.
HELP
    Print this help."""


def xgroup_help(db: Redis, argv: Args) -> Reply:
    return XGROUP_HELP.split(b"\n")


def xinfo_help(db: Redis, argv: Args) -> Reply:
    return XINFO_HELP.split(b"\n")
