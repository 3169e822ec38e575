"""Coverage is measured where it tells something: not in tests that run the same lines very often.

Tracing takes such tests five times as long. What others run is measured there.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SUBPROCESSES = "COVERAGE_"
"""How the variables begin by which processes that are started are measured, too."""


@contextmanager
def unmeasured() -> Iterator[None]:
    """Trace neither this thread, nor those that are started, nor processes."""
    tracers = (sys.gettrace(), threading.gettrace())
    sys.settrace(None)
    threading.settrace(None)
    try:
        with unmeasured_processes():
            yield
    finally:
        threading.settrace(tracers[1])
        sys.settrace(tracers[0])


@contextmanager
def unmeasured_processes() -> Iterator[None]:
    """Trace no process that is started here, nor those that it starts, whenever."""
    kept = {name: text for name, text in os.environ.items() if name.startswith(_SUBPROCESSES)}
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)
