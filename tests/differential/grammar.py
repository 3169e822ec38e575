"""A grammar of random commands on few keys, groups, consumers and IDs, so that they meet.

``@+`` in a command stands for an ID above all others, ``@n`` for the n-th newest that was ever
added: the caller puts them in. ``STEP_7`` draws what Redis 7.0 knows, ``STEP_8``
everything, and waits and crashes between. About one command in ten is spoiled: a word dropped,
doubled, replaced or added, so that error texts are compared too.

Every rule is a function of a Random, which spreads the commands evenly.
"""

from collections.abc import Callable
from random import Random

Argv = list[str]
Rule = Callable[[Random], Argv]


def words(text: str) -> Rule:
    """Draw one of the words; what stands twice is drawn twice as often."""
    choices = text.split()
    return lambda r: [r.choice(choices)]


def one_of(*rules: Rule) -> Rule:
    return lambda r: r.choice(rules)(r)


def often(common: Rule, rare: Rule) -> Rule:
    """Draw from the rare ones once in ten times."""
    return lambda r: (rare if r.random() < 0.1 else common)(r)


def maybe(rule: Rule) -> Rule:
    return lambda r: rule(r) if r.random() < 0.5 else []


def sentence(*parts: str | Rule) -> Rule:
    """Draw all parts one after the other; a string stands for its words."""
    rules = [_write_fixed(part) if isinstance(part, str) else part for part in parts]
    return lambda r: [word for rule in rules for word in rule(r)]


def _write_fixed(text: str) -> Rule:
    return lambda r: text.split()


def some(*options: Rule) -> Rule:
    """Draw any of the options, each at most once, in any order."""

    def draw(r: Random) -> Argv:
        chosen = r.sample(options, r.randint(0, len(options)))
        return [word for option in chosen for word in option(r)]

    return draw


def several(rule: Rule, most: int = 4) -> Rule:
    return lambda r: [word for _ in range(r.randint(1, most)) for word in rule(r)]


def with_sign(sign: str, rule: Rule) -> Rule:
    return lambda r: [sign + word for word in rule(r)]


KEYS = often(words("s s s t"), words("string missing u"))
GROUPS = often(words("g g h"), words("nogroup"))
CONSUMERS = words("c c d e")
NEWEST = words("@0 @1 @2 @3 @4 @5 @6")
IDS = one_of(NEWEST, NEWEST, words("0 1 1-1 2 2-3 5 9-9 99"))
BOUNDS = one_of(words("- +"), IDS, with_sign("(", IDS), words("- + (0-0 (-"))
COUNTS = often(words("1 1 2 3 10"), words("0 -1 x"))
IDLES = often(words("0 0 50000"), words("-3 99999999999 x"))  # far from what a run takes
FIELDS = one_of(*map(sentence, ("f v", "f w", "g 12", "f 1 g 2", "f -70000", "f v f w")))
ADD_IDS = often(words("@+ @+ @+ @0-*"), one_of(IDS, words("1-* 9-* 0-* 0-0")))
JUNK = words(
    "foo COUNT -1 1.5 5-* STREAMS > $ ~ IDS LIMIT ACKED 1- -1 1-1-1 a-1 18446744073709551616 "
    "(5 1_0 007-1 +5"
)

SIGNS = one_of(sentence(), sentence("="), sentence("~"), sentence("~"))
LIMITS = sentence("LIMIT", often(words("0 1 2 3"), words("-1 x")))
TRIMS = one_of(
    sentence("MAXLEN", SIGNS, often(words("1 2 3 5"), words("0 -1 x"))),
    sentence("MINID", SIGNS, IDS),
    sentence("MAXLEN ~", words("0 1 2 3 5"), maybe(LIMITS)),
    sentence("MINID ~", IDS, maybe(LIMITS)),
    sentence("MAXLEN", SIGNS, words("2 3"), maybe(LIMITS)),
)
COUNT = sentence("COUNT", COUNTS)
NOACK = sentence("NOACK")
GROUP = sentence("GROUP", GROUPS, CONSUMERS)
READ_IDS = one_of(IDS, words("$ 0 0"), often(words("0"), words("> + -")))
GROUP_IDS = often(words("> > > 0"), one_of(IDS, words("$ +")))
TARGETS = one_of(
    sentence("STREAMS", KEYS, GROUP_IDS), sentence("STREAMS s t", GROUP_IDS, GROUP_IDS)
)
CREATE_IDS = one_of(words("$ 0 0"), IDS, often(words("0"), words("- + x")))
ENTRIESREAD = sentence("ENTRIESREAD", words("0 1 3 -1 -2"))
CLAIM_OPTIONS = some(
    sentence("IDLE", often(words("100000 0"), words("x"))),
    sentence("TIME", words("1000 -5 9999999999999")),
    sentence("RETRYCOUNT", often(words("0 4"), words("-1 x"))),
    sentence("FORCE"),
    sentence("JUSTID"),
    sentence("LASTID", IDS),
)
COUNTERS = some(sentence("ENTRIESADDED", words("0 4 30 -1")), sentence("MAXDELETEDID", IDS))

Weighted = list[tuple[int, Rule]]
FAMILIES_7: Weighted = [
    (8, sentence("XADD", words("s s t"), ADD_IDS, FIELDS)),
    (3, sentence("XADD", KEYS, some(sentence("NOMKSTREAM"), TRIMS), ADD_IDS, FIELDS)),
    (3, sentence("XTRIM", KEYS, TRIMS)),
    (3, sentence("XDEL", KEYS, several(IDS))),
    (1, sentence("XRANGE", KEYS, BOUNDS, BOUNDS, some(COUNT))),
    (1, sentence("XREVRANGE", KEYS, BOUNDS, BOUNDS, some(COUNT))),
    (1, sentence("XLEN", KEYS)),
    (1, sentence("XREAD", some(COUNT), "STREAMS", KEYS, READ_IDS)),
    (1, sentence("XREAD", some(COUNT), "STREAMS s t", READ_IDS, READ_IDS)),
    (6, sentence("XREADGROUP", GROUP, some(COUNT, NOACK), TARGETS)),
    (2, sentence("XGROUP CREATE", KEYS, GROUPS, CREATE_IDS, some(ENTRIESREAD))),
    (1, sentence("XGROUP CREATE", KEYS, "g 0 MKSTREAM")),
    (2, sentence("XGROUP SETID", KEYS, GROUPS, CREATE_IDS, some(ENTRIESREAD))),
    (1, sentence("XGROUP CREATECONSUMER", KEYS, GROUPS, CONSUMERS)),
    (1, sentence("XGROUP DELCONSUMER", KEYS, GROUPS, CONSUMERS)),
    (3, sentence("XACK", KEYS, GROUPS, several(IDS))),
    (1, sentence("XPENDING", KEYS, GROUPS, BOUNDS, BOUNDS, COUNTS)),
    (1, sentence("XPENDING", KEYS, GROUPS, "IDLE", IDLES, "- +", COUNTS)),
    (1, sentence("XPENDING", KEYS, GROUPS, "- + 10", CONSUMERS)),
    (4, sentence("XCLAIM", KEYS, GROUPS, CONSUMERS, IDLES, several(IDS), CLAIM_OPTIONS)),
    (2, sentence("XAUTOCLAIM", KEYS, GROUPS, CONSUMERS, IDLES, BOUNDS, some(COUNT))),
    (1, sentence("XAUTOCLAIM", KEYS, GROUPS, CONSUMERS, IDLES, BOUNDS, "JUSTID", some(COUNT))),
    (1, sentence("XINFO STREAM", KEYS)),
    (1, sentence("XINFO STREAM", KEYS, "FULL", some(COUNT))),
    (2, sentence("XSETID", KEYS, one_of(sentence("@+"), IDS), COUNTERS)),
]

STRINGS = often(words("string n"), often(words("missing u"), words("s t")))
"""Keys for what makes strings: a stream seldom, for it takes long to become one again."""
ANY_KEYS = words("s t u string n missing")
TARGETS_OF_ALL = often(words("u u n"), often(words("string"), words("s t")))
VALUES = words("v w 12 -5 007 9223372036854775806")
NUMBERS = often(words("1 5 -3"), words("9223372036854775807 -9223372036854775808 x 1.5"))
FAR = words("100000 99999 123456")
"""Seconds or milliseconds that no run against a real server sees the end of."""
NO_TIMES = words("0 -1 x 9223372036854775807")
TIMES = one_of(
    sentence(words("EX PX"), often(FAR, NO_TIMES)),
    sentence("EXAT", often(words("4000000000 4000000001"), words("0 x"))),
    sentence("PXAT", words("4000000000123")),
)
CONDITIONS = some(sentence("NX"), sentence("XX"), sentence("GT"), sentence("LT"))
STRING_FAMILY: Weighted = [
    (3, sentence("SET", STRINGS, VALUES)),
    (3, sentence("SET", STRINGS, VALUES, some(words("NX XX"), sentence("GET"), TIMES))),
    (1, sentence("SET", STRINGS, VALUES, some(sentence("KEEPTTL"), sentence("GET")))),
    (1, sentence("GETEX", STRINGS, one_of(TIMES, sentence("PERSIST"), sentence("")))),
    (1, sentence("GETSET", STRINGS, VALUES)),
    (1, sentence("GETDEL", STRINGS)),
    (1, sentence("SETNX", STRINGS, VALUES)),
    (1, sentence(words("SETEX PSETEX"), STRINGS, often(FAR, NO_TIMES), VALUES)),
    (1, sentence("GET", ANY_KEYS)),
    (1, sentence("MGET", several(ANY_KEYS))),
    (1, sentence("STRLEN", ANY_KEYS)),
    (2, sentence(words("INCR DECR"), ANY_KEYS)),
    (2, sentence(words("INCRBY DECRBY"), ANY_KEYS, NUMBERS)),
    (1, sentence("APPEND", STRINGS, VALUES)),
]
KEY_FAMILY: Weighted = [
    (3, sentence("COPY", ANY_KEYS, TARGETS_OF_ALL, maybe(sentence("REPLACE")))),
    (2, sentence(words("RENAME RENAMENX"), words("u n string missing"), TARGETS_OF_ALL)),
    (2, sentence(words("EXPIRE PEXPIRE"), ANY_KEYS, words("100000 99999"), CONDITIONS)),
    (1, sentence("PEXPIREAT", ANY_KEYS, words("4000000000500"), CONDITIONS)),
    (1, sentence("EXPIRE", STRINGS, often(FAR, words("0 -1 x")))),
    (1, sentence("PERSIST", ANY_KEYS)),
    (1, sentence(words("TTL PTTL PEXPIRETIME"), ANY_KEYS)),
    (1, sentence(words("EXISTS TOUCH"), several(ANY_KEYS))),
    (1, sentence("TYPE", ANY_KEYS)),
    (1, sentence("KEYS", words("* s* [nu] ?"))),
    (1, sentence("DBSIZE")),
    (1, sentence(words("DEL UNLINK"), STRINGS)),
]
FAMILIES_7 += [*STRING_FAMILY, *KEY_FAMILY]

RARE = one_of(
    sentence("XGROUP DESTROY", KEYS, GROUPS),
    sentence("DEL", KEYS),
    sentence("RENAME s t"),
    sentence("RENAME t s"),
)

POLICIES = words("KEEPREF DELREF ACKED ACKED")
IIDS = words("i j k")
PRODUCERS = one_of(sentence("IDMP", words("p q"), IIDS), sentence("IDMPAUTO", words("p q")))
TRIMS_8 = one_of(TRIMS, sentence(TRIMS, POLICIES), sentence(POLICIES, TRIMS))
CLAIM = sentence("CLAIM", often(words("0 0 10 1000"), words("-1 x")))
MAXCOUNT = sentence("MAXCOUNT", often(words("1 2 3 10"), words("0 x")))
MAXSIZE = sentence("MAXSIZE", often(words("1 30 60 90 120 200"), words("0 x")))
GROUP_LIMITS = some(COUNT, MAXCOUNT, MAXSIZE, NOACK, CLAIM)
MODES = words("SILENT FAIL FATAL")
NACK_TAIL = some(sentence("RETRYCOUNT", often(words("0 3"), words("-1 x"))), sentence("FORCE"))
CFGSET = some(
    sentence("IDMP-DURATION", often(words("1 100"), words("0 86401 x"))),
    sentence("IDMP-MAXSIZE", often(words("1 2 100"), words("0 10001 x"))),
)
CLOCKED = words("1 10 1000")


def ids_block(r: Random) -> Argv:
    ids = several(IDS)(r)
    return ["IDS", str(len(ids)), *ids]


FAMILIES_8: Weighted = [
    *FAMILIES_7,
    (3, sentence("XADD", KEYS, some(TRIMS_8), one_of(ADD_IDS, sentence("*")), FIELDS)),
    (4, sentence("XADD s", some(PRODUCERS, TRIMS_8, sentence("NOMKSTREAM")), "*", FIELDS)),
    (3, sentence("XTRIM", KEYS, TRIMS_8)),
    (3, sentence("XDELEX", KEYS, some(POLICIES, ids_block))),
    (3, sentence("XDELEX", KEYS, ids_block, POLICIES)),
    (3, sentence("XACKDEL", KEYS, GROUPS, ids_block, some(POLICIES))),
    (5, sentence("XNACK", KEYS, GROUPS, MODES, ids_block, NACK_TAIL)),
    (1, sentence("XREAD", some(COUNT, MAXCOUNT, MAXSIZE), "STREAMS s t", READ_IDS, READ_IDS)),
    (6, sentence("XREADGROUP", GROUP, GROUP_LIMITS, TARGETS)),
    (3, sentence("XREADGROUP", GROUP, CLAIM, some(COUNT), "STREAMS s >")),
    (1, sentence("XPENDING s", GROUPS, "IDLE", CLOCKED, "- +", COUNTS)),
    (2, sentence("XCLAIM s", GROUPS, CONSUMERS, CLOCKED, several(IDS), CLAIM_OPTIONS)),
    (2, sentence("XAUTOCLAIM s", GROUPS, CONSUMERS, CLOCKED, BOUNDS, some(COUNT))),
    (1, sentence("XCFGSET", KEYS, CFGSET)),
    (1, sentence("XIDMPRECORD", KEYS, words("p q"), IIDS, IDS)),
    (1, sentence("OBJECT ENCODING", ANY_KEYS)),
    (1, sentence("SET", STRINGS, VALUES, words("EXAT PXAT"), words("1 1700000000 1700000000500"))),
]
EXACT = one_of(sentence("MAXLEN", words("1 2 3 5 0 x")), sentence("MINID =", IDS))
FAMILIES_8_2: Weighted = [
    *FAMILIES_7,
    (3, sentence("XADD", KEYS, EXACT, POLICIES, ADD_IDS, FIELDS)),
    (3, sentence("XTRIM", KEYS, one_of(sentence(EXACT, POLICIES), sentence(POLICIES, EXACT)))),
    (3, sentence("XDELEX", KEYS, some(POLICIES, ids_block))),
    (3, sentence("XDELEX", KEYS, ids_block, POLICIES)),
    (4, sentence("XACKDEL", KEYS, GROUPS, ids_block, some(POLICIES))),
    (1, sentence("XREAD STREAMS s t", words("+ 0"), words("+ $"))),
    (1, sentence("OBJECT ENCODING", ANY_KEYS)),
]
"""What Redis 8.2 knows, and does as later versions do."""
WAIT, CRASH, REOPEN = "(wait)", "(crash)", "(reopen)"
EVENTS: Weighted = [
    (5, sentence(WAIT, words("1 10 10 1000 100000 -5"))),
    (1, sentence(CRASH)),
    (1, sentence(REOPEN)),
]
"""What may happen to a store between commands."""


def spoil(r: Random, argv: Argv) -> Argv:
    """Return the command with one thing wrong."""
    place = r.randint(1, len(argv))
    put = ["" if r.random() < 0.1 else JUNK(r)[0]]
    before, here, behind = argv[:place], argv[place : place + 1], argv[place + 1 :]
    changed = [put, put + here, argv[place - 1 : place] + here, []]
    return before + r.choice(changed) + behind


def step(families: Weighted, events: Weighted | None = None) -> Rule:
    """Return the rule that draws a command of any of the families, or an event between them."""
    rules, weights = [rule for _, rule in families], [weight for weight, _ in families]
    between = [rule for weight, rule in events or [] for _ in range(weight)]

    def draw(r: Random) -> Argv:
        chance = r.random()
        if chance < 0.07 and between:
            return r.choice(between)(r)
        if chance < 0.09:
            return RARE(r)
        argv = r.choices(rules, weights)[0](r)
        return spoil(r, argv) if chance < 0.18 else argv

    return draw


STEP_7 = step(FAMILIES_7)
STEP_8 = step(FAMILIES_8, EVENTS)
