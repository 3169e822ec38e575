"""Long commands: they run in steps, and other clients are served between the steps.

A command of very many IDs packs these in its first steps. Most commands happen in their last step.
One whose items have nothing to do with each other may happen in parts, each a commit: ``in_parts``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from kvstream.commands.args import Argv, leading, packed_ids
from kvstream.commands.command import Answer, Session, Stepwise
from kvstream.commands.replies import Reply
from kvstream.errors import InvalidID
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations.delete import Live, LongErasure
from kvstream.types.ids import StreamID

T = TypeVar("T")
Step: TypeAlias = "Callable[[Txn], Reply | None]"
"""Goes on with a command; None: it is not done."""
Begin: TypeAlias = "Callable[[Txn, list[bytes]], Step]"
"""Returns the steps of a command from its packed IDs."""


@dataclass(slots=True)
class _Steps(Generic[T]):
    """The handler of a command that runs in steps: each call is one step.

    A function would refer to itself, and all that the command holds would wait for the garbage
    collector.
    """

    step: Callable[[Txn], T | None]
    answer: Callable[[T, Txn, Session], Answer]
    undo: Callable[[Txn], None] | None

    def __call__(self, txn: Txn, session: Session, argv: Argv) -> Answer:
        done = self.step(txn)
        return Stepwise(self, self.undo) if done is None else self.answer(done, txn, session)


def in_steps(
    step: Callable[[Txn], T | None],
    answer: Callable[[T], Answer],
    undo: Callable[[Txn], None] | None = None,
) -> Stepwise:
    """Call ``step`` until it returns a result, which ``answer`` turns into a reply."""
    return Stepwise(_Steps(step, lambda done, txn, session: answer(done), undo), undo)


def behind_steps(
    step: Callable[[Txn], bool],
    answer: Callable[[Txn, Session], Answer],
    undo: Callable[[Txn], None] | None = None,
) -> Stepwise:
    """Call ``step`` until it returns true, then ``answer`` in the same transaction."""
    steps = _Steps(
        lambda txn: step(txn) or None, lambda done, txn, session: answer(txn, session), undo
    )
    return Stepwise(steps, undo)


def in_parts(
    words: Argv,
    size: int,
    parse: Callable[[Argv], list[T]],
    settle: Callable[[Txn, list[T]], list[int]],
    answer: Callable[[list[int]], Answer],
) -> Stepwise:
    """Parse all words in steps, then settle some of their items in each step, which is a commit.

    An item has ``size`` words. A wrong word is refused before anything is settled.
    """
    return in_steps(_Parts(words, size, parse, settle).step, answer)


class _Parts(Generic[T]):
    def __init__(
        self,
        words: Argv,
        size: int,
        parse: Callable[[Argv], list[T]],
        settle: Callable[[Txn, list[T]], list[int]],
    ) -> None:
        self._words, self._size, self._parse, self._settle = words, size, parse, settle
        self._items: list[T] = []
        self._settled = 0
        self._outcomes: list[int] = []

    def step(self, txn: Txn) -> list[int] | None:
        """Parse or settle some items; return all outcomes in the last step, None before."""
        items, together = self._items, txn.thresholds.step_rows
        at = len(items) * self._size
        if at < len(self._words):
            items += self._parse(self._words[at : at + together * self._size])
            return None
        self._outcomes += self._settle(txn, items[self._settled : self._settled + together])
        self._settled += together
        return self._outcomes if self._settled >= len(items) else None


def of_erasure(
    session: Session,
    txn: Txn,
    name: bytes,
    ids: Sequence[StreamID],
    operation: Callable[[Txn, Live], T],
    answer: Callable[[T], Answer],
) -> Answer:
    """Run an operation that deletes entries of a stream, in steps if the IDs are many."""
    if are_many(txn, session, len(ids)):
        return in_steps(LongErasure(name, ids, operation).step, answer)
    return answer(operation(txn, entries.live))


def are_many(txn: Txn, session: Session, ids: int) -> bool:
    """Return whether a command of so many IDs or entries is to run in steps."""
    return session.steps and ids > txn.thresholds.long_rows


def about_ids(words: Argv, begin: Begin, until_other: bool = False) -> Stepwise:
    """Pack the IDs that ``words`` are in steps, then run the steps that ``begin`` returns.

    ``until_other``: the first word that is not an ID ends them.
    """
    step: Callable[[Txn], Any] = _Packing(words, begin, until_other).step
    return in_steps(step, lambda reply: reply)


class _Packing:
    def __init__(self, words: Argv, begin: Begin, until_other: bool) -> None:
        self._words, self._begin, self._until_other = words, begin, until_other
        self._ids: list[bytes] = []
        self._work: Step | None = None

    def step(self, txn: Txn) -> "Reply | None":
        if self._work is not None:
            return self._work(txn)
        some = self._words[len(self._ids) : len(self._ids) + txn.thresholds.packed_together]
        try:
            self._ids += packed_ids(some)
        except InvalidID:
            if not self._until_other:
                raise
            self._ids += leading(some, lambda word: packed_ids([word])[0])
            self._work = self._begin(txn, self._ids)
        if len(self._ids) == len(self._words):
            self._work = self._begin(txn, self._ids)
        return None
