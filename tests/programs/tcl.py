"""Redis's own test suites in Tcl, from Debian's source package, against a running server."""

import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs.environment import Missing, clean_environment, debian_source
from tests.programs.outcomes import RUN_S_MAX, Known, Outcome, Program, Status

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"\[(ok|err|ignore|skip|exception|timeout|TIMEOUT)\]: (.*)")
_STATUS: dict[str, Status] = {"ok": "passed", "ignore": "skipped", "skip": "skipped"}
# Two suites at once would take the same port for their own server.
_TURN = threading.Lock()
_OPTIONS = ["--durable", "--ignore-encoding", "--ignore-digest", "--clients", "1"]
_OPTIONS += ["--timeout", "90", "--tags", "-needs:debug"]


def read_log(text: str) -> list[Outcome]:
    """Read what the suite has printed."""
    found: list[Outcome] = []
    for line in _COLOURS.sub("", text).splitlines():
        matched = _LINE.match(line)
        if matched is None:
            if found and found[-1].status == "failed":
                last = found.pop()
                found.append(Outcome(last.test, "failed", f"{last.text}\n{line}"))
            continue
        kind, name = matched.groups()
        if kind in ("exception", "timeout", "TIMEOUT"):
            name = f"the rest of the unit: {name}"
        name = re.sub(r" \(\d+ ms\)$| in tests/\S+$", "", name)
        found.append(Outcome(name, _STATUS.get(kind, "failed"), name))
    return found


def _unit(name: str, skipped: Iterable[str]) -> Callable[[int], list[Outcome]]:
    def run(port: int) -> list[Outcome]:
        program = shutil.which("tclsh")
        if program is None:
            raise Missing("tclsh is not installed: apt-get install tcl")
        with TemporaryDirectory(prefix="kvstream-program-") as place:
            shutil.copytree(debian_source("redis") / "tests", Path(place) / "tests")
            words = ["--host", "127.0.0.1", "--port", str(port), "--single", name, *_OPTIONS]
            words += [word for each in skipped for word in ("--skiptest", each)]
            try:
                with _TURN:
                    done = subprocess.run(
                        [program, "tests/test_helper.tcl", *words],
                        cwd=place,
                        env=clean_environment(),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        timeout=RUN_S_MAX,
                    )
            except subprocess.TimeoutExpired as error:
                text = (error.stdout or b"").decode(errors="replace")
                return [*read_log(text), Outcome("the rest", "failed", text[-500:])]
        return read_log(done.stdout.decode(errors="replace"))

    return run


def _program(
    name: str, about: str, *known: Known, skipped: dict[str, str] | None = None
) -> Program:
    """Return a suite; each skipped test would disturb the others, and comes with its reason."""
    left_out = [f'"{test}" ({reason})' for test, reason in (skipped or {}).items()]
    return Program(
        f"Redis's suite {name}",
        "7.0.15",
        "Debian",
        f"{about}, against a running server (`runtest --host --port`)",
        _unit(name, skipped or ()),
        known,
        left_out="tests that need DEBUG" + "".join(f"; {each}" for each in left_out),
        peer="redis-7.0",
        install=lambda: debian_source("redis"),
    )


PROGRAMS = (
    _program(
        "unit/scripting",
        "scripts",
        Known("can't run b", "lists, sorted sets"),
        Known("cmd error|many args|handling of reused argv", "lists", "Unknown Redis command"),
        Known("Consistent eval error", "lists", "Unknown Redis command"),
        Known("good replicas", "replicas"),
        Known("leak in the Lua stack", "the libraries of scripts are in Lua and take more memory"),
        Known("CLUSTER RESET", "clusters"),
        Known("Script ACL check", "hashes", "Invalid command passed"),
        Known("with BLOCK option", "Redis 8 returns null, as kvstream does"),
        Known("unpack with massive", "a script passes fewer arguments than 7,999"),
        Known("Binary code", "scripts have no string.dump"),
    ),
    _program("unit/functions", "functions"),
    _program(
        "unit/pubsub",
        "channels and keyspace notifications",
        skipped={"Keyspace notifications: evicted events": "kvstream evicts nothing"},
    ),
    _program("unit/pubsubshard", "shard channels"),
    _program(
        "unit/tracking",
        "client-side caching",
        skipped={
            "Tracking only occurs for scripts when a command calls a read-only command": (
                "a script is tracked as in Redis 8"
            ),
            "hdel deliver invalidate message after response in the same connection": "hashes",
            "Tracking invalidation message of eviction keys should be before response": (
                "kvstream evicts nothing"
            ),
            "Unblocked BLMOVE gets notification after response": "lists",
        },
    ),
    _program(
        "unit/type/stream",
        "streams",
        skipped={"XREAD: XADD + DEL + LPUSH should not awake client": "lists"},
    ),
    _program(
        "unit/type/stream-cgroups",
        "groups of streams",
        Known("key deleted|with SET|flushed DB", "the text is that of Redis 7.2 and later"),
        Known("XINFO FULL output", "XINFO has the fields of Redis 8"),
        skipped={"Blocking XREADGROUP: key type changed with transaction": "sets"},
    ),
)
