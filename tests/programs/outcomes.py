"""Outcomes of a program's tests, and the reason of each failure."""

import re
import shutil
import subprocess
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from tests.programs.environment import clean_environment, node_program

RUN_S_MAX = 900
SCENARIOS = Path(__file__).with_name("scenarios")

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """How one test ended, and what it printed if it failed."""

    test: str
    status: Status
    text: str = ""


@dataclass(frozen=True)
class Known:
    """A known reason of failures: a pattern of test names and a pattern of failure texts."""

    tests: str
    reason: str
    text: str = ""

    def covers(self, outcome: Outcome) -> bool:
        """Return whether this reason explains a failure."""
        matched = re.search(self.tests, outcome.test)
        return bool(matched and re.search(self.text, outcome.text))


@dataclass(frozen=True)
class Program:
    """A program, and how its tests run against the server at a port of 127.0.0.1."""

    name: str
    version: str
    origin: str
    ran: str
    """What is run, in words for a reader."""
    run: Callable[[int], list[Outcome]]
    known: tuple[Known, ...] = ()
    left_out: str = ""
    """What is not run, and why."""
    core: bool = False
    """Runs with the other tests, also in CI; `make programs` runs all."""
    peer: str = "redis-8.2"
    """The server beside which the page shows it."""
    run_on_peer: Callable[[int], list[Outcome]] | None = None
    """What runs on that server, if it is not the same."""
    install: Callable[[], object] = lambda: None
    """Installs what two runs at once would both install."""

    @property
    def key(self) -> str:
        """The unique key of the program, which may have several sets of tests."""
        return f"{self.name}: {self.ran}"


# The commands of the types that kvstream does not have, by the texts of errors that name them.
_FAMILIES = {
    "lists": r"[lr]push\w*|b?[lr]pop\w*|b?lm(ove|pop)|b?rpoplpush"
    r"|l(len|index|insert|range|rem|set|trim|pos)",
    "hashes": r"h(?!ello)\w+",
    "sets": r"s(add|card|diff|inter|ismember|members|mismember|move|pop|rem|scan|union)\w*"
    r"|srandmember",
    "sorted sets": r"b?z\w+",
    "bitmaps": r"bit\w+|[gs]etbit",
    "HyperLogLog": r"pf\w+",
    "geo": r"geo\w+",
    "SORT": r"sort(_ro)?",
    "clusters": r"cluster|asking|readonly|readwrite",
    "modules": r"module|(json|ft|bf|cf|cms|topk|tdigest|ts)\.\S+|v(add|sim)\w*",
    "replicas": r"replicaof|slaveof|psync|sync|failover|waitaof",
    "DEBUG": r"debug",
}
_UNKNOWN = re.compile(r"unknown command [`'\"]?([\w.]+)", re.IGNORECASE)


def reason_of(outcome: Outcome, known: tuple[Known, ...]) -> str | None:
    """Return why a test failed: a known reason, or the type of a command that it needs."""
    for each in known:
        if each.covers(outcome):
            return each.reason
    for name in _UNKNOWN.findall(outcome.text):
        for family, pattern in _FAMILIES.items():
            if re.fullmatch(pattern, name, re.IGNORECASE):
                return family
    return None


def read_junit(path: Path) -> list[Outcome]:
    """Read a file of test results in the format that pytest, Node.js and PHPUnit write."""
    found = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        troubles = [x for kind in ("failure", "error") for x in case.findall(kind)]
        if troubles:
            text = "\n".join(f"{x.get('message', '')}\n{x.text or ''}" for x in troubles)
            found.append(Outcome(name, "failed", text))
        else:
            skipped = case.find("skipped") is not None
            found.append(Outcome(name, "skipped" if skipped else "passed"))
    return found


def junit_outcomes(command: list[str | Path], folder: Path, **environment: str) -> list[Outcome]:
    """Run a program that writes a JUnit file in place of RESULTS; return the outcomes."""
    results = folder / "results.xml"
    results.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [str(word).replace("RESULTS", str(results)) for word in command],
            cwd=folder,
            env=clean_environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S_MAX,
        )
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"")[-2000:]
        return [Outcome("the whole", "failed", f"took more than {RUN_S_MAX} s: {printed!r}")]
    found = read_junit(results) if results.exists() else []
    return found or [Outcome("the whole", "failed", done.stdout[-4000:])]


def pytest_outcomes(
    interpreter: Path, folder: Path, *arguments: str, **environment: str
) -> list[Outcome]:
    """Run pytest of another virtual environment in a folder; return the outcomes."""
    words = ["-m", "pytest", "-p", "no:cacheprovider", "--junitxml=RESULTS", "-q"]
    words += ["-o", "filterwarnings=", *arguments]
    return junit_outcomes([interpreter, *words], folder, **environment)


def python_scenario(interpreter: Path, name: str, port: int, *more: str) -> list[Outcome]:
    """Run a file of tests of `scenarios/`, and files that it needs, in another environment."""
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        for each in (name, *more):
            shutil.copy(SCENARIOS / each, place)
        (Path(place) / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
        arguments = ("--timeout=120", name)
        return pytest_outcomes(interpreter, Path(place), *arguments, REDIS_PORT=str(port))


def node_scenario(modules: Path, name: str, port: int) -> list[Outcome]:
    """Run a file of tests of `scenarios/` with Node.js."""
    words: list[str | Path] = [
        "--test-reporter=junit",
        "--test-reporter-destination=RESULTS",
        SCENARIOS / name,
    ]
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        return junit_outcomes(
            [node_program(), "--test", *words, SCENARIOS / name],
            Path(place),
            REDIS_PORT=str(port),
            NODE_PATH=str(modules),
        )


def copied(source: Path, place: Path, *replaced: tuple[str, str]) -> Path:
    """Copy unpacked sources to a folder, with texts of their Python files replaced."""
    copy = place / source.name
    shutil.copytree(source, copy)
    for path in copy.rglob("*.py") if replaced else ():
        text = path.read_text()
        for old, new in replaced:
            text = text.replace(old, new)
        path.write_text(text)
    return copy


def checks(**named: Callable[[], object]) -> list[Outcome]:
    """Call functions in order; return an outcome for each, failed if it raised."""
    found = []
    for name, check in named.items():
        try:
            check()
        except Exception:
            found.append(Outcome(name, "failed", traceback.format_exc()))
        else:
            found.append(Outcome(name, "passed"))
    return found
