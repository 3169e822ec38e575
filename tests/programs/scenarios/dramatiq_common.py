"""The common.py of dramatiq's own tests, which its source distribution lacks."""

from contextlib import contextmanager

import pytest
from dramatiq import Worker

skip_in_ci = pytest.mark.skipif(False, reason="")


@contextmanager
def worker(*arguments, **options):
    worker = Worker(*arguments, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
