"""``python -m demo.pictures [DIR]``: write the pictures of the web console that the pages show.

The store has a day of a small shop. Its jobs run in the test mode of ``Jobs``, by a clock that only
this program turns, and the pages need no JavaScript, so that each run draws the same. Chromium must
be installed; it is asked for pages of 127.0.0.1 alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image  # it comes with matplotlib

from kvstream import Jobs
from kvstream.console import User, app
from kvstream.console.history.recorder import record
from kvstream.console.listing import Listings
from kvstream.console.places import GivenPlace
from kvstream.console.serving import ConsoleServer
from kvstream.jobs import current_job
from kvstream.queue import take

if TYPE_CHECKING:
    from kvstream.jobs.testing import Testing

FOLDER = Path("docs/pictures")
START_MS = 1_768_464_000_000
"""2026-01-15, 08:00 UTC."""
MINUTES = 90
"""Minutes of the shop that are played."""
ORDERS = 5
"""Orders of a minute at least, and again so many in its busiest minutes."""
CUSTOMERS = [name for name in ("ann", "ben", "cem", "dora", "eli") for _ in range(8)] + ["zoe"]
WIDE, NARROW = (1120, 680), (390, 680)
COLORS = 256
"""Colours of a picture: a palette keeps text sharp, and makes the file a third as large."""
BYTES_MAX = 100_000
PICTURES: dict[str, tuple[str, tuple[int, int], bool]] = {
    "console-jobs.png": ("/jobs?status=failed", WIDE, False),
    "console-overview.png": ("/?past=2h", WIDE, False),
    "console-failed.png": ("/dead/shop~3Adead", WIDE, False),
    "console-queue.png": ("/queues/shop~3Acharge_card?past=2h", WIDE, True),
    "console-stream.png": ("/streams/orders?past=2h", WIDE, False),
    "console-narrow.png": ("/?past=2h", NARROW, False),
}
"""File, address, size, and whether it is dark."""


class Shop(GivenPlace):
    """The store of the pictures, which is shown by a name of its own."""

    title = "shop-data"


def shop() -> Jobs:
    """Return the application: four tasks, of which some runs fail."""
    jobs = Jobs("shop-data", shared=False, name="shop")
    chance = random.Random(7)

    @jobs.task(retries=2, backoff=[30, 120], tags=["payment"], max_in_flight=4)
    def charge_card(order: int, cents: int) -> dict[str, Any]:
        if cents % 23 == 0:
            time.sleep(chance.uniform(0.01, 0.06))  # so that it took some time
            raise ConnectionError(f"bank-{order % 3}.example did not answer within 30 s")
        return {"payment": f"p-{order}", "cents": cents}

    @jobs.task(retries=1, backoff=[60], tags=["mail"])
    def send_receipt(order: int, to: str) -> str:
        if to.startswith("zoe"):
            time.sleep(chance.uniform(0.01, 0.06))
            raise ValueError(f"550 no mailbox {to}")
        current_job().log(f"sent to {to}")
        return "sent"

    @jobs.task
    def resize_photo(name: str, width: int = 800) -> str:
        if chance.random() < 0.05:
            raise MemoryError(f"{name} needs more than 512 MB")
        return f"{name.removesuffix('.jpg')}-{width}.webp"

    @jobs.task
    def build_report(day: str) -> str:
        return f"report of {day}"

    return jobs


def play(jobs: Jobs, testing: Testing) -> None:
    """Play the shop: orders come in and are processed, and some stay in work or wait."""
    chance = random.Random(11)
    orders = jobs.store.stream("orders")
    billing, search = (orders.create_group(name, "0") for name in ("billing", "search-index"))
    number, listings = 4000, Listings()
    for minute in range(MINUTES):
        orders_now = ORDERS + round(ORDERS * chance.random() * (minute % 30) / 30)
        for _ in range(orders_now):
            number += 1
            who = chance.choice(CUSTOMERS)
            cents = chance.randrange(500, 20_000)
            orders.add({"order": number, "customer": who, "cents": cents})
            jobs.tasks["charge_card"].enqueue(number, cents=cents)
            jobs.tasks["send_receipt"].enqueue(number, to=f"{who}@example.org")
            testing.turn(54 / orders_now)
            record(jobs.store, listings)
        jobs.tasks["resize_photo"].enqueue(f"shoe-{minute}.jpg")
        entries = billing.consumer("billing-1").read(30)
        billing.ack(*(each.id for each in entries[: 30 if minute < MINUTES - 4 else 6]))
        if minute < MINUTES - 12:
            search.ack(*(each.id for each in search.consumer("index-1").read(30)))
        testing.turn(6)
    jobs.tasks["build_report"].with_options(delay=3600).enqueue("2026-01-15")
    with testing.held():
        for at in range(2):
            jobs.tasks["charge_card"].enqueue(number + at, cents=1999 + at)
            jobs.tasks["send_receipt"].enqueue(number + at, to="ann@example.org")
        take(jobs.queues(), 2, None)
    testing.clock.advance(20_000)


@contextmanager
def serving(jobs: Jobs) -> Iterator[str]:
    """Serve the console of the jobs in a thread; yield its address."""
    console = app(jobs, auth=lambda _: User("ann", "operator"))
    console.place = Shop(jobs)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = ConsoleServer(console)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def take_picture(browser: Any, url: str, size: tuple[int, int], is_dark: bool) -> bytes:
    """Return the top of a page as PNG."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if is_dark else "light",
        java_script_enabled=False,
    )
    page = context.new_page()
    reply = page.goto(url)
    if reply.status != 200:
        raise SystemExit(f"{url}: {reply.status}")
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    context.close()
    made = BytesIO()
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
    return made.getvalue()


def main(folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("the pictures need chromium: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.CRITICAL)  # jobs fail on purpose
    jobs = shop()
    with jobs.test(start_ms=START_MS) as testing, sync_playwright() as playwright:
        play(jobs, testing)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with serving(jobs) as root:
            for name, (path, size, is_dark) in PICTURES.items():
                picture = take_picture(browser, root + path, size, is_dark)
                if len(picture) > BYTES_MAX:
                    raise SystemExit(f"{name} has {len(picture):,} bytes, more than {BYTES_MAX:,}")
                (folder / name).write_bytes(picture)
                print(f"{folder / name}: {len(picture):,} bytes")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
