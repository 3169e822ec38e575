"""The programs, in the order of the page that lists them."""

from tests.programs import (
    channels,
    django_redis,
    fakeredis,
    faststream,
    frameworks,
    iredis,
    limits,
    npm,
    npm_packages,
    phpredis,
    redis_exporter,
    redis_py,
    redis_sentinel,
    symfony,
    taskiq_redis,
    tcl,
    walrus,
)
from tests.programs.outcomes import Program

PROGRAMS: tuple[Program, ...] = (
    *taskiq_redis.PROGRAMS,
    *faststream.PROGRAMS,
    *frameworks.PROGRAMS,
    *redis_py.PROGRAMS,
    *fakeredis.PROGRAMS,
    *limits.PROGRAMS,
    *django_redis.PROGRAMS,
    *channels.PROGRAMS,
    *walrus.PROGRAMS,
    *npm.PROGRAMS,
    *npm_packages.PROGRAMS,
    *phpredis.PROGRAMS,
    *symfony.PROGRAMS,
    *iredis.PROGRAMS,
    *redis_sentinel.PROGRAMS,
    *redis_exporter.PROGRAMS,
    *tcl.PROGRAMS,
)
