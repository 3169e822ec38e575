"""mypy and pyright accept a typical program, and find the planted mistakes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from kvstream.engine.coerce import PlaceSettings, StoreSettings
from kvstream.types.options import StoreOptions

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
PROGRAM = FOLDER / "typed_program.py"

NOT_INSTALLED = (
    *("numpy", "opentelemetry", "pandas", "polars", "pyarrow"),  # of extras of kvstream
    *("click", "hypothesis", "pydantic", "pygments", "redis", "rich"),  # not in its annotations
)
"""Packages whose types mypy does not read, as where they are missing: two thirds of its time."""

MISTAKES = """
import kvstream
from kvstream import Consumer, Entry, Group, Jobs, Queue, Store, Stream, StreamID


async def asynchronous() -> None:
    async with kvstream.aio.open("data") as store:
        store.stream("jobs").range()[0]  # wrong: not awaited
        print((await store.stream("jobs").range())[0].fields["sku"])  # wrong: fields are bytes


def mistakes(store: Store, texts: Store[str], jobs: Stream, group: Group, worker: Consumer) -> None:
    jobs.add({"sku": None})  # wrong: None cannot be stored
    jobs.add({"tags": ["a", "b"]})  # wrong: a list cannot be stored
    print(jobs.range()[0].fields["sku"])  # wrong: fields are bytes
    print(texts.stream("jobs").range()[0].fields[b"sku"])  # wrong: fields are text
    print(worker.history()[0].fields[b"sku"])  # wrong: None if the entry is deleted
    print(jobs.get("1-0").fields)  # wrong: None if there is no such entry
    worker.nack("1-0", mode="fail")  # wrong: FAIL
    kvstream.open("data", durability="sync")  # wrong: always, everysec or no
    kvstream.open("data", durabilty="always")  # wrong: durability
    ticket: StreamID = jobs.add({"sku": "a"}, delay=5)  # wrong: perhaps a Ticket
    queue = Queue(store, "q", backoff="1,10")  # wrong: seconds, a list or Backoff
    queue.put({"sku": "a"}, unique="a", on_conflict="drop")  # wrong: skip, replace, ...
    print(queue.get()[0].fields["sku"], ticket)  # wrong: fields are bytes
    length: str = Jobs("data").task(len).enqueue("a").result()  # wrong: an int
    print(length)
    jobs_of_users()
    shown: list[Entry] = texts.stream("jobs").range()  # wrong: of text
    print(shown)


def jobs_of_users() -> None:
    jobs = Jobs("data")

    @jobs.task(retries=3)
    def send(to: str, *, copy: bool = False) -> int:
        return len(to) + copy

    @jobs.task
    async def fetch(url: str) -> bytes:
        return url.encode()

    send.enqueue(7)  # wrong: a str
    send.enqueue()  # wrong: to is missing
    send.enqueue("a", "b")  # wrong: one argument
    send.enqueue("a", copy="b")  # wrong: a bool
    send.enqueue("a", delya=60)  # wrong: delay, and by with_options
    send.with_options(dealy=60).enqueue("a")  # wrong: delay
    send.with_options(on_conflict="drop").enqueue("a")  # wrong: skip, replace, ...
    send.with_options(delay=60).enqueue(b"a")  # wrong: a str
    fetch.enqueue(1)  # wrong: a str
    fetch.with_options(key="k").enqueue()  # wrong: url is missing
    send.delay("a")  # wrong: enqueue
    page: str = fetch.enqueue("a").result()  # wrong: bytes
    print(page)
"""


def run_checker(folder: Path, *words: str) -> str:
    """Run a type checker as the user of an installed kvstream, and return what it prints."""
    run = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stderr + run.stdout
    return run.stdout


def mypy(folder: Path) -> dict[str, set[int]]:
    """Return the lines with errors by file."""
    # As of any installed package mypy reads no bodies of functions, which takes half of the time.
    (folder / "mypy.ini").write_text(
        "[mypy]\n[mypy-kvstream.*]\nignore_errors = True\n"
        f"[mypy-{','.join(f'{name}.*' for name in NOT_INSTALLED)}]\n"
        "follow_imports = skip\nfollow_imports_for_stubs = True\n"
    )
    out = run_checker(folder, "mypy", "--strict", "--cache-dir", os.devnull, ".")
    assert "Found" in out or "Success" in out, out
    return _by_file(re.findall(r"^(\w+\.py):(\d+): error: ", out, re.MULTILINE))


def pyright(folder: Path) -> dict[str, set[int]]:
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = ("pyright", "--outputjson", "--pythonpath", sys.executable)
    found = json.loads(run_checker(folder, *words))["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    return _by_file(
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors
    )


def _by_file(places: object) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for name, line in places:  # type: ignore[attr-defined]
        found.setdefault(name, set()).add(int(line))
    return found


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_program_has_no_error_and_each_mistake_is_found(
    tmp_path: Path, checker: Callable[[Path], dict[str, set[int]]]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.read_text())
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    lines = enumerate(MISTAKES.splitlines(), 1)
    wrong = {number for number, line in lines if "# wrong: " in line}
    assert len(wrong) == 29
    assert checker(tmp_path) == {"mistakes.py": wrong}


def test_type_checkers_know_every_option_of_a_store() -> None:
    known = {each.name for each in fields(StoreOptions)} | {"clock", "db"}
    assert set(StoreSettings.__annotations__) == known
    assert set(PlaceSettings.__annotations__) == known | {"shared", "wait_s", "replicas"}
    options, settings = get_type_hints(StoreOptions), get_type_hints(StoreSettings)
    assert all(settings[name] == kind for name, kind in options.items() if name != "durability")
