"""channels_redis and aiocache: their own tests, of a channel layer and of caches."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs.environment import PYTEST, python_with, source_of
from tests.programs.outcomes import Outcome, Program, copied, pytest_outcomes

CHANNELS = "4.3.0"
AIOCACHE = "0.12.3"
_OPTIONS = ("-o", "addopts=", "-o", "asyncio_mode=auto", "-W", "ignore", "--timeout=120")


def _interpreter() -> Path:
    packages = (f"channels_redis=={CHANNELS}", f"aiocache=={AIOCACHE}", "redis==8.1.0")
    return python_with("channels", *packages, "marshmallow==4.4.0", "pytest-mock==3.15.1", *PYTEST)


def _channels_installed() -> tuple[Path, Path]:
    return _interpreter(), source_of("channels_redis", CHANNELS)


def _aiocache_installed() -> tuple[Path, Path]:
    return _interpreter(), source_of("aiocache", AIOCACHE)


def _tests(installed: tuple[Path, Path], port: int, *arguments: str) -> list[Outcome]:
    """Run the tests of a source with the default port of Redis replaced."""
    interpreter, source = installed
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        folder = copied(source, Path(place), ("6379", str(port)))
        return pytest_outcomes(interpreter, folder, *_OPTIONS, *arguments, PYTHONPATH=".")


def _channels(port: int) -> list[Outcome]:
    return _tests(_channels_installed(), port, "tests/test_pubsub.py")


def _aiocache(port: int) -> list[Outcome]:
    return _tests(_aiocache_installed(), port, "tests/acceptance", "-k", "redis or Redis")


PROGRAMS = (
    Program(
        "channels_redis",
        CHANNELS,
        "PyPI",
        "its tests of the channel layer of Django on channels (`RedisPubSubChannelLayer`)",
        _channels,
        left_out="its layer of lists and sorted sets",
        install=_channels_installed,
    ),
    Program(
        "aiocache",
        AIOCACHE,
        "PyPI",
        "its tests of caches, decorators, locks and serializers on redis",
        _aiocache,
        install=_aiocache_installed,
    ),
)
