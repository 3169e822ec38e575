"""``kvstream serve``: a store behind RESP, set by flags, environment or a TOML file."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvstream import __version__
from kvstream.cli.contracts import Session
from kvstream.cli.parameters import PathOnly, example
from kvstream.cli.session import patiently
from kvstream.commands.config import SETTINGS
from kvstream.logs import FORMATS, LEVEL, LEVELS
from kvstream.server.options import (
    MAXCLIENTS,
    METRICS_STREAMS,
    OUTPUT_MAX,
    SHUTDOWN_TIMEOUT_S,
    STREAM_ENTRY_MAX_BYTES,
    TABLE,
    ConfigFile,
    ServerOptions,
)
from kvstream.server.serving import Places, run
from kvstream.server.settings import SERVER_SETTINGS, parsed
from kvstream.types.options import ENTRY_BYTES_MAX, MEGABYTE, Durability, StoreOptions

F = TypeVar("F", bound=Callable[..., Any])

NAMES = {*SETTINGS, *SERVER_SETTINGS}

PROMISES = {
    Durability.ALWAYS: "every answered write survives power loss",
    Durability.EVERYSEC: "kill -9 loses nothing, power loss the last second",
    Durability.NO: "kill -9 loses nothing, power loss what the system had not written",
}


def _read_config(
    ctx: click.Context, param: click.Parameter, path: Path | None
) -> ConfigFile | None:
    """Make the settings of a file the defaults of the options."""
    if path is None:
        return None
    try:
        settings = tomllib.loads(path.read_text())
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", ctx, param) from None
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}", ctx, param) from None
    known = {
        parameter.opts[0].removeprefix("--"): parameter
        for parameter in ctx.command.params
        if isinstance(parameter, click.Option) and parameter is not param
    }
    try:
        own = _settings(settings.pop(TABLE, {}), set(known))
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}", ctx, param) from None
    unknown = sorted(set(settings) - set(known))
    if unknown:
        told = ", ".join(unknown)
        raise click.BadParameter(f"{path}: unknown settings: {told}", ctx, param)
    for name, value in settings.items():
        try:
            known[name].type.convert(value, known[name], ctx)
        except click.BadParameter as error:
            raise click.BadParameter(f"{path}: {name}: {error.message}", ctx, param) from None
    ctx.default_map = {str(known[name].name): value for name, value in settings.items()}
    return ConfigFile(path, frozenset(known), own)


def _settings(table: Any, options: set[str]) -> dict[bytes, bytes]:
    """Return the settings of the table ``config``; ValueError where one cannot be so."""
    if not isinstance(table, dict):
        raise ValueError(f"{TABLE} is no table")
    found: dict[bytes, bytes] = {}
    for name, value in table.items():
        raw_name, raw = name.encode(), _told(value).encode()
        if name in options:
            raise ValueError(f"{name} is an option, and stands above the table {TABLE}")
        if raw_name not in NAMES:
            raise ValueError(f"unknown settings: {TABLE}.{name}")
        parsed(raw_name, raw)
        found[raw_name] = raw
    return found


def _told(value: object) -> str:
    """Return a value of TOML as CONFIG SET would be given it."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _option(name: str, **settings: Any) -> Callable[[F], F]:
    """Return an option that the environment sets too: ``--port`` by KVSTREAM_SERVE_PORT."""
    word = name.partition("/")[0].removeprefix("--")
    variable = "KVSTREAM_SERVE_" + word.replace("-", "_").upper()
    return click.option(name, envvar=variable, show_envvar=True, **settings)


@click.command(
    short_help="Serve the store to Redis clients.",
    epilog=example("kvstream serve --dir depot --port 6390"),
)
@click.option(
    "--config",
    type=PathOnly(dir_okay=False),
    is_eager=True,
    callback=_read_config,
    help="A TOML file with these options by their names, as in: port = 6380. Other settings of "
    "CONFIG SET stand in its table [config].",
)
@_option("--dir", type=PathOnly(), help="The store; --store otherwise.")
@_option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@_option(
    "--port",
    type=click.IntRange(0, 65535),
    default=6379,
    show_default=True,
    help="The port; 0 for any that is free or, beside --tls-port, for none.",
)
@_option(
    "--tls-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="The port for connections by TLS 1.2 or newer; 0 for none.",
)
@_option(
    "--tls-cert-file",
    type=PathOnly(dir_okay=False),
    help="The server's certificate, and those between it and the authority's, in PEM.",
)
@_option(
    "--tls-key-file",
    type=PathOnly(dir_okay=False),
    help="The private key of the certificate, in PEM.",
)
@_option(
    "--tls-key-file-pass",
    default="",
    help="The password of the key if it is encrypted. Better in the environment or the file.",
)
@_option(
    "--tls-ca-cert-file",
    type=PathOnly(dir_okay=False),
    help="The authorities whose certificates clients may have, in PEM.",
)
@_option(
    "--tls-auth-clients",
    type=click.Choice(["yes", "no", "optional"]),
    default="yes",
    show_default=True,
    help="Whether clients must have a certificate.",
)
@_option(
    "--durability",
    type=click.Choice([level.value for level in Durability]),
    default=Durability.EVERYSEC.value,
    show_default=True,
    help="What an answered write has survived, as Redis's appendfsync.",
)
@_option(
    "--requirepass",
    default="",
    help="The password of clients. Better in the environment or the file: others see arguments.",
)
@_option(
    "--protected-mode/--no-protected-mode",
    default=True,
    show_default=True,
    help="Without a password, serve clients of this machine alone.",
)
@_option(
    "--aclfile",
    type=PathOnly(dir_okay=False),
    help="Users and their rights, as Redis's aclfile.",
)
@_option(
    "--maxclients",
    type=click.IntRange(1),
    default=MAXCLIENTS,
    show_default=True,
    help="Clients at a time.",
)
@_option(
    "--timeout",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seconds after which an idle client is closed; 0: never.",
)
@_option(
    "--shutdown-timeout",
    type=click.IntRange(0),
    default=SHUTDOWN_TIMEOUT_S,
    show_default=True,
    help="Seconds in which all must come to its end when the server is stopped.",
)
@_option(
    "--checkpoint-dir",
    type=PathOnly(file_okay=False),
    help="Where SAVE and BGSAVE put checkpoints.",
)
@_option(
    "--output-max",
    type=click.IntRange(1 << 20),
    default=OUTPUT_MAX,
    show_default=True,
    help="Bytes of replies that a client may leave unread.",
)
@_option(
    "--stream-entry-max-bytes",
    type=click.IntRange(MEGABYTE, ENTRY_BYTES_MAX),
    default=STREAM_ENTRY_MAX_BYTES,
    show_default=True,
    help="Bytes of an entry that XADD takes.",
)
@_option(
    "--loglevel",
    type=click.Choice(list(LEVELS)),
    default=LEVEL,
    show_default=True,
    help="What is logged. Each level has those behind it; CONFIG SET changes it.",
)
@_option(
    "--logfile",
    type=PathOnly(dir_okay=False),
    help="Where it is logged; stderr otherwise. A file that is moved away is made anew.",
)
@_option(
    "--log-format",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="Lines for people, or one JSON object a line.",
)
@_option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="A port for Prometheus: /metrics, and /healthz beside it; 0 for any that is free.",
)
@_option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="The address of that port. Whoever reaches it sees the names of streams and groups.",
)
@_option(
    "--metrics-streams",
    type=click.IntRange(0),
    default=METRICS_STREAMS,
    show_default=True,
    help="Streams that have metrics of their own.",
)
@click.pass_obj
def serve(
    session: Session,
    /,
    config: ConfigFile | None,
    dir: Path | None,
    durability: str,
    **settings: Any,
) -> None:
    """Serve the store to Redis clients until SIGTERM or Ctrl-C.

    The store is made where there is none. Redis clients of all languages connect: there are
    streams, keys, strings and transactions, but no scripts, channels or other types.
    SIGTERM has everything answered and made durable; a second one ends the server at once. SIGHUP
    has the certificates of TLS read anew.
    """
    directory = dir or session.path
    level = Durability(durability)

    def started(places: Places) -> None:
        host, port, tls_port, metrics_url = places
        served = [f"{host}:{port}"] if port else []
        served += [f"{host}:{tls_port} with TLS"] if tls_port else []
        how = "" if port else " --tls"
        click.echo(f"kvstream {__version__} serves {directory} at {' and '.join(served)}")
        click.echo(f"durability {level}: {PROMISES[level]}")
        click.echo(f"connect with: redis-cli -h {host} -p {port or tls_port}{how}")
        if metrics_url is not None:
            click.echo(f"metrics at {metrics_url}")

    options = ServerOptions(**settings, config_file=config)
    store = StoreOptions(durability=level)
    patiently(directory, session.wait_s, lambda: run(directory, store, options, started))
