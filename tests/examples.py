"""The number of examples of tests of random input and random commands."""

import os

FEW = 30
"""Of a test that names no number. Of eighteen mistakes planted in codecs, tests with fifty examples
found twelve, and so did tests with thirty, in each of two runs."""


def examples(few: int = FEW) -> int:
    """Return ``few``, or the number in KVSTREAM_EXAMPLES: for a night, or for mutants."""
    return int(os.environ.get("KVSTREAM_EXAMPLES") or few)
