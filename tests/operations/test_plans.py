"""The runner of plans: steps, new beginnings, failures and what they leave."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations import strings
from kvstream.operations.plans import Plan, Planning, Progress, Stepped, run_at_once

STAGED = b"\0\0staged"


class Changed:
    """What a plan has found, and whether others change it."""

    def __init__(self) -> None:
        self.version = 0
        self.begun = 0

    def plan(self, steps: int, failure: BaseException | None = None) -> Plan[int]:
        """Stage a key in each step, and return the number of this try."""

        def plan(txn: Txn) -> Planning[int]:
            self.begun += 1
            version = self.version
            for step in range(steps):
                strings.put(txn, STAGED, b"%d" % step)
                txn = yield Progress(lambda txn: self.version == version, undo)
                if failure is not None:
                    raise failure
            undo(txn)
            return self.begun

        def undo(txn: Txn) -> None:
            strings.take(txn, STAGED)

        return plan


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


def is_staged(store: Store) -> bool:
    return store.engine.run(strings.get, STAGED) is not None


def test_the_last_step_returns_the_result(store: Store) -> None:
    work = Stepped(Changed().plan(2))
    found = [store.engine.run(work.step) for _ in range(3)]
    assert found == [None, None, 1]
    assert not work.has_staged
    assert not is_staged(store)


def test_all_at_once_is_one_transaction(store: Store) -> None:
    assert store.engine.run(run_at_once, Changed().plan(5)) == 1
    assert not is_staged(store)


def test_after_three_tries_it_runs_to_its_end(store: Store) -> None:
    changed = Changed()
    work, steps = Stepped(changed.plan(3)), 1
    while store.engine.run(work.step) is None:
        changed.version += 1
        steps += 1
    assert (changed.begun, steps) == (4, 4)
    assert not is_staged(store)


@pytest.mark.parametrize("failure", [InvalidArgument("no"), KeyboardInterrupt()], ids=repr)
def test_a_step_that_fails_can_be_undone_and_is_not_resumed(
    store: Store, failure: BaseException
) -> None:
    changed = Changed()
    work = Stepped(changed.plan(2, failure))
    assert store.engine.run(work.step) is None
    for _ in range(2):
        with pytest.raises(type(failure)):
            store.engine.run(work.step)
        assert is_staged(store)
        assert work.has_staged
        store.engine.run(work.abandon)
        assert not is_staged(store)
        store.engine.run(work.step)  # it begins anew
    assert changed.begun == 3


def test_an_abandoned_plan_leaves_nothing(store: Store) -> None:
    work = Stepped(Changed().plan(2))
    assert not work.has_staged
    store.engine.run(work.step)
    store.engine.run(work.abandon)
    assert (work.has_staged, is_staged(store)) == (False, False)
