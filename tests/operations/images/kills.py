"""The files that kill -9 would leave of a store at each of its steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvstream import Store
from kvstream.storage.database import Database
from tests.folders import as_killed

STEPS = ("write", "ingest")
"""The calls that change the files of an open store."""


@contextmanager
def lives(store: Store, place: Path, *others: Callable[..., Any]) -> Iterator[list[Path]]:
    """Copy a store's directory before and after each step that it takes; return the copies."""
    copies: list[Path] = []
    source = store.engine.database.directory

    def keep() -> None:
        copies.append(place / f"life-{len(copies)}")
        as_killed(source, copies[-1])

    def keep_around(step: Callable[..., Any]) -> Callable[..., Any]:
        def take(database: Database, *args: Any, **kwargs: Any) -> Any:
            keep()
            done = step(database, *args, **kwargs)
            keep()
            return done

        return take

    with pytest.MonkeyPatch.context() as patch:
        for name in (*STEPS, *(step.__name__ for step in others)):
            patch.setattr(Database, name, keep_around(getattr(Database, name)))
        yield copies
