"""A dramatiq program whose workers a test kills."""

import os
import time

import dramatiq

from kvstream.adapters.dramatiq import KVStreamBroker
from tests.adapters.conftest import LEASE_S, options_of

PLACE = os.environ["KVSTREAM_PLACE"]

broker = KVStreamBroker(PLACE, lease=LEASE_S, **options_of(PLACE))
dramatiq.set_broker(broker)


@dramatiq.actor
def note(n: int) -> None:
    time.sleep(0.01)
    broker.place.store.stream("done").add({"n": n})
