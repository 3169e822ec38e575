"""What the operating system tells of processors and memory; Linux and macOS differ."""

import os
import resource
import sys
import time

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in a unit of ``ru_maxrss``: see getrusage(2) of the two systems."""


def usable_cores() -> int:
    """Return the number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def peak_memory() -> int:
    """Return the largest resident memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def thread_times() -> tuple[float, float]:
    """Return the seconds of the processor that this thread has used: as user, and in the system.

    Where the system does not tell them apart, all of them are the user's.
    """
    who = getattr(resource, "RUSAGE_THREAD", None)  # macOS has none
    if who is None:
        return time.thread_time(), 0.0
    usage = resource.getrusage(who)
    return usage.ru_utime, usage.ru_stime
