"""Any arguments of a command get a reply, and the server continues."""

import random

import pytest

from kvstream.server.commands import SECTIONS
from tests.server.asking import Failure
from tests.server.conftest import Serve

WORDS = (
    *(b"", b"0", b"1", b"-1", b"2", b"3", b"x", b"*", b"\x00\xff", b"9" * 30, b"id", b"addr"),
    *(b"on", b"off", b"skip", b"yes", b"no", b"type", b"normal", b"default", b"ann", b"all"),
    *(b"maxclients", b"slowlog-*", b"appendfsync", b"aclcat", b"filterby", b"pattern", b"[a"),
    *(b"+get", b"-@all", b"~k*", b"%R~x", b">pw", b"get", b"xreadgroup", b"xgroup|create"),
    *(b"setname", b"auth", b"lib-name", b"timeout", b"error", b"save", b"schedule", b"help"),
)
LEFT_OUT = {"debug", "monitor", "quit", "shutdown", "client|reply", "acl|deluser", "acl|setuser"}
LEFT_OUT |= {"replicaof", "slaveof", "kvstream.sync"}
"""Commands that would end or delay the conversation."""
COMMANDS = [
    command
    for families in SECTIONS.values()
    for family in families
    for command in family.commands.values()
    if command.name not in LEFT_OUT
]


@pytest.mark.parametrize("seed", range(3))
def test_odd_arguments_get_a_reply(serve: Serve, seed: int) -> None:
    served = serve(maxclients=2**31, slower_than_us=0)
    chance = random.Random(seed)
    asker = served.asker(2 + seed % 2)
    for _ in range(1500):
        command = chance.choice(COMMANDS)
        name = [word.encode() for word in command.name.split("|")]
        least = max(abs(command.arity) - len(name), 0)
        more = chance.randrange(4) if command.arity < 0 else 0
        words = [*name, *(chance.choice(WORDS) for _ in range(least + more))]
        if command.name in ("wait", "waitaof"):
            words[-1] = b"1"
        try:
            answer = asker.ask(*words)
        except EOFError:  # CLIENT KILL may have killed this one
            assert command.name == "client|kill"
            asker.close()
            asker = served.asker(2 + seed % 2)
            continue
        assert not (isinstance(answer, Failure) and "internal" in answer), words
    asker.close()
    with served.asker() as other:
        assert other.ask("SET k v") == b"OK"
