"""The recipes of docs/library.md for text and tables, run as printed and in order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text()


def blocks(heading: str) -> list[str]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


SUMS = ["499500", "249750.0", "997", "999", "499.5"]


@pytest.mark.parametrize(
    ("heading", "count", "printed"),
    [
        ("Text instead of bytes", 1, ["a1 ['orders']"]),
        (
            "Tables: pandas, polars, DuckDB, Parquet",
            2,
            SUMS,
        ),
    ],
)
def test_the_recipes_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    heading: str,
    count: int,
    printed: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(heading)
    assert len(found) == count
    for block in found:
        exec(compile(block, "docs/library.md", "exec"), {})
    out = capsys.readouterr().out
    assert [each for each in printed if each not in out] == []
