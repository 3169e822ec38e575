"""Random commands on few keys, groups, consumers and IDs, so that they meet.

``@+`` in a command stands for an ID above all others, ``@n`` for the n-th newest that was ever
added: whoever runs the command puts them in. ``COMMANDS_7`` draws what Redis 7.0 knows,
``COMMANDS_8`` everything. One command in eight is spoiled: a word dropped, doubled, replaced or
added, so that error texts are compared too.
"""

from hypothesis import strategies as st

Argv = list[str]
Words = st.SearchStrategy[str]
Commands = st.SearchStrategy[Argv]


def words(text: str) -> Words:
    """Return a strategy that draws any of the words, those that stand twice twice as often."""
    return st.sampled_from(text.split())


def often(common: Words, rare: Words) -> Words:
    """Return a strategy that draws one in ten words from the rare ones."""
    return st.integers(0, 9).flatmap(lambda n: rare if n == 0 else common)


def sentence(*parts: "str | Words | Commands") -> Commands:
    """Return argument lists made of words, drawn words and drawn lists of words."""
    drawn = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*drawn).map(_flattened)


def _flattened(parts: "tuple[str | Argv, ...]") -> Argv:
    return [word for part in parts for word in ([part] if isinstance(part, str) else part)]


def some(*options: Commands) -> Commands:
    """Return any of the options, each at most once, in any order."""
    chosen = st.lists(st.sampled_from(range(len(options))), unique=True, max_size=len(options))
    return chosen.flatmap(lambda picks: st.tuples(*[options[i] for i in picks])).map(_flattened)


def several(drawn: Words, most: int = 4) -> Commands:
    return st.lists(drawn, min_size=1, max_size=most)


KEYS = often(words("s s s t"), words("string missing"))
GROUPS = often(words("g g h"), st.just("nogroup"))
CONSUMERS = words("c c d e")
IDS = st.one_of(
    words("@0 @1 @2 @3 @4 @5 @6"), words("@0 @1 @2 @3 @4 @5 @6"), words("0 1 1-1 2 2-3 5 9-9 99")
)
BOUNDS = st.one_of(words("- +"), IDS, IDS.map("({}".format), words("- + (0-0 (-"))
COUNTS = often(words("1 1 2 3 10"), words("0 -1 x"))
IDLES = often(words("0 0 50000"), words("-3 99999999999 x"))  # far from what a run takes
FIELDS = st.sampled_from([["f", "v"], ["f", "w"], ["g", "12"], ["f", "1", "g", "2"], ["f", ""]])
ADD_IDS = often(words("@+ @+ @+ @0-*"), st.one_of(IDS, words("1-* 9-* 0-* 0-0")))
JUNK = words("foo COUNT -1 1.5 5-* STREAMS > $ ~ IDS LIMIT ACKED")
ODD_IDS = words("1- -1 1-1-1 a-1 18446744073709551616 (5 1_0 007-1 +5")

SIGNS = st.sampled_from([[], ["="], ["~"], ["~"]])
LIMITS: Commands = st.one_of(st.just([]), sentence("LIMIT", often(words("0 1 2 3"), words("-1 x"))))
NO_LIMIT: Commands = st.just([])
TRIMS = st.one_of(
    sentence("MAXLEN", SIGNS, often(words("1 2 3 5"), words("0 -1 x")), NO_LIMIT),
    sentence("MINID", SIGNS, IDS, NO_LIMIT),
    sentence("MAXLEN", "~", words("0 1 2 3 5"), LIMITS),
    sentence("MINID", "~", IDS, LIMITS),
    sentence("MAXLEN", SIGNS, words("2 3"), LIMITS),
)
COUNT = sentence("COUNT", COUNTS)
NOACK = sentence("NOACK")
GROUP = sentence("GROUP", GROUPS, CONSUMERS)
READ_IDS = st.one_of(IDS, words("$ 0 0"), often(st.just("0"), words("> + -")))
GROUP_IDS = often(words("> > > 0"), st.one_of(IDS, words("$ +")))
TARGETS = st.one_of(
    sentence("STREAMS", KEYS, GROUP_IDS), sentence("STREAMS", "s", "t", GROUP_IDS, GROUP_IDS)
)
CREATE_IDS = st.one_of(words("$ 0 0"), IDS, often(st.just("0"), words("- + x")))
ENTRIESREAD = sentence("ENTRIESREAD", words("0 1 3 -1 -2"))
CLAIM_OPTIONS = some(
    sentence("IDLE", often(words("100000 0"), st.just("x"))),
    sentence("TIME", words("1000 -5 9999999999999")),
    sentence("RETRYCOUNT", often(words("0 4"), words("-1 x"))),
    sentence("FORCE"),
    sentence("JUSTID"),
    sentence("LASTID", IDS),
)
COUNTERS = some(
    sentence("ENTRIESADDED", words("0 4 30 -1")), sentence("MAXDELETEDID", st.one_of(IDS))
)

Weighted = list[tuple[int, Commands]]
FAMILIES_7: Weighted = [
    (8, sentence("XADD", words("s s t"), ADD_IDS, FIELDS)),
    (3, sentence("XADD", KEYS, some(sentence("NOMKSTREAM"), TRIMS), ADD_IDS, FIELDS)),
    (3, sentence("XTRIM", KEYS, TRIMS)),
    (3, sentence("XDEL", KEYS, several(IDS))),
    (1, sentence("XRANGE", KEYS, BOUNDS, BOUNDS, some(COUNT))),
    (1, sentence("XREVRANGE", KEYS, BOUNDS, BOUNDS, some(COUNT))),
    (1, sentence("XLEN", KEYS)),
    (1, sentence("XREAD", some(COUNT), "STREAMS", KEYS, READ_IDS)),
    (1, sentence("XREAD", some(COUNT), "STREAMS", "s", "t", READ_IDS, READ_IDS)),
    (6, sentence("XREADGROUP", GROUP, some(COUNT, NOACK), TARGETS)),
    (2, sentence("XGROUP", "CREATE", KEYS, GROUPS, CREATE_IDS, some(ENTRIESREAD))),
    (1, sentence("XGROUP", "CREATE", KEYS, "g", "0", "MKSTREAM")),
    (2, sentence("XGROUP", "SETID", KEYS, GROUPS, CREATE_IDS, some(ENTRIESREAD))),
    (1, sentence("XGROUP", "CREATECONSUMER", KEYS, GROUPS, CONSUMERS)),
    (1, sentence("XGROUP", "DELCONSUMER", KEYS, GROUPS, CONSUMERS)),
    (3, sentence("XACK", KEYS, GROUPS, several(IDS))),
    (1, sentence("XPENDING", KEYS, GROUPS, BOUNDS, BOUNDS, COUNTS)),
    (1, sentence("XPENDING", KEYS, GROUPS, "IDLE", IDLES, "-", "+", COUNTS)),
    (1, sentence("XPENDING", KEYS, GROUPS, "-", "+", "10", CONSUMERS)),
    (4, sentence("XCLAIM", KEYS, GROUPS, CONSUMERS, IDLES, several(IDS), CLAIM_OPTIONS)),
    (
        3,
        sentence(
            *("XAUTOCLAIM", KEYS, GROUPS, CONSUMERS, IDLES),
            *(BOUNDS, some(COUNT, sentence("JUSTID"))),
        ),
    ),
    (1, sentence("XINFO", "STREAM", KEYS)),
    (1, sentence("XINFO", "STREAM", KEYS, "FULL", some(COUNT))),
    (2, sentence("XSETID", KEYS, st.one_of(st.just("@+"), IDS), COUNTERS)),
]
RARE: list[Commands] = [
    sentence("XGROUP", "DESTROY", KEYS, GROUPS),
    sentence("DEL", KEYS),
    sentence("RENAME", "s", "t"),
    sentence("RENAME", "t", "s"),
]

POLICIES = st.sampled_from([["KEEPREF"], ["DELREF"], ["ACKED"], ["ACKED"]])
IDS_BLOCK = several(IDS).map(lambda ids: ["IDS", str(len(ids)), *ids])
IIDS = words("i j k")
PRODUCERS = st.one_of(sentence("IDMP", words("p q"), IIDS), sentence("IDMPAUTO", words("p q")))
ANY_ADD_ID = st.one_of(ADD_IDS, st.just("*"))
TRIMS_8 = st.one_of(TRIMS, sentence(TRIMS, POLICIES), sentence(POLICIES, TRIMS))
CLAIM = sentence("CLAIM", often(words("0 0 10 1000"), words("-1 x")))
MAXCOUNT = sentence("MAXCOUNT", often(words("1 2 3 10"), words("0 x")))
MAXSIZE = sentence("MAXSIZE", often(words("1 30 60 90 120 200"), words("0 x")))
LIMITS_8 = some(COUNT, MAXCOUNT, MAXSIZE)
GROUP_LIMITS = some(COUNT, MAXCOUNT, MAXSIZE, NOACK, CLAIM)
NACK_TAIL = some(sentence("RETRYCOUNT", often(words("0 3"), words("-1 x"))), sentence("FORCE"))
CFGSET = some(
    sentence("IDMP-DURATION", often(words("1 100"), words("0 86401 x"))),
    sentence("IDMP-MAXSIZE", often(words("1 2 100"), words("0 10001 x"))),
)
CLOCKED_IDLES = words("1 10 1000")
FAMILIES_8: Weighted = [
    *FAMILIES_7,
    (1, sentence("XPENDING", "s", GROUPS, "IDLE", CLOCKED_IDLES, "-", "+", COUNTS)),
    (2, sentence("XCLAIM", "s", GROUPS, CONSUMERS, CLOCKED_IDLES, several(IDS), CLAIM_OPTIONS)),
    (2, sentence("XAUTOCLAIM", "s", GROUPS, CONSUMERS, CLOCKED_IDLES, BOUNDS, some(COUNT))),
    (3, sentence("XADD", KEYS, some(TRIMS_8), ANY_ADD_ID, FIELDS)),
    (4, sentence("XADD", "s", some(PRODUCERS, TRIMS_8, sentence("NOMKSTREAM")), "*", FIELDS)),
    (3, sentence("XTRIM", KEYS, TRIMS_8)),
    (3, sentence("XDELEX", KEYS, some(POLICIES, IDS_BLOCK))),
    (3, sentence("XDELEX", KEYS, IDS_BLOCK, POLICIES)),
    (3, sentence("XACKDEL", KEYS, GROUPS, IDS_BLOCK, some(POLICIES))),
    (5, sentence("XNACK", KEYS, GROUPS, words("SILENT FAIL FATAL"), IDS_BLOCK, NACK_TAIL)),
    (1, sentence("XREAD", LIMITS_8, "STREAMS", "s", "t", READ_IDS, READ_IDS)),
    (6, sentence("XREADGROUP", GROUP, GROUP_LIMITS, TARGETS)),
    (3, sentence("XREADGROUP", GROUP, CLAIM, some(COUNT), "STREAMS", "s", ">")),
    (1, sentence("XCFGSET", KEYS, CFGSET)),
    (1, sentence("XIDMPRECORD", KEYS, words("p q"), IIDS, IDS)),
]


def spoiled(argv: Argv) -> Commands:
    """Return the command with one thing wrong."""
    place = st.integers(1, len(argv))
    put = st.tuples(place, st.one_of(JUNK, ODD_IDS, st.just("")))
    return st.one_of(
        place.map(lambda i: argv[:i] + argv[i + 1 :]),
        put.map(lambda p: [*argv[: p[0]], p[1], *argv[p[0] + 1 :]]),
        put.map(lambda p: [*argv[: p[0]], p[1], *argv[p[0] :]]),
        place.map(lambda i: argv[:i] + argv[i - 1 : i] + argv[i:]),
    )


def commands(families: Weighted) -> Commands:
    """Return a command of any of the families, now and then a spoiled one."""
    weighted = [family for weight, family in families for _ in range(weight)]
    common = st.sampled_from(weighted).flatmap(lambda family: family)
    rare = st.sampled_from(RARE).flatmap(lambda family: family)

    def drawn(n: int) -> Commands:
        return rare if n == 0 else common.flatmap(spoiled) if n <= 4 else common

    return st.integers(0, 31).flatmap(drawn)


COMMANDS_7 = commands(FAMILIES_7)
COMMANDS_8 = commands(FAMILIES_8)
