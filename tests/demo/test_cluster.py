"""`make cluster-demo` fails a pair over, and says what is missing where it cannot."""

import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from demo.cluster import main


@pytest.mark.timeout(900)
def test_the_demo_kills_the_primary_and_loses_nothing() -> None:
    if shutil.which("redis-sentinel") is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL"):
            pytest.fail("redis-sentinel is not installed")
        pytest.skip("redis-sentinel is not installed: apt-get install redis-sentinel")
    shown = CliRunner().invoke(main)
    assert shown.exit_code == 0, shown.output
    assert "is killed with -9" in shown.output
    assert re.search(r"[1-9][0-9,]* writes were acknowledged", shown.output)
    assert "nothing is lost, and nothing is there twice" in shown.output


def test_without_sentinel_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = CliRunner().invoke(main)
    assert shown.exit_code == 1
    assert "apt-get install redis-sentinel" in shown.output
