"""django-redis: its own tests of the cache, locks and sessions."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs.environment import PYTEST, python_with, source_of
from tests.programs.outcomes import Outcome, Program, copied, pytest_outcomes

VERSION = "7.0.0"
_TOOLS = (
    "msgpack==1.1.2",
    "django==5.2.9",
    "pytest-mock==3.17.0",
    "pytest-xdist==3.8.0",
    "redis==8.1.0",
)
# A process has one setting: Django reads it once.
_SETTINGS = ("", "_herd", "_json", "_sharding")


def _installed() -> tuple[Path, Path]:
    """Return its interpreter, and its source with the tests."""
    return python_with("django-redis", f"django-redis=={VERSION}", *PYTEST, *_TOOLS), source_of(
        "django-redis", VERSION
    )


def _run(port: int) -> list[Outcome]:
    interpreter, source = _installed()
    found = []
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        folder = copied(
            source,
            Path(place),
            ("127.0.0.1:6379", f"127.0.0.1:{port}"),
            ("settings = [\n", 'settings = [environ["CACHE_SETTINGS"]] or [\n'),
        )
        for each in _SETTINGS:
            options = ("-o", "addopts=", "-n0", "-k", "cache or session", "tests")
            found += pytest_outcomes(interpreter, folder, *options, CACHE_SETTINGS=f"sqlite{each}")
    return found


PROGRAMS = (
    Program(
        "django-redis",
        VERSION,
        "PyPI",
        "its tests of the cache with locks, TTLs and patterns, and of sessions, "
        "plain, against thundering herds, with JSON, and sharded",
        _run,
        left_out="other serializers and compressors; caches behind Sentinel or a socket file",
        install=_installed,
    ),
)
