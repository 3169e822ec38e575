"""A writer pauses while compaction is behind, and holds no lock meanwhile."""

import threading
from collections.abc import Callable

import pytest

from kvstream import Store
from kvstream.engine.turns import Turn
from kvstream.layout.keys import qualified
from kvstream.layout.values import encode_fields
from kvstream.operations import append
from kvstream.storage.batch import Family
from kvstream.storage.stalls import LEVEL0_FREE
from tests.patience import PATIENCE_S

ENTRIES = [{"value": "x" * 100}] * 1000


def add_many(store: Store) -> None:
    store.stream("fast").add_many(ENTRIES)


def add_in_a_transaction(store: Store) -> None:
    with store.transaction():
        store.stream("fast").add_many(ENTRIES)


def add_in_a_turn(store: Store) -> None:
    turn = Turn(store.engine)
    row = encode_fields([("value", "x" * 100)])
    turn.run(append.add_many, qualified(0, b"fast"), [row] * 1000)
    turn.commit()


@pytest.mark.parametrize("write", [add_many, add_in_a_transaction, add_in_a_turn])
def test_others_read_while_a_writer_pauses(
    store: Store, monkeypatch: pytest.MonkeyPatch, write: Callable[[Store], None]
) -> None:
    messages = store.engine.database._families[Family.MESSAGES]
    messages.set_options({"disable_auto_compactions": "true"})
    for _ in range(LEVEL0_FREE + 8):
        store.stream("old").add({"value": "x"})
        messages.flush(True)
    found: list[int] = []

    def pause(seconds: float) -> None:
        assert seconds > 0
        reader = threading.Thread(target=lambda: found.append(len(store.stream("fast"))))
        reader.start()
        reader.join(PATIENCE_S)

    store.engine.database.pause_by(pause)
    write(store)
    assert found == [len(ENTRIES)]
    messages.set_options({"disable_auto_compactions": "false"})
