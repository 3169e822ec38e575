"""A reader of dead letters wakes when another reader's attempt gives an entry up."""

import threading

from kvstream import ManualClock, Store
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified
from kvstream.operations.queues import policy
from tests.patience import until


def test_a_read_that_gives_up_an_entry_wakes_the_readers_of_dead_letters(
    store: Store, clock: ManualClock
) -> None:
    store.stream("s").add({"n": "1"})
    group = store.stream("s").create_group("g", start="0")
    rules = {"lease_ms": 1000, "max_deliveries": 1}
    store.engine.run(policy.set_policy, qualified(0, b"s"), b"g", rules)
    assert group.consumer("w").read()
    letters: list[object] = []
    stop = threading.Event()

    def watch() -> None:
        letters.extend(store.stream("s:dead").read(after="0", block=30))

    def work() -> None:
        group.consumer("v").read(block=30)
        stop.set()

    threads = [threading.Thread(target=watch), threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    until(lambda: len(store.engine.waiters) == 2)
    clock.advance(1000)
    store.engine.run(timer_thread.run_due, 10)
    threads[0].join(30)
    assert len(letters) == 1
    store.stream("s").add({"n": "2"})
    threads[1].join(30)
    assert stop.is_set()
