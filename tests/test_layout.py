"""The tree has the shape that the packaging and the house rules require."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import kvstream.cli
import kvstream.meta
from kvstream.errors import DISTRIBUTION

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS = ("kvstream", "meta", "cli", "demo", "bench")
FILE_LINES_MAX = 800
FOLDER_MODULES_MAX = 25
FUNCTION_LINES_MAX = 70


def packages(folder: Path, name: str) -> set[str]:
    """Yield every package under ``folder``, which is itself the package ``name``."""
    return {
        ".".join([name, *init.parent.relative_to(folder).parts])
        for init in folder.rglob("__init__.py")
    }


def sources() -> Iterator[Path]:
    for folder in SOURCE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.resolve() == path:  # not again through the links kvstream/meta and /cli
                yield path


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of each module, which several tests walk."""
    return {path: ast.parse(path.read_text()) for path in sources()}


def setuptools_table() -> dict[str, object]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table: dict[str, object] = project["tool"]["setuptools"]
    return table


def install_commands() -> Iterator[tuple[Path, str]]:
    """Yield what the code, the docs and the build would have pip install as kvstream."""
    files = (ROOT / name for name in ("README.md", "CHANGELOG.md", "design.md", "pyproject.toml"))
    for path in (*files, *sources(), *(ROOT / "docs").rglob("*")):
        if path.is_file() and path.suffix != ".png":
            for words in re.findall(r"pip install ([^`\n]*)", path.read_text()):
                yield from ((path, word) for word in re.findall(r"kvstream[\w.-]*", words))
            yield from (
                (path, name) for name in re.findall(r"(kvstream[\w-]*)\[[a-z]", path.read_text())
            )


def test_the_package_of_another_project_is_never_installed() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert table["project"]["name"] == DISTRIBUTION
    found = list(install_commands())
    assert len(found) > 10
    assert [(path, name) for path, name in found if name != DISTRIBUTION] == []


@pytest.mark.parametrize(("package", "folder"), [(kvstream.meta, "meta"), (kvstream.cli, "cli")])
def test_the_top_level_folder_is_the_installed_package(package: ModuleType, folder: str) -> None:
    assert package.__file__ is not None
    assert Path(package.__file__).resolve() == ROOT / folder / "__init__.py"


@pytest.mark.parametrize("folder", ["meta", "cli"])
def test_the_link_inside_the_package_leads_to_the_folder(folder: str) -> None:
    link = ROOT / "kvstream" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder


def test_meta_and_cli_are_never_imported_under_their_generic_names() -> None:
    script = "import sys, kvstream.cli, kvstream.meta; print({'meta', 'cli'} & sys.modules.keys())"
    run = [sys.executable, "-P", "-c", script]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == "set()"


def test_every_package_is_listed_for_the_wheel() -> None:
    listed = setuptools_table()["packages"]
    assert isinstance(listed, list)
    assert set(listed) == (
        packages(ROOT / "kvstream", "kvstream")
        | packages(ROOT / "meta", "kvstream.meta")
        | packages(ROOT / "cli", "kvstream.cli")
    )


def test_every_file_beside_modules_is_named_for_the_wheel() -> None:
    named = setuptools_table()["package-data"]
    assert isinstance(named, dict)
    folders = ("kvstream", "meta", "cli")
    wanted = {
        path
        for package, patterns in named.items()
        for pattern in patterns
        for glob in (
            [f"{folder}/**/{pattern}" for folder in folders]
            if package == "*"
            else [f"{package.replace('.', '/')}/{pattern}"]
        )
        for path in ROOT.glob(glob)
    }
    built = {".c", ".so", ".pyd", ".pyc", ".pyi"}  # setuptools packs stubs automatically
    found = {
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in {".py", *built}
    }
    assert found == wanted


def test_design_shows_the_floors_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    section = (ROOT / "design.md").read_text().partition("## 2. The floors")[2]
    shown = [line.split()[0] for line in section.split("```")[1].strip().splitlines()]
    assert shown == [name for layer in layers for name in layer.split(" | ")]


def test_no_folder_has_too_many_modules() -> None:
    counts = Counter(path.parent for path in sources() if path.name != "__init__.py")
    assert [str(folder) for folder, count in counts.items() if count > FOLDER_MODULES_MAX] == []


def test_the_tests_that_ci_names_exist() -> None:
    named = re.findall(r"\btests/[\w/]+(?:\.py)?\b(?!\w*\*)", (ROOT / ".ci" / "run").read_text())
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in sources()}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_no_file_and_no_function_exceeds_its_limit() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in sources()}
    assert [path for path, count in lines.items() if count > FILE_LINES_MAX] == []
    functions = [
        (path, node.name, (node.end_lineno or 0) - node.lineno + 1)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [each for each in functions if each[2] > FUNCTION_LINES_MAX] == []


def test_a_file_among_the_arguments_takes_no_fixtures_from_the_other_tests() -> None:
    wanted = (
        "tests/server/metrics",
        "tests/test_forking.py",
        "tests/server/runtime/test_incremental_commands.py",
    )
    plan = [sys.executable, "-m", "pytest", "-q", "--setup-plan", "-k", "claim or fork", *wanted]
    run = subprocess.run(plan, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_plugins_that_other_packages_bring_are_not_loaded(tmp_path: Path) -> None:
    """pytest-asyncio warns when it is configured: with warnings as errors pytest would end."""
    (tmp_path / "brought.py").write_text("raise SystemExit('loaded')\n")
    (tmp_path / "brought-1.0.dist-info").mkdir()
    entry_points = tmp_path / "brought-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[pytest11]\nasyncio = brought\ntrio = brought\nvalkey = brought\n")
    path = os.pathsep.join((str(tmp_path), *sys.path))
    run = [sys.executable, "-m", "pytest", "--markers"]
    done = subprocess.run(
        run, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True
    )
    assert done.returncode == 0, done.stderr


PARTS: dict[str, Iterable[str]] = {
    "catalog": {
        "expired",
        "expired_unasked",
        "libraries",
        "disk_full",
        "repeats_write",
        "uncounted",
        "wanted_events",
    },
    "dispatcher": {"ended", "over_maxmemory", "paused", "refuses_writes", "unavailable"},
    "expiry": {"active", "follows", "paused"},
    "timers": {"follows", "paused"},
    "database": {"is_followed"},
    "busy": {"has_written", "request"},
    "scripts": {"load_until"},
    **dict.fromkeys(("engine", "committer", "index", "waiters", "executor"), ()),
    **dict.fromkeys(("listener", "reply_queue", "streaming", "trackers", "pubsub"), ()),
    **dict.fromkeys(("notifications", "functions", "incremental"), ()),
}
"""The names by which code has the parts of an engine and of a server, and their counters and states
that others set."""


def test_parts_are_given_what_they_call_when_they_are_made() -> None:
    """Nobody sets a function or another part on a part of an engine or a server afterwards."""
    found = {
        (owner.lstrip("_"), target.attr)
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
        for owner in [str(getattr(target.value, "attr", getattr(target.value, "id", "")))]
        if owner.lstrip("_") in PARTS
    }
    assert found == {(part, state) for part, states in PARTS.items() for state in states}
