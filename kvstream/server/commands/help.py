"""HELP of the containers: how each subcommand is written, and what it does."""

from collections.abc import Callable

from kvstream.commands.args import Argv, text
from kvstream.commands.replies import Reply, Simple
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.server.client import Client

Handler = Callable[[Txn, Client, Argv], Reply]


def help_of(container: str, *subcommands: tuple[str, str]) -> Handler:
    """Return the handler of a container's HELP."""
    lines = [f"{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for written, meaning in (*subcommands, ("HELP", "Show these lines.")):
        lines += [written, "    " + meaning]
    reply = [Simple(line) for line in lines]

    def show(txn: Txn, client: Client, argv: Argv) -> Reply:
        """Show the subcommands."""
        return reply

    return show


def not_so(container: str, argv: Argv) -> RequestError:
    """Return the error of a subcommand that is not here, or not with so many arguments."""
    return RequestError(
        f"unknown subcommand or wrong number of arguments for '{text(argv[1])}'. "
        f"Try {container} HELP."
    )
