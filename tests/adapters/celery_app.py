"""A Celery program whose workers a test kills."""

import os
import time

from celery import Celery

import kvstream.adapters.celery  # noqa: F401
from tests.adapters.conftest import LEASE_S, open_place, options_of

PLACE = os.environ["KVSTREAM_PLACE"]
URL = f"kvstream+{PLACE}" if "://" in PLACE else f"kvstream://{PLACE}"

app = Celery("app", broker=URL, backend=URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": LEASE_S, **options_of(PLACE)},
    result_backend_transport_options=options_of(PLACE),
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
)


@app.task(name="note")
def note(n: int) -> int:
    time.sleep(0.01)
    with open_place(PLACE) as store:
        store.stream("done").add({"n": n})
    return n


@app.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)
