"""The write commands of types that kvstream does not have, and the keys that they name.

A log holds only what has succeeded. So each of these tells of what type its keys are, or were until
the command took their last element. What an option names (SORT ... STORE) is in ``meaning``.
"""

from kvstream.commands.args import Argv

_FIRST, _BOTH = slice(1, 2), slice(1, 3)
_TRIPLES = slice(1, None, 3)
_COUNTED = slice(0)
"""In place of where the keys are: a number of them says so, behind the command."""


def _rows(kind: str, words: str, keys: slice = _FIRST) -> dict[bytes, tuple[str, slice]]:
    return {word.encode(): (kind, keys) for word in words.split()}


_COMMANDS: dict[bytes, tuple[str, slice]] = (
    _rows("list", "lpush rpush lpushx rpushx linsert lset ltrim lrem lpop rpop")
    | _rows("list", "lmove rpoplpush blmove brpoplpush", _BOTH)
    | _rows("list", "blpop brpop", slice(1, -1))
    | _rows("list", "lmpop", _COUNTED)
    | _rows("set", "sadd srem spop")
    | _rows("set", "smove", _BOTH)
    | _rows("hash", "hset hmset hsetnx hincrby hincrbyfloat hdel hgetdel hgetex hsetex")
    | _rows("hash", "hexpire hpexpire hexpireat hpexpireat hpersist")
    | _rows("zset", "zadd zincrby zrem zpopmin zpopmax geoadd")
    | _rows("zset", "zremrangebyrank zremrangebyscore zremrangebylex")
    | _rows("zset", "bzpopmin bzpopmax", slice(1, -1))
    | _rows("zset", "zmpop", _COUNTED)
    | _rows("vectorset", "vadd vrem vsetattr")
    | _rows("module", "json.mset ts.madd", _TRIPLES)
    | _rows("module", "ts.createrule ts.deleterule", _BOTH)
)
"""By command in small letters: the type, and where its keys are."""

_MODULES = tuple(b"json. ts. bf. cf. cms. topk. tdigest. graph. ft.sug ai.tensor".split())
"""Commands of known modules: their first word is the key that they write."""

SILENT_MODULES = (b"ft.", b"_ft.")
"""Commands of indexes: they write no key."""


def foreign(argv: Argv) -> tuple[str, list[bytes]] | None:
    """Return the type and the keys of a command; None where it is not known as one of these."""
    word = argv[0].lower()
    found = _COMMANDS.get(word)
    if found is None:
        return ("module", list(argv[_FIRST])) if word.startswith(_MODULES) else None
    kind, place = found
    if place is _COUNTED:
        count = int(argv[1]) if len(argv) > 1 and argv[1].isdigit() else 0
        place = slice(2, 2 + count)
    return kind, list(argv[place])
