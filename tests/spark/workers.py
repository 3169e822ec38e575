"""The Python processes of Spark's workers, as forks of one that has imported what they need.

Spark starts a daemon for each of its eight worker programs and a process for each source of a
streaming query, and each imports PySpark from a zip file without bytecode: 1.2 seconds of the
processor. A worker that has failed or was idle for a minute is replaced, and imports the rest anew.
"""

import importlib.util
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import forking

ROOT = Path(__file__).resolve().parent.parent.parent
IMPORTED = (
    "pyspark.worker",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "kvstream.spark.read.batch",
    "kvstream.spark.read.metadata",
    "kvstream.spark.read.streaming",
    "kvstream.spark.write.writers",
    *("csv", "concurrent.futures.thread", "pandas", "redis"),
)
"""What the fork server imports: the worker programs, but none that is run as ``-m MODULE``."""
_REQUEST_MAX = 1 << 20
_READY = b"ready\n"
_ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    # Spark sets these for its workers, and Python reads them when it starts.
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "YES",
    # Otherwise numpy, which pandas imports, starts threads.
    "OPENBLAS_NUM_THREADS": "1",
}
_CLIENT = Path(__file__).with_name("forked_python.py")


@contextmanager
def forked_python(**variables: str) -> Iterator[str]:
    """Start a fork server, and yield the program that is the Python of Spark's workers.

    Linux shows these variables as the environment of all its forks; theirs is that of the request.
    """
    if sys.platform != "linux":
        yield sys.executable
        return
    with TemporaryDirectory() as folder:
        address, python = Path(folder) / "socket", Path(folder) / "python"
        words = shlex.join([sys.executable, "-IS", str(_CLIENT), str(address)])
        python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        python.chmod(0o755)
        program = f"from tests.spark.workers import serve; serve({str(address)!r})"
        environment = {**os.environ, **_ENVIRONMENT, **variables}
        environment.pop(forking.MEASURED, None)
        with subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == _READY, "the fork server has not started"
            yield str(python)


def spark_home(folder: Path) -> Path:
    """Fill a folder with links to Spark, but not to its zip files of Python; return the folder.

    As SPARK_HOME it makes new workers import the installed PySpark, which has bytecode: 0.2 instead
    of 1.2 seconds of the processor each.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    for each in ("bin", "jars"):
        (folder / each).symlink_to(Path(spec.origin).with_name(each))
    return folder


def serve(address: str) -> None:
    """Fork for each request to an address, until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a fork that ends leaves nothing behind
    forking.preload(IMPORTED)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    os.write(1, _READY)
    while 0 not in select.select([0, listener.fileno()], [], [])[0]:
        connection, _ = listener.accept()
        request, streams, _, _ = socket.recv_fds(connection, _REQUEST_MAX, 3)
        if fork := os.fork():
            connection.send(str(fork).encode())
            connection.close()
            for stream in streams:
                os.close(stream)
        else:  # which keeps the connection open until it ends
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            forking.become(**json.loads(request), streams=streams)
            return
