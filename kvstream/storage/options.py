"""The options of RocksDB: those of the three column families as tables, and how a store is opened.

Names in the tables are those of the setters of ``rocksdict.Options``. What has no setter stands in
``template/``, as an options file of RocksDB's own. Only this module, ``database`` and ``sst``
import ``rocksdict``. Whether a store may be opened is decided in ``opening``.

``Tuning`` has the options that users give for speed, memory and space, by RocksDB's own names::

    max_background_jobs                 an option of the database
    target_file_size_base               an option of every column family
    messages.target_file_size_base      an option of one: messages, metadata or trees

None of them changes what survives a crash or what is read. Those that would are missing: the log,
checks, merging, deletions.
"""

import re
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rocksdict import (
    AccessType,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
)

from kvstream.errors import Corruption, InvalidArgument, nearest
from kvstream.storage.batch import Family
from kvstream.storage.opening import Access
from kvstream.storage.write_guard import classify_at_open
from kvstream.types.options import MEGABYTE, StoreOptions, background_jobs

Settings = dict[str, tuple[object, ...]]

BLOCK_CACHE = "block_cache"
"""The size of the block cache, which all families share. It has no setter."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d{1,19}) ?([KMG]?)B?", re.IGNORECASE)
_COMPRESSIONS = ("none", "lz4", "zstd")
"""The compressions that every build of rocksdict has."""


def _number(low: int, high: int = (1 << 63) - 1) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            value = int(match[1]) * _UNITS[match[2].upper()]
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
    switch = value if type(value) is bool else known.get(str(value).lower())
    if switch is None:
        raise ValueError("true or false")
    return switch


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

    def __init__(self, options: Mapping[str, object]) -> None:
        """Check the options; raise InvalidArgument for an unknown name or a bad value."""
        self.block_cache: int | None = None
        self.database: Settings = {}
        self.families: dict[str, Settings] = {family: {} for family in _FAMILIES}
        # an option of one family overrides that of all, in any order
        for name in sorted(options, key=lambda name: "." in name):
            self._set(name, options[name])

    def _set(self, name: str, value: object) -> None:
        family, _, option = name.rpartition(".")
        parse = (_FAMILY if family else _FAMILY | _DATABASE).get(option)
        if parse is None or (family and family not in _FAMILIES):
            known = [*_DATABASE, *_FAMILY]
            near = nearest(
                name, [*known, *(f"{name}.{key}" for name in _FAMILIES for key in _FAMILY)]
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
            for family_name in [family] if family else _FAMILIES:
                self.families[family_name][setter] = (parsed,)


KILOBYTE = 1 << 10
OPEN_FILES_MAX = 448
"""Table files held open: with 64 MB each that is 28 GB before one has to be opened again."""
OPENING_THREADS_MAX = 16
TEMPLATE = Path(__file__).with_name("template")
"""The first options of every family, as a directory that ``Options.load_latest`` reads."""
LEVEL0_STOP = 64
"""Tables at level 0 at which RocksDB stops writes; ``stalls`` slows writers down long before."""
WRITE_BUFFERS = 3
"""Write buffers of a family: one is filled while two wait for a disk that pauses. With four RocksDB
would slow writes down by itself, which is a stop for us."""
KEPT_LOG_S = 365 * 24 * 3600
"""How long RocksDB keeps finished logs, if it keeps any; ``changes.trim_logs`` removes them."""
DEFAULT_FAMILY_BUFFER = 64 * KILOBYTE
"""The least that RocksDB takes; no row is ever written there."""


@dataclass(frozen=True, slots=True)
class FamilySettings:
    """One column family: its name, and setters for its options."""

    name: str
    options: Settings


def open_files_max() -> int:
    """Return how many table files to hold open: at most half of what the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    return max(32, min(OPEN_FILES_MAX, soft // 2))


def below(upper: bytes) -> ReadOptions:
    """Return the bounds of an iterator below ``upper``; the caller keeps these bytes as long."""
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(upper)
    return bounds


_Target = TypeVar("_Target")
_COMPRESSION = {"set_compression_type", "set_bottommost_compression_type"}


def apply_settings(target: _Target, settings: Settings) -> _Target:
    """Call the setters on ``target`` and return it."""
    for setter, arguments in settings.items():
        if setter in _COMPRESSION:
            arguments = tuple(getattr(DBCompressionType, str(name))() for name in arguments)
        getattr(target, setter)(*arguments)
    return target


def database_settings(options: StoreOptions, create: bool, keep_logs: bool = False) -> Settings:
    """Return the setters for the options that all families share."""
    return {
        # A limit of bytes as well would remove logs at each opening that nobody has read.
        "set_wal_ttl_seconds": (KEPT_LOG_S if keep_logs else 0,),
        "create_if_missing": (create,),
        "create_missing_column_families": (create,),
        # The family "default" holds nothing; but after a full disk RocksDB goes on only once the
        # largest write buffer of all would fit, and the default one has 64 MB.
        "set_write_buffer_size": (DEFAULT_FAMILY_BUFFER,),
        # A damaged table is refused at open, not met at some later read.
        "set_paranoid_checks": (True,),
        # One family that is hardly written to would else keep the whole log alive.
        "set_max_total_wal_size": (options.wal_bytes_max,),
        "set_max_open_files": (open_files_max(),),
        "set_max_background_jobs": (background_jobs(),),
        # Spread the writing of tables, so that the fsync of the log does not queue behind it.
        "set_bytes_per_sync": (MEGABYTE,),
        # The information log of RocksDB: four files of 4 MB, not a thousand without bound.
        "set_keep_log_file_num": (4,),
        "set_max_log_file_size": (4 * MEGABYTE,),
        "set_max_manifest_file_size": (64 * MEGABYTE,),
        "set_stats_dump_period_sec": (0,),
        "set_stats_persist_period_sec": (0,),
        **Tuning(options.rocksdb).database,
    }


def family_settings(options: StoreOptions) -> tuple[FamilySettings, ...]:
    """Return the settings of every family, in the order of ``Family``."""
    tuned = Tuning(options.rocksdb).families
    usual = [_SETTINGS[family](options) for family in Family]
    return tuple(replace(family, options=family.options | tuned[family.name]) for family in usual)


def buffer_sizes(options: StoreOptions) -> list[int]:
    """Return the size of one write buffer of every family, in the order of ``Family``."""
    sizes = [family.options["set_write_buffer_size"][0] for family in family_settings(options)]
    return [size for size in sizes if isinstance(size, int)]


def _messages(options: StoreOptions) -> FamilySettings:
    """Return the settings for rows that are appended, read in order and deleted in ranges."""
    return FamilySettings(
        "messages",
        {
            "set_write_buffer_size": (options.write_buffer_bytes,),
            # Each table at level 0 has rows of all streams, so its range overlaps most tables of
            # the level below, and merging it rewrites that level: it is as large as the tables
            # that are merged at a time. Small tables overlap few others. Their size doubles from
            # level to level: it is 64 MB at the last one of a store of some gigabytes.
            "set_max_bytes_for_level_base": (max(32 * MEGABYTE, 4 * options.write_buffer_bytes),),
            "set_target_file_size_base": (16 * MEGABYTE,),
            "set_target_file_size_multiplier": (2,),
            **_STALLS,
            # Gets are of rows that exist: no filter for the last level, which holds most of them.
            "set_optimize_filters_for_hits": (True,),
            **_LARGE_VALUES,
            **_DELETION_COLLECTOR,
        },
    )


def _metadata(options: StoreOptions) -> FamilySettings:
    """Return the settings for rows that are overwritten often and looked up one by one."""
    return FamilySettings(
        "metadata",
        {
            "set_write_buffer_size": (options.tree_write_buffer_bytes,),
            "set_memtable_whole_key_filtering": (True,),
            "set_memtable_prefix_bloom_ratio": (0.02,),
            **_STALLS,
            **_DELETION_COLLECTOR,
        },
    )


def _trees(options: StoreOptions) -> FamilySettings:
    """Return the settings for short-lived rows: deleted ones must leave the disk soon."""
    return FamilySettings(
        "trees",
        {
            "set_write_buffer_size": (options.tree_write_buffer_bytes,),
            "set_target_file_size_base": (8 * MEGABYTE,),
            "set_max_bytes_for_level_base": (32 * MEGABYTE,),
            **_STALLS,
            **_DELETION_COLLECTOR,
        },
    )


LARGE_VALUE = 256 * KILOBYTE
"""From this size on a value lies in a file for large values, and its row has only its place.

A block with such a value takes a tenth of a millisecond to read and check, and an iterator may read
it to find a row beside it. Pieces of strings (meta/strings.py) are smaller and stay in tables.
"""

LARGE_VALUES_SUFFIX = ".blob"
"""The suffix of the names of these files."""

_LARGE_VALUES: Settings = {
    "set_enable_blob_files": (True,),
    "set_min_blob_size": (LARGE_VALUE,),
    "set_blob_file_size": (64 * MEGABYTE,),
    # A file goes when all its values are deleted. Compactions move the values out of the oldest
    # quarter of the files, and are begun for that where half of the bytes in these are deleted.
    "set_enable_blob_gc": (True,),
    "set_blob_gc_force_threshold": (0.5,),
}

_SETTINGS = {Family.MESSAGES: _messages, Family.METADATA: _metadata, Family.TREES: _trees}

_DELETION_COLLECTOR: Settings = {
    # Of 1024 rows in a row 512 deleted, or half of a file: compact it.
    "add_compact_on_deletion_collector_factory": (1024, 512, 0.5),
}

_STALLS: Settings = {
    "set_max_write_buffer_number": (WRITE_BUFFERS,),
    # Slowdowns of RocksDB are stops for us: none begins before the stop itself. See ``stalls``.
    "set_level_zero_slowdown_writes_trigger": (LEVEL0_STOP,),
    "set_level_zero_stop_writes_trigger": (LEVEL0_STOP,),
    "set_soft_pending_compaction_bytes_limit": (0,),
    "set_hard_pending_compaction_bytes_limit": (0,),
}


_WITH_LARGE_VALUES = Family.MESSAGES.name.lower()


class Opener:
    """Opens directories with one store's options; all that it opens share a block cache."""

    def __init__(self, options: StoreOptions, keep_logs: bool = False) -> None:
        """With ``keep_logs`` RocksDB moves finished logs into ``archive/`` (changes.py)."""
        self._options, self._keep_logs = options, keep_logs
        cache_bytes = Tuning(options.rocksdb).block_cache
        self._cache = Cache(options.block_cache_bytes if cache_bytes is None else cache_bytes)
        self._opened: list[Rdict] = []

    def __call__(self, path: Path, access: Access, own: Path | None = None) -> Rdict:
        """Open a directory; to follow its writer, with a folder for RocksDB's own files."""
        creates = access is Access.CREATE
        shared = database_settings(self._options, creates, self._keep_logs)
        general = apply_settings(Options(raw_mode=True), shared)
        mode, salvages = DBRecoveryMode, access is Access.SALVAGE
        general.set_wal_recovery_mode(
            mode.skip_any_corrupted_record() if salvages else mode.point_in_time()
        )
        _, templates = Options.load_latest(str(TEMPLATE), cache=self._cache)
        families = {
            family.name: _family_options(family, templates[family.name])
            for family in family_settings(self._options)
        }
        if access is Access.REPLAY:
            for family_options in families.values():
                family_options.set_disable_auto_compactions(True)
        general.set_max_file_opening_threads(_opening_threads(path))
        if access is Access.FOLLOW:
            general.set_max_open_files(-1)  # else it may miss tables that are deleted meanwhile
        reads = access in (Access.READ, Access.FOLLOW)
        way = AccessType.read_only(False) if reads else AccessType.read_write()
        if own is not None:
            way = AccessType.secondary(str(own))
        try:
            # One expression: an interrupt leaves no open database that ``close`` does not know.
            self._opened.append(Rdict(str(path), general, families, way))
        except Exception as error:
            raise classify_at_open(error) from None
        rows = self._opened[-1]
        if access is Access.FOLLOW:  # the writer may be replacing files
            return rows
        try:
            _check_large_values(rows, path)
        except Exception as error:  # a compaction may have met damage by now
            with suppress(Exception):
                rows.close()
            raise classify_at_open(error) from None
        return rows

    def close(self) -> None:
        """Close all that was opened; idempotent."""
        while self._opened:
            with suppress(Exception):  # it is closed already, or its last write failed
                self._opened[-1].close()
            self._opened.pop()


def replay_log(directory: Path, options: StoreOptions) -> None:
    """Write the rows of a store's log into tables, which are not compacted, and close it.

    The store may lack tables: a compaction would take their deleted rows for rows that are not
    there, and drop the deletions. Raises what opening raises.
    """
    opener = Opener(options)
    try:
        opener(directory, Access.REPLAY)
    finally:
        opener.close()


def _opening_threads(path: Path) -> int:
    """Return the number of threads that open the tables of a family.

    RocksDB starts all of them for each family, 16 by default, even if there is no table.
    """
    tables = sum(1 for _ in path.glob("*.sst"))
    return min(OPENING_THREADS_MAX, 1 + tables // 4)


def _check_large_values(rows: Rdict, path: Path) -> None:
    """Raise Corruption if files of large values are missing or cut short.

    RocksDB checks at opening that all tables are there, but not these files.
    """
    family = rows.get_column_family(_WITH_LARGE_VALUES)
    try:
        count = family.property_int_value("rocksdb.num-blob-files") or 0
        size = family.property_int_value("rocksdb.live-blob-file-size") or 0
    finally:
        family.close()
    sizes = [file.stat().st_size for file in path.glob("*" + LARGE_VALUES_SUFFIX)] if count else []
    if len(sizes) < count or sum(sizes) < size:  # there may be more: RocksDB removes them later
        raise Corruption(
            f"files of large values ({LARGE_VALUES_SUFFIX}) are missing or cut short: the store "
            f"needs {count} of {size} bytes and has {len(sizes)} of {sum(sizes)}"
        )


def _family_options(settings: FamilySettings, template: Options) -> Options:
    usual: Settings = {
        "set_compression_type": ("lz4",),
        "set_bottommost_compression_type": ("zstd",),
    }
    template.set_blob_compression_type(DBCompressionType.zstd())
    return apply_settings(template, usual | settings.options)
