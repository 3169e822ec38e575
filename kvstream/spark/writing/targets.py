"""A commit into a place, whichever way leads to it: a store that a server holds is reached by that.

It knows places, neither rows nor how a commit is made.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from kvstream.errors import RequestError, StoreError, StoreLocked
from kvstream.parts import BulkTicket
from kvstream.remote.connection import Connection
from kvstream.remote.errors import AccessDenied
from kvstream.served import address_of
from kvstream.spark.options import Place
from kvstream.spark.reading.servers import client_of
from kvstream.spark.writing import uploading
from kvstream.spark.writing.commits import Commit, Committed
from kvstream.spark.writing.marks import Transaction
from kvstream.spark.writing.servers import commit_through
from kvstream.spark.writing.stores import commit_into, mark_of, ticket_of
from kvstream.spark.writing.uploading import Upload


def commit_to(place: Place, wait_s: float, work: Commit) -> Committed:
    """Commit into one place: all of it, or an error and none."""
    if place.kind == "path":
        path, db = place.address, place.db or 0
        try:
            return commit_into(path, db, 0, work)
        except StoreLocked:
            server = None if work.parts else server_of(place)
            if server is None:
                return commit_into(path, db, wait_s, work)
            place = server
    with client_of(place) as client:
        return commit_through(client, work)


def mark_in(place: Place, transaction: Transaction) -> bytes | None:
    """Return the mark that a writer has left in a place; None where there is none."""
    if place.kind == "path":
        try:
            return mark_of(place.address, place.db or 0, transaction)
        except StoreLocked:
            server = server_of(place)
            if server is None:
                raise
            place = server
    with client_of(place) as client:
        return cast("bytes | None", client.get(transaction.key))


def prepared(place: Place, key: bytes | None) -> tuple[Place, BulkTicket | Upload | None]:
    """Return the way to a place, and what tasks need to make tables for it; None: it takes none.

    ``key`` is the one stream of all rows. A store that is held by its server is reached by that; by
    the file system it is where somebody else has it, who may close it in time.
    """
    if place.kind == "path":
        try:
            return place, ticket_of(place.address, place.db or 0, key)
        except StoreLocked:
            server = server_of(place)
            if server is None:
                return place, None
            place = server
    with client_of(place) as client:
        return place, uploading.begin(client, () if key is None else (key,))


def discarded(place: Place, upload: Upload) -> None:
    """Have a server remove what was sent for a write."""
    with client_of(place) as client:
        uploading.discard(client, upload)


def server_of(place: Place) -> Place | None:
    """Return the server that holds the store in a directory; None where none says so, or answers.

    AccessDenied where it wants another password than the options give.
    """
    address = address_of(Path(place.address))
    if address is None:
        return None
    server = replace(place, kind="url", address=address.url, db=place.db or 0)
    try:
        with client_of(server) as client:
            told: bytes = Connection(client).ask("INFO", "server")
    except AccessDenied as error:
        raise AccessDenied(f"the store in {place.address} is held by its server: {error}") from None
    except (StoreError, RequestError):
        return None
    with suppress(UnicodeDecodeError):
        return server if f"run_id:{address.run_id}\r\n" in told.decode() else None
    return None
