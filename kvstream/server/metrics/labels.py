"""Names of streams and groups as labels: text, each name another, and never long."""

from xxhash import xxh3_64_hexdigest

LABEL_MAX = 200
"""Characters; a name may have megabytes, and a monitoring system keeps every label for months."""
_KEPT = 160


def label(name: bytes) -> str:
    """Return the text for a name.

    Valid UTF-8 stays as it is; other bytes stand as ``\\xff``, and a backslash doubled, so that no
    two names look alike. A long name is cut and told apart by its hash.
    """
    text = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    if len(text) <= LABEL_MAX:
        return text
    return f"{text[:_KEPT]}...{xxh3_64_hexdigest(name)}"
