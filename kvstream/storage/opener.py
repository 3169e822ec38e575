"""How RocksDB is opened: the options of a store as options of RocksDB, for each way of access.

Only this module, ``database`` and ``tables`` import ``rocksdict``. Whether a store may be opened is
decided in ``opening``; what the options are, in ``families``.
"""

from pathlib import Path

from rocksdict import (
    AccessType,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
)

from kvstream.errors import Corruption
from kvstream.options import StoreOptions
from kvstream.storage.batch import Family
from kvstream.storage.failures import classified_at_open
from kvstream.storage.families import (
    LARGE_VALUES_SUFFIX,
    TEMPLATE,
    FamilySettings,
    applied,
    database_settings,
    family_settings,
)
from kvstream.storage.opening import Access

_WITH_LARGE_VALUES = Family.MESSAGES.name.lower()


class Opener:
    """Opens directories with one store's options; all that it opens share a block cache."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._cache = Cache(options.block_cache_bytes)

    def __call__(self, path: Path, access: Access, own: Path | None = None) -> Rdict:
        """Open a directory; who follows its writer is given a folder for what RocksDB writes."""
        shared = database_settings(self._options, create=access is Access.CREATE)
        general = applied(Options(raw_mode=True), shared)
        mode, salvages = DBRecoveryMode, access is Access.SALVAGE
        general.set_wal_recovery_mode(
            mode.skip_any_corrupted_record() if salvages else mode.point_in_time()
        )
        _, templates = Options.load_latest(str(TEMPLATE), cache=self._cache)
        families = {
            family.name: _family_options(family, templates[family.name])
            for family in family_settings(self._options)
        }
        if access is Access.FOLLOW:
            general.set_max_open_files(-1)  # else it may miss tables that are deleted meanwhile
        reads = access in (Access.READ, Access.FOLLOW)
        way = AccessType.read_only(False) if reads else AccessType.read_write()
        if own is not None:
            way = AccessType.secondary(str(own))
        try:
            rows = Rdict(str(path), general, families, way)
        except Exception as error:
            raise classified_at_open(error) from None
        if access is not Access.FOLLOW:  # the writer may be replacing files
            _check_large_values(rows, path)
        return rows


def _check_large_values(rows: Rdict, path: Path) -> None:
    """Close the store and raise Corruption where files of large values are missing or cut short.

    RocksDB checks at opening that all tables are there, but not these files.
    """
    family = rows.get_column_family(_WITH_LARGE_VALUES)
    count = family.property_int_value("rocksdb.num-blob-files") or 0
    size = family.property_int_value("rocksdb.live-blob-file-size") or 0
    family.close()
    there = [file.stat().st_size for file in path.glob("*" + LARGE_VALUES_SUFFIX)] if count else []
    if len(there) < count or sum(there) < size:  # there may be more: RocksDB removes them later
        rows.close()
        raise Corruption(
            f"files of large values ({LARGE_VALUES_SUFFIX}) are missing or cut short: the store "
            f"needs {count} of {size} bytes and has {len(there)} of {sum(there)}"
        )


def _family_options(settings: FamilySettings, template: Options) -> Options:
    options = applied(template, settings.options)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_blob_compression_type(DBCompressionType.zstd())
    return options
