"""Each side of the comparison of workflows runs every workflow, with the same results."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.workflows import RIVALS, seconds_of


@pytest.mark.parametrize("name", ["chains", "workflows", "plain"])
def test_kvstream_runs_every_workflow(name: str, tmp_path: Path) -> None:
    assert seconds_of("kvstream", tmp_path / name, name, 10) > 0


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("name", [name for name in RIVALS if find_spec(name) is not None])
def test_a_rival_runs_every_workflow(name: str, tmp_path: Path) -> None:
    assert seconds_of(name, tmp_path / name, "chains", 10) > 0
