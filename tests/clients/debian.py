"""The programs of Debian's redis-tools and of its other packages."""

import os
import shutil
import subprocess

import pytest

from tests.patience import PATIENCE_S


def require(program: str, package: str = "redis-tools") -> str:
    """Return the path of a program; without it skip the test, or fail it if skips are forbidden."""
    path = shutil.which(program)
    if path is None:
        reason = f"{program} is not installed: apt-get install {package}"
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail(reason.replace("is not installed", "is required here"))
        pytest.skip(reason)
    return path


def run(program: str, port: int, *arguments: str, input: bytes = b"") -> bytes:
    """Run a program against a port to its end, and return its output."""
    done = subprocess.run(
        [require(program), "-p", str(port), *arguments],
        input=input,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout
