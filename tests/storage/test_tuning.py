"""RocksDB's options by their own names, and defaults for the size of the machine."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvstream import InvalidArgument, Store
from kvstream.engine.engine import Engine
from kvstream.storage.options import Tuning, _opening_threads
from kvstream.types import options
from kvstream.types.options import MEGABYTE, StoreOptions

GIGABYTE = 1024 * MEGABYTE


def in_force(directory: Path) -> dict[str, dict[str, str]]:
    """Return the options that RocksDB wrote to its options file, by section."""
    found: dict[str, dict[str, str]] = {}
    file = max(directory.rglob("OPTIONS-*"))
    for line in file.read_text().splitlines():
        if section := re.fullmatch(r'\[(\w+)(?: "(\w+)")?\]', line):
            values = found.setdefault(section[2] or section[1], {})
        elif "=" in line:
            name, _, value = line.strip().partition("=")
            values.setdefault(name, value)
    return found


def test_given_options_are_applied(tmp_path: Path) -> None:
    given = {
        "max_background_jobs": 5,
        "max_total_wal_size": "96M",
        "use_direct_reads": True,
        "messages.write_buffer_size": "9 MB",
        "write_buffer_size": 8 * MEGABYTE,
        "max_bytes_for_level_multiplier": 8,
        "trees.compression": "none",
        "messages.level0_file_num_compaction_trigger": "6",
    }
    with Store.open(tmp_path / "store", rocksdb=given) as store:
        store.stream("s").add({"f": "v"})
        assert store.check() == []
    found = in_force(tmp_path / "store")
    assert found["DBOptions"]["max_background_jobs"] == "5"
    assert found["DBOptions"]["max_total_wal_size"] == str(96 * MEGABYTE)
    assert found["DBOptions"]["use_direct_reads"] == "true"
    assert {name: found[name]["write_buffer_size"] for name in ("messages", "trees")} == {
        "messages": str(9 * MEGABYTE),
        "trees": str(8 * MEGABYTE),
    }
    assert found["metadata"]["max_bytes_for_level_multiplier"] == "8.000000"
    assert found["trees"]["compression"] == "kNoCompression"
    assert found["messages"]["compression"] == "kLZ4Compression"
    assert found["messages"]["level0_file_num_compaction_trigger"] == "6"


def test_threads_that_open_tables_are_as_many_as_there_are_tables_for(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        store.stream("s").add({"f": "v"})
    assert in_force(tmp_path / "store")["DBOptions"]["max_file_opening_threads"] == "1"
    many = tmp_path / "many"
    many.mkdir()
    for tables, threads in ((3, 1), (4, 2), (60, 16), (100, 16)):
        for number in range(tables):
            (many / f"{number:06}.sst").touch()
        assert _opening_threads(many) == threads


def test_the_block_cache_has_the_given_size(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", rocksdb={"block_cache": "5M"}) as store:
        assert isinstance(store._engine, Engine)
        database = store._engine.database
        assert database.property_int("rocksdb.block-cache-capacity", 0) == 5 * MEGABYTE


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_background_job": 3}, r"max_background_job: did you mean 'max_background_jobs'\?"),
        ({"message.compression": "lz4"}, r"did you mean 'messages\.compression'\?"),
        ({"trees.max_background_jobs": 3}, r"none that may be changed: trees\.max_background_jobs"),
        ({"wal_recovery_mode": 0}, r"none that may be changed: wal_recovery_mode"),
        ({"": 0}, r"none that may be changed:  \(there are block_cache, max_background_jobs,"),
        ({"max_background_jobs": 1}, "^max_background_jobs must be a whole number of 2 to 64"),
        ({"max_background_jobs": True}, "^max_background_jobs must be a whole number"),
        ({"block_cache": "64T"}, "^block_cache must be a whole number"),
        ({"block_cache": -1}, "^block_cache must be a whole number"),
        ({"block_cache": 1 << 64}, "^block_cache must be a whole number"),
        ({"use_direct_reads": "yes"}, "^use_direct_reads must be true or false, not 'yes'"),
        ({"compression": "brotli"}, "^compression must be one of none, lz4, zstd, not 'brotli'"),
        ({"blob_gc_age_cutoff": "nan"}, "^blob_gc_age_cutoff must be a number of 0 to 1"),
        ({"blob_gc_age_cutoff": None}, "^blob_gc_age_cutoff must be a number of 0 to 1"),
        ("compression=lz4", "^rocksdb must map names of options to values"),
        ({1: 2}, "^rocksdb must map names of options to values"),
    ],
)
def test_a_wrong_option_is_refused_before_any_file_is_created(
    tmp_path: Path, given: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Store.open(tmp_path / "store", rocksdb=given)
    assert not (tmp_path / "store").exists()


def test_an_option_of_one_family_overrides_that_of_all_in_any_order() -> None:
    one, every = ("trees.min_blob_size", 5000), ("min_blob_size", 6000)
    for given in (dict([one, every]), dict([every, one])):
        families = Tuning(given).families
        assert families["trees"] == {"set_min_blob_size": (5000,)}
        assert families["messages"] == {"set_min_blob_size": (6000,)}


@pytest.mark.parametrize(
    ("memory", "buffer", "log", "reserve"),
    [
        (GIGABYTE // 2, 16, 64, 128),
        (6 * GIGABYTE, 24, 72, 152),
        (8 * GIGABYTE, 32, 96, 192),
        (512 * GIGABYTE, 32, 96, 192),
    ],
)
def test_buffers_depend_on_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, buffer: int, log: int, reserve: int
) -> None:
    monkeypatch.setattr(options, "machine_memory", lambda: memory)
    chosen = StoreOptions()
    assert chosen.write_buffer_bytes == buffer * MEGABYTE
    assert chosen.wal_bytes_max == log * MEGABYTE
    assert chosen.free_space_reserve == reserve * MEGABYTE
    assert 64 * MEGABYTE <= chosen.block_cache_bytes <= memory / 4


def test_the_memory_of_a_container_is_its_limit(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    memory = partial(options.machine_memory.__wrapped__, (tmp_path / "missing", limit))
    whole = memory()
    limit.write_text("max\n")
    assert memory() == whole
    limit.write_text(f"{100 * MEGABYTE}\n")
    assert memory() == 100 * MEGABYTE
