"""Where Redis 7.0.15 answers differently from 8.10, in one place.

Rules that differ (what ``Redis(old=True)`` of the model does):

- lag and entries-read know fewer cases, ENTRIESREAD is kept as given, not clamped;
- XREAD has no ``+``, XREADGROUP no CLAIM, neither has MAXCOUNT or MAXSIZE;
- XSETID may go below max-deleted-entry-id;
- a node whose last entry is a tombstone outlives the trim of all its entries;
- consumers have no active-time, streams no idempotent producers, groups no nacked-count.

Texts that differ are in ``TEXTS``.
"""

from tests.semantics.replies import Error, Reply, err

SMALLER = "The ID specified in XADD is equal or smaller than the target stream top item"
NEW_UNBALANCED = {
    b"XREAD": "Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be "
    "specified.",
    b"XREADGROUP": "Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must "
    "be specified.",
}
UNBALANCED = err(
    "Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified."
)
TEXTS = {err("Elements are too large to be stored"): err(SMALLER)}
"""Error replies of 7.0 and what 8.10 says in their place."""


def renewed(command: bytes, reply: Reply) -> Reply:
    """Return a reply of 7.0.15 with its error text as 8.10 has it."""
    if reply == UNBALANCED and command.upper() in NEW_UNBALANCED:
        return err(NEW_UNBALANCED[command.upper()])
    return TEXTS.get(reply, reply) if isinstance(reply, Error) else reply
