"""Facts of a server: INFO, clients, slow log and settings, each by a bounded call."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstream.console.shared_calls import SharedCall
from kvstream.errors import RequestError
from kvstream.types.clock import monotonic
from kvstream.types.urls import show_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstream.archive.archiver import Status
    from kvstream.remote.connection import Connection
    from kvstream.store import Store

KEPT_S = 5.0
MASKED = "(hidden)"
_SECRET = re.compile(r"pass|masterauth|secret|archive-key")
"""Settings with such a name are shown as hidden, unless they are empty."""
_OF_SERVERS = "role"
"""A field that each server has in INFO, and no directory among its figures."""

Sections = dict[str, dict[str, Any]]


def connection_of(store: Store) -> Connection | None:
    """Return connections to the server of a store; None for a directory."""
    connect = getattr(store._engine, "connection", None)
    found: Connection | None = None if connect is None else connect()
    return found


class ServerInfo:
    """The sections of INFO, or the figures of a directory, kept for five seconds."""

    def __init__(self) -> None:
        self._reading: SharedCall[Sections] = SharedCall()
        self._last: Sections = {}
        self._taken = float("-inf")

    @property
    def last(self) -> Sections:
        """The sections that were read last; a page that shows an error asks no server."""
        return self._last

    def get(self, store: Store) -> Sections:
        """Return the sections; none for a user who may not ask."""
        if monotonic() - self._taken >= KEPT_S:
            self._reading.run(lambda: self._read(store))
        return self._last

    def _read(self, store: Store) -> Sections:
        stats: dict[str, Any] = {}
        with suppress(RequestError):  # not every user of a server may ask
            stats = store.stats()
        sections = {name: part for name, part in stats.items() if isinstance(part, dict)}
        plain = {name: each for name, each in stats.items() if not isinstance(each, dict)}
        self._last = {"store": plain, **_flat(sections)} if plain else _flat(sections)
        if archive := archive_of(store):
            self._last["archive"] = asdict(archive)
        self._taken = monotonic()
        return self._last


def _flat(sections: Sections) -> Sections:
    """Return sections of plain values; one within another gets both names."""
    found: Sections = {}
    for name, fields in sections.items():
        for key, value in fields.items():
            if isinstance(value, dict):
                found[f"{name} {key}"] = {each: _text(it) for each, it in value.items()}
            else:
                found.setdefault(name, {})[key] = _text(value)
    return found


def _text(value: Any) -> Any:
    text = " ".join(map(str, value)) if isinstance(value, list) else value
    return show_place(text) if isinstance(text, str) and "://" in text else text


def archive_of(store: Store) -> Status | None:
    """Return the state of the archive of a directory that this process owns; None without one."""
    engine = store.own_engine
    return None if engine is None else engine.archiving.status()


def is_server(sections: Sections) -> bool:
    return _OF_SERVERS in sections.get("replication", {})


def has_replicas(sections: Sections) -> bool:
    """Return whether a server has replicas, or is one."""
    about = sections.get("replication", {})
    return about.get("role") == "slave" or bool(about.get("connected_slaves"))


def has_archive(sections: Sections) -> bool:
    return "archive" in sections or bool(sections.get("persistence", {}).get("kvstream_archive"))


class Replica(NamedTuple):
    """A line of ``slaveN`` in INFO."""

    place: str
    state: str
    offset: int | None
    lag_s: int | None


def replicas_in(about: dict[str, Any]) -> Iterator[Replica]:
    """Yield the replicas of a primary."""
    for name, value in about.items():
        if re.fullmatch(r"slave\d+", name) and isinstance(value, str):
            facts = dict(part.partition("=")[::2] for part in value.split(","))
            yield Replica(
                f"{facts.get('ip', '')}:{facts.get('port', '')}",
                facts.get("state", ""),
                *(
                    int(facts[each]) if facts.get(each, "").isdecimal() else None
                    for each in ("offset", "lag")
                ),
            )


def clients_in(text: bytes, most: int) -> list[dict[str, str]]:
    """Return the first clients of CLIENT LIST, each as its fields."""
    lines = text.decode("utf-8", "replace").splitlines()[:most]
    return [dict(part.partition("=")[::2] for part in line.split(" ")) for line in lines]


def settings_in(words: list[bytes]) -> list[tuple[str, str]]:
    """Return the settings of CONFIG GET by name, without passwords and keys."""
    texts = [each.decode("utf-8", "replace") for each in words]
    return sorted(
        (name, MASKED if value and _SECRET.search(name) else str(_text(value)))
        for name, value in zip(texts[::2], texts[1::2], strict=True)
    )
