"""A commit into a place, whichever way leads to it."""

from typing import cast

from kvstream.spark.options import Place
from kvstream.spark.reading.servers import client_of
from kvstream.spark.writing.commits import Commit, Committed
from kvstream.spark.writing.marks import Transaction
from kvstream.spark.writing.servers import commit_through
from kvstream.spark.writing.stores import commit_into, mark_of


def commit_to(place: Place, wait_s: float, work: Commit) -> Committed:
    """Commit into one place: all of it, or an error and none."""
    if place.kind == "path":
        return commit_into(place.address, place.db or 0, wait_s, work)
    with client_of(place) as client:
        return commit_through(client, work)


def mark_in(place: Place, transaction: Transaction) -> bytes | None:
    """Return the mark that a writer has left in a place; None where there is none."""
    if place.kind == "path":
        return mark_of(place.address, place.db or 0, transaction)
    with client_of(place) as client:
        return cast("bytes | None", client.get(transaction.key))
