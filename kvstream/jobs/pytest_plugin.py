"""Fixtures for pytest: ``pytest_plugins = ["kvstream.jobs.pytest_plugin"]`` in a conftest.py.

It is no entry point of pytest: it would import kvstream in every test run on the machine. ::

    def test_a_mail_is_sent(testing_jobs):
        testing = testing_jobs(jobs)
        handle = send_mail.with_options(delay=60).enqueue("a@b.c")
        testing.turn(60)
        assert handle.status == "done"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvstream.jobs.application import Jobs
    from kvstream.jobs.testing import Testing

__all__ = ["testing_jobs"]


def __dir__() -> list[str]:
    return __all__


@pytest.fixture
def testing_jobs() -> Iterator[Callable[[Jobs], Testing]]:
    """Put a Jobs into test mode until the end of the test, and return the mode."""
    with ExitStack() as modes:
        yield lambda jobs: modes.enter_context(jobs.test())
