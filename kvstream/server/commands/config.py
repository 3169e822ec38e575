"""CONFIG: the settings of streams and of the server as one table."""

import logging

from kvstream.commands.args import Argv, syntax_error, text
from kvstream.commands.replies import OK, Map, Reply
from kvstream.commands.settings import SETTINGS, failure
from kvstream.errors import InvalidArgument, RequestError
from kvstream.glob import matcher
from kvstream.logs import NOTICE
from kvstream.meta.txn import Txn
from kvstream.server.client import Client
from kvstream.server.commands.context import server_of
from kvstream.server.commands.help import help_of
from kvstream.server.kept_settings import HIDDEN
from kvstream.server.monitoring import told
from kvstream.server.settings import SERVER_SETTINGS, change_of, read
from kvstream.server.slowlog import Shown

_log = logging.getLogger(__name__)

_SIGNS = frozenset(b"*?[")
"""What makes a word a pattern; a name is shown as it was given."""


def config_get(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the settings whose names match any of the patterns."""
    names = {*SETTINGS, *SERVER_SETTINGS}
    found: dict[bytes, bytes] = {}
    for pattern in argv[2:]:
        if _SIGNS.isdisjoint(pattern):
            found |= {pattern: pattern.lower()} if pattern.lower() in names else {}
        else:
            test = matcher(pattern, ignore_case=True)
            found |= {name: name for name in names - HIDDEN if test(name)}
    return Map([(shown, read(server_of(client), found[shown])) for shown in sorted(found)])


def config_set(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Change settings until the server is stopped, all of them or none."""
    if len(argv) % 2:
        raise syntax_error()
    given: dict[bytes, bytes] = {}
    for raw_name, raw in zip(argv[2::2], argv[3::2], strict=True):
        name = raw_name.lower()
        if name not in SETTINGS and name not in SERVER_SETTINGS:
            raise InvalidArgument(
                f"Unknown option or number of arguments for CONFIG SET - '{text(raw_name)}'"
            )
        if name in given:
            raise failure(raw_name, "duplicate parameter")
        given[name] = raw
    changes = [change_of(server_of(client), name, raw) for name, raw in given.items()]
    for change in changes:
        change()
    server_of(client).options.changed |= given.keys()
    _log_change(client, argv)
    return OK


def config_resetstat(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Set the counters of INFO to zero."""
    server_of(client).statistics.reset()
    txn.catalog.expired = txn.catalog.expired_unasked = 0
    txn.catalog.hot.hits = txn.catalog.hot.misses = 0
    return OK


def config_rewrite(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Write the settings that CONFIG SET has changed into the file that the server began with."""
    server = server_of(client)
    file = server.options.config_file
    if file is None:
        raise RequestError("The server is running without a config file")
    changed = sorted(server.options.changed)
    file.rewrite({text(name): text(read(server, name)) for name in changed})
    _log_change(client, argv)
    return OK


def _log_change(client: Client, argv: Argv) -> None:
    """Log a change of settings, without what may be passwords."""
    user, words = Shown([client.user.name]), Shown(told(list(argv)))
    _log.log(NOTICE, "%s, user %s: %s", client.address, user, words)


config_help = help_of(
    "CONFIG",
    ("GET <pattern> [<pattern> ...]", "Show the settings whose names match a pattern."),
    ("RESETSTAT", "Set the counters of INFO to zero."),
    ("REWRITE", "Write changed settings into the file that the server began with."),
    ("SET <directive> <value> [<directive> <value> ...]", "Change settings while serving."),
)
