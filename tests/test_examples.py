"""Each program of examples/ runs as a process of its own and prints what examples/README.md shows.

tests/spark/test_docs.py runs the one of Spark, in the session that its tests share;
tests/jobs/test_page.py the applications of FastAPI and Django.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import kvstream
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGE = (EXAMPLES / "README.md").read_text()
PRINTED = dict(
    re.findall(r"^## [^\n]*\((\w+)\.py\)$.*?^```text\n(.*?)^```$", PAGE, re.DOTALL | re.M)
)
NEEDS = {
    **dict.fromkeys(("job_queue", "approval_workflow", "crawler"), ("redis",)),
    "chat": ("fastapi", "httpx", "uvicorn"),
}
LINES = range(30, 101)


def test_the_page_lists_all_programs() -> None:
    files = {path.name for path in EXAMPLES.glob("*.py")}
    assert set(re.findall(r"\]\((\w+\.py)\)", PAGE)) == files
    assert len(PRINTED) == 10


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_a_program_is_short_and_says_how_it_is_run(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) in LINES
    assert re.match(r'"""[A-Z]', text)
    assert f"{path.name} " in text or f"{path.name}\n" in text or f"{path.stem}:" in text


@pytest.mark.parametrize("name", sorted(PRINTED.keys() - {"spark_stream"}))
def test_a_program_prints_what_the_page_shows(name: str, tmp_path: Path) -> None:
    if missing := [each for each in NEEDS.get(name, ()) if find_spec(each) is None]:
        pytest.skip(f"{name}.py needs {missing}")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DATA": str(tmp_path)},
    )
    assert (done.stdout, done.stderr, done.returncode) == (PRINTED[name], "", 0)
    stores = {path.parent for path in tmp_path.glob("**/CURRENT")}
    assert stores
    for store in stores:
        with kvstream.open(store) as opened:
            assert opened.check() == []
