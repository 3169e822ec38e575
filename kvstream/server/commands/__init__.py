"""The commands of a server: those of a store, and of connections, transactions, operation."""

from kvstream.commands import table
from kvstream.commands.command import Command, Container, table_of
from kvstream.server.commands import (
    acl,
    admin,
    client,
    cluster,
    command,
    config,
    connection,
    debug,
    hotkeys,
    info,
    kvstream_load,
    latency,
    memory,
    pubsub,
    replication,
    scripting,
)

_OPERATION = (
    *(acl, admin, command, config, debug),
    *(hotkeys, info, kvstream_load, latency, memory),
)
SECTIONS = {
    "Connections": (connection.COMMANDS, client.COMMANDS),
    "Transactions": (connection.TRANSACTIONS,),
    "Pub/sub": (pubsub.COMMANDS,),
    "Scripts": (scripting.COMMANDS,),
    "Replication": (replication.COMMANDS,),
    "Clusters and modules": (cluster.COMMANDS, cluster.MODULES),
    "Operation": tuple(module.COMMANDS for module in _OPERATION),
}
"""The families by the sections of docs/commands.md."""
TABLE: dict[bytes, Command | Container] = table_of([*table.SECTIONS.values(), *SECTIONS.values()])
