"""Opening places, as sources and as targets."""

import hashlib

from kvstream.errors import InvalidArgument
from kvstream.migration.items import Reception, Source, Target
from kvstream.migration.places import Place, PlaceKind
from kvstream.migration.server import Server
from kvstream.migration.server_source import ServerSource
from kvstream.migration.server_target import ServerTarget
from kvstream.migration.store_place import PlannedStore, StoreSource, StoreTarget
from kvstream.options import Durability
from kvstream.rdb import targets
from kvstream.storage.directory import LAYOUT_FILE
from kvstream.store import Store


def open_source(place: Place) -> Source:
    """Open a place that is read; nothing in it changes."""
    if place.kind is PlaceKind.SERVER:
        return ServerSource(Server(place))
    if place.kind is PlaceKind.STORE:
        return StoreSource(Store.open(place.path, read_only=True, create=False))
    if place.kind is PlaceKind.RDB:
        from kvstream.migration.rdb_place import RdbSource

        return RdbSource(place.path)
    from kvstream.migration.aof_source import AofSource

    return AofSource(place.path)


def open_target(
    place: Place,
    target_version: str | None = None,
    durability: Durability = Durability.EVERYSEC,
    *,
    replace: bool = False,
) -> Target:
    """Open a place that is written; a store or a file is made where there is none.

    ``target_version``: which server an RDB file is for, as in ``redis:7.0`` or ``valkey``; a file
    that is there is written anew only with ``replace``.
    """
    check_version(place, target_version)
    if place.kind is PlaceKind.SERVER:
        return ServerTarget(Server(place))
    if place.kind is PlaceKind.STORE:
        return StoreTarget(Store.open(place.path, durability=durability))
    if place.kind is PlaceKind.RDB:
        from kvstream.migration.rdb_place import RdbTarget

        return RdbTarget(place.path, file_target(target_version), replace)
    raise InvalidArgument("an append-only file is read, not written: write an RDB file")


def planned_target(place: Place, target_version: str | None = None) -> Reception:
    """Open a target to be asked and not written; what is not there yet is not made."""
    if place.kind is PlaceKind.RDB:
        check_version(place, target_version)
        from kvstream.migration.rdb_place import PlannedFile

        return PlannedFile(file_target(target_version))
    if place.kind is PlaceKind.STORE:
        check_version(place, target_version)
        there = (place.path / LAYOUT_FILE).exists()
        store = Store.open(place.path, read_only=True, create=False) if there else None
        return PlannedStore(store)
    return open_target(place, target_version)


def file_target(target_version: str | None) -> targets.Target:
    """Return which server a file is for; None: the newest."""
    return targets.NEWEST if target_version is None else targets.target(target_version)


def check_version(place: Place, target_version: str | None) -> None:
    """Refuse a version for a target that has its own."""
    if target_version is not None and place.kind is not PlaceKind.RDB:
        raise InvalidArgument(
            "a version is named for an RDB file; a server is asked for its own, a store holds all"
        )


def fingerprint(place: Place) -> bytes:
    """Return what changes with a file: what was begun from one is not gone on with from another."""
    if place.kind is PlaceKind.SERVER:
        return str(place).encode()
    told = place.path.stat()
    facts = [str(place), told.st_ino]
    if not place.path.is_dir():
        facts += [told.st_size, told.st_mtime_ns]
    return hashlib.sha256(repr(facts).encode()).digest()
