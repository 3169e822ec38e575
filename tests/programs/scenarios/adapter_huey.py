"""A plugin for huey's own tests: they run on the adapter, or on huey's storage for Redis."""

import os

from huey import RedisHuey
from huey.tests.base import BaseTestCase
from huey.tests.test_storage import StorageTests

from kvstream.adapters.huey import KVStreamHuey

PORT = int(os.environ["REDIS_PORT"])


def get_huey(test):
    if os.environ["ADAPTER"] == "kvstream":
        huey = KVStreamHuey("app", f"redis://127.0.0.1:{PORT}", read_timeout=0.01, utc=False)
        test.addCleanup(huey.storage.close)
    else:
        huey = RedisHuey("app", port=PORT, read_timeout=0.01, utc=False)
    huey.storage.flush_all()
    return huey


BaseTestCase.get_huey = get_huey


class TestStorage(StorageTests, BaseTestCase):
    pass
