"""The programs of docs/recipes.md run as printed, each in a folder of its own."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
RECIPES = {
    title: re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for title, text in re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE)
}


def test_each_recipe_has_a_program_that_asserts_something() -> None:
    assert len(RECIPES) >= 9
    assert all(blocks for blocks in RECIPES.values())
    for block in (block for blocks in RECIPES.values() for block in blocks):
        assert "with jobs.test() as testing" in block
        assert "assert" in block


@pytest.mark.parametrize("title", RECIPES)
def test_every_recipe_runs(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in RECIPES[title]:
        exec(compile(block, "docs/recipes.md", "exec"), {"__name__": "page"})
