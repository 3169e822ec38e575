"""A forked child cannot harm its parent's store, and ends without hanging."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvstream.storage.database import Database
from kvstream.types.options import Durability
from tests.opening import LEVELS
from tests.patience import PATIENCE_S
from tests.storage.stores import SMALL, keys

ROOT = Path(__file__).parents[2]

UNCLOSED = """
import sys
from pathlib import Path
from kvstream.types.options import Durability
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from tests.storage.stores import SMALL, put_one_by_one
database = Database.open(Path(sys.argv[1]), SMALL)
committer = Committer(database, Durability(sys.argv[2]))
committer.wait(put_one_by_one(database, range(10)))
committer.after(put_one_by_one(database, range(10, 20)), lambda: None)
"""


@pytest.mark.parametrize("level", LEVELS)
def test_a_forked_child_is_refused_and_its_parent_goes_on(
    directory: Path, level: Durability
) -> None:
    program = [sys.executable, "-W", "ignore", "-m", "tests.storage.forking"]
    child = subprocess.run(
        [*program, str(directory), level],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (child.returncode, child.stderr) == (0, "")
    database = Database.open(directory, SMALL)
    assert len(keys(database)) == 20
    database.close()


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_that_does_not_close_its_store_ends_normally(
    directory: Path, level: Durability
) -> None:
    child = subprocess.run(
        [sys.executable, "-c", UNCLOSED, str(directory), level],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (child.returncode, child.stderr) == (0, "")
    database = Database.open(directory, SMALL)
    assert len(keys(database)) == 20
    database.close()
