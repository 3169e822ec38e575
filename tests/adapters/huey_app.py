"""A huey program whose consumers a test kills."""

import os
import time

from kvstream.adapters.huey import KVStreamHuey
from tests.adapters.conftest import LEASE_S, options_of

PLACE = os.environ["KVSTREAM_PLACE"]

huey = KVStreamHuey("app", PLACE, lease=LEASE_S, read_timeout=0.2, **options_of(PLACE))


@huey.task()
def note(n: int) -> int:
    time.sleep(0.01)
    huey.storage.place.store.stream("done").add({"n": n})
    return n
