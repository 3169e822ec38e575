"""What a forked child may do with its parent's store: a program of its own."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream.errors import KVStreamError, StoreClosed, StoreLocked
from kvstream.storage.batch import Batch
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from kvstream.types.options import Durability
from tests.storage.stores import EVERYTHING, SMALL, keys, put_one_by_one

EXIT_CODE = 42


def refused(use: Callable[[], object]) -> None:
    with pytest.raises(StoreClosed):
        use()


def in_the_child(database: Database, committer: Committer) -> None:
    batch = Batch(database)
    batch.put(0, b"of the child", b"")
    refused(lambda: database.write(batch))
    refused(lambda: database.get(0, b"key"))
    refused(lambda: database.page(0, *EVERYTHING, 100))
    refused(lambda: list(database.scan(0, *EVERYTHING)))
    if committer.level is Durability.ALWAYS:
        refused(lambda: committer.after(committer.durable_sequence + 1, print))
    refused(committer.sync)
    with pytest.raises(StoreLocked):  # the parent holds it
        Database.open(database.directory, SMALL)
    committer.close()
    database.close()


def child_of(database: Database, committer: Committer) -> int:
    """Fork; return the child's exit code. It exits normally, with its destructors."""
    child = os.fork()
    if child == 0:
        try:
            in_the_child(database, committer)
        except BaseException as error:
            traceback.print_exception(error)
            os._exit(1)
        sys.exit(EXIT_CODE)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main(directory: Path, level: Durability) -> None:
    database = Database.open(directory, replace(SMALL, durability=level))
    committer = Committer(database, level)
    put_one_by_one(database, range(10))
    scan = database.scan(0, *EVERYTHING)
    next(scan)
    code = child_of(database, committer)
    assert code == EXIT_CODE, f"the child ended with {code}"
    # Nothing has changed for the parent.
    assert len(list(scan)) == 9
    committer.wait(put_one_by_one(database, range(10, 20)))
    assert len(keys(database)) == 20
    committer.close()
    # A child that outlives its parent's store does not keep it locked.
    (wait, release), (begun, begin) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begin, b"x")
        os.read(wait, 1)
        os._exit(0)
    os.read(begun, 1)  # it releases the lock when it starts
    database.close()
    Database.open(directory, SMALL).close()
    os.write(release, b"x")
    os.waitpid(child, 0)
    assert threading.active_count() == 1


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Durability(sys.argv[2]))
    except KVStreamError as error:
        sys.exit(repr(error))
