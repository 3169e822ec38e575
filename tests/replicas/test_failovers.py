"""Debian's redis-sentinel fails pairs over under load: nothing that was confirmed is lost.

KVSTREAM_CRASH_ROUNDS sets how often, for each fault and level.
"""

from pathlib import Path

import pytest

from tests.crash.rounds import rounds
from tests.replicas.failovers import Fault, run_rounds
from tests.replicas.load import Level
from tests.replicas.sentinels import sentinel_program

KINDS = (
    (Level.WAIT, Fault.KILL),
    (Level.ACKS, Fault.STOP),
    (Level.ACKS, Fault.CUT_ONE_WAY),
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("level", "fault"), KINDS)
def test_nothing_that_was_confirmed_is_lost(tmp_path: Path, level: Level, fault: Fault) -> None:
    sentinel_program()
    results = run_rounds("kvstream", level, fault, rounds(1), tmp_path, seed=1)
    print("\n".join(results.lines()))
    total = results.total
    assert results.found["adds"].confirmed > 0
    assert (total.lost, total.undone, total.invented) == (0, 0, [])
