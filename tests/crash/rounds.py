"""How often a crash is repeated: a few times, or KVSTREAM_CRASH_ROUNDS times."""

import os


def rounds(default: int) -> int:
    """Return the number of crashes of one kind."""
    return int(os.environ.get("KVSTREAM_CRASH_ROUNDS") or default)
