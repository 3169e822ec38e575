"""fakeredis: its own tests, which it also runs on real servers to compare itself with them."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs.environment import PYTEST, python_with, source_of
from tests.programs.outcomes import Known, Outcome, Program, copied, pytest_outcomes

VERSION = "2.41.0"
_TOOLS = (
    f"fakeredis[lua]=={VERSION}",
    "redis==8.1.0",
    "valkey==6.2.0",
    "hypothesis==6.170.17",
    "pytest-mock==3.17.0",
)
_OF = ("acl", "connection", "function", "generic", "generic_scan", "pubsub", "scripting", "server")
_TESTS = (
    *(f"test_mixins/test_{each}_commands.py" for each in (*_OF, "streams", "string")),
    *("test_mixins/test_transactions_commands.py", "test_mixins/test_specific_redis_versions"),
    *(f"test_mixins/test_{each}.py" for each in ("delex", "increx", "xdelex_xackdel")),
    *(f"test_mixins/test_stream_{each}.py" for each in ("groups", "read_caps", "trimming")),
    *("test_keyspace_notifications.py", "test_async/test_asyncredis.py"),
    *("test_async/test_redis_only.py", "test_async/test_scripts.py"),
)
_PORT = "6390"


def _installed() -> tuple[Path, Path]:
    """Return its interpreter, and its source with the tests."""
    return python_with("fakeredis", *PYTEST, *_TOOLS), source_of("fakeredis", VERSION)


def _run(port: int) -> list[Outcome]:
    interpreter, source = _installed()
    with TemporaryDirectory(prefix="kvstream-program-") as place:
        folder = copied(source, Path(place), (_PORT, str(port)))
        options = ("-o", "addopts=", "-k", "not fake and not Fake", "--timeout=60")
        tests = (f"test/{each}" for each in _TESTS)
        return pytest_outcomes(interpreter, folder, *options, *tests, PYTHONPATH=".")


PROGRAMS = (
    Program(
        "fakeredis",
        VERSION,
        "PyPI",
        "its tests on a real server: streams, strings, keys, transactions, scripts, functions, "
        "channels, notifications, ACL",
        _run,
        (
            Known("", "arrays", "unknown command [`']AR"),
            Known("", "hashes", "unknown command [`']HIMPORT"),
            Known("lcs", "LCS"),
            Known("_help", "the texts of HELP are kvstream's own"),
            Known("acl_cat", "commands of other types", "not found in category"),
            Known("acl_log_invalid_key", "hashes"),
            Known("client_unblock", "lists"),
        ),
        left_out="asyncio with blocking lists",
        install=_installed,
    ),
)
