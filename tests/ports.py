"""Ports for servers that are told theirs: free ones that nobody else comes by.

The system gives ports of one range to whoever asks for any: as ends of connections, too, at any
moment between the finding of a free one and its use. These are of the range below.
"""

import os
import random
import socket
from pathlib import Path

_FIRST = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()
_chance = random.Random(os.getpid())  # the processes of one run take different ones


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free; each is returned once."""
    end = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    for _ in range(1000):
        port = _chance.randrange(_FIRST, max(end, _FIRST + 1000))
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise AssertionError("no port is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
