"""Each side of the comparison of jobs runs every job, and leaves the process as it was."""

import signal
from pathlib import Path

import pytest

from bench.jobs import seconds_of, sides


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("name", sides())
def test_a_side_runs_every_job_and_keeps_the_handlers_of_signals(name: str, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert seconds_of(sides()[name], tmp_path / name, 10) > 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
