"""What jobs and adapters use of other modules: names without an underscore, hidden from users."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Jobs, LeaseLost, Queue, Store
from kvstream.operations import strings
from kvstream.queue import Message, finish, take
from tests.patience import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {
    "apscheduler.py": {"_alias", "_logger"},
    "celery.py": {"_ensure_not_eager"},
    "huey.py": {"_deserialize_all", "_get_timestamp", "_logger"},
    "kombu.py": {
        *("_active_queues", "_consumers", "_deliver", "_get_message_priority", "_quick_ack"),
    },
}
"""What the adapters inherit from frameworks, which name what a subclass uses so."""
PYTHON = {"_exit", "_fields", "_getframe", "_replace"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_names(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a module uses and does not define."""
    nodes = list(ast.walk(tree))
    own = {
        *(each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)),
        *(each.id for each in nodes if isinstance(each, ast.Name)),
        *(
            each.attr
            for each in nodes
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        ),
    }
    for each in nodes:
        if isinstance(each, ast.ImportFrom):
            yield from (name.name for name in each.names if is_private(name.name))
        elif isinstance(each, ast.Attribute) and each.attr not in own and is_private(each.attr):
            yield each.attr


@pytest.mark.parametrize("folder", ["jobs", "adapters"])
def test_no_private_name_of_another_module_is_used(folder: str) -> None:
    for path in sorted((ROOT / "kvstream" / folder).glob("*.py")):
        used = {*private_names(ast.parse(path.read_text()))}
        assert used <= PYTHON | FRAMEWORKS.get(path.name, set()), path


def test_internal_names_are_hidden() -> None:
    for kind in (Store, Queue, Message):
        assert kind._internal
        assert not kind._internal & {*dir(kind)}


def test_a_store_runs_an_operation_on_a_key(jobs: Jobs) -> None:
    store = jobs.store
    with store.brief_transaction():
        store.run(strings.put, "k", b"v", store.now_ms() + 60_000)
    assert store.run(strings.get, "k") == b"v"
    assert 0 < (store.ttl("k") or 0) <= 60
    assert store.select(1).name_of("k") != store.name_of("k")
    calls: list[int] = []
    end = store.every(0.001, lambda: calls.append(1))
    until(lambda: calls)
    end()
    assert (store.own_engine is None) == str(jobs.place).startswith("redis")
    assert store.own_engine is not None or store.url


def put_and_take(jobs: Jobs, count: int = 1) -> list[Message[bytes]]:
    """Put messages of two priorities, and lease all of them."""
    queue = Queue(jobs.store, "q", priorities=("high", "normal"), lease=PATIENCE_S)
    for at in range(count):
        queue.put({"n": at}, priority=("normal", "high")[at % 2])
    messages = take([queue], count, PATIENCE_S)
    assert len(messages) == count
    return messages


def test_messages_of_several_streams_are_finished_in_one_commit(jobs: Jobs) -> None:
    messages = put_and_take(jobs, 5)
    results = [(f"r{at}", {"n": at}, (60, 0)[at % 2]) for at in range(5)]
    finish(messages, results)
    queue = messages[0].queue
    assert [jobs.store.exists(f"r{at}") for at in range(5)] == [True, False] * 2 + [True]
    assert 0 < (jobs.store.ttl("r0") or 0) <= 60
    assert [len(stream) for stream in queue.streams()] == [0, 0]
    assert queue.info().leased == 0
    (entry,) = jobs.store.stream("r2").range()
    assert entry.fields == {b"n": b"2"}


def test_a_lost_lease_finishes_no_message_and_adds_no_result(jobs: Jobs) -> None:
    messages = put_and_take(jobs, 4)
    messages[-1].give_back()
    with pytest.raises(LeaseLost, match="not leased to"):
        finish(messages, [("r", {"n": 1}, 60)])
    of_stream = [each for each in messages if each.key == messages[-1].key]
    with pytest.raises(LeaseLost), jobs.store.transaction():
        finish(of_stream, [("r", {"n": 1}, 60)])
    assert not jobs.store.exists("r")
    assert messages[0].queue.info().leased == 3
    assert not any(each._settled for each in messages)
    with pytest.raises(LeaseLost):
        messages[-1].guard()
    finish(messages[:-1])
    assert messages[0].queue.info().leased == 0


def test_a_result_is_added_to_the_records_of_its_key(jobs: Jobs) -> None:
    jobs.store.stream("r").add({"status": "retry"})
    finish(put_and_take(jobs), [("r", {"status": "done"}, 60)])
    statuses = [entry.fields[b"status"] for entry in jobs.store.stream("r").range()]
    assert statuses == [b"retry", b"done"]
    assert 0 < (jobs.store.ttl("r") or 0) <= 60


def test_a_queue_tells_what_a_consumer_has_in_work(jobs: Jobs) -> None:
    messages = put_and_take(jobs, 3)
    queue, consumer = messages[0].queue, messages[0].consumer
    assert {each.token for each in queue.messages_of(consumer)} == {each.token for each in messages}
    assert not list(queue.messages_of(b"nobody"))
    assert not list(Queue(jobs.store, "none").messages_of(consumer))
    assert Queue(jobs.store, "none").policy() is None
    policy = queue.policy()
    assert policy is not None
    assert policy.lease_ms == PATIENCE_S * 1000


def test_a_message_tells_whether_its_last_lease_has_lapsed(jobs: Jobs) -> None:
    queue = Queue(jobs.store, "q", lease=0.05)
    queue.put({"n": 1})
    (first,) = queue.get(block=PATIENCE_S)
    (again,) = queue.get(block=PATIENCE_S)
    again.nack_with(delay_ms=0)
    (last,) = queue.get(block=PATIENCE_S)
    assert [each.has_lapsed for each in (first, again, last)] == [False, True, False]
    assert [each.deliveries for each in (first, again, last)] == [1, 2, 3]
