"""Random commands on few keys, groups, consumers and IDs, so that they meet.

``COMMANDS_7`` draws what Redis 7.0 knows, ``COMMANDS_8`` everything. About one command in eight is
spoiled: an argument dropped, doubled, replaced or added, so that error texts are compared too.
"""

from hypothesis import strategies as st

Argv = list[str]
Commands = st.SearchStrategy[Argv]

KEYS = st.sampled_from(["s", "s", "s", "t", "string", "missing"])
GROUPS = st.sampled_from(["g", "g", "h", "nogroup"])
CONSUMERS = st.sampled_from(["c", "c", "d", "e"])
POOL = "0 0-1 1 1-0 1-1 2 2-0 2-3 3 3-0 3-1 4 5 5-1 6 7 7-7 8 9 9-9 12 20"
IDS = st.sampled_from(POOL.split())
BOUNDS = st.one_of(IDS, IDS.map("({}".format), st.sampled_from(["-", "+", "(0-0", "(-"]))
COUNTS = st.sampled_from(["1", "1", "2", "3", "10", "0", "-1", "x"])
FIELDS = st.sampled_from([["f", "v"], ["f", "w"], ["g", "12"], ["f", "1", "g", "2"], ["f", ""]])
IDLES = st.sampled_from(["0", "0", "50000", "-3", "99999999999"])
JUNK = st.sampled_from(["", "foo", "COUNT", "-1", "1.5", "5-*", "STREAMS", ">", "$", "~"])
ADD_IDS = st.one_of(IDS, st.sampled_from(["1-*", "3-*", "7-*", "9-*", "13-*", "0-*", "0-0"]))
ODD_IDS = st.sampled_from(["1-", "-1", "1-1-1", "a-1", "18446744073709551616", "(5", "1_0", " 1"])


def sentence(*parts: "str | st.SearchStrategy[str] | Commands") -> Commands:
    """Return argument lists made of words, drawn words and drawn lists of words."""
    drawn = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*drawn).map(_flattened)


def _flattened(parts: "tuple[str | Argv, ...]") -> Argv:
    return [word for part in parts for word in ([part] if isinstance(part, str) else part)]


def some(*options: Commands) -> Commands:
    """Return any of the options, each at most once, in any order."""
    chosen = st.lists(st.sampled_from(range(len(options))), unique=True, max_size=len(options))
    return chosen.flatmap(lambda picks: st.tuples(*[options[i] for i in picks])).map(_flattened)


def lists(words: "st.SearchStrategy[str]", most: int = 3) -> Commands:
    return st.lists(words, min_size=1, max_size=most)


SIGNS = st.sampled_from([[], ["="], ["~"], ["~"]])
LIMITS: Commands = st.one_of(
    st.just([]), st.just([]), sentence("LIMIT", st.sampled_from(["0", "1", "2", "3", "9", "-1"]))
)
TRIMS = st.one_of(
    sentence("MAXLEN", SIGNS, st.sampled_from(["0", "1", "2", "3", "5", "-1", "x"]), LIMITS),
    sentence("MINID", SIGNS, IDS, LIMITS),
)
POLICIES = st.sampled_from([["KEEPREF"], ["DELREF"], ["ACKED"]])
IDS_BLOCK = lists(IDS).map(lambda ids: ["IDS", str(len(ids)), *ids])

XADD = sentence("XADD", KEYS, some(sentence("NOMKSTREAM"), TRIMS), ADD_IDS, FIELDS)
PLAIN_XADD = sentence("XADD", st.sampled_from(["s", "s", "t"]), ADD_IDS, FIELDS)
READ_IDS = st.one_of(IDS, st.sampled_from(["$", "0", ">", "+"]))
GROUP_IDS = st.one_of(st.sampled_from([">", ">", ">", ">", "0", "$", "+"]), IDS)
READ_TAIL = (KEYS, READ_IDS)
COUNT = sentence("COUNT", COUNTS)
BLOCK = sentence("BLOCK", st.sampled_from(["1", "-1", "x"]))
NOACK = sentence("NOACK")
GROUP = sentence("GROUP", GROUPS, CONSUMERS)
ONE = sentence("STREAMS", KEYS, GROUP_IDS)
TWO = sentence("STREAMS", "s", "t", GROUP_IDS, GROUP_IDS)
TARGETS = st.one_of(ONE, ONE, TWO)
CREATE_IDS = st.one_of(st.sampled_from(["$", "0", "0", "-", "+"]), IDS)
ENTRIESREAD = sentence("ENTRIESREAD", st.sampled_from(["0", "1", "3", "-1", "-2"]))
CLAIMS = some(
    sentence("IDLE", st.sampled_from(["100000", "0", "x"])),
    sentence("TIME", st.sampled_from(["1000", "-5", "9999999999999"])),
    sentence("RETRYCOUNT", st.sampled_from(["0", "4", "-1", "x"])),
    sentence("FORCE"),
    sentence("JUSTID"),
    sentence("LASTID", IDS),
)

FAMILIES_7: list[Commands] = [
    PLAIN_XADD,
    PLAIN_XADD,
    XADD,
    sentence("XTRIM", KEYS, TRIMS),
    sentence("XDEL", KEYS, lists(IDS)),
    sentence("XRANGE", KEYS, BOUNDS, BOUNDS, some(COUNT)),
    sentence("XREVRANGE", KEYS, BOUNDS, BOUNDS, some(COUNT)),
    sentence("XLEN", KEYS),
    sentence("XREAD", some(COUNT), "STREAMS", KEYS, READ_IDS),
    sentence("XREAD", some(COUNT), "STREAMS", "s", "t", READ_IDS, READ_IDS),
    sentence("XREADGROUP", GROUP, some(COUNT, NOACK), TARGETS),
    sentence("XREADGROUP", GROUP, some(COUNT, NOACK), TARGETS),
    sentence("XGROUP", "CREATE", KEYS, GROUPS, CREATE_IDS, some(sentence("MKSTREAM"), ENTRIESREAD)),
    sentence("XGROUP", "CREATE", "s", GROUPS, "0"),
    sentence("XGROUP", "SETID", KEYS, GROUPS, CREATE_IDS, some(ENTRIESREAD)),
    sentence("XGROUP", "CREATECONSUMER", KEYS, GROUPS, CONSUMERS),
    sentence("XGROUP", "DELCONSUMER", KEYS, GROUPS, CONSUMERS),
    sentence("XGROUP", "DESTROY", KEYS, GROUPS),
    sentence("XACK", KEYS, GROUPS, lists(IDS)),
    sentence("XPENDING", KEYS, GROUPS),
    sentence("XPENDING", KEYS, GROUPS, some(sentence("IDLE", IDLES)), BOUNDS, BOUNDS, COUNTS),
    sentence("XPENDING", KEYS, GROUPS, "-", "+", "10", CONSUMERS),
    sentence("XCLAIM", KEYS, GROUPS, CONSUMERS, IDLES, lists(IDS), CLAIMS),
    sentence("XCLAIM", "s", "g", CONSUMERS, IDLES, lists(IDS), CLAIMS),
    sentence("XAUTOCLAIM", KEYS, GROUPS, CONSUMERS, IDLES, BOUNDS, some(COUNT, sentence("JUSTID"))),
    sentence("XINFO", "STREAM", KEYS),
    sentence("XINFO", "STREAM", KEYS, "FULL", some(COUNT)),
    sentence("XINFO", "GROUPS", KEYS),
    sentence("XINFO", "CONSUMERS", KEYS, GROUPS),
    sentence(
        "XSETID",
        KEYS,
        IDS,
        some(
            sentence("ENTRIESADDED", st.sampled_from(["0", "4", "30", "-1"])),
            sentence("MAXDELETEDID", IDS),
        ),
    ),
    sentence("DEL", KEYS),
    sentence("RENAME", "s", "t"),
    sentence("RENAME", "t", "s"),
]


def spoiled(argv: Argv) -> Commands:
    """Return the command with one thing wrong."""
    place = st.integers(1, len(argv))
    word = st.one_of(JUNK, ODD_IDS)
    return st.one_of(
        place.map(lambda i: argv[:i] + argv[i + 1 :]),
        st.tuples(place, word).map(lambda p: [*argv[: p[0]], p[1], *argv[p[0] + 1 :]]),
        st.tuples(place, word).map(lambda p: [*argv[: p[0]], p[1], *argv[p[0] :]]),
        place.map(lambda i: argv[:i] + argv[i - 1 : i] + argv[i:]),
    )


def commands(families: list[Commands]) -> Commands:
    """Return a command of any of the families, now and then a spoiled one."""
    right = st.sampled_from(families).flatmap(lambda family: family)
    return st.integers(0, 7).flatmap(lambda n: right.flatmap(spoiled) if n == 0 else right)


COMMANDS_7 = commands(FAMILIES_7)


IIDS = st.sampled_from(["i", "j", "k"])
PRODUCERS = st.one_of(
    sentence("IDMP", st.sampled_from(["p", "q"]), IIDS),
    sentence("IDMPAUTO", st.sampled_from(["p", "q"])),
)
ANY_ADD_ID = st.one_of(ADD_IDS, st.just("*"))
TRIMS_8 = st.one_of(TRIMS, sentence(TRIMS, POLICIES), sentence(POLICIES, TRIMS))
CLAIM = sentence("CLAIM", st.sampled_from(["0", "0", "10", "1000", "-1", "x"]))
MAXCOUNT = sentence("MAXCOUNT", st.sampled_from(["1", "2", "3", "10"]))
MAXSIZE = sentence("MAXSIZE", st.sampled_from(["1", "30", "60", "90", "200"]))
LIMITS_8 = some(COUNT, MAXCOUNT, MAXSIZE)
GROUP_LIMITS = some(COUNT, MAXCOUNT, MAXSIZE, NOACK, CLAIM)
MODES = st.sampled_from(["SILENT", "FAIL", "FATAL"])
NACK_TAIL = some(sentence("RETRYCOUNT", st.sampled_from(["0", "3", "-1"])), sentence("FORCE"))
SECONDS = st.sampled_from(["1", "100", "0", "86401"])
SIZES = st.sampled_from(["1", "2", "100", "0", "10001"])
CFGSET = some(sentence("IDMP-DURATION", SECONDS), sentence("IDMP-MAXSIZE", SIZES))

FAMILIES_8: list[Commands] = [
    *(family for family in FAMILIES_7),
    sentence("XADD", KEYS, some(TRIMS_8), ANY_ADD_ID, FIELDS),
    sentence("XADD", "s", some(TRIMS_8), ANY_ADD_ID, FIELDS),
    sentence("XADD", "s", some(PRODUCERS, TRIMS_8, sentence("NOMKSTREAM")), "*", FIELDS),
    sentence("XADD", "s", PRODUCERS, "*", FIELDS),
    sentence("XTRIM", KEYS, TRIMS_8),
    sentence("XTRIM", "s", TRIMS_8),
    sentence("XDELEX", KEYS, some(POLICIES), IDS_BLOCK),
    sentence("XDELEX", "s", IDS_BLOCK, some(POLICIES)),
    sentence("XACKDEL", KEYS, GROUPS, some(POLICIES), IDS_BLOCK),
    sentence("XACKDEL", "s", "g", some(POLICIES), IDS_BLOCK),
    sentence("XNACK", KEYS, GROUPS, MODES, IDS_BLOCK, NACK_TAIL),
    sentence("XNACK", "s", "g", MODES, IDS_BLOCK, NACK_TAIL),
    sentence("XREAD", LIMITS_8, "STREAMS", "s", "t", READ_IDS, READ_IDS),
    sentence("XREADGROUP", GROUP, GROUP_LIMITS, TARGETS),
    sentence("XREADGROUP", "GROUP", "g", CONSUMERS, GROUP_LIMITS, "STREAMS", "s", ">"),
    sentence("XREADGROUP", "GROUP", "g", CONSUMERS, CLAIM, "STREAMS", "s", ">"),
    sentence("XCFGSET", KEYS, CFGSET),
    sentence("XIDMPRECORD", KEYS, st.sampled_from(["p", "q"]), IIDS, IDS),
]
COMMANDS_8 = commands(FAMILIES_8)
