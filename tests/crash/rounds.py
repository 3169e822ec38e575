"""The number of rounds of a crash test: a few, or KVSTREAM_CRASH_ROUNDS."""

import os


def rounds(default: int) -> int:
    """Return the number of crashes of one kind."""
    return int(os.environ.get("KVSTREAM_CRASH_ROUNDS") or default)
