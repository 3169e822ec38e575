"""The queue's worker with a group that is indexed from five runs on, and so changes form often."""

import sys

from kvstream.meta import pel, trees
from tests.crash.queue_writer import main

if __name__ == "__main__":
    trees.CACHED_ROWS = 4
    trees.STORE_ROWS = 0
    pel.RUN_IDS_MAX = 2
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
