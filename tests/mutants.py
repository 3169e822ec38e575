"""Plant mistakes and see which of them the tests find: ``make mutants``.

A mutant is a copy of the tree with one mistake in a function of ``SCOPE``: a comparison changed, a
statement dropped, a number off by one. The test files that are nearest to its module run, until a
test fails. The results are a JSON file. ``--again FILE`` runs the mutants of such a file on another
tree: they are found by function and source text, wherever these have moved.
"""

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
SCOPE = ("kvstream/operations", "meta", "kvstream/server/runtime")
FOLDERS = ("operations", "meta", "commands", "engine", "library", "queues", "server")
"""The folders below ``tests`` whose tests run in one process."""
NEAREST = 8
"""How many files of FOLDERS run first for a mutant."""
GENERAL = (
    *("operations/test_*.py", "operations/checks/test_random_walk.py", "commands/test_*.py"),
    *("library/test_groups.py", "library/test_consumers.py", "library/test_streams.py"),
    *(
        "server/runtime/test_pipelines.py",
        "server/runtime/test_executor.py",
        "queues/test_queue.py",
    ),
)
"""Files below ``tests`` that run much of all modules: they come after the nearest ones."""
SECONDS_MAX = 600
"""Tests of a mutant that take longer have found it: it loops."""
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
DROPPED = (ast.AugAssign, ast.Delete, ast.Raise)


@dataclass(slots=True)
class Mutant:
    """A mistake, the text that it replaces, and what became of it."""

    file: str
    function: str
    kind: str
    line: str
    """The source of its first line, by which it is found again."""
    text: str
    planted: str
    occurrence: int
    """How many mutants of equal function, line and text come before."""
    outcome: str = ""
    """killed, survived, or gone: its source is not in the tree any more."""
    test: str = ""
    """The test that found it."""
    seconds: float = 0.0

    @property
    def name(self) -> tuple[Any, ...]:
        return self.line, self.text, self.planted


@dataclass(frozen=True, slots=True)
class Place:
    """Where a mutant is planted: the bytes of a file from ``start`` to ``end``."""

    mutant: Mutant
    start: int
    end: int


# --- mutants ------------------------------------------------------------------------------------


def _planted(node: ast.AST) -> tuple[str, str] | None:
    """Return the kind of mistake and the text that replaces a node, if it can have one."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in OPPOSITES:
            changed = ast.Compare(left, [OPPOSITES[type(op)]()], [right])
            return "comparison", f"({ast.unparse(changed)})"
        case ast.Constant(int() as number) if not isinstance(number, bool):
            return "off by one", str(number + 1)
        case ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
            return "dropped", "pass"
        case _ if isinstance(node, DROPPED):
            return "dropped", "pass"
    return None


def _nodes(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes in functions, with the names of these; f-strings have no exact places."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                name = f"{function}.{child.name}".lstrip(".")
                body = ast.Module(child.body, [])
                if isinstance(child, ast.ClassDef):
                    methods = [each for each in child.body if hasattr(each, "args")]
                    body = ast.Module(list(methods), [])
                yield from _nodes(body, name)
            case ast.JoinedStr():
                pass
            case _:
                if function:
                    yield function, child
                yield from _nodes(child, function)


def places(tree: Path) -> Iterator[Place]:
    """Yield all mutants of a tree."""
    for path in sorted(each for folder in SCOPE for each in (tree / folder).rglob("*.py")):
        source = path.read_bytes()
        lines = source.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        seen: Counter[tuple[Any, ...]] = Counter()
        for function, node in _nodes(ast.parse(source)):
            planted = _planted(node)
            if planted is None:
                continue
            at: Any = node
            start = starts[at.lineno - 1] + at.col_offset
            end = starts[at.end_lineno - 1] + at.end_col_offset
            line, text = lines[at.lineno - 1].decode().strip(), source[start:end].decode()
            key = (function, line, text)
            file = path.relative_to(tree).as_posix()
            mutant = Mutant(file, function, planted[0], line, text, planted[1], seen[key])
            seen[key] += 1
            yield Place(mutant, start, end)


def find(mutant: Mutant, at: dict[tuple[Any, ...], list[Place]]) -> Place | None:
    """Return where a mutant of another tree is in this one; None if its source is gone."""

    def likeness(place: Place) -> tuple[bool, bool, bool]:
        other = place.mutant
        last = other.function.rpartition(".")[2] == mutant.function.rpartition(".")[2]
        return last, other.file == mutant.file, other.occurrence == mutant.occurrence

    found = at.get(mutant.name, [])
    return max(found, key=likeness) if found else None


# --- tests --------------------------------------------------------------------------------------


def stages(tree: Path, mutant: Mutant) -> Iterator[list[str]]:
    """Yield what runs until a test fails: the test of the last run, nearest files, general ones."""
    path, _, name = mutant.test.partition("::")
    if name and (tree / path).is_file() and f"def {name}(" in (tree / path).read_text():
        yield [mutant.test]
    scores = {
        file.relative_to(tree).as_posix(): _nearness(file, mutant)
        for folder in FOLDERS
        for file in (tree / "tests" / folder).rglob("test_*.py")
    }
    yield sorted(filter(scores.get, scores), key=lambda file: (-scores[file], file))[:NEAREST]
    general = (file for each in GENERAL for file in tree.glob(f"tests/{each}"))
    yield [file.relative_to(tree).as_posix() for file in general]


def _nearness(file: Path, mutant: Mutant) -> int:
    """Return how much a test file has to do with the module and the function of a mutant."""
    path, text = Path(mutant.file), file.read_text()
    stem = path.stem if path.stem != "__init__" else path.parent.name
    package = ".".join(("kvstream", *path.parent.parts)).replace("kvstream.kvstream", "kvstream")
    imports = rf"from {package}\.{stem} |from {package} import .*\b{stem}\b"
    name = mutant.function.rpartition(".")[2].strip("_")
    return (
        8 * (file.stem == f"test_{stem}")
        + 4 * (stem in file.stem)
        + 4 * bool(re.search(imports, text))
        + 2 * (len(name) > 4 and name in text)
        + 2 * any(len(word) > 3 and word in file.stem for word in stem.split("_"))
        + 2 * (stem.rstrip("s") in file.stem)
        + (path.parent.name == file.parent.name)
    )


def run(tree: Path, place: Place) -> None:
    """Plant a mutant, run tests until one fails, and note the outcome."""
    mutant = place.mutant
    path = tree / mutant.file
    before, times = path.read_bytes(), path.stat()
    path.write_bytes(before[: place.start] + mutant.planted.encode() + before[place.end :])
    begun = time.monotonic()
    try:
        failed = next(filter(None, (_failed(tree, tests) for tests in stages(tree, mutant))), "")
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    mutant.outcome, mutant.test = "killed" if failed else "survived", failed
    mutant.seconds = round(time.monotonic() - begun, 1)


def _failed(tree: Path, tests: list[str]) -> str:
    """Run tests; return the first one that fails, or what else went wrong."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--tb=no"]
    quick = {"PYTHONDONTWRITEBYTECODE": "1", "KVSTREAM_EXAMPLES": "20"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), **quick},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        return "too slow"
    failed = re.search(r"^(?:FAILED|ERROR) ([^\[\s]+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "an import fails" if done.returncode else ""


def choose(tree: Path, count: int, seed: int) -> list[Place]:
    """Return as many mutants of each kind and folder, at random."""
    groups: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for place in places(tree):
        scope = next(each for each in SCOPE if place.mutant.file.startswith(each))
        groups[place.mutant.kind, scope].append(place)
    random.seed(seed)
    for group in groups.values():
        random.shuffle(group)
    rounds = zip(*(groups[key] for key in sorted(groups)), strict=False)
    return list(islice(chain.from_iterable(rounds), count))


@click.command()
@click.option("--count", default=60, help="How many mutants.")
@click.option("--seed", default=1, help="Another number chooses other mutants.")
@click.option("--again", type=click.Path(path_type=Path), help="Run those of this file.")
@click.option("--tree", default=ROOT, type=click.Path(path_type=Path), help="The tree to copy.")
@click.argument("results", type=click.Path(path_type=Path))
def main(count: int, seed: int, again: Path | None, tree: Path, results: Path) -> None:
    """Plant mutants one by one, and write into the file RESULTS which of them the tests kill."""
    with tempfile.TemporaryDirectory(prefix="kvstream-mutants-") as folder:
        copy = Path(folder) / "tree"
        unwanted = shutil.ignore_patterns(".git", ".venv", "*_cache", "bench-data-*")
        shutil.copytree(tree, copy, symlinks=True, ignore=unwanted)
        wanted: list[tuple[Place | None, Mutant]]
        if again is None:
            wanted = [(place, place.mutant) for place in choose(copy, count, seed)]
        else:
            at: dict[tuple[Any, ...], list[Place]] = defaultdict(list)
            for place in places(copy):
                at[place.mutant.name].append(place)
            before = [Mutant(**each) for each in json.loads(again.read_text())]
            wanted = [(find(mutant, at), mutant) for mutant in before]
        done: list[Mutant] = []
        for found, mutant in wanted:
            if found is None:
                mutant.outcome = "gone"
            else:
                found.mutant.test = mutant.test
                run(copy, found)
            done.append(each := mutant if found is None else found.mutant)
            click.echo(
                f"{each.outcome:9} {each.seconds:5} s {each.file} {each.function}: {each.line}"
            )
            results.write_text(json.dumps([asdict(each) for each in done], indent=1) + "\n")
    click.echo(dict(Counter(each.outcome for each in done)))


if __name__ == "__main__":
    main()
