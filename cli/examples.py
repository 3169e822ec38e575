"""How help texts carry their examples, so that tests and documents can find them."""

import click

_MARK = "\b\nExample:\n"
_PROMPT = "  $ "


def example(*lines: str) -> str:
    """Return the epilog of a command whose example is these command lines."""
    return _MARK + "\n".join(_PROMPT + line for line in lines)


def examples_of(command: click.Command) -> list[str]:
    """Return the command lines of a command's example."""
    epilog = command.epilog or ""
    return [
        line.removeprefix(_PROMPT)
        for line in epilog.removeprefix(_MARK).splitlines()
        if line.startswith(_PROMPT)
    ]
