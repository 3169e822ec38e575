"""``serve``: run a server, with options from the command line, the environment or a TOML file."""

from __future__ import annotations

import atexit
import os
import re
import signal
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from kvstream import __version__
from kvstream.cli.console import BESIDE, LOGINS, check_address, console_beside
from kvstream.cli.parameters import Duration, PathOnly, Type, example
from kvstream.cli.session import Session, wait_for_store
from kvstream.cli.tables import duration as duration_text
from kvstream.errors import InvalidArgument, nearest
from kvstream.logs import FORMATS, LEVEL, LEVELS
from kvstream.types.options import (
    DATABASES,
    DATABASES_MAX,
    ENTRY_BYTES_MAX,
    MAXCLIENTS,
    MEGABYTE,
    METRICS_STREAMS,
    OUTPUT_MAX,
    SHUTDOWN_TIMEOUT_S,
    STREAM_ENTRY_MAX_BYTES,
    Durability,
    StoreOptions,
)

if TYPE_CHECKING:
    from kvstream.console.serving import ConsoleThread
    from kvstream.server.options import ConfigFile, ServerOptions
    from kvstream.server.serving import Places

F = TypeVar("F", bound=Callable[..., Any])

GUARANTEES = {
    Durability.ALWAYS: "an acknowledged write survives power loss",
    Durability.ARCHIVE: "an acknowledged write survives the loss of the machine",
    Durability.EVERYSEC: "kill -9 loses no write, power loss the last second",
    Durability.NO: "kill -9 loses no write, power loss those that the system had not written",
}


def _read_config(
    ctx: click.Context, param: click.Parameter, path: Path | None
) -> ConfigFile | None:
    """Read the TOML file, and make its options the defaults."""
    if path is None:
        return None
    from kvstream.server.options import TABLE, ConfigFile  # not for a help text

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
        names = ", ".join(unknown) + nearest(unknown[0], known)
        raise click.BadParameter(f"{path}: unknown settings: {names}", ctx, param)
    for name, value in settings.items():
        try:
            known[name].type.convert(value, known[name], ctx)
        except click.BadParameter as error:
            raise click.BadParameter(f"{path}: {name}: {error.message}", ctx, param) from None
    ctx.default_map = {str(known[name].name): value for name, value in settings.items()}
    return ConfigFile(path, frozenset(known), own)


def _settings(table: Any, options: set[str]) -> dict[bytes, bytes]:
    """Return the settings of the table ``config``; ValueError if one is invalid."""
    from kvstream.server.options import TABLE
    from kvstream.server.settings import SERVER_SETTINGS, parse_value

    if not isinstance(table, dict):
        raise ValueError(f"{TABLE} must be a table")
    settings: dict[bytes, bytes] = {}
    for name, value in table.items():
        raw_name, raw = name.encode(), _setting_text(value).encode()
        if name in options:
            raise ValueError(f"{name} is an option: move it above the table {TABLE}")
        if raw_name not in SERVER_SETTINGS:
            near = nearest(name, [setting.decode() for setting in SERVER_SETTINGS])
            raise ValueError(f"unknown settings: {TABLE}.{name}{near}")
        parse_value(raw_name, raw)
        settings[raw_name] = raw
    return settings


def _setting_text(value: object) -> str:
    """Return a value of TOML as an argument of CONFIG SET."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


class RocksDBOptions(Type):
    """RocksDB's options as it writes them itself: ``name=value;name=value``."""

    name = "options"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, object]:
        if isinstance(value, dict):
            return value
        if not value:
            return {}
        from kvstream.storage.options import Tuning  # with RocksDB: not for a help text

        words = [word.strip() for word in str(value).split(";") if word.strip()]
        if wrong := [word for word in words if "=" not in word]:
            self.fail(f"{wrong[0]}: must be NAME=VALUE", param, ctx)
        pairs = (word.partition("=") for word in words)
        given: dict[str, object] = {name.strip(): text.strip() for name, _, text in pairs}
        try:
            Tuning(given)
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)
        return given


class Place(Type):
    """The host and the port of a server."""

    name = "host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        matched = re.fullmatch(r"(\S+?)[: ]\s*([0-9]{1,5})", str(value).strip())
        if matched is None or not 0 < int(matched[2]) <= _PORT_MAX:
            self.fail(f"{value!r} is no HOST:PORT, such as 10.0.0.1:6379", param, ctx)
        return matched[1].strip("[]"), int(matched[2])


class Permissions(Type):
    """Permissions of a file, in octal."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        digits = str(value)
        if not re.fullmatch("0?[0-7]{1,3}", digits):
            self.fail(f"{value!r} is no mode in octal digits, such as 770", param, ctx)
        return int(digits, 8)


class EventFlags(Type):
    """The letters of ``notify-keyspace-events``, as bits."""

    name = "flags"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        from kvstream.meta.events.keys import LETTERS, flags_of  # not for a help text

        flags = flags_of(str(value))
        if flags is None:
            self.fail(f"{value!r} has a letter that is not among A{LETTERS}", param, ctx)
        return flags


_PORT_MAX = 65535
_VARIABLES = "KVSTREAM_SERVE_"
_ARCHIVE = "KVSTREAM_ARCHIVE"
"""The variable of the archive for all commands; KVSTREAM_SERVE_ARCHIVE is for this one."""
_ARCHIVE_KEY = "KVSTREAM_ARCHIVE_KEY"
_NEVER_EMPTY = ("requirepass", "tls_port", "archive", "archive_key", "archive_key_command")
"""Options, besides all paths, whose variables must not be empty."""


def _check_variables(ctx: click.Context) -> None:
    """Refuse variables of the environment that look like options and set none.

    Such a server would start without the password that its owner believes it has. click ignores an
    empty variable, so it is refused for the options that need a value to be safe.
    """
    options = {name: each for each in ctx.command.params for name in _variables_of(each)}
    for name in sorted(os.environ):
        option = options.get(name)
        if option is None and name.upper().startswith(_VARIABLES):
            near = nearest(name.upper(), options)
            ctx.fail(f"the environment variable {name} sets no option{near}")
        if option is None or os.environ[name] or option.name is None:
            continue
        is_needed = isinstance(option.type, PathOnly) or option.name in _NEVER_EMPTY
        if is_needed and ctx.get_parameter_source(option.name) != ParameterSource.COMMANDLINE:
            ctx.fail(f"the environment variable {name} is empty: give it a value, or unset it")


def _variables_of(parameter: click.Parameter) -> Sequence[str]:
    """Return the variables of the environment that set a parameter; the first one counts."""
    found = parameter.envvar or ()
    return [found] if isinstance(found, str) else found


def _option(name: str, *more: str, also: Sequence[str] = (), **settings: Any) -> Callable[[F], F]:
    """Return an option with its environment variable: KVSTREAM_SERVE_PORT for ``--port``.

    ``more``: other spellings; ``also``: other variables.
    """
    word = name.partition("/")[0].removeprefix("--")
    variable = _VARIABLES + word.replace("-", "_").upper()
    return click.option(name, *more, envvar=[variable, *also], show_envvar=True, **settings)


@click.command(
    short_help="Serve the store to Redis clients.",
    epilog=example("kvstream serve --dir depot --port 6390"),
)
@click.option(
    "--config",
    type=PathOnly(dir_okay=False),
    is_eager=True,
    callback=_read_config,
    help="A TOML file with these options, such as: port = 6380. Its table [config] has settings of "
    "CONFIG SET.",
)
@_option("--dir", type=PathOnly(), help="The directory of the store. By default --store.")
@_option(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="The address to listen on.",
)
@_option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=6379,
    help="The port; 0: any free port, or none if there is a --tls-port or a --unixsocket.",
)
@_option(
    "--unixsocket",
    type=PathOnly(dir_okay=False),
    help="The path of a Unix socket for clients on this machine.",
)
@_option(
    "--unixsocketperm",
    type=Permissions(),
    metavar="MODE",
    default="0",
    help="The permissions of that socket, such as 770. By default those of the umask.",
)
@_option(
    "--tls-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=0,
    help="The port for connections with TLS 1.2 or newer; 0: none.",
)
@_option(
    "--tls-cert-file",
    type=PathOnly(dir_okay=False),
    help="The certificate of the server and its intermediate certificates, in PEM.",
)
@_option(
    "--tls-key-file",
    type=PathOnly(dir_okay=False),
    help="The private key of the certificate, in PEM.",
)
@_option(
    "--tls-key-file-pass",
    default="",
    metavar="PASSWORD",
    help="The password of an encrypted key. Prefer the environment or the TOML file: all users of "
    "the machine can see arguments.",
)
@_option(
    "--tls-ca-cert-file",
    type=PathOnly(dir_okay=False),
    help="The authorities that sign certificates of clients, in PEM.",
)
@_option(
    "--tls-auth-clients",
    type=click.Choice(["yes", "no", "optional"]),
    default="yes",
    help="Whether clients need a certificate.",
)
@_option(
    "--durability",
    type=click.Choice([level.value for level in Durability]),
    default=Durability.EVERYSEC.value,
    help="When writes are synced to disk, as for appendfsync of Redis; archive: they are put into "
    "the archive, too.",
)
@_option(
    "--replicaof",
    type=Place(),
    metavar="HOST:PORT",
    help="Follow the server at HOST:PORT, as its replica. A store keeps its role: this is for the "
    "first start alone, later ones go on as REPLICAOF, or Sentinel, has set it.",
)
@_option(
    "--archive",
    also=[_ARCHIVE],
    default="",
    metavar="URL",
    help="Keep an archive of the store at s3://BUCKET/PATH, gs://..., az://... or file:///PATH, "
    "from which any moment can be restored.",
)
@_option(
    "--archive-key",
    also=[_ARCHIVE_KEY],
    default="",
    metavar="KEY",
    help="Encrypt the archive with this key, 32 bytes in base64 or hexadecimal digits; behind it, "
    "after commas, former ones. Prefer the environment or the TOML file: all users of the machine "
    "can see arguments.",
)
@_option(
    "--archive-key-command",
    also=[f"{_ARCHIVE_KEY}_COMMAND"],
    default="",
    metavar="COMMAND",
    help="A command that writes that key to its standard output.",
)
@_option(
    "--archive-interval",
    type=Duration(),
    default="1s",
    metavar="DURATION",
    help="How often new writes are put into the archive: what the loss of the machine takes.",
)
@_option(
    "--archive-keep",
    type=Duration(),
    default="7d",
    metavar="DURATION",
    help="How far back the archive can be restored.",
)
@_option(
    "--take-over",
    is_flag=True,
    help="If the directory has no store, become the owner of the archive and go on from its end. "
    "A former owner that still runs refuses all writes from then on.",
)
@_option(
    "--databases",
    type=click.IntRange(1, DATABASES_MAX),
    metavar="N",
    default=DATABASES,
    help="The number of numbered databases. With fewer, keys of the others stay and are not seen.",
)
@_option(
    "--rocksdb",
    type=RocksDBOptions(),
    default="",
    metavar="NAME=VALUE;...",
    help="Options of RocksDB in place of those for the size of the machine, such as "
    "'block_cache=1G;messages.write_buffer_size=128M'.",
)
@_option(
    "--trust-group",
    is_flag=True,
    help="Open a store to which the group of its files can write, and take that permission away. "
    "For volumes of Kubernetes with fsGroup.",
)
@_option(
    "--requirepass",
    default="",
    metavar="PASSWORD",
    help="The password of clients. Prefer the environment or the TOML file: all users of the "
    "machine can see arguments.",
)
@_option(
    "--protected-mode/--no-protected-mode",
    default=True,
    help="Without a password, accept only clients on this machine.",
)
@_option(
    "--aclfile",
    type=PathOnly(dir_okay=False),
    help="Users and their rights, as the aclfile of Redis. The file must exist; it may be empty.",
)
@_option(
    "--maxclients",
    type=click.IntRange(1),
    metavar="N",
    default=MAXCLIENTS,
    help="Maximum number of connected clients.",
)
@_option(
    "--timeout",
    type=click.IntRange(0),
    metavar="SECONDS",
    default=0,
    help="Disconnect clients that are idle that long; 0: never.",
)
@_option(
    "--shutdown-timeout",
    type=click.IntRange(0),
    metavar="SECONDS",
    default=SHUTDOWN_TIMEOUT_S,
    help="Time to finish when the server is stopped.",
)
@_option(
    "--checkpoint-dir",
    type=PathOnly(file_okay=False),
    help="Where SAVE and BGSAVE write checkpoints.",
)
@_option(
    "--output-max",
    type=click.IntRange(1 << 20),
    metavar="BYTES",
    default=OUTPUT_MAX,
    help="Disconnect clients with more unread replies.",
)
@_option(
    "--stream-entry-max-bytes",
    type=click.IntRange(MEGABYTE, ENTRY_BYTES_MAX),
    metavar="BYTES",
    default=STREAM_ENTRY_MAX_BYTES,
    help="Maximum size of an entry for XADD.",
)
@_option(
    "--notify-keyspace-events",
    type=EventFlags(),
    metavar="FLAGS",
    default="",
    help="Publish events of keys to channels, such as Ex: expired keys. By default none.",
)
@_option(
    "--loglevel",
    "--log-level",
    type=click.Choice(list(LEVELS)),
    default=LEVEL,
    help="The log level; each level includes those after it. CONFIG SET can change it.",
)
@_option(
    "--logfile",
    type=PathOnly(dir_okay=False),
    help="The log file. By default stderr. The file is reopened when it is moved away.",
)
@_option(
    "--log-format",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    help="Plain lines, or one JSON object per line.",
)
@_option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="The port of /metrics, for Prometheus, and of /healthz; 0: any free port.",
)
@_option(
    "--metrics-host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="The address of that port. It has no password, and shows the names of streams and groups.",
)
@_option(
    "--metrics-streams",
    type=click.IntRange(0),
    metavar="N",
    default=METRICS_STREAMS,
    help="Maximum number of streams with metrics of their own.",
)
@_option(
    "--console-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help=BESIDE,
)
@_option(
    "--console-host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="The address of that port; another one needs --console-auth acl.",
)
@_option(
    "--console-auth",
    type=click.Choice(LOGINS),
    help="Who is let in: who opens the login URL, or users of this server (ACL) with their names "
    "and passwords. By default acl with --requirepass or --aclfile, else token.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    config: ConfigFile | None,
    dir: Path | None,
    durability: str,
    databases: int,
    rocksdb: dict[str, object],
    trust_group: bool,
    archive: str,
    archive_key: str,
    archive_key_command: str,
    archive_interval: float,
    archive_keep: float,
    take_over: bool,
    console_port: int | None,
    console_host: str,
    console_auth: str | None,
    **settings: Any,
) -> None:
    """Serve the store to Redis clients until SIGTERM or Ctrl-C.

    The store is created if it does not exist. Redis clients of any language can connect; they can
    use streams, keys, strings, transactions, scripts and pub/sub, but no other types.

    SIGTERM stops the server after all requests are answered and all writes are durable; a second
    SIGTERM stops it at once, even in the middle of a command. SIGHUP reloads the TLS certificates.
    """
    from kvstream.server.options import ServerOptions
    from kvstream.server.serving import run

    _check_variables(ctx)
    session: Session = ctx.obj
    directory = dir or session.path
    level = Durability(durability)
    _require_archive(ctx)
    options = ServerOptions(**settings, config_file=config)
    auth = console_auth or ("acl" if options.requirepass or options.aclfile else "token")
    console = _console_beside(console_port, console_host, auth, options)
    store = StoreOptions(
        durability=level,
        databases=databases,
        rocksdb=rocksdb,
        trust_group=trust_group or ctx.find_root().params["trust_group"],
        archive=archive,
        archive_key=archive_key if archive else "",  # the environment's may be for others
        archive_key_command=archive_key_command if archive else "",
        archive_interval_s=archive_interval,
        archive_keep_s=archive_keep,
        take_over=take_over,
    )
    wait = partial(wait_for_store, directory, session.wait_s)
    try:
        run(directory, store, options, partial(_report_start, directory, store, console), wait)
    finally:
        if console is not None:
            console.stop()
    atexit.register(_ignore_signals)


def _report_start(
    directory: Path, store: StoreOptions, console: ConsoleThread | None, places: Places
) -> None:
    """Say where the server is reached, and start its console."""
    from kvstream.engine import server_address

    host, port, tls_port, unixsocket, metrics_url = places
    shown = f"[{host}]" if ":" in host else host
    served = [f"{shown}:{port}"] if port else []
    served += [f"{shown}:{tls_port} with TLS"] if tls_port else []
    served += [str(unixsocket)] if unixsocket else []
    how = f"-h {server_address.reachable(host)} -p {port or tls_port}{'' if port else ' --tls'}"
    if not (port or tls_port):
        how = f"-s {unixsocket}"
    click.echo(f"kvstream {__version__} serves {directory} at {' and '.join(served)}")
    click.echo(f"durability {store.durability}: {GUARANTEES[store.durability]}")
    if store.archive:
        every = duration_text(round(store.archive_interval_s * 1000))
        is_encrypted = store.archive_key or store.archive_key_command
        click.echo(f"archive {store.archive}: every {every}{', encrypted' if is_encrypted else ''}")
    click.echo(f"connect with: redis-cli {how}")
    if metrics_url is not None:
        click.echo(f"metrics at {metrics_url}")
    if console is not None:
        own = server_address.url_of(host, port, tls=False)
        console.start(own if unixsocket is None else server_address.url_of_socket(unixsocket))


def _console_beside(
    port: int | None, host: str, auth: str, options: ServerOptions
) -> ConsoleThread | None:
    """Return the console of ``--console-port``, which is a client of this server."""
    if port is None:
        return None
    check_address("--console-host", host, auth)
    if auth == "token" and options.requirepass:
        raise click.UsageError(
            "--console-auth token does not go with --requirepass: leave it out, and users log in "
            "to the console by name and password"
        )
    if options.tls_port and not (options.port or options.unixsocket):
        raise click.UsageError(
            "the console of --console-port reaches the server without TLS: give --unixsocket or "
            "--port, too"
        )
    return console_beside(port, host, auth)


def _require_archive(ctx: click.Context) -> None:
    """Refuse options that need an archive, if there is none.

    A key in the environment may be for other commands.
    """
    given = ctx.params
    if given["archive"]:
        return
    wrong = "--take-over" if given["take_over"] else ""
    if given["durability"] == Durability.ARCHIVE.value:
        wrong = "--durability archive"
    for name in ("archive_key", "archive_key_command"):
        if given[name] and ctx.get_parameter_source(name) != ParameterSource.ENVIRONMENT:
            wrong = f"--{name.replace('_', '-')}"
    if wrong:
        raise click.UsageError(f"{wrong} needs the URL of an archive: --archive URL")


def _ignore_signals() -> None:
    """Ignore later signals: the exit code is that of the server, which has stopped in order."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
