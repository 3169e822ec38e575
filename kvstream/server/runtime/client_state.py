"""The states of a client, the events that change them, and which event may happen in which state.

A client has two states. ``ClientState`` tells whether its next request may run, or what the one
before it waits for. ``ConnectionState`` tells what is still read, run and written. Only
``Client.handle`` changes them; an event that they do not allow is a defect of the server.

The rules of the tables:

- Requests run while a client is RUNNABLE and its connection OPEN or HALF_CLOSED. So a command makes
  its client wait in a RUNNABLE state, and RESUME is the only way back.
- A turn runs requests of RUNNABLE clients only. If it is rolled back, ROLL_BACK makes its clients
  RUNNABLE again.
- A client BLOCKs only while its connection is OPEN: nobody would read the reply of another one. A
  blocked client that ends its input is closed.
- A connection never goes back: OPEN, HALF_CLOSED, CLOSING, CUT_OFF, GONE.
- A client that is GONE waits for nothing. But if its turn is rolled back afterwards, its requests
  run again, since they were received. So they may be put off, run in steps, and have pages.

``blocked_clients.py`` blocks clients, ``incremental_commands.py`` runs their steps,
``reply_queue.py`` streams their replies, and the executor puts commands off.
"""

from enum import Enum, IntEnum, auto
from typing import Final


class ClientState(IntEnum):
    """Whether the next request of a client may run, or what it waits for."""

    RUNNABLE = auto()
    """It waits for nothing."""
    BLOCKED = auto()
    """A blocking command waits for data, or CLIENT PAUSE holds a request: ``Client.block``."""
    PUT_OFF = auto()
    """A command runs first in the next turn."""
    STEPPED = auto()
    """A command runs in steps between turns."""
    STREAMED = auto()
    """A reply is sent page by page; with durability ``always`` it may wait for an fsync first."""


class ConnectionState(IntEnum):
    """What is still read from a client, run for it and written to it."""

    OPEN = auto()
    HALF_CLOSED = auto()
    """The peer has closed its side: the connection closes after the requests that were received."""
    CLOSING = auto()
    """No more is read or run; the connection closes after the last reply."""
    CUT_OFF = auto()
    """It read its replies too slowly: nothing is read, run or written until it is disconnected."""
    GONE = auto()
    """It is forgotten; the connection has ended or ends at once."""


class Event(Enum):
    """What happens to a client."""

    BLOCK = auto()
    PUT_OFF = auto()
    STEP = auto()
    """A command returned its next step."""
    STREAM = auto()
    """A command returned a reply that is sent page by page."""
    RESUME = auto()
    """What the client waited for has happened, or is given up."""
    ROLL_BACK = auto()
    """The turn that has run its requests was rolled back."""
    END_INPUT = auto()
    """The peer has closed its side."""
    CLOSE = auto()
    """QUIT, CLIENT KILL by itself, a protocol error, or the last reply after END_INPUT."""
    CUT_OFF = auto()
    DISCONNECT = auto()


_RUNNABLE, _BLOCKED, _PUT_OFF, _STEPPED, _STREAMED = ClientState
_OPEN, _HALF_CLOSED, _CLOSING, _CUT_OFF, _GONE = ConnectionState
_EACH_STATE: Final = {state: state for state in ClientState}
_EACH_CONNECTION: Final = {state: state for state in ConnectionState}

CLIENT_TRANSITIONS: Final = {
    Event.BLOCK: {_RUNNABLE: _BLOCKED},
    Event.PUT_OFF: {_RUNNABLE: _PUT_OFF},
    Event.STEP: {_RUNNABLE: _STEPPED},
    Event.STREAM: {_RUNNABLE: _STREAMED},
    Event.RESUME: dict.fromkeys((_BLOCKED, _PUT_OFF, _STEPPED, _STREAMED), _RUNNABLE),
    Event.ROLL_BACK: dict.fromkeys(ClientState, _RUNNABLE),
    Event.END_INPUT: {state: state for state in ClientState if state is not _BLOCKED},
    Event.CLOSE: {_RUNNABLE: _RUNNABLE, _BLOCKED: _BLOCKED},
    Event.CUT_OFF: _EACH_STATE,
    Event.DISCONNECT: dict.fromkeys(ClientState, _RUNNABLE),
}
"""The state after an event, by the state before; an event must not happen in a state left out."""

CONNECTION_TRANSITIONS: Final = {
    Event.BLOCK: {_OPEN: _OPEN},
    Event.PUT_OFF: _EACH_CONNECTION,
    Event.STEP: _EACH_CONNECTION,
    Event.STREAM: _EACH_CONNECTION,
    Event.RESUME: _EACH_CONNECTION,
    Event.ROLL_BACK: _EACH_CONNECTION,
    Event.END_INPUT: {**_EACH_CONNECTION, _OPEN: _HALF_CLOSED},
    Event.CLOSE: {**_EACH_CONNECTION, _OPEN: _CLOSING, _HALF_CLOSED: _CLOSING},
    Event.CUT_OFF: {**dict.fromkeys(ConnectionState, _CUT_OFF), _GONE: _GONE},
    Event.DISCONNECT: dict.fromkeys(ConnectionState, _GONE),
}
"""The connection's state after an event, by its state before."""

UNFINISHED: Final = frozenset({_PUT_OFF, _STEPPED, _STREAMED})
"""The states in which a reply is due that does not depend on other clients."""
CLOSED: Final = frozenset({_CLOSING, _CUT_OFF, _GONE})
"""The states in which no more is read or run."""
UNWRITTEN: Final = frozenset({_CUT_OFF, _GONE})
"""The states in which replies are dropped."""


class ImpossibleEvent(Exception):
    """A defect: an event that the state of a client does not allow."""


def follow(
    event: Event, state: ClientState, connection: ConnectionState
) -> tuple[ClientState, ConnectionState]:
    """Return both states after an event; ImpossibleEvent if it must not happen in them."""
    try:
        return CLIENT_TRANSITIONS[event][state], CONNECTION_TRANSITIONS[event][connection]
    except KeyError:
        raise ImpossibleEvent(f"{event.name} of a client {state.name}, {connection.name}") from None
