"""Run ``python -m MODULE`` as Spark does, but in a fork of a server that has the imports.

``forked_python.py ADDRESS -m MODULE ...`` is the Python of Spark's workers: tests/spark/workers.py.
It imports little, as its own start is what a worker costs.
"""

import json
import os
import signal
import socket
import sys

STARTED_BY = "KVSTREAM_TEST_STARTED_BY"
"""The variable with the process of the JVM: a fork is a child of the server."""


def main(address: str, *words: str) -> None:
    """Ask for a fork with these words, this environment and these streams; wait for its end."""
    if words[0] != "-m":  # Spark asks for the version of Python with -c
        os.execv(sys.executable, [sys.executable, *words])
    request = {
        "command": [sys.executable, *words],
        "directory": os.getcwd(),
        "environment": {**os.environ, STARTED_BY: str(os.getppid())},
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        fork = int(server.recv(64))
        signal.signal(signal.SIGTERM, lambda *_: os.kill(fork, signal.SIGTERM))
        server.recv(1)  # ends when the fork, which holds the other end, has ended


if __name__ == "__main__":
    main(*sys.argv[1:])
