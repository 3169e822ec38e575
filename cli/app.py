"""The command ``kvstream``: its options, its commands in their order, and how it ends.

Every error leaves as one line on stderr and an exit code; what each command does is in its module.

``completion`` and ``version``: about this program itself.
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
from kvstream.cli.exits import ExitCode, Failure
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, PathOnly, example
from kvstream.cli.places import session_of
from kvstream.errors import KVStreamError
from kvstream.storage.directory import LAYOUT_VERSION
from kvstream.types.options import DATABASES, Durability

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "kvstream"
_VARIABLE = "_KVSTREAM_COMPLETE"


@click.command(
    epilog=example(
        "kvstream completion bash > ~/.local/share/bash-completion/completions/kvstream",
        "kvstream completion zsh > ~/.zfunc/_kvstream",
        "kvstream completion fish > ~/.config/fish/completions/kvstream.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Write the completion script of a shell.

    It completes commands, options and the names of streams.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, PROGRAM, _VARIABLE).source())


@click.command(epilog=example("kvstream version --json"))
@output_options
def version(out: Output) -> None:
    """Show the version of kvstream, and what it runs on."""
    # Here, since it takes a tenth of the time in which the program starts.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        engine = version_of("rocksdict")
    except PackageNotFoundError:  # vendored without its metadata
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
    "Care": (
        *("info.stats", "maintenance.check", "maintenance.recover"),
        *("maintenance.checkpoint", "maintenance.compact", "bench.bench"),
    ),
    "This program": ("app.completion", "app.version"),
}
"""Where in this package each command is, as the help shows them."""


def name_of(path: str) -> str:
    """Return the name of the command at ``path``: an underscore keeps it off a word of Python's."""
    return path.rpartition(".")[2].rstrip("_")


class Commands(Mapping[str, click.Command]):
    """The commands by name, each imported once it is asked for.

    Those that need the server or the migration take as long to import as all else.
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
    """A group of commands in sections, whose errors end as exit codes."""

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
                raise _misplaced(error, place) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        if hasattr(sys.stdout, "reconfigure"):  # whatever the terminal's encoding
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _silence_stdout()
            ctx.exit(ExitCode.BROKEN_PIPE)
        except KeyboardInterrupt:
            ctx.exit(ExitCode.INTERRUPTED)
        except click.NoSuchOption as error:
            option = _options_of(self, deep=False).get(error.option_name)
            if option is None:
                raise
            words = " ".join(filter(None, (error.option_name, option.metavar)))
            raise _misplaced(error, f"before the command: kvstream {words} COMMAND") from None
        except (KVStreamError, OSError) as error:
            raise Failure(error) from None
        return result


def _options_of(*commands: click.Command, deep: bool = True) -> dict[str, click.Option]:
    """Return the options of commands by name; with ``deep`` also those of the commands in them."""
    found: dict[str, click.Option] = {}
    for command in commands:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                found |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), parameter)
        if deep and isinstance(command, click.Group):
            found |= _options_of(*command.commands.values())
    return found


def _misplaced(error: click.NoSuchOption, place: str) -> click.UsageError:
    return click.UsageError(f"{error.option_name} goes {place}", error.ctx)


def _silence_stdout() -> None:
    """Let what is still buffered go nowhere: its reader is gone."""
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
    help="Directory of the store.",
)
@click.option(
    "--url",
    envvar="KVSTREAM_URL",
    metavar="URL",
    show_envvar=True,
    help="Instead of --store, a server: redis://, rediss:// or unix://.",
)
@click.option(
    "--db",
    type=click.IntRange(0, DATABASES - 1),
    metavar="N",
    help="Numbered database; by default 0, or what the URL names.",
)
@click.option(
    "--wait",
    type=Duration(),
    default="1s",
    metavar="DURATION",
    help="How long to wait for a store that another process holds, or a server that loads.",
)
@click.option(
    "--durability",
    type=click.Choice([level.value for level in Durability]),
    default=Durability.EVERYSEC.value,
    help="When writes go to disk while the command runs; all are there when it ends well.",
)
@click.version_option(__version__, message="kvstream %(version)s")
@click.pass_context
def main(ctx: click.Context, /, **options: Any) -> None:
    """Durable message streams in a directory, with the semantics of Redis Streams.

    One process at a time may hold a store for writing: the commands open it, do their work and
    close it. With --url the same commands work on a server, kvstream's or Redis's. Durations are
    500ms, 10s, 15m, 2h or 7d. `kvstream COMMAND --help` has an example of each command.
    """
    ctx.obj = session_of(ctx)
