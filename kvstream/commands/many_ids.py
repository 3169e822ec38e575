"""Commands about very many IDs: these are packed in the first steps, some in each."""

from collections.abc import Callable
from typing import TypeAlias

from kvstream.commands.args import Argv, packed_ids
from kvstream.commands.command import Answer, Session, Stepwise
from kvstream.commands.replies import Reply
from kvstream.errors import InvalidID
from kvstream.meta.txn import Txn
from kvstream.operations.witness import LONG_ROWS

Step: TypeAlias = "Callable[[Txn], Reply | None]"
"""Goes on with a command; None: it is not done."""
Begin: TypeAlias = "Callable[[Txn, list[bytes]], Step]"
"""Returns what is to be done about IDs."""

PACKED_TOGETHER = 5000
"""IDs that one step packs: half a millisecond or so."""


def are_many(session: Session, words: int) -> bool:
    """Tell whether a command with so many words for IDs is to be done in steps."""
    return session.steps and words > LONG_ROWS


def about(words: Argv, begin: Begin, until_other: bool = False) -> Stepwise:
    """Return what packs the IDs that words are, and then does what ``begin`` returns.

    ``until_other``: what is no ID, and all behind it, is something else.
    """
    packing = _Packing(words, begin, until_other)

    def run(txn: Txn, session: Session, argv: Argv) -> Answer:
        reply = packing.step(txn)
        return going_on if reply is None else reply

    going_on = Stepwise(run)
    return going_on


class _Packing:
    def __init__(self, words: Argv, begin: Begin, until_other: bool) -> None:
        self._words, self._begin, self._until_other = words, begin, until_other
        self._ids: list[bytes] = []
        self._work: Step | None = None

    def step(self, txn: Txn) -> "Reply | None":
        if self._work is not None:
            return self._work(txn)
        some = self._words[len(self._ids) : len(self._ids) + PACKED_TOGETHER]
        try:
            self._ids += packed_ids(some)
        except InvalidID:
            if not self._until_other:
                raise
            self._ids += _leading(some)
            self._work = self._begin(txn, self._ids)
        if len(self._ids) == len(self._words):
            self._work = self._begin(txn, self._ids)
        return None


def _leading(words: Argv) -> list[bytes]:
    """Return the IDs that stand before the first word that is none."""
    ids: list[bytes] = []
    for word in words:
        try:
            ids += packed_ids([word])
        except InvalidID:
            break
    return ids
