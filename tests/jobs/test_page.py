"""The programs of docs/jobs.md and the examples run as printed."""

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "jobs.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PRINTED = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_the_twelve_lines_run_and_print_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(BLOCKS[0])
    command = [sys.executable, "-m", "kvstream", "work", "app:jobs", "--processes", "1"]
    worker = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        done = subprocess.run(
            [sys.executable, "app.py"], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert (done.stdout, done.stderr) == (PRINTED[0], "")
    finally:
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, errors


@pytest.mark.parametrize("block", BLOCKS[1:], ids=lambda block: block.split("\n")[0])
def test_every_other_block_runs(block: str) -> None:
    exec(compile(block, "docs/jobs.md", "exec"), {"__name__": "page"})


def test_a_request_of_fastapi_enqueues_a_job_and_another_shows_its_result() -> None:
    pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    found = runpy.run_path(str(ROOT / "examples" / "fastapi_app.py"))
    with testclient.TestClient(found["app"]) as client, found["jobs"].test():
        posted = client.post("/mails", params={"to": "ann", "text": "hello"})
        assert posted.status_code == 202
        shown = client.get(f"/mails/{posted.json()['id']}").json()
        assert shown == {"status": "done", "result": "sent 'hello' to ann", "error": None}
        missing = client.get("/mails/01a20ac5-550a-7441-8f92-4707e8e31be5")
        assert missing.status_code == 404
        assert client.get("/mails/nonsense").status_code == 422


def test_a_view_of_django_enqueues_a_job_once_the_database_has_committed(tmp_path: Path) -> None:
    pytest.importorskip("django")
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import django_app
from django.test import Client
with django_app.jobs.test() as testing:
    assert Client().get("/register/ann").json() == {"registered": "ann"}
    (job,) = testing.ran
    assert django_app.jobs.handle(job.id).result() == "welcome, ann"
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(ROOT / "examples")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
