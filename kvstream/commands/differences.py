"""Where Redis does otherwise than we do, by versions, and what is our own: for docs/commands.md."""

DIFFERENCES = (
    (
        "XREAD `+` after the last entry was deleted",
        "7.4: a null",
        "the last entry that is still there, as in later versions",
    ),
    ("XREAD `+`", "7.0, 7.2: a syntax error", "the last entry, as since 7.4"),
    (
        "XADD `ms-*` with no sequence left",
        "7.0: another text",
        "`The ID specified in XADD is equal or smaller than the target stream top item`",
    ),
    (
        "XREAD, XREADGROUP without an ID for each key",
        "7.0: `Unbalanced XREAD list of streams: ...`",
        "`Unbalanced 'xread' list of streams: ...`, with the IDs that may stand there",
    ),
    (
        "A blocked XREADGROUP whose key or group goes away",
        "7.0: `UNBLOCKED the stream key no longer exists`",
        "`NOGROUP ...` or `WRONGTYPE ...`",
    ),
    (
        "A blocked XREAD of several keys, of which one becomes a string",
        "7.0: the next news of the others; since 7.2 WRONGTYPE with that news",
        "`WRONGTYPE ...` with the next news of the others",
    ),
    (
        "ENTRIESREAD above the entries ever added",
        "before 8.2.2: kept as given",
        "taken as the entries ever added",
    ),
    (
        "XSETID below the greatest deleted ID",
        "7.0: allowed",
        "`The ID specified in XSETID is smaller than current max_deleted_entry_id`",
    ),
    (
        "Lag of a group below all live entries",
        "7.0: may be null",
        "the length of the stream",
    ),
    (
        "XINFO CONSUMERS",
        "7.0: `idle` since the last delivery or attempt",
        "`idle` since the last attempt, `inactive` since the last delivery; -1: never",
    ),
    ("XINFO STREAM", "before 8.6: ten pairs", "sixteen (go-redis 9.17 refuses them)"),
    ("XINFO STREAM FULL, a group", "before 8.8: seven pairs", "eight, with `nacked-count`"),
    (
        "XDELEX, XACKDEL, XTRIM with ACKED in a stream without groups",
        "the documents: nothing is deleted; the server: deleted",
        "deleted, as the server does",
    ),
    (
        "XADD, XTRIM with `~` and DELREF or ACKED",
        "the documents: whole nodes; 8.2: that, or nothing; since then: entry by entry",
        "entry by entry, to the bound, as the server does now",
    ),
    (
        "An unknown command without arguments",
        "7.0: `unknown command 'x', with args beginning with: `",
        "`unknown command 'x'`",
    ),
    ("SCAN with a negative cursor", "7.0: taken", "`invalid cursor`, as since 8.0"),
    (
        "XADD with IDMP that is refused",
        "8.6 to 8.10: leaves a producer without IDs, which `pids-tracked` counts for ever",
        "leaves nothing",
    ),
    (
        "CONFIG SET of a setting without a sign to a number below 0 or beyond 63 bits",
        "7.0, Valkey: `argument must be between ...`, or taken",
        "`argument must be greater or equal to 0`, as since 8.2",
    ),
    (
        "XCFGSET with the values that hold already",
        "the documents: producers are forgotten; the server: they stay",
        "they stay, as the server does",
    ),
    (
        "Age of an idempotent ID",
        "8.6: measured by the entry's ID, so one in the future never ages",
        "measured by the clock of the store",
    ),
)
"""(what, how some version of Redis has it, how it is here): the newest wins."""

OWN = (
    "Every command, however many keys it names, is one atomic commit.",
    "The lines that XGROUP, XINFO and CONFIG show for HELP are in words of our own.",
    "CONFIG knows the settings of streams: `stream-node-max-entries`, `stream-node-max-bytes`, "
    "`stream-idmp-duration`, `stream-idmp-maxsize`, `dump-target`. They hold until the store is "
    "closed.",
    "SCAN goes through the keys in the order in which they were made: one that stays is seen "
    "exactly once, and a cursor stays good over a restart.",
    "COPY of a stream takes time in proportion to its entries and pending entries. From 2,000 "
    "entries on a server copies bit by bit while others go on, and the key comes at the end, as a "
    "copy of what its source is by then; so do XREADGROUP and XAUTOCLAIM of so many. In MULTI, "
    "and in the process of a program, they are done in one go.",
    "Where others change a group during such an XAUTOCLAIM, it may take fewer than COUNT, or pass "
    "over what becomes idle behind where it has looked: the next round finds that.",
    "XREADGROUP CLAIM goes by ID where delivery times are equal, Redis by which was given first.",
    "OBJECT ENCODING of an integer is `int` also where INCRBYFLOAT has made it. IDLETIME "
    "counts from the start of the server, and is kept for the 20,000 keys that were used last; of "
    "others it is at least what is told. REFCOUNT is 1, also of small numbers, which Redis shares.",
    "MEMORY USAGE tells the bytes of a key's rows before compression, from samples: how much room "
    "on disk it may take. Of memory it takes next to none.",
    "SET with EXAT or PXAT in the past leaves no key at once; Redis counts it until asked for it.",
    "DUMP writes the oldest form that loses nothing of the key, so that servers as old as that can "
    "take it: 7.0's, 7.2's and Valkey's, 8.6's or 8.8's. With `CONFIG SET dump-target redis:7.2` "
    "(or `valkey`, ...) all payloads are for such a server, less what it cannot hold. Entries that "
    "were deleted are not in it, where Redis keeps them marked.",
    "RESTORE with a time to live that ends beyond 63 bits is refused; Redis answers OK, and the "
    "key is gone.",
    "RESTORE takes streams and strings of Redis 5.0 to 8.10 and of Valkey, and refuses all other "
    "types. What a payload tells wrongly, its length for one, is set right. FREQ is taken and not "
    "kept. The checksum is always looked at: newer servers take any payload whose "
    "checksum is 0.",
    "XSETID is a change to those who WATCH its key; Redis does not tell them.",
    "`radix-tree-nodes` of XINFO STREAM is one more than `radix-tree-keys`.",
    "The name of a key, group or consumer has at most a mebibyte; an entry has at most 512, "
    "or what the server's `stream-entry-max-bytes` allows.",
)
