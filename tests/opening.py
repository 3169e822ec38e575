"""Stores for tests: opened in one place, checked and closed at the end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvstream import Durability, ManualClock, Store, StoreClosed
from kvstream.engine.coerce import store_options
from kvstream.engine.engine import Engine
from kvstream.meta.txn import Txn
from kvstream.types.thresholds import Thresholds

LEVELS = [level for level in Durability if level is not Durability.ARCHIVE]
"""The levels that need no archive."""


class Stores:
    """Opens stores under one directory; ``finish`` checks and closes those still open."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self._directory = directory
        self._clock = clock
        self._opened: list[tuple[Store, Path, dict[str, Any]]] = []

    def __call__(
        self, path: str | Path = "store", thresholds: Thresholds | None = None, **options: Any
    ) -> Store:
        """Open the store ``path``, by default with durability "no" and the manual clock."""
        where = self._directory / path
        settings = {"durability": "no", "clock": self._clock, **options}
        if thresholds is None:
            store: Store = Store.open(where, **settings)
        else:
            store = open_with(where, thresholds, **settings)
        self._opened.append((store, where, options))
        return store

    def reopen(self, store: Store, **options: Any) -> Store:
        """Close a store that was opened here, and open it again; ``options`` replace old ones."""
        store.close()
        _, where, before = self._entry(store)
        return self(where, **{"thresholds": store.engine.thresholds, **before, **options})

    def path_of(self, store: Store) -> Path:
        """Return the directory of a store that was opened here."""
        return self._entry(store)[1]

    def _entry(self, store: Store) -> tuple[Store, Path, dict[str, Any]]:
        return next(entry for entry in self._opened if entry[0] is store)

    def finish(self) -> None:
        """Check each open store, and close all even if a check fails."""
        try:
            for store, where, _ in self._opened:
                try:
                    faults = store.check()
                except StoreClosed:
                    continue
                assert faults == [], f"the store {where.name!r} is not sound"
        finally:
            for store, _, _ in self._opened:
                store.close()


def open_with(where: Path, thresholds: Thresholds, **settings: Any) -> Store:
    """Open a store with its own thresholds, and settings as those of ``Store.open``."""
    clock, db = settings.pop("clock", None), settings.pop("db", 0)
    return Store(Engine(where, store_options(settings), clock, thresholds), db)


def change_thresholds(engine: Engine, **sizes: Any) -> None:
    """Give an open store other thresholds, as if it were opened with them."""
    with engine.hold():
        engine.run(Txn.write_seen)
        engine.thresholds = engine.catalog.thresholds = replace(engine.thresholds, **sizes)
        engine.catalog.forget()
        engine._spare = None
