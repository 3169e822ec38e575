"""The sizes at which a command takes another form, and the sizes of its steps.

They are one value, which the engine is given when it is opened and each transaction has: a test
opens a store with smaller ones.
"""

from dataclasses import dataclass

from kvstream.types.options import ENTRY_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The sizes at which a command takes another form, and the sizes of its steps.

    A server runs a command above a ``long_`` threshold in steps, and writes a reply above a
    ``short_`` one page by page, so that other clients wait for milliseconds at most (rows ``gaps``
    of docs/benchmarks.md). Below, a command runs in one go, which is faster: each step pays for a
    turn. The library, and EXEC for commands that change something, run all commands in one go.
    """

    # --- turns ------------------------------------------------------------------------------------

    turn_s: float = 0.005
    """A turn takes no new request after this time, so that the event loop is never held for
    long."""
    steps_s: float = 0.002
    """Time for steps of long commands between two turns."""

    # --- entries and IDs --------------------------------------------------------------------------

    long_rows: int = 2000
    """Entries above which a command is done in steps: some milliseconds of work."""
    step_rows: int = 500
    """Entries of one step: about half a millisecond of work."""
    tries: int = 3
    """How often a command starts again, because others changed its entries, before it runs in one
    go."""
    last_step_ids: int = 50
    """IDs that the last step of XACK, XNACK and XCLAIM may look at for the first time."""
    steps_factor: int = 4
    """How many times the usual steps one of these may take if others change its entries."""
    long_autoclaim: int = 500_000
    """Entries for which XAUTOCLAIM gets all the steps it needs, whatever other commands change."""
    packed_together: int = 5000
    """IDs that one step parses: about half a millisecond."""

    # --- keys -------------------------------------------------------------------------------------

    flush_keys: int = 100
    """Up to this many keys a flush deletes their rows itself, in two milliseconds; more are deleted
    later."""
    long_keys: int = 500
    """Keys above which DEL, UNLINK, EXISTS and TOUCH are done in steps."""
    step_keys: int = 200
    """Keys that one step looks up: some milliseconds of work."""
    keys_together: int = 20
    """Records of keys that are read at once; each may hold a long string."""
    long_names: int = 500
    """Keys above which MGET and MSET run in steps."""
    step_names: int = 500
    """Strings that one step reads or writes."""
    step_bytes: int = 1 << 20
    """Bytes of records that one step reads: about two milliseconds of work."""
    string_bytes_max: int = ENTRY_BYTES_MAX
    """The longest string."""

    # --- groups and consumers ---------------------------------------------------------------------

    long_members: int = 500
    """Groups or consumers above which they are loaded in steps."""
    step_members: int = 100
    """Groups or consumers that one step loads: some milliseconds of work."""
    long_groups: int = 100
    """Groups from which on XINFO STREAM FULL and DUMP run in steps."""
    step_groups: int = 16
    """Groups that one step of DUMP copies."""
    copied_runs: int = 256
    """Runs in memory above which DUMP copies a group, since decoding them again would take long."""

    # --- payloads ---------------------------------------------------------------------------------

    long_payload: int = 64 << 10
    """Bytes of payload above which RESTORE runs in steps: they hold some thousand entries."""
    step_nodes: int = 16
    """Nodes that one step of DUMP writes: a millisecond of work."""

    # --- reads ------------------------------------------------------------------------------------

    long_loading: int = 200
    """Streams above which XREAD loads them in steps, at 50 us each."""
    loaded_together: int = 50
    """Streams that one step loads."""
    long_read: int = 1000
    """Streams above which XREAD looks up their IDs in a step of its own."""
    short_rows: int = 1000
    """A reply of more entries is written page by page: it takes some milliseconds."""
    short_bytes: int = 1 << 20
    """A reply of more memory is written page by page."""
    recipe_bytes: int = 64 << 10
    """After an EXEC has used its share of memory, replies longer than this are made in pages; an
    iterator takes a quarter of that memory."""
    look_rows: int = 100
    """A read of up to this many entries is short without a look at the stream."""
    few_streams: int = 16
    """Long streams whose entries are counted by their nodes, to know whether a read is short."""
    short_streams: int = 500
    """Short streams that are read at once."""
    seek_rows: int = 256
    """Entries of one stream that an iterator of many streams reads at once."""
    searched_streams: int = 64
    """Streams in which one step of a long XREAD looks for entries."""
    returned_streams: int = 16
    """Streams whose entries one step of its reply begins with."""
    node_pages_together: int = 8
    """Pages of 256 nodes that one step of KVSTREAM.COUNT adds: half a millisecond of work."""
    runs_together: int = 256
    """Runs of pending entries that one step reads: a third of a millisecond."""
    step_items: int = 512
    """Items of one step of a reply: half a millisecond of work."""

    # --- loads, and entries deleted together ------------------------------------------------------

    direct_entries: int = 20_000
    """A stream of no more entries, nor more bytes, is loaded by one commit, and waits for it in
    memory."""
    direct_bytes: int = 8 << 20
    """The same in bytes."""
    table_bytes: int = 64 << 20
    """Bytes of the entries of one SST file: the size of the files that compaction makes."""
    load_rows: int = 20_000
    """Rows of groups in one commit of a load."""
    span_rows: int = 1000
    """Neighbours above which entries are deleted as one range, which costs every later read."""

    # --- trees and pending entries ----------------------------------------------------------------

    cached_rows: int = 1 << 14
    """Rows of one tree kept in memory: 8 MB if each has one ID."""
    store_rows: int = 1 << 18
    """Rows of all trees above ``cached_rows`` that a store keeps in memory: 80 MB if each has one
    ID."""
    chunk_keys: int = 512
    """The size to which a chunk of sorted keys is split; a change moves the keys of one chunk."""
    sparse_keys: int = 16
    """Keys are added one by one to a list that is longer by more than this factor."""
    range_rows: int = 64
    """From this number of rows on, one range delete is cheaper for later readers than single
    ones."""
    stretch_rows: int = 512
    """Adjacent rows that are deleted as a range among others that stay."""
    cached_ids: int = 1 << 20
    """IDs of a group whose runs are kept in memory: 22 MB."""
    run_ids: int = 32
    """IDs of one run: a delivery that joins it, or an acknowledgement, rewrites it."""
    few_ids: int = 4
    """Up to this number, IDs are cut out of a run one by one."""
    few_runs: int = 8
    """Up to this number, runs are written or deleted one by one."""

    # --- queues -----------------------------------------------------------------------------------

    woken_streams: int = 100
    """Streams whose readers one commit wakes because time has passed: some 30 ms."""
    ready_runs: int = 250
    """Runs of pending entries that one step makes ready or gives back: ten milliseconds of work."""
    reaped_consumers: int = 20
    """Idle consumers that one step removes."""
    released_runs: int = 16
    """Runs of held entries that one step makes ready: some thousand entries, ten milliseconds."""
    room_entries: int = 10_000
    """The most entries that one read delivers if replies are limited, since it is one
    transaction."""
    reaped_runs: int = 500
    """Runs of pending entries that this step gives back."""
    buried_entries: int = 500
    """Entries that one read moves to the dead letters; the next read moves the others."""
    ordered_entries: int = 3000
    """Entries of a group that delivers in order, or was moved back, that one read looks at: 15
    milliseconds if all of them are held."""
    sorted_entries: int = 500
    """Entries that one read of a group whose keys take turns sorts by their keys: some 3 ms."""
    given_back_runs: int = 2000
    """Runs that are read to count the entries that were given back, by kind."""
    counted_nodes: int = 2000
    """Nodes whose entries are counted to know how many a group has not delivered."""
    retained_entries: int = 200_000
    """Entries that one check of retention removes at the head: it reads the rows of 2000 nodes."""
    thinned_entries: int = 3000
    """Entries that one check looks at one by one, by whole nodes."""
    thinned_more: int = 500
    """Entries that one check removes one by one; after more the next check comes at once."""
    compacted_entries: int = 500
    """Entries that one check compacts: some 5 ms."""
    retained_streams: int = 500
    """Streams with rules of retention that one commit looks at in memory."""
    retained_checks: int = 20
    """Streams that this commit checks."""

    # --- keys in memory, and rows of deleted keys -------------------------------------------------

    streams_cached: int = 45_000
    """Streams kept in memory, of 1.3 KB each without groups; the least recently loaded leave
    first."""
    strings_cached: int = 100_000
    """Strings kept in memory, of 0.17 KB each and their values if only SET, INCR and GET have used
    them, else of 0.35 KB: GET takes 0.2 us instead of 4."""
    string_bytes_cached: int = 256
    """A longer value is not kept: all of them take 60 MB at most."""
    used_keys: int = 20_000
    """Keys of one generation of ``Usage``, which knows one or two generations."""
    unlinked_keys: int = 100
    """Deleted keys of one row, which are swept together."""
    groups_together: int = 100
    """The groups of a deleted stream that are deleted at a time, if it has more of them."""
    groups_of_commit: int = 300
    """Groups that one commit deletes of all streams together, at 30 us each."""
    records_together: int = 100
    """Records read by one call: each may have 16 KB, or belong to a stream with long field
    names."""

    # --- messages of PUBLISH ----------------------------------------------------------------------

    slice_s: float = 0.001
    """Time for messages between two turns."""
    unsent_bytes: int = 64 << 20
    """Bytes to be sent above which a slice takes longer, so that publishers wait."""
    cached_routes: int = 1024
    """Channels whose receivers are cached; the cache is cleared when it is full."""

    # --- threads of an open store -----------------------------------------------------------------

    cycle_pause_s: float = 0.1
    """Pause between two cycles of the thread that deletes expired keys: Redis's ``hz`` 10."""
    step_pause_s: float = 0.001
    """Pause between two commits of a thread: the lock is not fair, and others get it only in a
    pause."""
    expire_keys: int = 100
    """Keys deleted in one commit, so that the lock is never held for long."""
    hurried_keys: int = 400
    """Keys deleted in one commit in a hurry."""
    hurry_s: float = 10.0
    """If deleting takes longer, keys expire faster than they are deleted: the thread stops
    resting."""
    failed_pause_s: float = 1.0
    """Pause after a failure, such as a full disk or damage: each try makes the catalog forget all
    that it has in memory."""
    damaged_pause_s: float = 60.0
    """Pause before damaged timers are tried again, for the same reason."""
    reclaim_pause_s: float = 20.0
    """Pause before the space of deleted entries is freed, unless writes wait for it."""
    reclaim_bytes: int = 16 << 20
    """Deleted ranges with fewer bytes in tables of their own are left to RocksDB's compactions."""
    slice_bytes: int = 64 << 20
    """Bytes of tables that are compacted at once: a second's work."""
    recovery_s: float = 10.0
    """How long RocksDB may take to recover from a full disk: it looks at the free space every five
    seconds."""


DEFAULT = Thresholds()
