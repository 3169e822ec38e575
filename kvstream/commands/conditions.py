"""What SET, DELEX and MSETEX do only under a condition, and DIGEST, by which some of these compare.

A lock is taken by SET NX and given up by DELEX IFEQ: no script is needed to compare and delete.
"""

from kvstream.commands.args import Argv, integer, wrong_arity
from kvstream.commands.command import Session
from kvstream.commands.replies import Reply
from kvstream.errors import InvalidArgument
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace, strings

COMPARING = (b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE")
"""Conditions that compare a value, or its digest, with the word that follows."""
_NEGATIVE = (b"IFNE", b"IFDNE")
_BY_DIGEST = (b"IFDEQ", b"IFDNE")
_DIGEST_DIGITS = 16
_KEYS_MAX = (1 << 31) - 1


def is_met(txn: Txn, name: bytes, condition: bytes, wanted: bytes = b"") -> bool:
    """Tell whether the condition of a SET holds; WrongType where it compares what is no string."""
    if not condition:
        return True
    if condition in (b"NX", b"XX"):
        return keyspace.exists(txn, name) is (condition == b"XX")
    value = strings.get(txn, name)
    if value is None:
        return condition in _NEGATIVE
    return _is_equal(value, condition, wanted) is not (condition in _NEGATIVE)


def _is_equal(value: bytes, condition: bytes, wanted: bytes) -> bool:
    if condition not in _BY_DIGEST:
        return value == wanted
    if len(wanted) != _DIGEST_DIGITS:
        raise InvalidArgument("must be exactly 16 hexadecimal characters")
    return strings.digest(value) == wanted.lower()


def digest(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the XXH3 of a string in 16 hexadecimal digits; a null for a missing key."""
    value = strings.get(txn, session.prefix + argv[1])
    return None if value is None else strings.digest(value)


def delex(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete a key, where given only a string that is or is not equal to something; 1 if it was."""
    name = session.prefix + argv[1]
    if len(argv) == 2:
        return int(keyspace.delete(txn, name))
    if len(argv) != 4:
        raise wrong_arity("delex")
    key = txn.key(name)
    if key is None:
        return 0
    if not isinstance(key, StringMeta):
        raise InvalidArgument("Key should be of string type if conditions are specified")
    condition = argv[2].upper()
    if condition not in COMPARING:
        raise InvalidArgument("Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE")
    return int(is_met(txn, name, condition, argv[3]) and keyspace.delete(txn, name))


def pairs_of(argv: Argv) -> tuple[list[tuple[bytes, bytes]], Argv]:
    """Return the keys and values of an MSETEX, and the words behind them."""
    number = integer(argv[1], "invalid numkeys value")
    if not 0 < number <= _KEYS_MAX:
        raise InvalidArgument("invalid numkeys value")
    end = 2 + 2 * number
    if len(argv) < end:
        raise InvalidArgument("wrong number of key-value pairs")
    return list(zip(argv[2:end:2], argv[3:end:2], strict=True)), argv[end:]
