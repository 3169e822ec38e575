"""CONFIG: the settings of streams and of the server as one table."""

from collections.abc import Callable
from functools import partial

from kvstream.commands.args import Argv, syntax_error, text
from kvstream.commands.replies import OK, Map, Reply
from kvstream.commands.settings import SETTINGS, failure
from kvstream.errors import InvalidArgument, RequestError
from kvstream.glob import matcher
from kvstream.meta.txn import Txn
from kvstream.server.client import Client
from kvstream.server.commands.help import help_of
from kvstream.server.settings import SERVER_SETTINGS

_Change = Callable[[], None]


def config_get(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the settings whose names match any of the patterns."""
    tests = [matcher(pattern, ignore_case=True) for pattern in argv[2:]]
    return Map(
        [
            (name, _read(txn, client, name))
            for name in sorted((*SETTINGS, *SERVER_SETTINGS))
            if any(test(name) for test in tests)
        ]
    )


def _read(txn: Txn, client: Client, name: bytes) -> bytes:
    setting = SETTINGS.get(name)
    if setting is not None:
        return b"%d" % getattr(txn.catalog.limits, setting.attribute)
    return SERVER_SETTINGS[name].read(client.server)


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
            raise failure(name, "duplicate parameter")
        given[name] = raw
    changes = [_change(txn, client, name, raw) for name, raw in given.items()]
    for change in changes:
        change()
    return OK


def _change(txn: Txn, client: Client, name: bytes, raw: bytes) -> _Change:
    """Return what changes a setting; an error where the value cannot be."""
    try:
        setting = SETTINGS.get(name)
        if setting is not None:
            return partial(setattr, txn.catalog.limits, setting.attribute, setting.read(raw))
        own = SERVER_SETTINGS[name]
        if own.parse is None:
            raise InvalidArgument("can't set immutable config")
        return partial(own.apply, client.server, own.parse(raw))
    except InvalidArgument as error:
        raise failure(name, str(error)) from None


def config_resetstat(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Set the counters of INFO to zero."""
    client.server.statistics.reset()
    return OK


def config_rewrite(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Refused: the server writes no file of settings."""
    raise RequestError("The server is running without a config file")


config_help = help_of(
    "CONFIG",
    ("GET <pattern> [<pattern> ...]", "Show the settings whose names match a pattern."),
    ("RESETSTAT", "Set the counters of INFO to zero."),
    ("REWRITE", "Refused: settings are written into no file."),
    ("SET <directive> <value> [<directive> <value> ...]", "Change settings while serving."),
)
