"""Fixtures of the crash tests."""

from pathlib import Path

import pytest

from tests.faultshim.fixtures import fault_library, faulty_disk
from tests.folders import on_disk

__all__ = ["fault_library", "faulty_disk", "on_disk"]


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """A folder for each test, on a disk."""
    return on_disk
