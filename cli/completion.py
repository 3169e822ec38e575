"""``completion`` and ``version``: about this program itself."""

import platform

import click
from click.shell_completion import get_completion_class

from kvstream import __version__
from kvstream.cli.examples import example
from kvstream.cli.output import Output, output_options
from kvstream.storage.directory import LAYOUT_VERSION

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
