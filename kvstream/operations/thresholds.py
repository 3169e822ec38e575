"""The sizes at which a command takes another form, and the sizes of its steps.

A server runs a command above a ``LONG_`` threshold in steps, and writes a reply above a ``SHORT_``
one page by page, so that other clients wait for milliseconds at most (rows ``gaps`` of
docs/benchmarks.md). Below, a command runs in one go, which is faster: each step pays for a turn.
The library, and EXEC for commands that change something, run all commands in one go.
"""

# --- entries and IDs ----------------------------------------------------------------------------

LONG_ROWS = 2000
"""Entries above which a command is done in steps: some milliseconds of work."""
STEP_ROWS = 500
"""Entries of one step: about half a millisecond of work."""
TRIES = 3
"""How often a command starts again, because others changed its entries, before it runs in one
go."""
LAST_STEP_IDS = 50
"""IDs that the last step of XACK, XNACK and XCLAIM may look at for the first time."""
STEPS_FACTOR = 4
"""How many times the steps that it needs alone one of these may take because of others."""
LONG_AUTOCLAIM = 500_000
"""Entries for which XAUTOCLAIM gets all the steps it needs, whatever other commands change."""
PACKED_TOGETHER = 5000
"""IDs that one step parses: about half a millisecond."""

# --- keys ---------------------------------------------------------------------------------------

FLUSH_KEYS = 100
"""Up to this many keys a flush deletes their rows itself, in two milliseconds; more are deleted
later."""
LONG_KEYS = 500
"""Keys above which DEL, UNLINK, EXISTS and TOUCH are done in steps."""
STEP_KEYS = 200
"""Keys that one step looks up: some milliseconds of work."""
KEYS_TOGETHER = 20
"""Records of keys that are read at once; each may hold a long string."""
LONG_NAMES = 500
"""Keys above which MGET and MSET run in steps."""
STEP_NAMES = 500
"""Strings that one step reads or writes."""
STEP_BYTES = 1 << 20
"""Bytes of records that one step reads: about two milliseconds of work."""

# --- groups and consumers -----------------------------------------------------------------------

LONG_MEMBERS = 500
"""Groups or consumers above which they are loaded in steps."""
STEP_MEMBERS = 100
"""Groups or consumers that one step loads: some milliseconds of work."""
LONG_GROUPS = 100
"""Groups from which on XINFO STREAM FULL and DUMP run in steps."""
STEP_GROUPS = 16
"""Groups that one step of DUMP copies."""

# --- payloads -----------------------------------------------------------------------------------

LONG_PAYLOAD = 64 << 10
"""Bytes of payload above which RESTORE runs in steps: they hold some thousand entries."""
STEP_NODES = 16
"""Nodes that one step of DUMP writes: a millisecond of work."""

# --- reads --------------------------------------------------------------------------------------

LONG_LOADING = 200
"""Streams above which XREAD loads them in steps, at 50 us each."""
LOADED_TOGETHER = 50
"""Streams that one step loads."""
LONG_READ = 1000
"""Streams above which XREAD looks up their IDs in a step of its own."""
SHORT_ROWS = 1000
"""A reply of more entries is written page by page: it takes some milliseconds."""
SHORT_BYTES = 1 << 20
"""A reply of more memory is written page by page."""
RECIPE_BYTES = 64 << 10
"""After an EXEC has used its share of memory, replies longer than this are made in pages; an
iterator takes a quarter of it."""
LOOK_ROWS = 100
"""A read of up to this many entries is short without a look at the stream."""
FEW_STREAMS = 16
"""Long streams whose entries are counted by their nodes, to know whether a read is short."""
SHORT_STREAMS = 500
"""Short streams that are read at once."""
NODE_PAGES_TOGETHER = 8
"""Pages of 256 nodes that one step of KVSTREAM.COUNT adds: half a millisecond of work."""
RUNS_TOGETHER = 256
"""Runs of pending entries that one step reads: a third of a millisecond."""
STEP_ITEMS = 512
"""Items of one step of a reply: half a millisecond of work."""
