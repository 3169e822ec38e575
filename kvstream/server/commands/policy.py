"""OBJECT FREQ and IDLETIME, of which a server answers one: its ``maxmemory-policy`` says which.

Nothing is evicted whatever the policy, and how often keys are used is not counted: FREQ is 0.
"""

from dataclasses import replace
from typing import cast

from kvstream.commands import objects
from kvstream.commands.args import Argv
from kvstream.commands.command import Answer, Command, Container, Handler
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace
from kvstream.server.client import Client
from kvstream.server.commands.context import server_of
from kvstream.server.settings import SERVER_SETTINGS

POLICY = b"maxmemory-policy"


def policy_of(client: Client) -> bytes:
    """Return by what Redis would evict keys."""
    return SERVER_SETTINGS[POLICY].read(server_of(client))


def freq(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Answer 0 under a policy that counts accesses, an error under others."""
    if not policy_of(client).endswith(b"lfu"):
        return objects.freq(txn, client, argv)
    return 0 if keyspace.exists(txn, client.prefix + argv[2]) else None


def idletime(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Answer the seconds since the last use, or an error under a policy that counts accesses."""
    found = objects.idletime(txn, client, argv)
    if found is not None and policy_of(client).endswith(b"lfu"):
        raise InvalidArgument(
            "An LFU maxmemory policy is selected, idle time not tracked. Please note that when "
            "switching between policies at runtime LRU and LFU data will take some time to adjust."
        )
    return found


def with_policy(row: Command | Container) -> Container:
    """Return the commands of OBJECT as a server has them."""
    assert isinstance(row, Container)
    ours = {b"freq": freq, b"idletime": idletime}
    subcommands = {
        word: replace(each, run=cast(Handler, ours[word])) if word in ours else each
        for word, each in row.subcommands.items()
    }
    return replace(row, subcommands=subcommands)
