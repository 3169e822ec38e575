"""A grammar of what several clients send to a server: the commands of ``grammar``, and what only
clients do: transactions, databases, waiting for news, going away.

A step is a client's number and what it sends, several requests parted by ``;``. Everything in it is
known to the server that is compared with, and means the same there.
"""

from random import Random

from tests.differential.grammar import (
    ANY_KEYS,
    COUNT,
    FAMILIES_7,
    FAMILIES_8_2,
    GROUP,
    GROUP_IDS,
    JUNK,
    KEYS,
    NOACK,
    Argv,
    Weighted,
    maybe,
    often,
    one_of,
    sentence,
    several,
    some,
    spoil,
    step,
    words,
)
from tests.differential.sameness import VERSIONS, Version

CLIENTS = 4
LEAVE, ALSO = "(leave)", ";"
_FAMILIES = 60
"""The weight of the commands of ``grammar``, all together."""

CLIENT_FAMILY: Weighted = [
    (6, sentence("XREAD", some(COUNT), "BLOCK 0 STREAMS", KEYS, words("$ $ 0 @0"))),
    (3, sentence("XREAD BLOCK 0 STREAMS s t $ $")),
    (9, sentence("XREADGROUP", GROUP, some(COUNT, NOACK), "BLOCK 0 STREAMS", KEYS, GROUP_IDS)),
    (1, sentence("XREAD BLOCK 15 STREAMS", KEYS, "$")),
    (1, sentence("XREADGROUP", GROUP, "BLOCK 15 STREAMS", KEYS, ">")),
    (6, sentence("CLIENT UNBLOCK", words("#0 #1 #2 #3"), maybe(words("ERROR TIMEOUT x")))),
    (5, sentence("MULTI")),
    (9, sentence("EXEC")),
    (1, sentence("DISCARD")),
    (3, sentence("WATCH", several(ANY_KEYS))),
    (1, sentence("UNWATCH")),
    (3, sentence("SELECT", often(words("0 0 1"), words("15 16 -1 x")))),
    (1, sentence("SWAPDB", words("0 1"), words("0 1"))),
    (1, sentence("COPY", ANY_KEYS, "u DB", words("0 1"), maybe(sentence("REPLACE")))),
    (1, one_of(sentence("FLUSHDB"), sentence("FLUSHALL"))),
    (1, sentence("CLIENT", one_of(words("GETNAME"), sentence("SETNAME", words("ann bob"))))),
    (1, one_of(sentence("PING"), sentence("PING x"), sentence("ECHO y"), sentence("RESET"))),
    (1, sentence(words("NOSUCH GET XADD EXEC MULTI"), several(JUNK))),
]
_POLICIES = {"ACKED", "KEEPREF", "DELREF"}


def _is_known(argv: Argv, version: Version) -> bool:
    """Tell whether a server knows a request, and does with it what 8.10 does."""
    if argv[0] in ("XREAD", "XREADGROUP") and "+" in argv and not version.reads_last:
        return False
    if "~" in argv and _POLICIES & set(argv):
        return False
    return not version.unknown & set(argv)


def _known(r: Random, version: Version) -> Argv:
    while True:
        argv = _request(r, FAMILIES_8_2 if version is VERSIONS["redis-8.2"] else FAMILIES_7)
        if _is_known(argv, version):
            return argv


def _request(r: Random, families: Weighted) -> Argv:
    rules, weights = zip(*[(rule, weight) for weight, rule in CLIENT_FAMILY], strict=True)
    if r.random() < sum(weights) / (sum(weights) + _FAMILIES):
        argv: Argv = r.choices(rules, weights)[0](r)
        return spoil(r, argv) if r.random() < 0.1 and "UNBLOCK" not in argv else argv
    return step(families)(r)


def wire_step(r: Random, peer: str = "redis-7.0") -> Argv:
    """Draw what one client does next, of what a server knows."""
    version = VERSIONS[peer]
    client = str(r.randrange(CLIENTS))
    if r.random() < 0.03:
        return [client, LEAVE]
    argv = [client, *_known(r, version)]
    while r.random() < 0.15:
        argv += [ALSO, *_known(r, version)]
    return argv
