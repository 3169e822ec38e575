"""Packages of npm on node-redis and ioredis: locks, rate limits, sessions, caches, brokers."""

from pathlib import Path

from tests.programs.environment import node_modules
from tests.programs.outcomes import Outcome, Program, node_scenario

NODE_REDIS = "6.3.1"
_PACKAGES = {
    "@keyv/redis": "5.1.6",
    "@moleculer/channels": "0.1.8",
    "@nestjs/common": "10.4.22",
    "@nestjs/core": "10.4.22",
    "@nestjs/microservices": "10.4.22",
    "@socket.io/redis-adapter": "8.3.0",
    "cache-manager": "7.2.9",
    "connect-redis": "9.0.0",
    "express": "5.3.0",
    "express-rate-limit": "8.7.5",
    "express-session": "1.19.0",
    "graphql": "16.15.0",
    "graphql-redis-subscriptions": "2.7.0",
    "graphql-subscriptions": "3.0.0",
    "ioredis": "5.9.3",
    "keyv": "5.6.0",
    "moleculer": "0.14.36",
    "rate-limit-redis": "6.0.1",
    "rate-limiter-flexible": "11.4.0",
    "redis": "5.9.0",
    "redis-streams-broker": "0.0.15",
    "redlock": "5.0.0-beta.2",
    "reflect-metadata": "0.2.2",
    "rxjs": "7.8.2",
    "socket.io": "4.8.4",
    "socket.io-client": "4.8.4",
}
_SHOWN = (
    "redlock",
    "rate-limiter-flexible",
    "rate-limit-redis",
    "connect-redis",
    "@keyv/redis",
    "cache-manager",
    "@socket.io/redis-adapter",
    "graphql-redis-subscriptions",
    "@nestjs/microservices",
    "redis-streams-broker",
    "@moleculer/channels",
)


def _node_redis_modules() -> Path:
    return node_modules("node-redis", f"redis@{NODE_REDIS}")


def _node_redis(port: int) -> list[Outcome]:
    return node_scenario(_node_redis_modules(), "check_node_redis.js", port)


def _modules() -> Path:
    # moleculer names redlock 4 as an optional peer, so redlock 5 is installed by another name.
    wanted = {**_PACKAGES, "redlock-5": f"npm:redlock@{_PACKAGES['redlock']}"}
    del wanted["redlock"]
    return node_modules("npm-packages", *(f"{name}@{at}" for name, at in wanted.items()))


def _packages(port: int) -> list[Outcome]:
    return node_scenario(_modules(), "check_npm_packages.js", port)


PROGRAMS = (
    Program(
        "node-redis",
        NODE_REDIS,
        "npm",
        "a program of ours, in RESP2 and RESP3: streams and groups, transactions, channels, shard "
        "channels, pools, scans, introspection, client-side caching (its package has no tests)",
        _node_redis,
        install=_node_redis_modules,
    ),
    Program(
        "eleven packages of npm",
        "see below",
        "npm",
        "a program of ours on ioredis 5.9.3 and node-redis 5.9.0: "
        + ", ".join(f"{name} {_PACKAGES[name]}" for name in _SHOWN)
        + " (their packages have no tests that run as they are)",
        _packages,
        install=_modules,
    ),
)
