"""The program ``kvstream``: its global options, its table of commands, and its errors.

Commands are imported when they are used; the table has their summaries, for the help. An error
ends the program with one line on stderr and an exit code.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import islice
from typing import Any, ClassVar

import click

from kvstream.cli.exit_codes import ExitCode, Failure
from kvstream.cli.parameters import COMPLETION_VARIABLE, Duration, PathOnly, ProfileName
from kvstream.cli.standard_streams import OutputFailed, discard_stdout, standard_streams
from kvstream.errors import KVStreamError, nearest
from kvstream.types.options import DATABASES, Durability
from kvstream.version import VERSION

SECTIONS = {
    "Streams": {
        "keys.ls": "List the streams, oldest first.",
        "keys.info": "Show the counters of a stream, and its groups.",
        "keys.copy": "Copy a stream, with its groups, under a new name.",
        "keys.rename": "Rename a stream.",
        "keys.expire": "Set when a stream expires.",
        "keys.persist": "Remove the expiry of a stream.",
        "keys.ttl": "Show when a stream expires.",
        "keys.rm": "Delete whole streams, with their groups.",
    },
    "Entries": {
        "entries.add": "Append one entry, and show its ID.",
        "entries.get": "Show entries by ID.",
        "entries.range_": "Show the entries from START to END, oldest first.",
        "entries.revrange": "Show the entries from END back to START, newest first.",
        "entries.find": "Show the entries with certain fields, in a time range.",
        "entries.tail": "Show the last entries of a stream, and follow it.",
        "entries.len_": "Show the number of entries in a stream.",
        "entries.count": "Show the number of entries in a time range.",
        "entries.del_": "Delete entries by ID.",
        "entries.trim": "Remove the oldest entries of a stream.",
    },
    "Groups": {
        "groups.group": "Create, move, list and delete consumer groups.",
        "groups.consumer": "List, create and delete the consumers of a group.",
        "consume.read": "Read entries, on their own or as a consumer of a group.",
        "consume.ack": "Acknowledge entries, which are then no longer pending.",
        "consume.nack": "Return pending entries to the group.",
        "consume.pending": "Show the pending entries of a group.",
        "consume.claim": "Assign pending entries to a consumer, and show them.",
        "consume.autoclaim": "Assign entries that were idle for too long to a consumer.",
    },
    "Queues": {
        "queues.queue.queue": "Show queues, put messages, set the rules.",
        "queues.dead.dead": "Show dead letters, and redrive them.",
        "queues.delayed.delayed": "List, cancel and move messages that are not due yet.",
        "queues.schedule.schedule": "Add messages at the times of a cron expression.",
    },
    "Server": {
        "requests.command.cmd": "Run one command of Redis, also on a directory.",
        "serve.serve": "Serve the store to Redis clients.",
        "top.command.top": "Watch streams, groups and clients live.",
        "console.console": "Look at a store in the browser.",
        "requests.monitor.monitor": "Show the requests of a server's clients as they come.",
    },
    "Jobs": {
        "queues.jobs.work": "Run the jobs of an application.",
        "queues.jobs.jobs": "List, count, show, cancel, retry and delete jobs.",
        "queues.workers.workers": "List, drain and stop the workers of an application.",
    },
    "Files": {
        "importing.command.import_": "Append the rows of a FILE or stdin to a stream.",
        "export.export": "Write the entries of a stream to a FILE or stdout.",
        "migration.command.migrate": "Move streams from any place to any place without loss.",
    },
    "Archive": {
        "archive.restore": "Make a store of an archive, as it was at any moment.",
        "archive.archive": "Look at archives, verify, prune and mend them.",
        "migration.diff.diff": "Show what differs between two stores, servers or archives.",
    },
    "Replicas": {
        "maintenance.replication": "Show a server's role, and what an old primary alone had.",
    },
    "Spark": {
        "spark.spark": "Run Apache Spark jobs on whole streams.",
    },
    "Maintenance": {
        "maintenance.ping": "Check that the store or server answers.",
        "maintenance.stats": "Show the size of the store and its internal counters.",
        "maintenance.check": "Verify every row and counter, in all databases.",
        "maintenance.recover": "Repair a store that does not open because of lost writes.",
        "maintenance.checkpoint": "Write a consistent copy of the store to a new directory.",
        "maintenance.compact": "Free the disk space of deleted entries.",
        "maintenance.bench": "Measure the speed of adds, ranges and reads.",
    },
    "This program": {
        "shell.help_": "Show the help of a command, or of the program.",
        "shell.shell": "Run commands at a prompt, with history and completion.",
        "shell.completion": "Print the completion script of a shell.",
        "maintenance.version": "Show the versions of kvstream and its dependencies.",
        "doctor.doctor": "Check that this machine has what a store needs.",
    },
}
"""The summary of each command by its module and function, by section of the help."""


_PLACES = ("store", "url", "profile")
"""The options that name a store or a server."""


def name_of(path: str) -> str:
    """Return the name of the command at ``path``: ``del`` for ``entries.del_``."""
    return path.rpartition(".")[2].rstrip("_")


class Commands(Mapping[str, click.Command]):
    """The commands by name, each imported when it is used.

    Importing the server or the migration takes as long as importing everything else.
    """

    _paths: ClassVar = {name_of(path): path for paths in SECTIONS.values() for path in paths}

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = self._paths[name].rpartition(".")
        command: click.Command = getattr(import_module(f"kvstream.cli.{module}"), attribute)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class Application(click.Group):
    """The top-level group: lists commands by section and turns errors into exit codes."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if COMPLETION_VARIABLE in os.environ:
            import_module("kvstream.cli.shell")  # registers the script of bash
        if not kwargs.get("standalone_mode", True):  # a line of the shell
            return super().main(*args, **kwargs)
        with standard_streams():
            try:
                return super().main(*args, **kwargs)
            except OutputFailed as error:  # of the help or a completion
                failure = Failure(error)
                failure.show()
                sys.exit(failure.exit_code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, paths in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name_of(path).ljust(width), summary) for path, summary in paths.items()]
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, self._global_first(args))
        except click.NoSuchOption as error:
            if error.option_name in _options_of(*self.commands.values()):
                place = f"after the command: kvstream COMMAND {error.option_name}"
                raise click.UsageError(f"{error.option_name} goes {place}", error.ctx) from None
            raise
        except KeyboardInterrupt:  # while the module of a command is imported
            ctx.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:  # of the help
            discard_stdout()
            ctx.exit(ExitCode.BROKEN_PIPE)

    def _global_first(self, args: list[str]) -> list[str]:
        """Move global options that follow the command before it, and return the arguments.

        An option that the command has too, such as --durability of ``serve``, stays.
        """
        known = {
            name: option
            for name, option in _options_of(self, deep=False).items()
            if not option.is_eager  # as --help is
        }
        at = _command_at(args, known)
        if (
            at == len(args)
            or args[at] not in self.commands
            or known.keys().isdisjoint(each.partition("=")[0] for each in args[at:])
        ):
            return args
        command = self.commands[args[at]]
        moving = known.keys() - _options_of(command).keys()
        mixed = command.context_settings.get("allow_interspersed_args", True)
        first, rest = args[:at], [args[at]]
        words = iter(args[at + 1 :])
        for word in words:
            name, sign, _ = word.partition("=")
            if word == "--" or not (mixed or word.startswith("-")):
                rest += [word, *words]
            elif name in moving:
                first += [word] if sign or known[name].is_flag else [word, *islice(words, 1)]
            else:
                rest.append(word)
        return first + rest

    def invoke(self, ctx: click.Context) -> Any:
        if hasattr(sys.stdout, "reconfigure"):  # the terminal may not be UTF-8
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_stdout()
            ctx.exit(ExitCode.BROKEN_PIPE)
        except KeyboardInterrupt:
            ctx.exit(ExitCode.INTERRUPTED)
        except click.UsageError as error:
            if hint := _hint(error, any(map(ctx.params.get, _PLACES))):
                message = error.message.rstrip(".") + hint
                raise click.UsageError(message, error.ctx) from None
            raise
        except (KVStreamError, OSError) as error:
            raise Failure(error) from None
        return result


def _options_of(*commands: click.Command, deep: bool = True) -> dict[str, click.Option]:
    """Return the options of commands by name; with ``deep`` also those of subcommands."""
    options: dict[str, click.Option] = {}
    for command in commands:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                options |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), parameter)
        if deep and isinstance(command, click.Group):
            options |= _options_of(*command.commands.values())
    return options


def _hint(error: click.UsageError, has_place: bool) -> str:
    """Return advice on a wrong word; empty if there is none, or the message has it already."""
    message = error.message
    if "extra argument" in message and not has_place:
        return "; name the store: --store DIR"  # `kvstream serve data`
    wrong = _UNKNOWN.match(message)
    if wrong is None or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return ""
    if error.ctx.parent is None and (hint := _hint_of_redis(wrong[1])):
        return hint
    return nearest(wrong[1], error.ctx.command.commands)


_UNKNOWN = re.compile(r"No such command '([^']+)'")


def _hint_of_redis(word: str) -> str:
    """Return how to run a command of Redis, or why kvstream lacks it; empty for other words."""
    from kvstream.commands.absent import reason_of  # for this error alone
    from kvstream.server.commands import TABLE

    if os.fsencode(word.lower()) in TABLE:
        return f": for a command of Redis use kvstream cmd {word} ..."
    return reason_of(word)


def _command_at(args: list[str], options: Mapping[str, click.Option]) -> int:
    """Return the index of the command in ``args``, their number if there is none."""
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] != "--":
        at += 2 if args[at] in options and not options[args[at]].is_flag else 1
    return min(at, len(args))


@click.group(
    cls=Application,
    commands=Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--store",
    type=PathOnly(file_okay=False),
    envvar="KVSTREAM_STORE",
    metavar="DIR",
    show_envvar=True,
    help="The directory of the store.",
)
@click.option(
    "--url",
    envvar="KVSTREAM_URL",
    metavar="URL",
    show_envvar=True,
    help="The URL of a server, instead of --store: redis://, rediss://, unix://, or "
    "redis+sentinel://HOST,HOST/NAME for the primary that Sentinels name.",
)
@click.option(
    "--profile",
    type=ProfileName(),
    envvar="KVSTREAM_PROFILE",
    metavar="NAME",
    show_envvar=True,
    help="A profile of the configuration file, instead of --store or --url.",
)
@click.option(
    "--db",
    type=click.IntRange(0, DATABASES - 1),
    metavar="N",
    help="The numbered database. By default the one in the URL, or 0.",
)
@click.option(
    "--wait",
    type=Duration(),
    default="1s",
    metavar="DURATION",
    help="How long to wait for a store that another process has open, or for a server that is "
    "loading.",
)
@click.option(
    "--durability",
    type=click.Choice([level.value for level in Durability if level is not Durability.ARCHIVE]),
    default=Durability.EVERYSEC.value,
    help="When writes are synced to disk while a command runs. A command that succeeds has synced "
    "all of them.",
)
@click.option(
    "--trust-group",
    is_flag=True,
    envvar="KVSTREAM_TRUST_GROUP",
    show_envvar=True,
    help="Open a directory to which the group of its files can write; a command that writes takes "
    "that permission away. For volumes of Kubernetes with fsGroup.",
)
@click.version_option(VERSION, message="kvstream %(version)s")
@click.pass_context
def main(ctx: click.Context, /, **options: Any) -> None:
    """Durable message streams in a directory, with the semantics of Redis Streams.

    Only one process at a time can open a store for writing: a command opens it, does its work and
    closes it. With --url the same commands work on a server, kvstream's or Redis's. These options
    go before or after the command. A DURATION is written 500ms, 10s, 15m, 2h or 7d.
    `kvstream COMMAND --help` shows examples.
    """
    from kvstream.cli.session import session_of  # not for --help and --version

    ctx.obj = session_of(ctx)
