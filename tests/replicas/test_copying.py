"""A copy of a store: received in parts, checked, and put in place in steps that a crash may end."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.engine.following import Source
from kvstream.errors import Corruption, ProtocolError
from kvstream.replicas.copying import CopySource, Incoming
from kvstream.storage import replacement
from kvstream.storage.changes import ChangeReader
from tests.replicas.conftest import copy_to, history_of, open_store, place_of, sum_of


@pytest.fixture
def primary(open_one: Callable[[str], Store]) -> Store:
    store = open_one("primary")
    store.stream("orders").add_many([{"n": n, "text": "x" * 100} for n in range(2000)])
    store.stream("large").add({"v": os.urandom(400_000)})
    store.engine.flush()
    store.engine.following.begin_epoch()
    return store


def receive(source: CopySource, incoming: Incoming, most: int = 1 << 30) -> None:
    """Receive what is needed, up to a number of bytes."""
    for index in incoming.needed:
        with open(source.open(index), "rb") as file:
            data = file.read(max(most, 0))
            incoming.write(index, 0, data)
            most -= len(data)
        if most <= 0:
            return


def test_a_copy_has_the_rows_and_the_position_of_the_primary(
    primary: Store, open_one: Callable[[str], Store]
) -> None:
    replica = open_one("replica")
    replica.stream("own").add({"n": 1})
    replica.engine.following.follow(Source("primary.example", 1))
    place = place_of(primary)
    copy_to(primary, replica)
    assert sum_of(replica) == sum_of(primary)
    assert place_of(replica) == place
    assert history_of(replica).sequence == 0
    names = os.listdir(replica.engine.database.directory)
    assert not {replacement.INCOMING, replacement.OUTGOING} & {*names}


def test_a_copy_goes_on_with_the_files_that_it_has(primary: Store, tmp_path: Path) -> None:
    source = CopySource(primary.engine, {})
    first = Incoming(tmp_path, source.files)
    assert len(first.needed) == len(source.files)
    receive(source, first, most=sum(file.size for file in source.files) - 1000)
    first.close()
    source.close()
    primary.stream("orders").add({"n": 1})
    again = CopySource(primary.engine, {})
    second = Incoming(tmp_path, again.files)
    assert 0 < len(second.needed) < len(again.files)
    with pytest.raises(ProtocolError):
        second.complete()
    receive(again, second)
    assert second.bytes_left == 0
    folder = second.complete()
    again.close()
    with Store.open(folder, read_only=True) as store:
        assert sum_of(store) == sum_of(primary)
        assert store.check() == []


def test_a_file_that_is_not_what_its_sum_says_is_refused(primary: Store, tmp_path: Path) -> None:
    source = CopySource(primary.engine, {})
    incoming = Incoming(tmp_path, source.files)
    index = max(incoming.needed, key=lambda number: source.files[number].size)
    with open(source.open(index), "rb") as file:
        data = bytearray(file.read())
    data[len(data) // 2] ^= 1
    with pytest.raises(Corruption, match="SHA-256"):
        incoming.write(index, 0, bytes(data))
    source.close()
    assert index in Incoming(tmp_path, source.files).needed


def test_the_sums_of_files_are_kept(primary: Store) -> None:
    sums: dict[tuple[str, int, int, int], str] = {}
    CopySource(primary.engine, sums).close()
    tables = {known: sum_ for known, sum_ in sums.items() if known[0].endswith(".sst")}
    assert tables
    for known in tables:
        sums[known] = "known"
    again = CopySource(primary.engine, sums)
    assert {file.sum for file in again.files if file.name.endswith(".sst")} == {"known"}
    again.close()
    assert not os.listdir(primary.engine.database.staging())


class Crash(Exception):
    """The process would end here."""


@pytest.mark.parametrize("is_open", [False, True])
def test_a_crash_at_any_step_leaves_the_old_store_or_the_new_one(
    primary: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """An old store that ``is_open`` removes and makes files until it is closed."""
    replica = open_store(tmp_path / "replica")
    replica.stream("own").add({"n": 1})
    old = sum_of(replica)
    path = replica.engine.database.directory
    replica.close()
    source = CopySource(primary.engine, {})
    new = sum_of(primary)
    results = []
    for steps in range(1000):
        place = tmp_path / f"replica-{steps}"
        shutil.copytree(path, place)
        receive(source, incoming := Incoming(place, source.files))
        incoming.complete()
        left = crash_after(steps, monkeypatch)
        try:
            replacement.prepare(place, 0, {"fork": 7})
            if is_open:
                same = {*os.listdir(place)} & {*os.listdir(place / replacement.INCOMING)}
                os.unlink(place / min(name for name in same if name.endswith((".log", ".sst"))))
                (place / "999999.sst").touch()
                (place / "999998.log").touch()
            replacement.finish(place)
        except Crash:
            pass
        monkeypatch.undo()
        with open_store(place) as store:
            results.append(sum_of(store))
            assert store.check() == []
        shutil.rmtree(place)
        if left[0] > 0:
            break
    source.close()
    assert {*results} == {old, new}
    assert results == sorted(results, key=[old, new].index)
    assert len(results) > 10


def crash_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Raise Crash after so many changes of the directory; return how many are left."""
    left = [steps]

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **named: object) -> object:
            if left[0] <= 0:
                raise Crash
            left[0] -= 1
            return change(*arguments, **named)

        return run

    for name in ("rename", "unlink", "rmdir", "mkdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    return left


def test_what_the_old_store_alone_had_is_kept_with_what_reads_it(
    primary: Store, open_one: Callable[[str], Store], tmp_path: Path
) -> None:
    replica = open_one("replica")
    replica.stream("own").add({"n": "only here"})
    path = replica.engine.database.directory
    replica.engine.following.follow(Source("primary.example", 1))
    copy_to(primary, replica, kept_from=0, note={"fork": 7})
    [kept] = replacement.kept_folders(path)
    assert json.loads((kept / replacement.NOTE).read_text())["note"] == {"fork": 7}
    assert not list(kept.glob("*.sst"))
    reader = ChangeReader(kept)
    rows = [row for record in iter(reader.read, []) for each in record for row in each.rows()]
    reader.close()
    assert any(b"only here" in (row[3] or b"") for row in rows)
    with pytest.raises(Exception, match="own"):
        replica.stream("own").info()
