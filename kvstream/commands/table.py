"""The commands of a store by name; a server has more."""

from kvstream.commands import (
    ack,
    append,
    claim,
    copy,
    delete,
    dump,
    groups,
    info,
    keyspace,
    range,
    read,
    readgroup,
    strings,
    trim,
)
from kvstream.commands.absent import reason_of
from kvstream.commands.args import QUOTED_MAX, Argv, text, wrong_arity
from kvstream.commands.command import (
    Command,
    Container,
    Table,
    table_of,
)
from kvstream.commands.queues import delayed, leases, policy, queue, redrive, retention, schedules
from kvstream.errors import RequestError

_STREAMS = (ack, append, claim, delete, groups, info, range, read, readgroup, trim)
SECTIONS = {
    "Streams": tuple(module.COMMANDS for module in _STREAMS),
    "Queues": (
        delayed.COMMANDS,
        leases.COMMANDS,
        policy.COMMANDS,
        queue.COMMANDS,
        redrive.COMMANDS,
        retention.COMMANDS,
        schedules.COMMANDS,
    ),
    "Keys": (copy.COMMANDS, dump.COMMANDS, keyspace.COMMANDS),
    "Plain strings": (strings.COMMANDS,),
    "Connections": (keyspace.CONNECTION,),
}
"""The families by the sections of docs/commands.md."""
COMMANDS = table_of(SECTIONS.values())


def find(argv: Argv, commands: Table = COMMANDS) -> Command:
    """Return the command of a request; RequestError if there is none, or its arity is wrong."""
    command = commands.get(argv[0]) or commands.get(argv[0].lower())
    if command is None:
        raise _unknown(argv)
    if isinstance(command, Container):
        command = _subcommand(command, argv)
    arity, words = command.arity, len(argv)
    if words != arity and (arity > 0 or words < -arity):
        raise wrong_arity(command.name)
    return command


def _subcommand(container: Container, argv: Argv) -> Command:
    if len(argv) == 1:
        if container.alone is not None:
            return container.alone
        raise wrong_arity(container.name)
    command = container.subcommands.get(argv[1].lower())
    if command is None:
        name = text(argv[1][:QUOTED_MAX])
        raise RequestError(f"unknown subcommand '{name}'. Try {container.name.upper()} HELP.")
    return command


def command_of(argv: Argv, commands: Table) -> Command | None:
    """Return the command that a request names, whatever its arguments are; None: there is none."""
    command = commands.get(argv[0]) or commands.get(argv[0].lower())
    if isinstance(command, Container):
        return command.subcommands.get(argv[1].lower()) if len(argv) > 1 else command.alone
    return command


def _unknown(argv: Argv) -> RequestError:
    quoted = b""
    for word in argv[1:]:
        if len(quoted) >= QUOTED_MAX:
            break
        quoted += b"'%b' " % word[: QUOTED_MAX - len(quoted)]
    beginning = f", with args beginning with: {text(quoted)}" if len(argv) > 1 else ""
    name = text(argv[0][:QUOTED_MAX])
    return RequestError(f"unknown command '{name}'{beginning}{reason_of(name)}")
