"""Where Redis 7.0.15 answers differently from 8.10, in one place.

Rules that differ (what ``Redis(old=True)`` of the model does):

- lag and entries-read are known in fewer cases, ENTRIESREAD is kept as given, not clamped;
- XREAD has no ``+``, XREADGROUP no CLAIM, neither has MAXCOUNT or MAXSIZE;
- XSETID may go below max-deleted-entry-id;
- a node whose last entry is a tombstone outlives the trim of all its entries;
- consumers have no active-time, streams no idempotent producers, groups no nacked-count.

- a consumer is created only when entries are delivered to it;
- XADD, XTRIM and XGROUP lack the newer options, and the commands added since are unknown.

The one text that differs is in ``renewed``.
"""

from tests.operations.replies import Error, err

NEW_UNBALANCED = {
    b"XREAD": "Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be "
    "specified.",
    b"XREADGROUP": "Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must "
    "be specified.",
}
UNBALANCED = err(
    "Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified."
)


def update_error(command: bytes, error: Error) -> Error:
    """Return an error reply of 7.0.15 in the words of 8.10."""
    if error == UNBALANCED and command.upper() in NEW_UNBALANCED:
        return err(NEW_UNBALANCED[command.upper()])
    return error
