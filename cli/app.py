"""The program ``kvstream``: its global options, its table of commands, and its errors.

Commands are imported when they are used. An error ends the program with one line on stderr and an
exit code. The commands about the program itself, ``completion`` and ``version``, are here.
"""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar

import click
from click.shell_completion import get_completion_class

from kvstream import __version__
from kvstream.cli.exit_codes import ExitCode, Failure
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, PathOnly, example
from kvstream.cli.session import session_of
from kvstream.errors import KVStreamError
from kvstream.storage.directory import LAYOUT_VERSION
from kvstream.types.options import DATABASES, Durability

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "kvstream"
_COMPLETION_VARIABLE = "_KVSTREAM_COMPLETE"


@click.command(
    epilog=example(
        "kvstream completion bash >> ~/.bash_completion",
        "kvstream completion zsh > ~/.zfunc/_kvstream",
        "kvstream completion fish > ~/.config/fish/completions/kvstream.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    The script completes commands, options and the names of streams.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(
        completion_class(ctx.find_root().command, {}, PROGRAM, _COMPLETION_VARIABLE).source()
    )


@click.command(epilog=example("kvstream version --json"))
@output_options
def version(out: Output) -> None:
    """Show the versions of kvstream and its dependencies."""
    # Imported here: it takes a tenth of the time of a start.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        engine = version_of("rocksdict")
    except PackageNotFoundError:  # installed without its metadata
        engine = "unknown"
    out.record(
        {
            "kvstream": __version__,
            "layout": LAYOUT_VERSION,
            "rocksdict": engine,
            "python": platform.python_version(),
        },
        {},
    )


SECTIONS = {
    "Streams": (
        *("keys.ls", "info.info", "keys.rename"),
        *("keys.expire", "keys.persist", "keys.ttl", "keys.rm"),
    ),
    "Entries": (
        *("entries.add", "entries.range_", "entries.revrange", "entries.tail"),
        *("entries.len_", "entries.del_", "entries.trim"),
    ),
    "Groups": (
        *("groups.group", "consumers.consumer", "consume.read", "consume.ack", "consume.nack"),
        *("consume.pending", "consume.claim", "consume.autoclaim"),
    ),
    "Server": ("serve.serve", "top.command.top"),
    "Files": ("importing.command.import_", "export.export", "migrate.migrate"),
    "Spark": ("spark.spark",),
    "Maintenance": (
        *("info.stats", "maintenance.check", "maintenance.recover"),
        *("maintenance.checkpoint", "maintenance.compact", "bench.bench"),
    ),
    "This program": ("app.completion", "app.version"),
}
"""The module and function of each command, by the section of the help that lists it."""


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

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, paths in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(width), self.commands[name].get_short_help_str(60))
                        for name in map(name_of, paths)
                    ]
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in _options_of(*self.commands.values()):
                place = f"after the command: kvstream COMMAND {error.option_name}"
                raise _misplaced_option(error, place) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        if hasattr(sys.stdout, "reconfigure"):  # the terminal may not be UTF-8
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_stdout()
            ctx.exit(ExitCode.BROKEN_PIPE)
        except KeyboardInterrupt:
            ctx.exit(ExitCode.INTERRUPTED)
        except click.NoSuchOption as error:
            option = _options_of(self, deep=False).get(error.option_name)
            if option is None:
                raise
            words = " ".join(filter(None, (error.option_name, option.metavar)))
            place = f"before the command: kvstream {words} COMMAND"
            raise _misplaced_option(error, place) from None
        except (KVStreamError, OSError) as error:
            raise Failure(error) from None
        return result


def _options_of(*commands: click.Command, deep: bool = True) -> dict[str, click.Option]:
    """Return the options of commands by name; with ``deep`` also those of subcommands."""
    found: dict[str, click.Option] = {}
    for command in commands:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                found |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), parameter)
        if deep and isinstance(command, click.Group):
            found |= _options_of(*command.commands.values())
    return found


def _misplaced_option(error: click.NoSuchOption, place: str) -> click.UsageError:
    return click.UsageError(f"{error.option_name} goes {place}", error.ctx)


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that flushing its buffer does not fail again."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


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
    help="The URL of a server, instead of --store: redis://, rediss:// or unix://.",
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
    type=click.Choice([level.value for level in Durability]),
    default=Durability.EVERYSEC.value,
    help="When writes are synced to disk while a command runs. A command that succeeds has synced "
    "all of them.",
)
@click.version_option(__version__, message="kvstream %(version)s")
@click.pass_context
def main(ctx: click.Context, /, **options: Any) -> None:
    """Durable message streams in a directory, with the semantics of Redis Streams.

    Only one process at a time can open a store for writing: a command opens it, does its work and
    closes it. With --url the same commands work on a server, kvstream's or Redis's. A DURATION is
    written 500ms, 10s, 15m, 2h or 7d. `kvstream COMMAND --help` shows examples.
    """
    ctx.obj = session_of(ctx)
