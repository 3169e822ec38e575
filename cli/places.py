"""Which place a command line means: a store in a directory, or one behind a server.

It knows the options before the command, and no command.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import click
from click.core import ParameterSource

from kvstream.cli.contracts import Session
from kvstream.cli.remote.session import ServerSession
from kvstream.cli.session import IMPORT_PREFIX, DirectorySession
from kvstream.errors import KVStreamError
from kvstream.types.options import Durability

PATIENCE_S = 1.0
"""How long the shell waits for the names that a server has."""

NAMES_MAX = 10_000
"""Names that are looked at: more of them help nobody who waits at a prompt."""

SourceOf = Callable[[str], ParameterSource | None]


def session_of(ctx: click.Context) -> Session:
    """Return the session that the options before the command describe; it ends with them."""
    options = ctx.params
    if not _means_server(options, ctx.get_parameter_source):
        return DirectorySession(
            options["store"], options["db"] or 0, options["wait"], Durability(options["durability"])
        )
    if ctx.get_parameter_source("durability") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "--durability is for a store in a directory: a server has been told at its start"
        )
    return ctx.with_resource(ServerSession(options["url"], options["db"], options["wait"]))


def _means_server(options: Mapping[str, Any], source_of: SourceOf) -> bool:
    """Tell whether a server is meant; what the line says goes before the environment."""
    if options.get("store") is None or options.get("url") is None:
        return options.get("url") is not None
    sources = source_of("store"), source_of("url")
    if sources[0] is sources[1]:
        raise click.UsageError("give either --store (KVSTREAM_STORE) or --url (KVSTREAM_URL)")
    return sources[1] is ParameterSource.COMMANDLINE


def complete_names(root: Mapping[str, Any]) -> list[str]:
    """Return the streams that the shell may offer; none where nobody can look for them."""
    try:
        if root.get("url") is not None and root.get("store") is None:
            with ServerSession(root["url"], root.get("db"), 0, PATIENCE_S) as server:
                names = _names(server)
        else:
            names = _names(DirectorySession(root.get("store"), root.get("db") or 0, wait_s=0.0))
    except (click.UsageError, KVStreamError, OSError):
        return []
    return [text for name in names if (text := name.decode("utf-8", "replace")).isprintable()]


def _names(session: Session) -> list[bytes]:
    with session.reading() as store:
        names = islice(store.scan_keys(), NAMES_MAX)
        return [name for name in names if not name.startswith(IMPORT_PREFIX)]
