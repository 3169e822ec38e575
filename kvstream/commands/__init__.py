"""Redis commands without sockets: arguments in, replies out.

``Dispatcher`` runs them on an open store. ``COMMANDS`` is their table, which a server extends.
"""

from kvstream.commands.command import Blocked, Command, Container, Flag, Keys, Session
from kvstream.commands.replies import (
    NULL_ARRAY,
    OK,
    RESP2,
    RESP3,
    Entries,
    ErrorReply,
    Map,
    NullArray,
    Reply,
    Simple,
    Streams,
    flatten,
)
from kvstream.commands.table import COMMANDS, Dispatcher, find

__all__ = [
    "COMMANDS",
    "NULL_ARRAY",
    "OK",
    "RESP2",
    "RESP3",
    "Blocked",
    "Command",
    "Container",
    "Dispatcher",
    "Entries",
    "ErrorReply",
    "Flag",
    "Keys",
    "Map",
    "NullArray",
    "Reply",
    "Session",
    "Simple",
    "Streams",
    "find",
    "flatten",
]
