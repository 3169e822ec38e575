"""Task frameworks: their own tests, on kvstream's adapters and on their backends for Redis."""

import shutil
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.peers import PeerProcess
from tests.programs.environment import source_of
from tests.programs.outcomes import SCENARIOS, Known, Outcome, Program, copied, pytest_outcomes

ADAPTER, REDIS = "kvstream", "redis"


def _in_copy(
    framework: str, arguments: tuple[str, ...], files: dict[str, str], adapter: str, port: int
) -> list[Outcome]:
    """Run tests of a framework in a copy of its source, with files of ``scenarios/`` added."""
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        folder = copied(source_of(framework, version(framework)), Path(place))
        for name, path in files.items():
            shutil.copy(SCENARIOS / name, folder / path)
            if "/" in path:  # the tests beside it import relatively
                (folder / path).with_name("__init__.py").touch()
        options = ("-o", "addopts=", "-o", "python_classes=Test* test_*", "--timeout=60")
        environment = {"PYTHONPATH": ".", "ADAPTER": adapter, "REDIS_PORT": str(port)}
        interpreter = Path(sys.executable)
        return pytest_outcomes(interpreter, folder, *options, *arguments, **environment)


def _celery(scheme: str, port: int) -> list[Outcome]:
    """Run celery's tests; their tasks record what they do in lists of a redis-server."""
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        folder = copied(source_of("celery", version("celery")), Path(place))
        shutil.copy(SCENARIOS / "adapter_celery.py", folder)
        (folder / "integration-tests-config.json").write_text('{"worker_pool_putlocks": false}')
        notes = PeerProcess("redis-7.0", Path(place))
        try:
            return pytest_outcomes(
                Path(sys.executable),
                folder,
                *("-o", "addopts=", "-p", "adapter_celery", "-p", "celery.contrib.pytest"),
                *("--timeout=60", "--tb=line", "-k", "not trace_log and not complex_canvas"),
                *(f"t/integration/test_{each}.py" for each in _CELERY_TESTS),
                PYTHONPATH=".",
                TEST_BROKER=f"{scheme}://127.0.0.1:{port}/0",
                TEST_BACKEND=f"{scheme}://127.0.0.1:{port}/1",
                REDIS_PORT=str(notes.port),
            )
        finally:
            notes.stop()


def _framework(
    name: str,
    ran: str,
    *known: Known,
    arguments: tuple[str, ...],
    files: dict[str, str],
    left_out: str = "",
) -> Program:
    run = partial(_in_copy, name, arguments, files)
    return Program(
        name,
        version(name),
        "PyPI",
        f"its tests of {ran}, with kvstream's adapter, and on redis-server with its own",
        partial(run, ADAPTER),
        known,
        left_out,
        run_on_peer=partial(run, REDIS),
        install=partial(source_of, name, version(name)),
    )


_CELERY_TESTS = ("group_chains", "inspect", "tasks")
_HUEY_TESTS = ("api", "asyncio", "consumer", "helpers", "priority", "signals", "wrappers")
_DRAMATIQ_TESTS = (
    *("barrier", "bucket_rate_limiter", "composition", "concurrent_rate_limiter"),
    *("redis", "results", "window_rate_limiter"),
)
_DRAMATIQ_RULES = (
    "not (unacked or dead_letter or missing_actors or requeues or via or connection_error "
    "or missing_id or join_race)"
)

PROGRAMS = (
    _framework(
        "huey",
        "storages, tasks, chords, schedules, locks, rate limits, consumers and priorities",
        Known("bookkeeping_cleared", "it looks into huey's storage in memory"),
        files={"adapter_huey.py": "adapter_huey.py"},
        arguments=(
            *("-p", "adapter_huey", "adapter_huey.py"),
            *(f"huey/tests/test_{each}.py" for each in _HUEY_TESTS),
        ),
    ),
    _framework(
        "dramatiq",
        "its broker for Redis, results, rate limiters, barriers and compositions",
        left_out="tests that look into its broker for Redis",
        files={"adapter_dramatiq.py": "tests/conftest.py", "dramatiq_common.py": "tests/common.py"},
        arguments=("-k", _DRAMATIQ_RULES, *(f"tests/test_{each}.py" for each in _DRAMATIQ_TESTS)),
    ),
    _framework(
        "kombu",
        "transports: messages, exchanges, priorities, expiry, rejections, failover",
        Known("switches_to_alternate", "kombu keeps the URL of such a transport whole"),
        files={"adapter_kombu.py": "t/integration/test_adapter.py"},
        arguments=("t/integration/test_adapter.py",),
    ),
    _framework(
        "apscheduler",
        "job stores",
        Known("repr", "it has another name"),
        files={"adapter_apscheduler.py": "adapter_apscheduler.py"},
        arguments=("-p", "adapter_apscheduler", "-k", "redis", "tests/test_jobstores.py"),
    ),
    Program(
        "celery",
        version("celery"),
        "PyPI",
        "its tests of tasks, revoking, remote control and chains of groups with a real worker, "
        "with kvstream's adapter, and on redis-server with its own",
        partial(_celery, "kvstream+redis"),
        (Known("test_expired", "without worker_pool_putlocks prefetched tasks do not expire"),),
        left_out="tests of canvases, which take a quarter of an hour; of the log, which fail on "
        "redis-server too; one whose limit of 20 seconds is too short for results that are polled",
        run_on_peer=partial(_celery, "redis"),
        install=partial(source_of, "celery", version("celery")),
    ),
)
