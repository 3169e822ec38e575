"""A plugin for APScheduler's own tests: it can put the adapter in the place of RedisJobStore."""

import os
from functools import partial

import apscheduler.jobstores.redis

from kvstream.adapters.apscheduler import KVStreamJobStore

PORT = int(os.environ["REDIS_PORT"])

if os.environ["ADAPTER"] == "kvstream":
    made = partial(KVStreamJobStore, f"redis://127.0.0.1:{PORT}")
else:
    made = partial(apscheduler.jobstores.redis.RedisJobStore, port=PORT)
apscheduler.jobstores.redis.RedisJobStore = made
