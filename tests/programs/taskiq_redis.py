"""taskiq-redis: its brokers and results, and a real worker."""

from tests.programs.environment import CORE, core_python
from tests.programs.outcomes import Outcome, Program, python_scenario

VERSION = CORE["taskiq-redis"]


def _run(port: int) -> list[Outcome]:
    return python_scenario(core_python(), "check_taskiq_redis.py", port, "taskiq_app.py")


PROGRAMS = (
    Program(
        "taskiq-redis",
        VERSION,
        "PyPI",
        "programs of ours: the brokers of streams and channels, results, progress, schedules; "
        "1,000 tasks of a stream with workers that are killed (its package has no tests)",
        _run,
        core=True,
        install=core_python,
    ),
)
