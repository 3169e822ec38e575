"""How tests are dealt out to the processes of a run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENDS = """
import os

def test_before(): pass
def test_ends(): os._exit(1)
def test_after(): pass
"""
CONFTEST = """
from tests.dealing import scheduling

def pytest_xdist_make_scheduler(config, log):
    return scheduling(config, log)
"""


def test_a_test_that_ends_its_process_is_run_once(tmp_path: Path) -> None:
    """xdist runs it again in each new process, so a test that hangs would take hours."""
    pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_ends.py").write_text(ENDS)
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    run = [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=loadgroup", "-pno:cacheprovider"]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    for name in [name for name in environ if name.startswith("PYTEST_")]:
        del environ[name]
    done = subprocess.run([*run, "."], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
