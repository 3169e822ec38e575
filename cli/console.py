"""``console``: the web console of a store or a server, for this machine's browser."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.parameters import example
from kvstream.cli.session import DirectorySession, Session
from kvstream.errors import ClientMissing, install_command

if TYPE_CHECKING:
    from kvstream.console.serving import ConsoleThread

PORT = 9122
LOGINS = ("token", "acl")
"""How one logs in: see ``kvstream.console.serving.Served``."""
PROXY = "proxy"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MISSING = f"the console needs starlette, jinja2 and uvicorn: {install_command('console')}"
BESIDE = "A port of 127.0.0.1 for the web console; 0: any free port. A login URL is printed."
"""The help of ``--console-port`` of commands that serve a console beside their work."""


@click.command(
    short_help="Look at a store in the browser.",
    epilog=example(
        "kvstream console --store data",
        "kvstream console --url redis://localhost:6390 --open",
        "kvstream console --store data --read-only",
    ),
)
@click.option("--host", default=_LOOPBACK[0], help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    metavar="N",
    help="The port to listen on; 0 takes a free one.",
)
@click.option(
    "--auth",
    type=click.Choice([*LOGINS, PROXY]),
    default=LOGINS[0],
    help="Who is let in: who opens the URL with a token, users of the server (ACL) with their "
    "names and passwords, or users whom a proxy has logged in and names in a header.",
)
@click.option(
    "--proxy-from",
    multiple=True,
    metavar="ADDRESS",
    help="For --auth proxy: an address or network from which its header is believed, such as "
    "127.0.0.1 or 10.1.0.0/16; may be repeated.",
)
@click.option(
    "--proxy-host",
    multiple=True,
    metavar="HOST",
    help="For --auth proxy: the name by which browsers reach it, with the port unless it is the "
    "usual one; requests with another header Host are refused. May be repeated.",
)
@click.option(
    "--proxy-role",
    multiple=True,
    metavar="NAME=ROLE",
    help="For --auth proxy: viewer, operator or admin for a user, a group (@NAME) or everybody "
    "whom the proxy lets in (*); may be repeated. Others are refused.",
)
@click.option(
    "--proxy-header",
    default="X-Forwarded-User",
    metavar="NAME",
    help="For --auth proxy: the header that has the name of the user.",
)
@click.option(
    "--proxy-groups-header",
    default="X-Forwarded-Groups",
    metavar="NAME",
    help="For --auth proxy: the header that has the groups of the user, with commas.",
)
@click.option("--open", "opens", is_flag=True, help="Open the browser.")
@click.option("--read-only", is_flag=True, help="Refuse every action that changes something.")
@click.option(
    "--redact",
    multiple=True,
    metavar="NAME",
    help="Hide the values of fields, arguments and members of JSON with this name; a pattern such "
    "as card* may be given, and the option repeated.",
)
@click.pass_obj
def console(
    session: Session,
    /,
    host: str,
    port: int,
    auth: str,
    opens: bool,
    read_only: bool,
    redact: tuple[str, ...],
    **proxy: Any,
) -> None:
    """Show what failed, the queues, jobs, streams and groups of a store in the browser.

    It listens on 127.0.0.1 and prints a URL with a token, which logs one browser in; then it prints
    another one. For a machine elsewhere make a tunnel: ssh -L 9122:127.0.0.1:9122 HOST. Programs
    that share the directory work meanwhile. With --read-only a directory is opened read-only for
    each page. With --auth acl users of the server at --url log in, and each sees and does what the
    server allows; with --auth proxy a proxy logs users in, such as oauth2-proxy. Then --host may be
    another address. To have the console inside an application,
    with users of your own, mount kvstream.console.app there: see docs/console.md.
    """
    check_address("--host", host, auth)
    serving = _serving()
    login = _proxy_login(opens, **proxy) if auth == PROXY else auth
    if auth != PROXY and (proxy["proxy_from"] or proxy["proxy_host"] or proxy["proxy_role"]):
        raise click.UsageError("--proxy-from, --proxy-host and --proxy-role are for --auth proxy")
    if auth == "acl":
        if isinstance(session, DirectorySession):
            raise click.UsageError("--auth acl is for the users of a server: give --url")
        place, options = session.url, {"db": session.db}
    else:
        place, options = _place_of(session)
    serving.serve(
        place,
        host=host,
        port=port,
        read_only=read_only,
        options={**options, "redact": redact},
        announce=_announce_to_proxy if auth == PROXY else _announce,
        opens=opens,
        login=login,
    )


def _proxy_login(
    opens: bool,
    proxy_from: tuple[str, ...],
    proxy_host: tuple[str, ...],
    proxy_role: tuple[str, ...],
    proxy_header: str,
    proxy_groups_header: str,
) -> Any:
    """Return the login by a proxy; UsageError says which option is missing."""
    from kvstream.console.logins.proxy import ProxyLogin

    for option, given in (("from", proxy_from), ("host", proxy_host), ("role", proxy_role)):
        if not given:
            raise click.UsageError(f"--auth proxy needs --proxy-{option}")
    if opens:
        raise click.UsageError("--open does not go with --auth proxy: open the page of the proxy")
    return ProxyLogin(
        proxy_from,
        {name: role for name, _, role in (each.rpartition("=") for each in proxy_role)},
        hosts=proxy_host,
        user_header=proxy_header,
        groups_header=proxy_groups_header,
    )


def _announce_to_proxy(url: str) -> None:
    click.echo(f"listening at {url} for the proxy")
    sys.stdout.flush()


def check_address(option: str, host: str, auth: str) -> None:
    """Refuse an address of a network for a login by token; warn of one without TLS."""
    if host in _LOOPBACK:
        return
    if auth == PROXY:
        return
    if auth == "acl":
        click.echo(
            f"{option} {host}: passwords go to this address unencrypted, unless a proxy with TLS "
            "is in front of it",
            err=True,
        )
        return
    raise click.UsageError(
        f"{option} {host} would let others in with one token, unencrypted: listen on 127.0.0.1 "
        "and make a tunnel (ssh -L 9122:127.0.0.1:9122 HOST), let users of the server log in "
        "(--auth acl), or mount kvstream.console.app in a program that knows its users"
    )


def console_beside(
    port: int | None, host: str = _LOOPBACK[0], auth: str = LOGINS[0]
) -> ConsoleThread | None:
    """Return a console for ``--console-port``, which listens and is to be started; None: no port.

    Raises ClientMissing without the extra, and RequestError if the port is taken.
    """
    if port is None:
        return None
    made: ConsoleThread = _serving().ConsoleThread(
        lambda url: _announce(url, "console: "), port, host, auth
    )
    return made


def _serving() -> ModuleType:
    """Return the module that serves consoles; ClientMissing says what to install."""
    try:
        return import_module("kvstream.console.serving")
    except ModuleNotFoundError as error:
        raise ClientMissing(f"{_MISSING} (there is no {error.name})") from None


def _place_of(session: Session) -> tuple[Any, dict[str, Any]]:
    """Return the place of the global options, and options for its opening."""
    if isinstance(session, DirectorySession):
        with session.reading():  # NoSuchStore and the like, before anything is served
            pass
        return session.path, {"db": session.db, "trust_group": session.trust_group}
    session.ping()
    return session.url, {"db": session.db}


def _announce(url: str, before: str = "") -> None:
    click.echo(f"{before}open {url}")
    sys.stdout.flush()
