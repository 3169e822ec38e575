"""The complete state of the keys of a server or a store, for comparisons."""

from collections.abc import Callable
from typing import Any

from kvstream.commands.replies import ErrorReply
from kvstream.engine.engine import Engine
from kvstream.migration.items import JOURNAL_PREFIX
from tests.commands.dispatcher import Dispatcher, flatten

Ask = Callable[..., Any]
ENTRY_COUNTERS = (
    *(b"length", b"last-generated-id", b"max-deleted-entry-id", b"entries-added"),
    b"recorded-first-entry-id",
)


def asking(engine: Engine) -> Ask:
    """Return a client of a store that is called like that of a server."""
    dispatcher = Dispatcher(engine)

    def ask(*words: str | bytes | int) -> Any:
        argv = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        reply = dispatcher.execute(argv)
        assert not isinstance(reply, ErrorReply), reply.line
        return flatten(reply)

    return ask


def pairs(flat: Any) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def state_of(ask: Ask, databases: int = 16) -> dict[tuple[int, bytes], Any]:
    """Return all streams and strings with everything that belongs to them."""
    state: dict[tuple[int, bytes], Any] = {}
    for db in range(databases):
        ask("SELECT", db)
        for key in ask("KEYS", "*"):
            kind = ask("TYPE", key)
            kind = kind if isinstance(kind, bytes) else str(kind).encode()
            if not key.startswith(JOURNAL_PREFIX) and kind in (b"stream", b"string"):
                shown = _stream(ask, key) if kind == b"stream" else ask("GET", key)
                state[db, key] = (shown, ask("PEXPIRETIME", key))
    ask("SELECT", 0)
    return state


def _stream(ask: Ask, key: bytes) -> dict[str, Any]:
    full = pairs(ask("XINFO", "STREAM", key, "FULL", "COUNT", 0))
    groups = {}
    for flat in full[b"groups"]:
        group = pairs(flat)
        groups[group[b"name"]] = {
            "delivered": group[b"last-delivered-id"],
            "read": (group[b"entries-read"], group[b"lag"]),
            "pending": group[b"pel"] if b"pel" in group else group[b"pending"],
            "consumers": {
                member[b"name"]: member[b"pel"] if b"pel" in member else member[b"pending"]
                for member in map(pairs, group[b"consumers"])
            },
            "seen": {
                member[b"name"]: (member[b"seen-time"], member.get(b"active-time"))
                for member in map(pairs, group[b"consumers"])
            },
        }
    return {
        "entries": ask("XRANGE", key, "-", "+"),
        "counters": {name: full[name] for name in ENTRY_COUNTERS},
        "groups": groups,
    }


def without(state: dict[tuple[int, bytes], Any], *names: str) -> dict[tuple[int, bytes], Any]:
    """Return a state without these fields of its groups."""
    for shown, _ in state.values():
        if isinstance(shown, dict):
            for group in shown["groups"].values():
                for name in names:
                    group.pop(name, None)
    return state
