"""``shell`` and ``completion``: a prompt that runs commands, and completion by other shells.

A line of the prompt runs as a command line of its own: it opens the store or connects, and leaves
the store to other processes in between. History and completion are readline's.

Bash splits words at colons, as in ``orders:2025``. The script for bash joins them again, and omits
from a completion the part that bash keeps.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource
from click.shell_completion import (
    BashComplete,
    FishComplete,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from kvstream.cli.exit_codes import ExitCode
from kvstream.cli.parameters import COMPLETION_VARIABLE, example
from kvstream.cli.profiles import user_file
from kvstream.cli.tables import printable
from kvstream.errors import InvalidArgument
from kvstream.types.urls import show_url

HISTORY_LINES = 10_000
_PLACES = ("--store", "--url", "--profile")
_PRIVATE = 0o600
_LEAVE = ("exit", "quit")
_MARK = "_KVSTREAM_SHELL"
_REDIS_NAME = re.compile(r"[A-Z]+(\.[A-Z]+)?")
"""A first word that is a command of Redis: kvstream's own are small."""


def history_path() -> Path:
    """Return the path of the history file; InvalidArgument if the user has no home folder."""
    return user_file("KVSTREAM_HISTORY", "XDG_STATE_HOME", ".local/state", "history")


class Completer:
    """Completes a line for readline as a shell would; errors complete nothing."""

    def __init__(
        self, command: click.Command, add_options: Callable[[list[str]], list[str]]
    ) -> None:
        self._complete = ShellComplete(command, {}, "kvstream", COMPLETION_VARIABLE)
        self._add_options = add_options
        self._found: list[str] = []

    def __call__(self, text: str, state: int) -> str | None:
        if state == 0:
            import readline

            try:
                line = readline.get_line_buffer()[: readline.get_begidx()]
                self._found = self.completions(line, text)
            except Exception:  # readline would show nothing, and lose the line
                self._found = []
        return self._found[state] if state < len(self._found) else None

    def completions(self, line: str, text: str) -> list[str]:
        """Return what may stand in place of ``text``, the last word, after ``line``."""
        try:
            words = shlex.split(line)
        except ValueError:  # inside quotes
            return []
        items = self._complete.get_completions(self._add_options(words), text)
        names = [item.value for item in items if item.type == "plain"]
        if any(item.type in ("file", "dir") for item in items):
            names += _paths(text)
        return [name if name.endswith("/") else f"{shlex.quote(name)} " for name in names]


def _paths(start: str) -> list[str]:
    folder, _, beginning = start.rpartition("/")
    with suppress(OSError):
        return sorted(
            os.path.join(folder, entry.name) + ("/" if entry.is_dir() else "")
            for entry in os.scandir(folder or ("/" if start.startswith("/") else "."))
            if entry.name.startswith(beginning)
        )
    return []


@click.command(
    short_help="Run commands at a prompt, with history and completion.",
    epilog=example("kvstream shell --store data", "kvstream shell --profile prod"),
)
@click.pass_context
def shell(ctx: click.Context) -> None:
    """Run commands at a prompt, with history and completion.

    Write commands without the word kvstream, with the quotes of a shell: ls, or add orders sku=a1.
    The place and the other options given to `kvstream shell` hold for all of them; a line may have
    options of its own. A line that begins with a command of Redis in capitals, as in XLEN orders,
    is run by `cmd`. Tab completes commands, options and names. Ctrl-C stops a command, or clears
    the line; Ctrl-D or exit leaves.

    If stdin is not a terminal, its lines are run without a prompt up to the first error, whose
    exit code is that of the shell. The history is kept in ~/.local/state/kvstream/history; a line
    with a URL that has a password is left out.
    """
    if _MARK in os.environ:
        raise click.UsageError("this is a shell already")
    root = ctx.find_root()
    own = _options_of(root)

    def add_options(words: list[str]) -> list[str]:
        named = any(word.partition("=")[0] in _PLACES for word in words)
        return [*(own[2:] if named and own[:1] and own[0] in _PLACES else own), *words]

    def run(words: list[str]) -> int:
        return run_line(root.command, add_options(words))

    with _mark_as_shell():
        if not sys.stdin.isatty():
            ctx.exit(_run_script(run))
        with _readline(Completer(root.command, add_options)):
            _prompt(f"kvstream {_place(root)}> ", run)


def _run_script(run: Callable[[list[str]], int]) -> int:
    """Run the lines of stdin up to the first error, and return its exit code."""
    for line in sys.stdin:
        words = _words(line)
        if words and words[0] in _LEAVE:
            break
        if words and (code := run(words)):
            return code
    return 0


@contextmanager
def _mark_as_shell() -> Iterator[None]:
    """Mark this process as a shell, in which another one would read the same lines."""
    os.environ[_MARK] = "1"
    try:
        yield
    finally:
        del os.environ[_MARK]


def _prompt(prompt: str, run: Callable[[list[str]], int]) -> None:
    """Read lines and run them until Ctrl-D or ``exit``."""
    click.echo("help lists the commands, Tab completes, Ctrl-D leaves", err=True)
    while True:
        try:
            words = _words(input(prompt))
            if words and words[0] in _LEAVE:
                return
            if words:
                run(words)
        except KeyboardInterrupt:
            click.echo()
        except EOFError:
            click.echo()
            return
        except click.UsageError as error:
            error.show()


def _words(line: str) -> list[str]:
    """Return the words of a line, without ``kvstream``; UsageError for an open quote."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise click.UsageError(f"{error}: {printable(line.strip())}") from None
    if words[:1] == ["kvstream"]:
        del words[0]
    if words and _REDIS_NAME.fullmatch(words[0]):
        words.insert(0, "cmd")
    return words


def run_line(command: click.Command, words: list[str]) -> int:
    """Run a command line in this process, show its error, and return its exit code."""
    try:
        code = command.main(words, "kvstream", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        code = ExitCode.INTERRUPTED
    except SystemExit as error:
        code = error.code
    if code == ExitCode.INTERRUPTED:
        click.echo(err=True)  # after the ^C of the terminal
    return code if isinstance(code, int) else 0


def _options_of(root: click.Context) -> list[str]:
    """Return the global options that ``kvstream shell`` was given, the place first."""
    options: list[str] = []
    for name in ("store", "url", "profile", "db", "wait", "durability"):
        source = root.get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE:
            options += [f"--{name}", str(root.params[name])]
    if root.get_parameter_source("trust_group") is ParameterSource.COMMANDLINE:
        options.append("--trust-group")
    return options


def _place(root: click.Context) -> str:
    """Return the place for the prompt, without a password."""
    options = root.params
    name, url, db = options.get("profile"), options.get("url"), options.get("db")
    if name is not None:
        place = str(name)
    elif url is not None and options.get("store") is None:
        parts = urlsplit(show_url(url))
        place = parts.netloc or parts.path
    else:
        place = str(options.get("store") or "")
    return printable(place + (f"[{db}]" if db else ""))


@contextmanager
def _readline(completer: Completer) -> Iterator[None]:
    """Set up readline, if Python has it, and keep the history."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = None
    try:
        path = history_path()
    except InvalidArgument as error:
        click.echo(f"no history is kept: {error}", err=True)
    with suppress(OSError):
        if path is not None:
            readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer(completer)
    readline.set_completer_delims(" \t\n")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    readline.parse_and_bind("set show-all-if-ambiguous on")
    try:
        yield
    finally:
        readline.set_completer(None)
        with suppress(OSError):
            if path is not None:
                _write_history(path, readline)


def _write_history(path: Path, readline: Any) -> None:
    """Write the history, without passwords, to a file that only this user can read."""
    for at in reversed(range(readline.get_current_history_length())):
        line = readline.get_history_item(at + 1)
        if "://" in line and "@" in line:
            readline.remove_history_item(at)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, _PRIVATE))
    readline.write_history_file(path)


# --- help -----------------------------------------------------------------------------------------


@click.command(
    "help",
    epilog=example("kvstream help", "kvstream help export", "kvstream help group create"),
)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, or of the program."""
    shown = ctx.find_root()
    for word in words:
        if not isinstance(shown.command, click.Group):
            raise click.UsageError(f"{shown.command_path} has no commands of its own", shown)
        name, command, _ = shown.command.resolve_command(shown, [word])
        assert command is not None
        shown = command.context_class(command, info_name=name, parent=shown)
    click.echo(shown.command.get_help(shown))


# --- completion by other shells -------------------------------------------------------------------

PROGRAM = "kvstream"
SHELLS = ("bash", "zsh", "fish")

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}" kept="" type value
    local word="${line##*[[:space:]]}"
    if [[ $COMP_WORDBREAKS == *:* && $word == *:* ]]; then
        kept="${word%%"${word##*:}"}"
    fi
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$kept"}") ;;
        esac
    done < <(env COMP_LINE="$line" %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class Bash(BashComplete):
    """Completion by bash, of words with colons too."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words after the program, and the one to complete."""
        line = os.environ.get("COMP_LINE")
        if line is None:  # a script of an older version
            return super().get_completion_args()
        words = split_arg_string(line)[1:]
        if line[-1:].isspace() or not words:
            return words, ""
        return words[:-1], words[-1]


@add_completion_class
class Fish(FishComplete):
    """Completion by fish, of names with commas too."""

    source_template = FishComplete.source_template.replace("string split ", "string split --max 1 ")


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

    The script completes commands, options and the names of streams, groups and consumers.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(ctx.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE).source())
