"""The fixture that gives a test a disk that fails on command."""

import os
from pathlib import Path

import pytest

from tests.faultshim.disk import FaultyDisk, build, compiler


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the shim once; skip, visibly, where there is no C compiler to do it."""
    if compiler() is None and not os.environ.get("KVSTREAM_REQUIRE_ALL"):
        pytest.skip(
            "needs a C compiler (cc) to build the fault shim: apt-get install gcc libc6-dev"
        )
    return build(tmp_path_factory.mktemp("faultshim"))


@pytest.fixture
def faulty_disk(fault_library: Path, tmp_path: Path) -> FaultyDisk:
    """An empty directory whose calls can be made to fail."""
    notes = tmp_path / "notes"
    notes.mkdir()
    return FaultyDisk(fault_library, tmp_path / "disk", notes)
