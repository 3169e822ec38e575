"""The programs of docs/workflows.md run as printed."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_has_its_programs() -> None:
    assert len(BLOCKS) >= 5
    assert all("with jobs.test()" in block for block in BLOCKS)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_program_of_the_page_runs(number: int) -> None:
    exec(compile(BLOCKS[number], "docs/workflows.md", "exec"), {"__name__": "page"})
