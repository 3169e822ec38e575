"""Coverage is measured where it tells something: not in tests that run the same lines very often.

Tracing has tests take twice as long, and those of many runs five times. What others run is measured
there. Processes that tests start are measured in a few files.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SAME_LINES = frozenset(
    {
        "bench/test_bench.py",
        "bench/test_commands.py",
        "cli/test_examples.py",
        "cli/test_processes.py",
        "cli/test_round_trip.py",
        "cli/test_shared_stores.py",
        "cli/test_start.py",
        "cli/test_stopping.py",
        "demo/test_demo.py",
        "inprocess/test_same_program.py",
        "inprocess/test_tasks.py",
        "jobs/test_page.py",
        "layout/test_listpack.py",
        "layout/test_values.py",
        "library/test_keyspace.py",
        "meta/test_trees.py",
        "migration/test_kills.py",
        "migration/test_replication_following.py",
        "operations/checks/test_keyspace.py",
        "operations/checks/test_random_walk.py",
        "operations/checks/test_strings.py",
        "operations/delivery/test_ordering_machine.py",
        "operations/dump/test_by_redis_py.py",
        "operations/dump/test_round_trip.py",
        "operations/queues/test_queue_machine.py",
        "operations/queues/test_retention_model.py",
        "operations/test_delayed_machine.py",
        "queues/test_drills.py",
        "queues/test_killed_pipelines.py",
        "queues/test_page.py",
        "rdb/test_as_redis.py",
        "rdb/test_listpack.py",
        "resp/test_fuzz.py",
        "resp/test_lengths.py",
        "resp/test_requests.py",
        "resp/test_twins.py",
        "server/commands/test_acl_as_redis.py",
        "server/commands/test_acl_withdrawn.py",
        "server/commands/test_group_policies.py",
        "server/commands/test_info.py",
        "server/commands/test_pubsub_as_redis.py",
        "server/net/test_client_limits.py",
        "server/net/test_process.py",
        "server/net/test_unauthenticated.py",
        "server/runtime/test_blocked_clients_die.py",
        "server/runtime/test_large_entries.py",
        "server/runtime/test_pipelines.py",
        "server/runtime/test_reply_streaming.py",
        "server/runtime/test_transactions.py",
        "server/scripting/test_lua_libraries.py",
        "server/scripting/test_sandbox.py",
        "server/scripting/test_script_crashes.py",
        "server/scripting/test_script_fuzzing.py",
        "server/test_failed_disk.py",
        "shared/test_one_program.py",
        "shared/test_processes.py",
        "shared/test_servers.py",
        "shared/test_takeover_crashes.py",
        "spark/test_copies.py",
        "spark/test_exactly_once.py",
        "spark/test_plots.py",
        "storage/test_database.py",
        "storage/test_fork.py",
        "storage/test_private_files.py",
        "test_layout.py",
        "test_readme.py",
    }
)
"""Files of tests that run the lines of others, below ``tests``: coverage does not look at them.

A run with a context for each file tells which: of 96,226 pairs of lines that ran one after another,
some 400 did so in these files alone, and these took a third of the time.
"""

PROCESSES = frozenset(
    {
        "cli/test_monitor.py",
        "cli/test_serving.py",
        "cli/test_serving_tls.py",
        "cli/test_shell.py",
        "cli/test_top.py",
        "clients/test_dead_and_ordered.py",
        "differential/test_keyspace_events.py",
        "inprocess/test_programs.py",
        "jobs/test_processes.py",
        "library/test_processes.py",
        "migration/test_queues.py",
        "migration/test_replication_cutover.py",
        "operations/test_paths.py",
        "server/scripting/test_busy.py",
        "spark/test_sessions.py",
        "storage/test_directory.py",
        "storage/test_failing_disk.py",
    }
)
"""Files of tests whose processes run lines that tests in their own process do not.

The processes of all others ran ten of the pairs that nothing else ran; most are killed before they
could tell. Measured, the start of a process takes twice as long.
"""

_SUBPROCESSES = "COVERAGE_"
"""How the variables begin by which processes that are started are measured, too."""


@contextmanager
def unmeasured() -> Iterator[None]:
    """Trace neither this thread, nor those that are started, nor processes."""
    tracers = (sys.gettrace(), threading.gettrace())
    sys.settrace(None)
    threading.settrace(None)
    try:
        with unmeasured_processes():
            yield
    finally:
        threading.settrace(tracers[1])
        sys.settrace(tracers[0])


@contextmanager
def unmeasured_processes() -> Iterator[None]:
    """Trace no process that is started here, nor those that it starts, whenever."""
    kept = {name: text for name, text in os.environ.items() if name.startswith(_SUBPROCESSES)}
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)
