"""Keyspace events: the changes of keys, and the classes by which clients ask for them.

An operation notes an event where it makes the change (``Txn.notify``), if a client wants events of
its class. The events of a transaction leave it with its commit, in their order. Names and classes
are those of Redis; each class is a letter of ``notify-keyspace-events``.
"""

from typing import Final, NamedTuple

LETTERS: Final = "g$lshzxetdnocKEmSTIV"
"""The letters of ``notify-keyspace-events``, in the order in which CONFIG GET shows them."""
BITS: Final = {letter: 1 << at for at, letter in enumerate(LETTERS)}
ALL: Final = sum([BITS[letter] for letter in "g$lshzxetd"])
"""The classes of the letter A."""
KEYSPACE, KEYEVENT = BITS["K"], BITS["E"]
CHANNELS: Final = KEYSPACE | KEYEVENT
"""The kinds of channels: named by the key, by the event, or both."""


class Event(NamedTuple):
    """A kind of event."""

    bit: int
    """The bit of its class."""
    name: bytes


def _of(letter: str, name: str) -> Event:
    return Event(BITS[letter], name.encode())


NEW = _of("n", "new")
OVERWRITTEN, TYPE_CHANGED = _of("o", "overwritten"), _of("c", "type_changed")
EXPIRED = _of("x", "expired")
KEYMISS = _of("m", "keymiss")

DEL, EXPIRE, PERSIST, RESTORE = (_of("g", name) for name in ("del", "expire", "persist", "restore"))
RENAME_FROM, RENAME_TO = _of("g", "rename_from"), _of("g", "rename_to")
MOVE_FROM, MOVE_TO, COPY_TO = _of("g", "move_from"), _of("g", "move_to"), _of("g", "copy_to")

SET, APPEND, SETRANGE = _of("$", "set"), _of("$", "append"), _of("$", "setrange")
INCRBY, INCRBYFLOAT = _of("$", "incrby"), _of("$", "incrbyfloat")

XADD, XDEL, XTRIM, XSETID = (_of("t", name) for name in ("xadd", "xdel", "xtrim", "xsetid"))
XGROUP_CREATE, XGROUP_DESTROY = _of("t", "xgroup-create"), _of("t", "xgroup-destroy")
XGROUP_SETID = _of("t", "xgroup-setid")
XGROUP_CREATECONSUMER = _of("t", "xgroup-createconsumer")
XGROUP_DELCONSUMER = _of("t", "xgroup-delconsumer")


def flags_of(letters: str) -> int | None:
    """Return the bits of the letters of ``notify-keyspace-events``; None if one is unknown."""
    bits = 0
    for letter in letters:
        if letter != "A" and letter not in BITS:
            return None
        bits |= ALL if letter == "A" else BITS[letter]
    return bits


def letters_of(bits: int) -> str:
    """Return bits as CONFIG GET shows them; with A, Redis shows none of n, o and c."""
    shown = LETTERS
    if bits & ALL == ALL:
        shown = "A" + LETTERS[LETTERS.index("K") :]
    return "".join([letter for letter in shown if letter == "A" or bits & BITS[letter]])
