"""Replace the files of a store by those of another one, in steps that a crash may interrupt.

::

    incoming/            the other store, complete and durable once READY is there
    incoming/READY       JSON, written last: where some of the old files are kept
    outgoing/            the old files, while the new ones take their places
    outgoing/MOVED       written once all old files are there: what is in the directory now is new
    outgoing/NOTE        what was READY, once they have
    diverged-N/          old logs and what is needed to read them, if they were to be kept, and NOTE

From READY on each opening goes on where the last one stopped. Before it, the store is the old one.
A step that is done twice does nothing the second time. RocksDB must not be open.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from kvstream.errors import Corruption
from kvstream.storage import files, watermark
from kvstream.storage.changes import ARCHIVE
from kvstream.storage.directory import LAYOUT_FILE

INCOMING, OUTGOING, READY, MOVED, NOTE = "incoming", "outgoing", "READY", "MOVED", "NOTE"
KEPT = "diverged-"
"""The beginning of the names of the folders that keep logs; their number follows."""
_FILES = re.compile(
    rf"CURRENT|IDENTITY|(MANIFEST|OPTIONS)-[0-9]+(\.dbtmp)?|[0-9]+\.(sst|log|blob|dbtmp)"
    rf"|{watermark.FILE_NAME}|{ARCHIVE}"
)
"""What belongs to one RocksDB. The layout file, the lock and RocksDB's own messages stay."""
_TABLES = (".sst", ".blob")
_LOG = re.compile(r"([0-9]+)\.log")


def prepare(directory: Path, kept_from: int | None, note: dict[str, object]) -> None:
    """Decide that the store in ``incoming``, which is durable, takes the place of this one.

    The old store may be open still: RocksDB makes and removes files until it is closed.
    ``kept_from`` is the number of the first old log that is kept, with ``note`` in the file NOTE
    beside it; None: none is.
    """
    incoming = directory / INCOMING
    keep = "" if kept_from is None else _free_name(directory)
    plan = {"keep": keep, "kept_from": kept_from or 0, "note": note}
    files.write(incoming / READY, json.dumps(plan).encode())


def finish(directory: Path) -> None:
    """Do what ``prepare`` has decided, as far as it is not done yet."""
    incoming, outgoing = directory / INCOMING, directory / OUTGOING
    if _read_plan(incoming / READY) is not None:
        outgoing.mkdir(files.DIRECTORY_MODE, exist_ok=True)
        _exchange(directory)
        (incoming / READY).rename(outgoing / NOTE)
        files.sync_directory(outgoing)
    if not (incoming / READY).exists() and incoming.exists() and not os.listdir(incoming):
        incoming.rmdir()
    plan = _read_plan(outgoing / NOTE)
    if plan is not None and plan["keep"]:
        _keep_logs(outgoing, plan["kept_from"])
        outgoing.rename(directory / plan["keep"])
        files.sync_directory(directory)
    files.remove(outgoing)


def _read_plan(path: Path) -> dict[str, Any] | None:
    try:
        plan: dict[str, Any] = json.loads(files.read(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Corruption(f"{path.parent.name}/{path.name} is damaged: {error}") from None
    return plan


def _exchange(directory: Path) -> None:
    """Move the old files out, and then the new ones in, which may have the same names."""
    incoming, outgoing = directory / INCOMING, directory / OUTGOING
    if not (outgoing / MOVED).exists():
        for name in sorted(os.listdir(directory)):
            if _FILES.fullmatch(name):
                (directory / name).rename(outgoing / name)
        files.sync_directory(outgoing)
        files.sync_directory(directory)
        files.write(outgoing / MOVED, b"")
    for name in sorted(os.listdir(incoming)):
        if name == LAYOUT_FILE:
            (incoming / name).unlink()
        elif name != READY:
            (incoming / name).rename(directory / name)
    files.sync_directory(directory)


def discard(directory: Path) -> None:
    """Remove what was received of another store."""
    files.remove(directory / INCOMING)


def kept_folders(directory: Path) -> list[Path]:
    """Return the folders of kept logs, the oldest first."""
    found = [path for path in directory.glob(f"{KEPT}*") if path.name[len(KEPT) :].isdigit()]
    return sorted(found, key=lambda path: int(path.name[len(KEPT) :]))


def _free_name(directory: Path) -> str:
    folders = kept_folders(directory)
    return f"{KEPT}{int(folders[-1].name[len(KEPT) :]) + 1 if folders else 1}"


def _keep_logs(outgoing: Path, kept_from: int) -> None:
    """Remove from the old files what the logs from a number on do not need.

    Logs of both places come together, so that the folder is read as the logs of a store are.
    """
    (outgoing / MOVED).unlink(missing_ok=True)
    archive = outgoing / ARCHIVE
    for path in list(archive.iterdir()) if archive.is_dir() else ():
        path.rename(outgoing / path.name)
    for path in list(outgoing.iterdir()):
        matched = _LOG.fullmatch(path.name)
        if path.name.endswith(_TABLES) or (matched and int(matched[1]) < kept_from):
            path.unlink()
    shutil.rmtree(archive, ignore_errors=True)
