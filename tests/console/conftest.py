"""A store with something on every page, and browsers of its console."""

import json
from collections.abc import Callable

import pytest

from kvstream import ManualClock, Queue, Store
from kvstream.console import Console, User, app
from kvstream.console.history.recorder import Recorder
from tests.console.browser import Browser

HOSTILE = (b"<script>alert(1)</script>", b"a/b?c#d", b"../x", b"..", b"\xff\x00", "‮txt".encode())
"""Names of streams, of groups, of fields, and values."""


REAL_START = Recorder.start


@pytest.fixture(autouse=True)
def _no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no samples of the stores of tests, which count calls and entries."""
    monkeypatch.setattr(Recorder, "start", lambda _: None)


@pytest.fixture
def full(store: Store, clock: ManualClock) -> Store:
    """A store with queues, dead letters, groups, a schedule and names of strangers."""
    emails = Queue(store, "emails", consumer="w1", max_deliveries=3, priorities=("high", "normal"))
    emails.get()
    for at in range(30):
        emails.put({"to": f"user{at}", "task": "mail"}, priority=("high", "normal")[at % 2])
    found = emails.get(12)
    for at, message in enumerate(found[:8]):
        message.nack(fatal=True, error=ConnectionError(f"refused by smtp-{at % 3}"))
    found[8].nack(fatal=True, error="no such user")
    emails.put({"to": "later"}, delay=3600)
    emails.streams()[1].schedule("nightly", "0 3 * * *", {"task": "clean"}, tz="Europe/Berlin")
    orders = store.stream("orders")
    for at in range(120):
        orders.add({"sku": f"a{at}", "note": json.dumps({"at": [at]})})
        clock.advance(1000)
    billing = orders.create_group("billing", "0")
    billing.consumer("b1").read(60)
    clock.advance(90_000)
    billing.consumer("b2").read(10)
    for name in HOSTILE:
        strange = store.stream(name)
        strange.add([(each, each) for each in HOSTILE] + [(b"f", b"1"), (b"f", b"2")])
        strange.create_group(name, "0").consumer(name).read()
    return store


Open = Callable[..., Browser]


@pytest.fixture
def opened(full: Store) -> Open:
    """Open a browser of the console of the full store, as a user of a role."""

    def open_as(role: str = "admin", root_path: str = "", **options: object) -> Browser:
        console: Console = app(full, auth=lambda _: User("ann", role), **options)  # type: ignore[arg-type]
        return Browser(console, root_path)

    return open_as
