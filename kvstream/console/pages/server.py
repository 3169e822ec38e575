"""The server: INFO by section, its clients, its slow log and its settings, all read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.access import Role, requires
from kvstream.console.server_info import clients_in, connection_of, settings_in
from kvstream.errors import InvalidArgument

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.remote.connection import Connection

CLIENTS, CLIENTS_ASKED = 200, 2000
"""Clients that are shown, and the number beyond which none is asked for."""
SLOW = 50
WORDS, WORD = 8, 80
"""Words of a slow command that are shown, and bytes of each."""


@requires(Role.VIEWER)
def server(view: View) -> Response:
    sections, asked = view.info, view.asked("q").strip().lower()
    found = {
        name: {key: value for key, value in fields.items() if asked in key or asked in name}
        for name, fields in sections.items()
    }
    return view.page(
        "server.html",
        sections={name: fields for name, fields in found.items() if fields},
        asked=asked,
        is_server=connection_of(view.store) is not None,
    )


@requires(Role.OPERATOR)
def clients(view: View) -> Response:
    connection = _connection(view)
    count = view.info.get("clients", {}).get("connected_clients") or 0
    found = []
    if count <= CLIENTS_ASKED:
        found = clients_in(connection.ask("CLIENT", "LIST"), CLIENTS)
        count = max(count, len(found))
    return view.page("server_clients.html", clients=found, count=count)


@requires(Role.VIEWER)
def slow_log(view: View) -> Response:
    lines = _connection(view).ask("SLOWLOG", "GET", SLOW)
    return view.page(
        "server_slowlog.html",
        lines=[
            {
                "ms": when * 1000,
                "took_us": took,
                "words": _words(view, words),
                "left_out": max(0, len(words) - WORDS),
                "client": rest[0] if rest else b"",
                "name": rest[1] if len(rest) > 1 else b"",
            }
            for _, when, took, words, *rest in lines
        ],
    )


def _words(view: View, words: list[bytes]) -> list[bytes]:
    """Return a command as the user may see it: a word after a secret name is a secret value."""
    before = [b"", *words]
    return [
        each if at == 0 else view.value(before[at], each) for at, each in enumerate(words[:WORDS])
    ]


@requires(Role.ADMIN)
def config(view: View) -> Response:
    asked = view.asked("q").strip().lower()
    found = settings_in(_connection(view).ask("CONFIG", "GET", "*"))
    shown = [(name, value) for name, value in found if asked in name]
    return view.page("server_config.html", settings=shown, asked=asked)


def _connection(view: View) -> Connection:
    connection = connection_of(view.store)
    if connection is None:
        raise InvalidArgument("this is a directory: a server has clients, a slow log and settings")
    return connection
