"""Follows a server into a store until it is killed: ``python follow_program.py DIRECTORY PORT``."""

import sys
from functools import partial
from pathlib import Path

import redis

from kvstream import Store
from kvstream.migration.items import Selection
from kvstream.migration.replication.applying import load_snapshot
from kvstream.migration.replication.following import Follower
from kvstream.migration.replication.targets import FollowingStore


def main(directory: Path, port: int) -> None:
    store = Store.open(directory, durability="no")
    target = FollowingStore(store.engine, f"redis://127.0.0.1:{port}", Selection())
    follower = Follower(
        lambda: redis.Redis(port=port),
        target,
        directory.with_suffix(".rdb"),
        partial(load_snapshot, store, Selection()),
        lambda text: print(text, flush=True),
    )
    follower.follow(lambda: False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
