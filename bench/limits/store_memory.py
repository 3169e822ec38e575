"""Measure a store in a fresh process: ``python -m bench.limits.store_memory STORE`` prints JSON."""

import json
import re
import sys
import time
from pathlib import Path

from bench.workload import PAGE, entries
from kvstream import Store

KILOBYTES_PER_MB = 1024


def peak_mb() -> float:
    """Return the peak memory of this process in megabytes.

    This is the kernel's VmHWM: ``ru_maxrss`` includes the parent's memory from before the exec.
    """
    status = Path("/proc/self/status").read_text()
    match = re.search(r"^VmHWM:\s*([0-9]+) kB", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) / KILOBYTES_PER_MB


def measure(path: Path) -> dict[str, float]:
    """Open a store, read both ends, add 10,000 entries, and scan all; return times and memory."""
    start = time.perf_counter()
    with Store.open(path) as store:
        open_s = time.perf_counter() - start
        opened_mb = peak_mb()
        stream = store.stream("orders")
        stream.range("-", "+", count=PAGE)
        stream.revrange("+", "-", count=PAGE)
        for fields in entries(10_000):
            stream.add(fields)
        seen = sum(1 for _ in stream.scan())
        assert seen == len(stream)
    return {"open_s": open_s, "opened_mb": opened_mb, "peak_mb": peak_mb()}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
