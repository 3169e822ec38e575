"""Rules of users have the same effect as on redis-server, in any order and combination."""

import random

import pytest

from kvstream.server.command_docs import CATEGORIES
from tests.server.asking import Asker, Failure
from tests.server.conftest import Served

ROUNDS = 150
REQUESTS = (
    *("GET read:a", "SET write:a v", "SET both:a v GET", "MGET read:a both:b", "DEL write:a"),
    *("XADD write:s * f v", "XRANGE read:s - +", "XLEN other", "TYPE read:a", "EXISTS other"),
    *("XREADGROUP GROUP g c STREAMS read:s both:s > >", "XREAD STREAMS other 0"),
    *("XGROUP CREATE write:s g 0", "XGROUP DESTROY both:s g", "XINFO STREAM read:s"),
    *("RENAME both:a write:a", "COPY read:a write:a", "KEYS *", "FLUSHALL", "PING", "SELECT 1"),
    *("CONFIG GET x", "CONFIG SET x y", "CLIENT LIST", "CLIENT ID", "ACL WHOAMI", "ACL LIST"),
    *("AUTH x", "MULTI", "EXEC", "INFO", "TIME", "SAVE", "LASTSAVE", "DEBUG SLEEP 0"),
)


def _rule(chance: random.Random) -> str:
    """Return a random rule."""
    pattern = chance.choice(("read:*", "write:*", "both:*", "*a", "both:?", "*"))
    names = (
        *("get", "set", "xadd", "xrange", "xgroup", "xgroup|create", "xinfo|stream", "config"),
        *("config|get", "client", "client|id", "acl|whoami", "ping", "del", "multi", "debug"),
    )
    command = chance.choice((*names, *(f"@{name}" for name in (*CATEGORIES, "all"))))
    kinds = (
        *(["+" + command] * 4 + ["-" + command] * 2),
        *("~" + pattern, "%R~" + pattern, "%W~" + pattern, "%RW~" + pattern),
        *("resetkeys", "allkeys", "nocommands", "allcommands", "reset", "on", "off"),
    )
    return chance.choice(kinds)


@pytest.mark.parametrize("seed", range(4))
def test_random_rules_allow_what_redis_allows(served: Served, redis_port: int, seed: int) -> None:
    chance = random.Random(seed)
    with served.asker() as ours, Asker(redis_port) as theirs:
        for _ in range(ROUNDS // 4):
            given = [_rule(chance) for _ in range(chance.randrange(1, 9))]
            taken = []
            for asker in (ours, theirs):
                asker.ask("ACL DELUSER ann")
                taken.append(asker.ask("ACL", "SETUSER", "ann", *given))
            assert isinstance(taken[0], Failure) == isinstance(taken[1], Failure), (given, taken)
            if isinstance(taken[0], Failure):
                continue
            for line in REQUESTS:
                found = [asker.ask(f"ACL DRYRUN ann {line}") == b"OK" for asker in (ours, theirs)]
                assert found[0] == found[1], (given, line)


def test_the_shown_rules_create_the_same_user(served: Served) -> None:
    chance = random.Random(7)
    with served.asker() as asker:
        for _ in range(ROUNDS):
            asker.ask("ACL DELUSER ann")
            given = [_rule(chance) for _ in range(chance.randrange(1, 9))]
            if isinstance(asker.ask("ACL", "SETUSER", "ann", ">secret", *given), Failure):
                continue
            shown = asker.ask("ACL LIST")[0]
            asker.ask("ACL DELUSER ann")
            assert asker.ask("ACL", "SETUSER", "ann", *shown.split()[2:]) == b"OK"
            assert asker.ask("ACL LIST")[0] == shown


FAULTY = [
    *(["~a b"], ["%"], ["%~k"], ["%X~a"], ["&a b"], ["~*", "~a b"], ["~*", "%"], ["~*", "%RW~*"]),
    *(["&*", "&a b"], ["~*", "~*"], ["~*", "allkeys"], ["(~b +set", "+get"], ["(~b", "+set"]),
    *(["on", "(~b +set"], ["(~b", "+get)", "(~c", "x"], ["(~b", "(+get)"], ["(", "x"], ["+"]),
]
DRY_RUNS = (
    "get",
    "xgroup",
    "xgroup create",
    "xgroup nosuch",
    "nosuch",
    "config",
    "get k",
    "ping a b",
)


def test_faulty_rules_and_requests_are_refused_as_in_redis(
    served: Served, redis82_port: int
) -> None:
    with served.asker() as ours, Asker(redis82_port) as theirs:
        for rules in FAULTY:
            for given in (["reset"], rules):
                refused = ours.ask("ACL", "SETUSER", "ann", *given)
                assert refused == theirs.ask("ACL", "SETUSER", "ann", *given), rules
        for line in (*(f"ACL DRYRUN default {each}" for each in DRY_RUNS), "LOLWUT VERSION x"):
            assert ours.ask(line) == theirs.ask(line), line


SHOWN = """
ACL SETUSER ann +get|
ACL SETUSER ann +xinfo|
ACL SETUSER ann on nopass +nosuch
ACL SETUSER ann on (nonsense)
ACL SETUSER ann on (on)
ACL SETUSER ann on (+get (+set )
ACL SETUSER ann on (+get +set
ACL SETUSER ann on )
ACL SETUSER ann on (&* &a)
ACL SETUSER ann on ~* ~a
ACL SETUSER ann on +config|get|save
ACL SETUSER ann on -select|0
ACL SETUSER ann on %~a
ACL USERS
ACL SETUSER ann on nopass &foo
ACL SETUSER bob allchannels
ACL LIST
ACL SETUSER ann reset +config|get +config|set -config +get %R~a %W~a %RW~b
ACL LIST
ACL SETUSER ann ~*
ACL GETUSER ann
ACL SETUSER ann ~c
ACL SETUSER ann resetkeys
ACL GETUSER ann
ACL SETUSER ann skip-sanitize-payload
ACL GETUSER ann
ACL SETUSER ann reset
ACL GETUSER ann
CONFIG SET acl-pubsub-default allchannels
ACL SETUSER carl
CONFIG SET acl-pubsub-default resetchannels
ACL SETUSER dora
ACL LIST
""".strip().splitlines()


def test_rules_are_refused_and_shown_as_in_redis(served: Served, redis82_port: int) -> None:
    with served.asker() as ours, Asker(redis82_port) as theirs:
        for line in SHOWN:
            assert (line, ours.ask(line)) == (line, theirs.ask(line))
        for rule in ("%R~a b", "~a\tb"):  # a file separates rules by blanks
            words = "ACL", "SETUSER", "ann", rule
            assert ours.ask(*words) == theirs.ask(*words)
