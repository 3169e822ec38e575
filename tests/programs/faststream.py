"""faststream: streams, channels and RPC of its Redis broker."""

from tests.programs.environment import CORE, core_python
from tests.programs.outcomes import Outcome, Program, python_scenario

VERSION = CORE["faststream"]


def _run(port: int) -> list[Outcome]:
    return python_scenario(core_python(), "check_faststream.py", port)


PROGRAMS = (
    Program(
        "faststream",
        VERSION,
        "PyPI",
        "programs of ours: channels and patterns, streams, batches, groups with "
        "acknowledgements and takeovers, RPC over channels and streams (its package has no tests)",
        _run,
        core=True,
        install=core_python,
    ),
)
