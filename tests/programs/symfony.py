"""Symfony of Debian: its own tests of Messenger's transport of streams, of caches and sessions."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs.environment import Missing, debian_source
from tests.programs.outcomes import SCENARIOS, Known, Outcome, Program, junit_outcomes

VERSION = "5.4.53"
_PACKAGES = "phpunit php-cli php-redis php-predis php-psr-log php-cache-integration-tests"
_BRIDGE = Path("Symfony/Component/Messenger/Bridge/Redis")
_TESTS = r"/^(?=.*(Redis|Predis))(?!.*(RedisCluster|RedisTagAwareCluster|Sentinel))/"
"""The names of tests of clients of Redis, but for those of clusters and sentinels."""
_DELAYED_COUNT = "$this->rawCommand('ZCOUNT', 0, $now) ?? 0"
"""Messenger counts delayed messages, of a sorted set, whenever it reads the stream."""


def _source() -> Path:
    return debian_source("symfony") / "src"


def _phpunit(port: int, place: Path, tests: Path, *sources: Path) -> list[Outcome]:
    """Run the tests of a folder; classes come from the first of these sources that has them."""
    program = shutil.which("phpunit")
    if program is None:
        raise Missing(f"PHPUnit is not installed: apt-get install {_PACKAGES}")
    words = ["--bootstrap", str(SCENARIOS / "symfony_autoload.php"), "--no-configuration"]
    words += ["--do-not-cache-result", "--dont-report-useless-tests", "--log-junit", "RESULTS"]
    return junit_outcomes(
        [program, *words, "--filter", _TESTS, tests],
        place,
        SYMFONY_SOURCES=os.pathsep.join(map(str, sources)),
        SYMFONY_DEPRECATIONS_HELPER="disabled",
        MESSENGER_REDIS_DSN=f"redis://127.0.0.1:{port}/messages",
        REDIS_HOST=f"127.0.0.1:{port}",
    )


def _messenger(port: int, *replaced: tuple[str, str]) -> list[Outcome]:
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        copy = Path(place) / _BRIDGE
        shutil.copytree(_source() / _BRIDGE, copy)
        for path in copy.rglob("*.php"):
            text = path.read_text().replace("redis://localhost/", f"redis://localhost:{port}/")
            for old, new in replaced:
                text = text.replace(old, new)
            path.write_text(text)
        return _phpunit(port, Path(place), copy / "Tests", Path(place), _source())


def _messenger_without_count(port: int) -> list[Outcome]:
    return _messenger(port, (_DELAYED_COUNT, "0"))


def _caches_and_sessions(port: int) -> list[Outcome]:
    found = []
    for name in ("Cache/Tests/Adapter", "HttpFoundation/Tests/Session/Storage/Handler"):
        with TemporaryDirectory(prefix="kvstream-program-") as place:
            tests = _source() / "Symfony/Component" / name
            found += _phpunit(port, Path(place), tests, _source())
    return found


PROGRAMS = (
    Program(
        "symfony/redis-messenger",
        VERSION,
        "Debian",
        "its tests of its transport of streams: sending, taking, acknowledging, rejecting, "
        "redelivery",
        _messenger_without_count,
        left_out="on kvstream, its count of delayed messages, which are in a sorted set: Messenger "
        "asks for it whenever it reads, so its transport of streams does not run as it is",
        run_on_peer=_messenger,
        install=_source,
    ),
    Program(
        "symfony/cache, symfony/http-foundation",
        VERSION,
        "Debian",
        "their tests of caches and sessions with phpredis and predis 1.1",
        _caches_and_sessions,
        known=(Known("TagAware", "sets"),),
        left_out="clusters and sentinels; symfony/lock and symfony/semaphore (sorted sets)",
        install=_source,
    ),
)
