"""A reader who follows a guide or a tutorial gets what the page shows, and no error."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.forking import run
from tests.guides.reader import ROOT, blocks, commands, same
from tests.patience import PATIENCE_S

NOT_RUN = frozenset({"first-pipeline", "spark-lakes"})
"""Pages with Spark: tests/spark runs them in its session."""
PAGES = [
    page
    for page in (
        *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
        *sorted((ROOT / "docs" / "guides").glob("*.md")),
        *(ROOT / "docs" / name for name in ("adapters.md", "pubsub.md", "scripting.md")),
    )
    if page.stem not in NOT_RUN
    and any(language in ("python", "console") for language, _, _ in blocks(page))
]


def test_an_output_is_compared_but_for_what_differs_from_run_to_run() -> None:
    assert same("1700000000000-0 {b'a': b'1'}", "1795425309060-3 {b'a': b'1'}\n")
    assert same("Error: ... is missing", "Error: the store is missing\n")
    assert not same("1 entry", "2 entries")
    assert not same("one", "one two")
    assert list(commands("$ a \\\n  b  # why\nshown\n$ c &\n")) == [
        ("a    b", "shown\n"),
        ("c &", ""),
    ]


Readers = dict[Path, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Readers:
    """Each page, followed by a process of its own: they wait a lot, so two at a time."""

    def follow(page: Path) -> "subprocess.CompletedProcess[str]":
        folder = tmp_path_factory.mktemp(page.stem) / "reader"
        folder.mkdir()
        return run(
            [sys.executable, "-m", "tests.guides.reader", str(page)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            timeout=5 * PATIENCE_S,
        )

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PAGES, pool.map(follow, PAGES), strict=True))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_of_the_page_gets_no_error(readers: Readers, page: Path) -> None:
    done = readers[page]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
