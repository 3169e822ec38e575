"""limits: its own tests of rate limits on the storage of redis."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs.environment import PYTEST, python_with, source_of
from tests.programs.outcomes import Known, Outcome, Program, copied, pytest_outcomes

VERSION = "5.8.0"
_TOOLS = (
    "coredis==5.7.0",
    "pymemcache==4.0.0",
    "pymongo==4.20.0",
    "pytest-lazy-fixtures==1.4.1",
    "redis==7.4.1",
    "pytest-benchmark==5.2.3",
    "valkey==6.2.0",
)
_IN_PLACE_OF_DOCKER = """
import pytest

class Services:
    def start(self, name): pass
    def wait_for_service(self, *arguments, **options): pass

@pytest.fixture(scope="session")
def docker_services():
    return Services()
"""


def _installed() -> tuple[Path, Path]:
    """Return its interpreter, and its source with the tests."""
    return python_with("limits", f"limits=={VERSION}", *PYTEST, *_TOOLS), source_of(
        "limits", VERSION
    )


def _run(port: int) -> list[Outcome]:
    interpreter, source = _installed()
    found = []
    for implementation in ("redispy", "coredis"):
        with TemporaryDirectory(prefix="kvstream-program-") as place:
            folder = copied(source, Path(place), ("7379", str(port)))
            (folder / "in_place_of_docker.py").write_text(_IN_PLACE_OF_DOCKER)
            options = ["-p", "in_place_of_docker", "-o", "addopts=", "--timeout=120"]
            options += ["-m", "redis and not benchmark", "-k", "not uds"]
            tests = ["tests"] if implementation == "redispy" else ["tests/aio"]
            outcomes = pytest_outcomes(
                interpreter,
                folder,
                *options,
                *tests,
                PYTHONPATH=".",
                ASYNC_REDIS_IMPLEMENTATION=implementation,
            )
            found += outcomes
    return found


PROGRAMS = (
    Program(
        "limits",
        VERSION,
        "PyPI",
        "its tests of fixed, moving and sliding windows on the storage of redis, with redis-py "
        "and coredis",
        _run,
        (Known("moving_window|acquire_entry", "lists, in its scripts", "Unknown Redis command"),),
        install=_installed,
    ),
)
