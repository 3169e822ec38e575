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
    """Read the log that the suite has printed."""
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


def _unit(name: str, skipped: Iterable[str], starts: bool) -> Callable[[int], list[Outcome]]:
    """Return a function that runs a unit; ``starts``: the suite would start a server for it."""

    def run(port: int) -> list[Outcome]:
        program = shutil.which("tclsh")
        if program is None:
            raise Missing("tclsh is not installed: apt-get install tcl")
        with TemporaryDirectory(prefix="kvstream-program-") as place:
            shutil.copytree(debian_source("redis") / "tests", Path(place) / "tests")
            if starts:  # its first block says that it is not for a running server
                unit = Path(place) / "tests" / f"{name}.tcl"
                unit.write_bytes(unit.read_bytes().replace(b"external:skip", b"", 1))
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
    name: str,
    about: str,
    *known: Known,
    skipped: dict[str, str] | None = None,
    starts: bool = False,
) -> Program:
    """Return a suite; tests that would disturb the others are skipped, each for a given reason.

    ``starts``: Redis's own runs start a server for the suite.
    """
    left_out = [f'"{test}" ({reason})' for test, reason in (skipped or {}).items()]
    return Program(
        f"Redis's suite {name}",
        "7.0.15",
        "Debian",
        f"{about}, against a running server (`runtest --host --port`)"
        + (", without the tag by which it starts its own" if starts else ""),
        _unit(name, skipped or (), starts),
        known,
        left_out="tests that need DEBUG" + "".join(f"; {each}" for each in left_out),
        peer="redis-7.0",
        install=lambda: debian_source("redis"),
    )


_TYPES = Known(
    "",
    "other types",
    "(?i)unknown command '"
    "([lr]push|blpop|sadd|srandmember|hset|hmset|zadd|setbit|getbit|geoadd|lcs)'"
    "|Unknown Redis command called from script",
)
_REPLICAS = Known("", "replicas", "(?i)cannot be a replica")
_CLUSTERS = Known("", "clusters", "(?i)unknown command 'migrate'")
_NEWER_TEXT = "the text is that of Redis 7.2 and later"
_NEWER_RULES = "rules are shown as in Redis 7.2 and later"

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
    _program("unit/pubsubshard", "shard channels", starts=True),
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
        Known("key deleted|with SET|flushed DB", _NEWER_TEXT),
        Known("XINFO FULL output", "XINFO has the fields of Redis 8"),
        skipped={"Blocking XREADGROUP: key type changed with transaction": "sets"},
    ),
    _program("unit/type/string", "strings", _TYPES, _REPLICAS),
    _program("unit/type/incr", "counters", _TYPES),
    _program("unit/keyspace", "keys", _TYPES),
    _program("unit/expire", "expiry", _TYPES, _REPLICAS),
    _program("unit/dump", "DUMP and RESTORE", Known("set LFU", "accesses are not counted")),
    _program(
        "unit/multi",
        "transactions",
        _TYPES,
        _REPLICAS,
        skipped={
            "exec with write commands and state change": "replicas",
            "exec with read commands and stale replica state change": "replicas",
            "Blocking commands ignores the timeout": "lists",
        },
    ),
    _program(
        "unit/acl",
        "users and their rules",
        _TYPES,
        Known("By default, only default user", _NEWER_TEXT),
        Known("EVAL_RO, EVALSHA_RO and FCALL_RO", _NEWER_TEXT),
        Known("already full command exists|subset of channels", _NEWER_RULES),
        starts=True,
    ),
    _program(
        "unit/introspection",
        "CLIENT, MONITOR and CONFIG",
        _CLUSTERS,
        Known("CLIENT (LIST|INFO)", "CLIENT LIST and INFO have the fields of Redis 8"),
        Known("CONFIG sanity", "settings of processors have the names of Redis 8"),
        Known("rollback on apply error", "the port does not change while the server runs"),
    ),
    _program(
        "unit/introspection-2",
        "COMMAND and the statistics of commands",
        _TYPES,
        Known("GEOADD|GEORADIUS|LMOVE|LCS|SORT|ZUNIONSTORE", "other types"),
        Known("GETKEYSANDFLAGS|MORE THAN 256 KEYS|stats for BRPOP", "other types"),
        Known("MIGRATE|FILTERBY PATTERN", "clusters"),
        skipped={"command stats for MULTI": "GEOADD"},
    ),
    _program(
        "unit/info",
        "INFO",
        Known("blocking commands", "lists"),
        starts=True,
    ),
    _program("unit/info-command", "sections of INFO"),
    _program(
        "unit/latency-monitor",
        "LATENCY",
        _TYPES,
        Known("LATENCY RESET", "another test makes the spikes, with sets"),
    ),
    _program("unit/slowlog", "SLOWLOG", _TYPES, _CLUSTERS),
    _program("unit/protocol", "the protocol", _TYPES),
    _program("unit/quit", "QUIT"),
    _program("unit/other", "various commands", _TYPES),
    _program(
        "unit/pause",
        "CLIENT PAUSE",
        skipped={"Test special commands are paused by RO": "HyperLogLog"},
    ),
)
