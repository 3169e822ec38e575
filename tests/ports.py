"""Free ports for servers that need a given port, unused by any other process.

The system gives ports of one range to any caller: also as ends of connections, at any moment
between the choice of a free port and its use. These ports are below that range.
"""

import os
import random
import socket
from pathlib import Path

_FIRST = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()
_chance = random.Random(os.getpid())  # the processes of one run use different ones


def free_port() -> int:
    """Return a free port of 127.0.0.1; each is returned once."""
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
