"""RocksDB's own options, by their names, for those who want others than kvstream's.

::

    max_background_jobs                 an option of the database
    target_file_size_base               an option of every column family
    messages.target_file_size_base      an option of one: messages, metadata or trees

The options here change speed, memory and space. None of them changes what survives a crash or what
is read, so those that would are missing: the log, checks, merging, deletions.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kvstream.errors import InvalidArgument, nearest
from kvstream.storage.batch import Family

Settings = dict[str, tuple[object, ...]]

BLOCK_CACHE = "block_cache"
"""The size of the block cache, which all families share. It has no setter."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d{1,19}) ?([KMG]?)B?", re.IGNORECASE)
_COMPRESSIONS = ("none", "lz4", "zstd")
"""What is compiled into every build of rocksdict."""


def _number(low: int, high: int = (1 << 63) - 1) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
            value = int(found[1]) * _UNITS[found[2].upper()]
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"a whole number of {low} to {high}, such as 64 or 64M")
        return value

    return parse


def _share(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        try:
            number = float(value) if type(value) is not bool else None
        except (TypeError, ValueError):
            number = None
        if number is None or not low <= number <= high:
            raise ValueError(f"a number of {low:g} to {high:g}")
        return number

    return parse


def _switch(value: Any) -> bool:
    known = {"true": True, "false": False}
    found = value if type(value) is bool else known.get(str(value).lower())
    if found is None:
        raise ValueError("true or false")
    return found


def _compression(value: Any) -> str:
    if value not in _COMPRESSIONS:
        raise ValueError(f"one of {', '.join(_COMPRESSIONS)}")
    return str(value)


_INT_MAX = (1 << 31) - 1

_DATABASE: dict[str, Callable[[Any], object]] = {
    BLOCK_CACHE: _number(0),
    "max_background_jobs": _number(2, 64),
    "max_subcompactions": _number(1, 64),
    "max_open_files": _number(32, _INT_MAX),
    "max_total_wal_size": _number(1 << 20),
    "bytes_per_sync": _number(0),
    "wal_bytes_per_sync": _number(0),
    "compaction_readahead_size": _number(0),
    "use_direct_reads": _switch,
    "use_direct_io_for_flush_and_compaction": _switch,
}

_FAMILY: dict[str, Callable[[Any], object]] = {
    "write_buffer_size": _number(64 << 10, 4 << 30),
    "target_file_size_base": _number(1 << 20),
    "target_file_size_multiplier": _number(1, 16),
    "max_bytes_for_level_base": _number(1 << 20),
    "max_bytes_for_level_multiplier": _share(2, 100),
    "max_compaction_bytes": _number(1 << 20),
    "level0_file_num_compaction_trigger": _number(1, 32),
    "memtable_prefix_bloom_ratio": _share(0, 0.25),
    "min_blob_size": _number(4 << 10),
    "blob_file_size": _number(1 << 20),
    "blob_gc_age_cutoff": _share(0, 1),
    "compression": _compression,
    "bottommost_compression": _compression,
}

_FAMILIES = [family.name.lower() for family in Family]
_SETTERS = {
    "compression": "set_compression_type",
    "bottommost_compression": "set_bottommost_compression_type",
    "level0_file_num_compaction_trigger": "set_level_zero_file_num_compaction_trigger",
}
"""Names of setters that are not the option's."""


class Tuning:
    """The options that are given, as setters of ``rocksdict.Options``."""

    def __init__(self, given: Mapping[str, object]) -> None:
        """Check the options; raise InvalidArgument for an unknown name or a bad value."""
        self.block_cache: int | None = None
        self.database: Settings = {}
        self.families: dict[str, Settings] = {family: {} for family in _FAMILIES}
        # an option of one family outdoes that of all, in any order
        for name in sorted(given, key=lambda name: "." in name):
            self._set(name, given[name])

    def _set(self, name: str, value: object) -> None:
        family, _, option = name.rpartition(".")
        parse = (_FAMILY if family else _FAMILY | _DATABASE).get(option)
        if parse is None or (family and family not in _FAMILIES):
            known = [*_DATABASE, *_FAMILY]
            near = nearest(
                name, [*known, *(f"{each}.{key}" for each in _FAMILIES for key in _FAMILY)]
            )
            raise InvalidArgument(
                f"no such option of RocksDB, or none that may be changed: {name}"
                + (near or f" (there are {', '.join(known)})")
            )
        try:
            parsed = parse(value)
        except ValueError as error:
            raise InvalidArgument(f"{name} must be {error}, not {value!r}") from None
        setter = _SETTERS.get(option, f"set_{option}")
        if option == BLOCK_CACHE:
            assert isinstance(parsed, int)
            self.block_cache = parsed
        elif option in _DATABASE:
            self.database[setter] = (parsed,)
        else:
            for each in [family] if family else _FAMILIES:
                self.families[each][setter] = (parsed,)
