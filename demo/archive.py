"""The archive: the directory of the store is deleted, and restored from another folder.

It is a folder here; with ``s3://bucket/path`` the same calls work on an object store. An entry that
is added last is acknowledged when it is in the archive, so it is there after the restore as well.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import kvstream
from demo.job import DemoFailed

ARCHIVE = "-archive"
"""The suffix of the archive, after the name of the store."""
NOTES = "notes"

Say = Callable[[str], None]


def run(folder: Path, say: Say) -> None:
    """Archive the store, delete its directory, and restore it; raise DemoFailed if it differs."""
    archive = folder.resolve().with_name(folder.name + ARCHIVE)
    shutil.rmtree(archive, ignore_errors=True)
    url = f"file://{archive}"
    with kvstream.open(folder, archive=url, durability="archive") as store:
        store.stream(NOTES).add({"text": "written last"})
        before = _lengths(store)
    objects = [path.stat().st_size for path in archive.rglob("*") if path.is_file()]
    say(f"archived  {sum(objects) / 1e6:.1f} MB in {len(objects)} objects, in {archive.name}")
    shutil.rmtree(folder)
    say(f"[red]deleted[/]   {folder.name}, the whole directory")
    start = time.perf_counter()
    plan = kvstream.restore(url, folder)
    say(f"restored  commit {plan.sequence:,} in {time.perf_counter() - start:.2f} s")
    with kvstream.open(folder, read_only=True) as store:
        after = _lengths(store)
    if after != before:
        raise DemoFailed("the restored store differs from the deleted one")
    say(f"[green]equal:[/]    {len(after)} streams with {sum(after.values()):,} entries")


def _lengths(store: kvstream.Store) -> dict[bytes, int]:
    return {info.key: info.length or 0 for info in store.key_infos()}
