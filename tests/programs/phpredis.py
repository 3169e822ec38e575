"""phpredis of Debian: its own tests of what kvstream has, from its source package."""

import json
import shutil
import subprocess
from pathlib import Path

from tests.programs.environment import Missing, clean_environment, debian_source
from tests.programs.outcomes import RUN_S_MAX, SCENARIOS, Outcome, Program

VERSION = "5.3.7"
_TESTS = (
    r"testX|test(Set|GetSet|Incr|IncrByFloat|Decr|Exists|Keys|Delete|Unlink|Str|RandomKey)$|"
    r"test(ExtendedSet|SetTimeout|ExpireAt|SetEx|PSetEx|SetNX|Persist|ttl|Mset|MsetNX|SetRange)$|"
    r"test(FailedTransactions|PipelineMultiExec|DoublePipeNoOp|Discard|DifferentTypeString)$|"
    r"test(DumpRestore|Script|EvalSHA|GetLastError|PubSub|Ping|Echo|Client|Slowlog|Info\w*)$|"
    r"test(Acl|Introspection|Reconnect\w+|ReadTimeout\w+|MaxRetries\w+|Select|SwapDB|Time|Wait)$"
)
"""The names of tests that need no other type; a test of sets would wait for ever."""


def _tests() -> Path:
    return debian_source("php-redis") / f"redis-{VERSION}" / "tests"


def _run(port: int) -> list[Outcome]:
    program = shutil.which("php")
    if program is None:
        raise Missing("PHP is not installed: apt-get install php-cli php-redis")
    script = str(SCENARIOS / "check_phpredis.php")
    words = ["-d", "error_reporting=0", script, str(_tests()), str(port)]
    done = subprocess.run(
        [program, *words, _TESTS],
        cwd=_tests(),
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=RUN_S_MAX,
    )
    lines = (line for line in done.stdout.splitlines() if line.startswith('["test'))
    found = [Outcome(*json.loads(line)) for line in lines]
    return found or [Outcome("the whole", "failed", done.stdout[-4000:] + done.stderr[-1000:])]


PROGRAMS = (
    Program(
        "phpredis",
        VERSION,
        "Debian",
        "its tests of streams, strings, expiry, transactions, pipelines, scripts, channels, ACL "
        "and connections",
        _run,
        left_out="tests of other types, of serializers and of sessions",
        install=_tests,
    ),
)
