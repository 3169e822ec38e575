"""walrus: its own tests of streams, locks, caches, rate limits and transactions."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs.environment import PYTEST, python_with, source_of
from tests.programs.outcomes import Known, Outcome, Program, copied, pytest_outcomes

VERSION = "0.9.8"
_FILES = ("streams", "lock", "cache", "rate_limit", "counter", "database", "containers")


def _installed() -> tuple[Path, Path]:
    """Return its interpreter, and its source with the tests."""
    return python_with("walrus", f"walrus=={VERSION}", "redis==7.4.1", *PYTEST), source_of(
        "walrus", VERSION
    )


def _run(port: int) -> list[Outcome]:
    interpreter, source = _installed()
    files = [f"walrus/tests/{each}.py" for each in _FILES]
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        folder = copied(source, Path(place))
        options = ("--timeout=60", "--import-mode=importlib", *files)
        return pytest_outcomes(interpreter, folder, *options, WALRUS_REDIS_PORT=str(port))


PROGRAMS = (
    Program(
        "walrus",
        VERSION,
        "PyPI",
        "its tests of streams and time series, locks, caches, rate limits, counters, containers "
        "and transactions",
        _run,
        (
            Known("lock|Lock|RateLimit", "lists, in its scripts", "Unknown Redis command"),
            Known("TestArray", "hashes, in its scripts", "Unknown Redis command"),
        ),
        install=_installed,
    ),
)
