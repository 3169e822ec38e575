"""Each embedded queue gives every entry out once, at both durabilities."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.rivals import ALWAYS, EVERYSEC, Queue, put_all, rivals, take_all, work_in_threads

COUNT = 20
QUEUES = [(durability, name) for durability in (EVERYSEC, ALWAYS) for name in rivals(durability)]


@pytest.mark.parametrize("work", [put_all, take_all, work_in_threads])
@pytest.mark.parametrize(("durability", "name"), QUEUES)
def test_a_queue_does_the_work(
    durability: str, name: str, work: Callable[[Queue, int], float], tmp_path: Path
) -> None:
    with rivals(durability)[name](tmp_path, durability) as queue:
        assert work(queue, COUNT) > 0
        assert queue.take() == (work is put_all)


class Forgetful:
    """A queue that loses the first entry."""

    def __init__(self) -> None:
        self._entries = 0
        self._lost = False

    def put(self, payload: str) -> None:
        if self._lost:
            self._entries += 1
        self._lost = True

    def take(self) -> bool:
        self._entries -= 1
        return self._entries >= 0


def test_a_lost_entry_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="19 of 20"):
        take_all(Forgetful(), COUNT)
