"""Own a shared store in a process of its own, for processes that cannot: ``python -m`` this.

A process that was forked after its parent had opened a store has not the threads of RocksDB, so it
cannot open one itself. If no other process owns the store, it starts this one, which ends when it
has had no client for a while.
"""

import os
import pickle
import sys
import time

from kvstream.errors import KVStreamError
from kvstream.shared.engine import SharedEngine

IDLE_S = 5.0
"""Seconds without a client after which the process ends."""
_LOOK_S = 0.5


def main(settings: str) -> int:
    """Own the store, unless another process does, until it has no clients."""
    directory, options, wait_s = pickle.loads(bytes.fromhex(settings))
    try:
        engine = SharedEngine(directory, options, wait_s)
    except KVStreamError as error:
        print(error, file=sys.stderr)
        return 1
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stderr.fileno())  # nobody reads it any more
    idle_at = time.monotonic() + IDLE_S
    while time.monotonic() < idle_at and engine.clients is not None:
        if engine.clients:
            idle_at = time.monotonic() + IDLE_S
        time.sleep(_LOOK_S)
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
