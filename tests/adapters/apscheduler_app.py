"""An APScheduler program that a test kills."""

import os

from apscheduler.schedulers.blocking import BlockingScheduler

from kvstream.adapters.apscheduler import KVStreamJobStore
from tests.adapters.conftest import open_place, options_of

PLACE = os.environ.get("KVSTREAM_PLACE", "")


def note(n: int) -> None:
    with open_place(PLACE) as store:
        store.stream("done").add({"n": n})


if __name__ == "__main__":
    store = KVStreamJobStore(PLACE, **options_of(PLACE))
    BlockingScheduler(jobstores={"default": store}).start()
