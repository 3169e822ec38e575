"""An outbox: a SQL transaction and a message that belong together, exactly once in both databases.

    python examples/outbox.py

The web request writes its row and a row of the outbox in one transaction. A relay moves rows of
the outbox to a queue. It may be killed after it has put a message and before it has deleted the
row: then it puts the message again, and the unique name leaves that one out. The consumer writes
to SQL again; its ``Inbox`` notes the message in the same transaction. The data is in the folder
that ``DATA`` names in the environment, else in a temporary one.
"""

import os
import sqlite3
import tempfile
from pathlib import Path

import kvstream
from kvstream import Inbox, Queue

TABLES = """
CREATE TABLE IF NOT EXISTS orders (sku TEXT);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, sku TEXT);
CREATE TABLE IF NOT EXISTS parcels (sku TEXT);
"""


def order(shop: sqlite3.Connection, sku: str) -> None:
    """Answer a web request."""
    with shop:
        shop.execute("INSERT INTO orders VALUES (?)", (sku,))
        shop.execute("INSERT INTO outbox (sku) VALUES (?)", (sku,))


def relay(shop: sqlite3.Connection, parcels: Queue[str], *, killed: bool = False) -> int:
    """Move the rows of the outbox to the queue; return how many there were."""
    rows = shop.execute("SELECT id, sku FROM outbox ORDER BY id LIMIT 1000").fetchall()
    for row, sku in rows:
        # The window is longer than any relay stands still.
        parcels.put({"sku": sku}, unique=f"outbox:{row}", window=86400)
    if not killed:
        with shop:
            shop.executemany("DELETE FROM outbox WHERE id = ?", [(row,) for row, _ in rows])
    return len(rows)


def ship(shop: sqlite3.Connection, parcels: Queue[str]) -> int:
    """Handle the messages that are there; return how many were new."""
    inbox, new = Inbox(shop), 0
    for message in parcels.get(count=100):
        with inbox.handle(message) as is_new:
            if is_new:
                shop.execute("INSERT INTO parcels VALUES (?)", (message.fields["sku"],))
                new += 1
    return new


def main(folder: Path) -> None:
    shop = sqlite3.connect(folder / "shop.db")
    shop.executescript(TABLES)
    with kvstream.open(folder / "queues", decode=True) as store:
        parcels = Queue(store, "parcels", lease=30, max_deliveries=5)
        for sku in ("a1", "b2", "c3"):
            order(shop, sku)
        print("relayed, then killed:", relay(shop, parcels, killed=True))
        print("relayed again:", relay(shop, parcels))
        print("shipped:", ship(shop, parcels))
        print("left:", parcels.info().ready)
    print("parcels:", [sku for (sku,) in shop.execute("SELECT sku FROM parcels ORDER BY sku")])
    shop.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(os.environ.get("DATA", temporary)))
