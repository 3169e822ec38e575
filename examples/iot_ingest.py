"""Sensor readings: batches in, ranges of time out, averages of minutes kept, old readings deleted.

    python examples/iot_ingest.py

The ID of an entry is the time of its reading, so a range of time is a range of IDs: no index is
needed. Averages are a stream of their own. Its newest row says how far they go, and readings are
averaged by minutes that are over, so the function may be killed and run again at any moment. The
data is in the folder that ``DATA`` names in the environment, else in a temporary one.
"""

import os
import tempfile
from datetime import UTC, datetime, timedelta
from statistics import mean
from time import sleep

import kvstream
from kvstream import Store, Stream, StreamID

MINUTE_MS = 60_000
END = datetime.now(UTC).replace(second=0, microsecond=0)


def ingest(readings: Stream[str], begin: datetime, seconds: int) -> int:
    """Add a reading each second, a minute of them in one commit; return how many."""
    first_ms = int(begin.timestamp() * 1000)
    for start in range(0, seconds, 60):
        batch = range(start, min(start + 60, seconds))
        readings.add_many(
            [{"celsius": f"{20 + n % 60 / 60:.2f}"} for n in batch],
            ids=[StreamID(first_ms + n * 1000, 0) for n in batch],
        )
    return seconds


def average_minutes(store: Store[str], sensor: str) -> int:
    """Add the averages of the minutes that are over since the last call; return how many."""
    readings, averages = store.stream(sensor), store.stream(f"{sensor}:minutes")
    new = 0
    while True:
        last = averages.revrange(count=1)
        begin = last[0].id.ms + MINUTE_MS if last else 0
        first = readings.range(StreamID(begin, 0), count=1)
        if not first:
            return new
        minute = first[0].id.ms // MINUTE_MS * MINUTE_MS
        end = StreamID(minute + MINUTE_MS, 0)
        if readings.info().last_generated_id < end:
            return new  # not over: readings may still come
        values = [float(each.fields["celsius"]) for each in readings.scan(first[0].id, f"({end}")]
        averages.add(
            {"min": min(values), "mean": f"{mean(values):.2f}", "max": max(values)},
            id=StreamID(minute, 0),
        )
        new += 1


def main(folder: str) -> None:
    with kvstream.open(folder, decode=True) as store:
        readings = store.stream("sensor:7")
        print("ingested:", ingest(readings, END - timedelta(hours=2), 7200))

        quarter = readings.scan(END - timedelta(minutes=15))
        print("in the last 15 minutes:", len(list(quarter)))
        hour_ago = END - timedelta(hours=1)
        print("between two times:", readings.count(hour_ago, hour_ago + timedelta(seconds=59)))

        print("minutes averaged:", average_minutes(store, "sensor:7"))
        print("again:", average_minutes(store, "sensor:7"))
        newest = store.stream("sensor:7:minutes").revrange(count=1)[0]
        print("newest:", newest.fields)

        readings.set_retention(max_age=timedelta(hours=1))  # in the background, also later
        while old := readings.count("-", END - timedelta(minutes=61)):
            sleep(0.01)
        print("readings of more than an hour ago:", old)
        print("averages:", len(store.stream("sensor:7:minutes")))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(os.environ.get("DATA", temporary))
