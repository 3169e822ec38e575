"""How tests are dealt out to the processes of a run: by file, those that take long first.

The fixtures of a file are then made once, not in each process. And xdist's own way, where each test
is dealt out by itself, counts all tests that a process has had after each one: 14,000 empty tests
in one process take 70 seconds of the processor that way, and 40 by file.
"""

from typing import Any

import pytest

FIRST = (
    "spark/",  # tests of its session are one group: tests/spark/conftest.py
    *("archive/", "replicas/"),  # these wait for servers, and leave the processor to the others
    *("bench/", "demo/", "migration/", "crash/", "jobs/", "queues/", "adapters/", "guides/"),
    *("shared/", "library/test_type_checkers.py", "operations/checks/", "differential/", "rdb/"),
    *("storage/", "server/runtime/", "cli/test_processes.py", "inprocess/"),
    *("remote/test_bad_network.py", "remote/test_arguments.py"),
    "test_examples.py",
    "programs/",  # workers that are killed and must be done in time: not beside all that is above
)
"""Files that take long, below ``tests``: one at the end would have the other processes wait."""


def place(path: str) -> int:
    """Return where a file, named from ``tests`` on, stands in the order of the run."""
    return next((at for at, start in enumerate(FIRST) if path.startswith(start)), len(FIRST))


def scheduling(config: pytest.Config, log: Any) -> object:
    """Return what deals out whole files in their order; tests of a group stay together."""
    # Not installed where one process is enough.
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    class FileScheduling(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return scope.partition("::")[0]

        def remove_node(self, node: Any) -> str | None:
            """Return the test that ended its process; xdist would run it again and again."""
            for tests in self.assigned_work[node].values():
                for test, done in tests.items():
                    if not done:
                        tests[test] = True
                        super().remove_node(node)
                        return str(test)
            super().remove_node(node)
            return None

    config.option.loadscopereorder = False
    return FileScheduling(config, log)
