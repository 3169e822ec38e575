"""Long commands: a server runs their plans in steps, and serves other clients between the steps.

Most commands take effect in their last step. A command whose items are independent of each other
may take effect in parts, each a commit: ``settle_in_parts``.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from kvstream.commands.args import Argv, leading, packed_ids
from kvstream.commands.command import Answer, Session, Stepwise, Unread
from kvstream.errors import InvalidID
from kvstream.meta.txn import Txn
from kvstream.operations import delete
from kvstream.operations.plans import ALWAYS_HOLDS, Plan, Planning, Stepped, run_at_once
from kvstream.operations.reads.rows import find_live
from kvstream.types.ids import StreamID

T = TypeVar("T")
Begin: TypeAlias = Callable[[Txn, list[bytes]], Plan[T]]
"""Returns the plan of a command for packed IDs."""


def run_in_steps(plan: Plan[T], answer: Callable[[T], Answer]) -> Stepwise[T]:
    """Run a plan in steps; ``answer`` turns its result into a reply."""
    return Stepwise(Stepped(plan), lambda done, txn, session: answer(done))


def run_plan(
    txn: Txn,
    session: Session,
    plan: Plan[T],
    answer: Callable[[T], Answer],
    is_long: bool = True,
) -> Answer:
    """Run a plan, in steps if it is long and the client takes them."""
    if session.steps and is_long:
        return run_in_steps(plan, answer)
    return answer(run_at_once(txn, plan))


def run_before(
    plan: Plan[bool], answer: Callable[[Txn, Session], "Answer | Unread"]
) -> Stepwise[bool]:
    """Run a plan in steps, then ``answer`` in the last one's transaction."""
    return Stepwise(Stepped(plan), lambda done, txn, session: answer(txn, session))


def begin_steps(
    txn: Txn, session: Session, plan: Plan[T], answer: Callable[[T], Answer]
) -> "Answer | Unread":
    """Run the first step of a plan that only reads at once: it may be the only one."""
    return run_in_steps(plan, answer).run(txn, session, [])


def settle_in_parts(
    words: Argv,
    size: int,
    parse: Callable[[Argv], list[T]],
    settle: Callable[[Txn, list[T]], list[int]],
    answer: Callable[[list[int]], Answer],
) -> Stepwise[list[int]]:
    """Parse all words in steps, then settle some of their items in each step, which is a commit.

    An item has ``size`` words. A wrong word is refused before anything is settled.
    """

    def plan(txn: Txn) -> Planning[list[int]]:
        items: list[T] = []
        outcomes: list[int] = []
        together = txn.thresholds.step_rows
        for at in range(0, len(words), together * size):
            items += parse(words[at : at + together * size])
            txn = yield ALWAYS_HOLDS
        for at in range(0, len(items), together):
            if at:
                txn = yield ALWAYS_HOLDS
            outcomes += settle(txn, items[at : at + together])
        return outcomes

    return run_in_steps(plan, answer)


def run_erasure(
    session: Session,
    txn: Txn,
    name: bytes,
    ids: Sequence[StreamID],
    operation: delete.Erasure[T],
    answer: Callable[[T], Answer],
) -> Answer:
    """Run an operation that deletes entries of a stream, in steps if the IDs are many."""
    if are_many(txn, session, len(ids)):
        return run_in_steps(delete.plan_erasure(name, ids, operation), answer)
    return answer(operation(txn, find_live))


def are_many(txn: Txn, session: Session, ids: int) -> bool:
    """Return whether a command of so many IDs or entries is to run in steps."""
    return session.steps and ids > txn.thresholds.long_rows


def run_on_ids(
    words: Argv, begin: Begin[T], answer: Callable[[T], Answer], until_other: bool = False
) -> Stepwise[T]:
    """Parse IDs in steps, then run the plan that ``begin`` returns for them.

    ``until_other``: they end before the first word that is not an ID.
    """
    ids: list[bytes] = []
    begun: list[Plan[T]] = []  # neither is made again if the plan begins anew

    def plan(txn: Txn) -> Planning[T]:
        while not begun:
            some = words[len(ids) : len(ids) + txn.thresholds.packed_together]
            try:
                ids.extend(packed_ids(some))
                is_end = len(ids) == len(words)
            except InvalidID:
                if not until_other:
                    raise
                ids.extend(leading(some, lambda word: packed_ids([word])[0]))
                is_end = True
            if is_end:
                begun.append(begin(txn, ids))
            txn = yield ALWAYS_HOLDS
        return (yield from begun[0](txn))

    return run_in_steps(plan, answer)
