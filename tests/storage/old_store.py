"""A small store with each kind of row, as the code of its day writes it.

    python -m tests.storage.old_store    writes tests/storage/layouts/layout-N.zip

Run it when ``LAYOUT_VERSION`` rises, with the last code before that; never write an archive again:
it is what an old program has left behind.
"""

import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import kvstream
from kvstream.storage.directory import LAYOUT_VERSION

FOLDER = Path(__file__).parent / "layouts"
LATER = datetime(2090, 1, 1, tzinfo=UTC)
LARGE = b"x" * (300 << 10)
"""A value that a store keeps in a file of its own."""


def fill(directory: Path) -> None:
    """Write entries, pending entries, a queue with all its rows, and plain strings."""
    with kvstream.Store.open(directory) as store:
        orders = store.stream("orders")
        for number in range(250):
            orders.add({"sku": f"a{number}", "qty": number}, id=(1_700_000_000_000 + number, 0))
        billing = orders.create_group("billing", start="0")
        read = billing.consumer("worker-1").read(count=10)
        billing.ack(read[:4])
        orders.delete(read[9].id)
        store.stream("blobs").add({"body": LARGE}, id=(1, 1))
        mails = kvstream.Queue(store, "mails", max_deliveries=3, order_by="user", backoff=60)
        mails.put({"to": "ann", "user": "1"})
        mails.put({"to": "bob", "user": "2"})
        mails.put({"to": "eve"}, at=LATER, unique="welcome:eve")
        mails.get(1)[0].nack(fatal=True, error="no such host")
        store.stream("mails").schedule("nightly", "0 3 1 1 *", {"kind": "report"})
    client = kvstream.connect(directory)
    client.set("plain", "text")
    client.close()


def write() -> Path:
    """Write a store of the current layout into its archive, and return that."""
    target = FOLDER / f"layout-{LAYOUT_VERSION}.zip"
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        fill(store)
        with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for file in sorted(store.rglob("*")):
                if file.is_file() and not file.name.startswith("LOG"):
                    archive.write(file, file.relative_to(store))
    return target


if __name__ == "__main__":
    print(write())
