"""redis-py: its own tests of locks, channels, scripts, functions, notifications, pipelines."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs.environment import CORE, PYTEST, core_python, python_with, source_of
from tests.programs.outcomes import Outcome, Program, copied, pytest_outcomes

VERSION = CORE["redis"]
_LOCKS = ("lock", "scripting", "function", "asyncio/test_lock", "asyncio/test_scripting")
_CHANNELS = tuple(
    f"{folder}{name}"
    for folder in ("", "asyncio/test_")
    for name in ("pubsub", "keyspace_notifications", "pipeline")
)
_SINGLE = (
    "-m",
    "not onlycluster",
    "--deselect",
    "tests/test_keyspace_notifications.py::TestClusterKeyspaceNotifications",
)
_TOOLS = (
    "aiohttp==3.14.5",
    "cryptography==50.0.2",
    "numpy==2.4.6",
    "opentelemetry-exporter-otlp-proto-http==1.45.2",
    "opentelemetry-sdk==1.45.2",
    "pybreaker==1.4.1",
    "redis-entraid==1.2.2",
    "xxhash==4.1.0",
)


def _core_installed() -> tuple[Path, Path]:
    """Return an interpreter and the source, for the tests that need no further tools."""
    return core_python(), source_of("redis", VERSION)


def _installed() -> tuple[Path, Path]:
    """Return its interpreter, and its source with the tests."""
    return python_with("redis-py", f"redis=={VERSION}", *PYTEST, *_TOOLS), source_of(
        "redis", VERSION
    )


def _run(port: int, installed: tuple[Path, Path], *arguments: str) -> list[Outcome]:
    interpreter, source = installed
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        folder = copied(source, Path(place))
        url = f"redis://127.0.0.1:{port}/0"
        return pytest_outcomes(interpreter, folder, "--redis-url", url, *_SINGLE, *arguments)


def _files(names: tuple[str, ...]) -> list[str]:
    return [f"tests/test_{name}.py" for name in names]


def _locks(port: int) -> list[Outcome]:
    return _run(port, _core_installed(), *_files(_LOCKS))


def _channels(port: int) -> list[Outcome]:
    return _run(port, _installed(), *_files(_CHANNELS))


def _streams(port: int) -> list[Outcome]:
    files = ("tests/test_commands.py", "tests/test_asyncio/test_commands.py")
    return _run(port, _installed(), *files, "-k", "test_x")


PROGRAMS = (
    Program(
        "redis-py",
        VERSION,
        "PyPI",
        "its tests of locks, scripts and functions, blocking and asyncio",
        _locks,
        left_out="clusters",
        install=_core_installed,
        core=True,
    ),
    Program(
        "redis-py",
        VERSION,
        "PyPI",
        "its tests of channels, keyspace notifications and pipelines, blocking and asyncio",
        _channels,
        left_out="clusters",
        install=_installed,
    ),
    Program(
        "redis-py",
        VERSION,
        "PyPI",
        "its tests of the commands of streams, blocking and asyncio",
        _streams,
        install=_installed,
    ),
)
