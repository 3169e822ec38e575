"""What COMMAND tells clients of a cluster beyond flags: Redis's command tips.

Clients that share keys out over several servers read from these where to send a request and how
to put the replies together; those that compare servers, which replies may differ.
"""

_TIPS = {
    "nondeterministic_output": "client|info client|list dump info lastsave latency|doctor "
    "latency|graph latency|histogram latency|history latency|latest memory|doctor "
    "memory|malloc-stats memory|stats object|encoding object|freq "
    "object|idletime object|refcount pttl randomkey scan slowlog|get slowlog|len time ttl xadd "
    "xautoclaim xclaim xinfo|consumers xpending xtrim",
    "nondeterministic_output_order": "command command|docs command|info command|list keys",
    "request_policy:all_nodes": "acl|deluser acl|save acl|setuser client|setinfo client|setname "
    "config|resetstat config|rewrite config|set latency|doctor latency|graph latency|histogram "
    "latency|history latency|latest latency|reset script|flush slowlog|get slowlog|len "
    "slowlog|reset",
    "request_policy:all_shards": "dbsize flushall flushdb function|flush info keys memory|doctor "
    "memory|malloc-stats memory|purge memory|stats ping randomkey wait waitaof",
    "request_policy:multi_shard": "del exists mget mset msetex touch unlink",
    "request_policy:special": "scan",
    "response_policy:agg_min": "wait waitaof",
    "response_policy:agg_sum": "dbsize del exists latency|reset slowlog|len touch unlink",
    "response_policy:all_succeeded": "acl|deluser acl|save acl|setuser client|setinfo "
    "client|setname config|resetstat config|rewrite config|set flushall flushdb function|flush "
    "memory|purge mset msetex ping script|flush slowlog|reset",
    "response_policy:special": "info latency|doctor latency|graph latency|histogram "
    "latency|history latency|latest memory|doctor memory|malloc-stats memory|stats randomkey scan",
}


def _by_command() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for tip, names in _TIPS.items():
        for name in names.split():
            found.setdefault(name, []).append(tip)
    return found


TIPS = _by_command()
"""The tips of a command, in Redis's order; most have none."""
