"""taskiq-redis: its brokers and results, and a real worker."""

from pathlib import Path

from tests.programs.environment import PYTEST, python_with
from tests.programs.outcomes import Outcome, Program, python_scenario

VERSION = "1.2.4"


def _python() -> Path:
    tools = ("redis==8.1.0", "taskiq==0.13.0", *PYTEST)
    return python_with("taskiq-redis", f"taskiq-redis=={VERSION}", *tools)


def _run(port: int) -> list[Outcome]:
    return python_scenario(_python(), "check_taskiq_redis.py", port, "taskiq_app.py")


PROGRAMS = (
    Program(
        "taskiq-redis",
        VERSION,
        "PyPI",
        "programs of ours: the brokers of streams and channels, results, progress, schedules; "
        "1,000 tasks of a stream with workers that are killed (its package has no tests)",
        _run,
        core=True,
        install=_python,
    ),
)
