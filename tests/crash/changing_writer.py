"""The queue's worker with a group that is indexed from five runs on, and so changes form often."""

import sys

from kvstream.types.thresholds import Thresholds
from tests.crash.queue_writer import main

if __name__ == "__main__":
    small = Thresholds(cached_rows=4, store_rows=0, run_ids=2)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), small)
