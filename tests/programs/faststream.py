"""faststream: streams, channels and RPC of its Redis broker."""

from pathlib import Path

from tests.programs.environment import PYTEST, python_with
from tests.programs.outcomes import Outcome, Program, python_scenario

VERSION = "0.7.8"


def _python() -> Path:
    tools = (f"faststream[redis]=={VERSION}", "redis==8.1.0", *PYTEST)
    return python_with("faststream", *tools)


def _run(port: int) -> list[Outcome]:
    return python_scenario(_python(), "check_faststream.py", port)


PROGRAMS = (
    Program(
        "faststream",
        VERSION,
        "PyPI",
        "programs of ours: channels and patterns, streams, batches, groups with "
        "acknowledgements and takeovers, RPC over channels and streams (its package has no tests)",
        _run,
        core=True,
        install=_python,
    ),
)
