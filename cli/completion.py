"""``completion``: the scripts of shells that complete command lines.

Bash splits words at colons, as in ``orders:2025``. The script joins them again, and leaves out of a
completion what bash keeps of the word.
"""

import os

import click
from click.shell_completion import (
    BashComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from kvstream.cli.parameters import COMPLETION_VARIABLE, example

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
