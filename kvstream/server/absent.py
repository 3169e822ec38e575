"""Commands of Redis that are not here, by name: rules of users may speak of them.

An ACL file that served Redis serves kvstream too; nothing follows from such a rule.
"""

_COMMANDS = (
    "asking bitcount bitfield bitfield_ro bitop bitpos blmove blmpop blpop brpop brpoplpush "
    "bzmpop bzpopmax bzpopmin cluster eval eval_ro evalsha evalsha_ro failover fcall fcall_ro "
    "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember "
    "georadiusbymember_ro geosearch geosearchstore getbit hdel hexists hexpire hexpireat "
    "hexpiretime hget hgetall hgetdel hgetex hincrby hincrbyfloat hkeys hlen hmget hmset "
    "hotkeys hpersist hpexpire hpexpireat hpexpiretime hpttl hrandfield hscan hset hsetex "
    "hsetnx hstrlen httl hvals lcs lindex linsert llen lmove lmpop lpop lpos lpush "
    "lpushx lrange lrem lset ltrim migrate module pfadd pfcount pfdebug pfmerge pfselftest "
    "psubscribe psync publish pubsub punsubscribe readonly readwrite replconf replicaof "
    "restore-asking rpop rpoplpush rpush rpushx sadd scard sdiff sdiffstore setbit sflush "
    "sinter sintercard sinterstore sismember slaveof smembers smismember smove sort sort_ro "
    "spop spublish srandmember srem sscan ssubscribe subscribe sunion sunionstore "
    "sunsubscribe sync trimslots unsubscribe zadd zcard zcount zdiff zdiffstore zincrby "
    "zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange "
    "zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank "
    "zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion "
    "zunionstore"
)
_SUBCOMMANDS = (
    "function|delete function|dump function|kill function|list function|load "
    "function|restore function|stats script|debug script|exists script|kill "
    "script|load"
)

ABSENT = frozenset(_COMMANDS.split())
ABSENT_SUBCOMMANDS = frozenset(_SUBCOMMANDS.split())
"""Of containers that are here."""


def is_absent(name: str) -> bool:
    """Tell whether Redis has a command, or a subcommand, that is not here."""
    return name.partition("|")[0] in ABSENT or name in ABSENT_SUBCOMMANDS
