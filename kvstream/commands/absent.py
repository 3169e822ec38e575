"""Redis's commands that kvstream does not have, by what they are for.

Their error says what is missing: the name of a command does not tell everybody that kvstream has no
hashes. Rules of ACL users may name them, so that an ACL file of Redis can be loaded.
"""

from collections.abc import Mapping
from typing import Final

_BY_KIND: Final[Mapping[str, str]] = {
    "hashes": (
        "hdel hexists hexpire hexpireat hexpiretime hget hgetall hgetdel hgetex himport hincrby "
        "hincrbyfloat hkeys hlen hmget hmset hpersist hpexpire hpexpireat hpexpiretime hpttl "
        "hrandfield hscan hset hsetex hsetnx hstrlen httl hvals"
    ),
    "lists": (
        "blmove blmpop blpop brpop brpoplpush lindex linsert llen lmove lmpop lpop lpos lpush "
        "lpushx lrange lrem lset ltrim rpop rpoplpush rpush rpushx"
    ),
    "sets": (
        "sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember "
        "smove spop srandmember srem sscan sunion sunionstore"
    ),
    "sorted sets": (
        "bzmpop bzpopmax bzpopmin zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard "
        "zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex "
        "zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore "
        "zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion zunionstore"
    ),
    "bitmaps": "bitcount bitfield bitfield_ro bitop bitpos getbit setbit",
    "geospatial indexes": (
        "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember "
        "georadiusbymember_ro geosearch geosearchstore"
    ),
    "HyperLogLogs": "pfadd pfcount pfdebug pfmerge pfselftest",
    "vector sets": (
        "vadd vcard vdim vemb vgetattr vinfo vismember vlinks vrandmember vrange vrem vsetattr vsim"
    ),
}
"""Commands of types that kvstream does not have."""
_OF_MODULES: Final[Mapping[str, str]] = {
    "json.": "JSON documents",
    "ft.": "search indexes",
    "ts.": "time series",
    "bf.": "Bloom filters",
    "cf.": "cuckoo filters",
    "cms.": "count-min sketches",
    "topk.": "top-k lists",
    "tdigest.": "t-digests",
    "graph.": "graphs",
}
"""Types of modules, by how the names of their commands begin."""
_OTHERS: Final[Mapping[str, str]] = {
    "RESTORE-ASKING": "restore-asking",
    "cluster": "sflush trimslots",
    "Sentinel": "sentinel",
    "MIGRATE: use kvstream migrate": "migrate",
    "LCS": "lcs",
    "SORT": "sort sort_ro",
}
"""Commands of no type, or of several types."""
_TYPES: Final = "its types are streams and strings"


def _by_name(kinds: Mapping[str, str]) -> dict[str, str]:
    return {name: kind for kind, names in kinds.items() for name in names.split()}


_TYPE_OF: Final = _by_name(_BY_KIND)
_OTHER_OF: Final = _by_name(_OTHERS)
ABSENT: Final = frozenset((*_TYPE_OF, *_OTHER_OF))


def is_absent(name: str) -> bool:
    """Return whether Redis has a command or subcommand that kvstream does not have."""
    return name.partition("|")[0] in ABSENT


def reason_of(name: str) -> str:
    """Return what kvstream lacks for a command of Redis or of its modules; empty for others.

    >>> reason_of("HSET")
    ' (kvstream has no hashes: its types are streams and strings)'
    """
    word = name.lower()
    if word in _OTHER_OF:
        return f" (kvstream has no {_OTHER_OF[word]})"
    module = next((kind for start, kind in _OF_MODULES.items() if word.startswith(start)), "")
    kind = _TYPE_OF.get(word) or module
    return f" (kvstream has no {kind}: {_TYPES})" if kind else ""
