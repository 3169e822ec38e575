"""The numbers of the column families in RocksDB's log, by the MANIFEST of the store.

RocksDB numbers families in the order in which it creates them, which differs from store to store.
The family 0 is "default", which kvstream leaves empty.
"""

from pathlib import Path

from kvstream.errors import Corruption
from kvstream.storage.batch import Family
from kvstream.storage.manifest import parse_manifest, read_manifest


def family_names(manifest: bytes) -> dict[int, str]:
    """Return the names of the families by their numbers; a torn end of the file is left out.

    Raises Corruption if the file is damaged, or has fields that this version does not know.
    """
    return parse_manifest(manifest).families


def families_of(names: dict[int, str]) -> dict[int, Family]:
    """Return kvstream's families by their numbers; raise Corruption if one is missing."""
    wanted = {family.name.lower(): family for family in Family}
    found = {number: wanted[name] for number, name in names.items() if name in wanted}
    if len(found) < len(wanted):
        raise Corruption(f"MANIFEST lacks a column family: it has {', '.join(names.values())}")
    return found


def read_families(directory: Path) -> dict[int, Family]:
    """Return the families of a store by their numbers in its log; the store may be open.

    Raises OSError if it has no MANIFEST, Corruption if that is damaged or lacks a family.
    """
    return families_of(family_names(read_manifest(directory)))
