"""Commands of queues on a store whose timers fire only when a test fires them."""

from typing import Any

from kvstream import Store
from kvstream.commands.replies import ErrorReply, Map
from kvstream.engine import timer_thread
from tests.commands.dispatcher import Dispatcher
from tests.opening import Stores


def opened(open_store: Stores) -> Store:
    """Open a store whose timer thread does nothing: the test fires the timers."""
    store = open_store("own")
    store.engine.timers.paused = True
    return store


def run(store: Store, command: str) -> Any:
    """Run a command of words without blanks; return its reply, or an ErrorReply."""
    return plain(Dispatcher(store.engine).execute([word.encode() for word in command.split()]))


def plain(reply: Any) -> Any:
    """Return a reply with its maps as dictionaries."""
    if isinstance(reply, Map):
        pairs: Any = reply.pairs
        return {key.decode(): plain(value) for key, value in pairs}
    return [plain(each) for each in reply] if isinstance(reply, list) else reply


def ok(store: Store, command: str) -> Any:
    """Run a command that succeeds."""
    reply = run(store, command)
    assert not isinstance(reply, ErrorReply), reply
    return reply


def error(store: Store, command: str) -> str:
    """Run a command that is refused, and return its text."""
    reply = run(store, command)
    assert isinstance(reply, ErrorReply), reply
    return reply.text


def step(store: Store, limit: int = 500) -> None:
    """Fire all due timers."""
    while store.engine.run(timer_thread.run_due, limit):
        pass


def values(store: Store, key: str = "s", field: bytes = b"n") -> list[str]:
    """Return one field of all entries of a stream."""
    return [entry.fields[field].decode() for entry in store.stream(key)]
