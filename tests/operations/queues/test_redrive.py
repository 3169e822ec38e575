"""Redrive: dead letters move back in steps, without loss or duplicates."""

from collections.abc import Callable, Sequence

import pytest

from kvstream import InvalidArgument, ManualClock, RequestError, Store, StreamID, WrongType
from kvstream.commands.replies import ErrorReply, Map
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations import strings
from kvstream.operations.delivery import dead
from kvstream.operations.queues import redrive
from kvstream.operations.queues.redrive import Job, State
from tests.commands.dispatcher import Dispatcher

DEAD = qualified(0, b"dead")
Reopen = Callable[..., Store]


def letter(stream: str, number: int, group: str = "g") -> list[tuple[str, str]]:
    """Return the fields of a dead letter."""
    texts = (stream, f"{number}-0", group, "w", "3", "fatal", "1700000000000", "boom", "")
    block = zip([name.decode() for name in dead.BLOCK], texts, strict=True)
    return [("n", str(number)), *block]


def fill(store: Store, count: int, streams: Sequence[str] = ("a",)) -> list[StreamID]:
    letters = [letter(streams[n % len(streams)], n) for n in range(count)]
    return store.stream("dead").add_many(letters)


def numbers(store: Store, key: str) -> list[int]:
    """Return the entries of a stream, whose only field is a number."""
    found = [entry.flat for entry in store.stream(key).range()]
    assert all(len(flat) == 2 for flat in found)
    return [int(flat[1]) for flat in found]


def start(store: Store, **options: object) -> Job:
    return store.engine.run(lambda txn: redrive.start(txn, DEAD, **options))  # type: ignore[arg-type]


def status(store: Store) -> Job:
    job = store.engine.run(redrive.status, DEAD)
    assert job is not None
    return job


def step(store: Store) -> None:
    store.engine.run(timer_thread.run_due, 100)


def test_no_letter_goes_to_a_key_of_kvstream_itself(store: Store) -> None:
    """A letter that a stranger has added may name the audit of the console."""
    fill(store, 4, ("a", "kvstream:audit"))
    job = start(store)
    assert (job.state, job.moved, job.skipped) == (State.DONE, 2, 2)
    assert (numbers(store, "a"), store.exists("kvstream:audit")) == ([0, 2], False)
    with pytest.raises(InvalidArgument, match="for itself"):
        start(store, to=b"kvstream:audit")
    assert start(store, to=b"a").moved == 2


def test_letters_return_to_their_streams_without_the_block(store: Store) -> None:
    fill(store, 6, ("a", "b"))
    job = start(store)
    assert (job.state, job.moved, job.streams) == (State.DONE, 6, {b"a": 3, b"b": 3})
    assert numbers(store, "a") == [0, 2, 4]
    assert numbers(store, "b") == [1, 3, 5]
    assert len(store.stream("dead")) == 0


def test_letters_move_to_a_given_stream(store: Store) -> None:
    fill(store, 4, ("a", "b"))
    assert start(store, to=b"c").streams == {b"c": 4}
    assert numbers(store, "c") == [0, 1, 2, 3]


def test_letters_are_chosen_by_id_field_block_and_count(store: Store) -> None:
    ids = fill(store, 6, ("a", "b"))
    assert start(store, ids=[ids[4], ids[0], StreamID(9, 9)]).moved == 2
    assert start(store, where=(b"n", b"2")).moved == 1
    assert start(store, where=(b"dead:stream", b"b"), count=2).moved == 2
    assert (numbers(store, "a"), numbers(store, "b")) == ([0, 4, 2], [1, 3])
    assert len(store.stream("dead")) == 1


def test_a_dry_run_changes_nothing(store: Store) -> None:
    fill(store, 1200, ("a", "b"))
    run = store.engine.run(lambda txn: redrive.dry_run(txn, DEAD, count=1100))
    assert (run.state, run.moved, run.streams) == (State.DRY_RUN, 1100, {b"a": 550, b"b": 550})
    assert len(store.stream("dead")) == 1200
    assert not store.exists("a")
    assert store.engine.run(redrive.status, DEAD) is None


def test_an_entry_without_an_origin_stays(store: Store) -> None:
    store.stream("dead").add({"n": "1"})
    store.stream("dead").add(letter("dead", 2))
    fill(store, 1)
    job = start(store)
    assert (job.state, job.moved, job.skipped) == (State.DONE, 1, 2)
    assert start(store, to=b"b").moved == 2
    assert numbers(store, "b") == [1, 2]


def test_many_letters_move_in_the_background(store: Store, clock: ManualClock) -> None:
    fill(store, 1200)
    assert (start(store).state, status(store).moved) == (State.RUNNING, 500)
    store.stream("dead").add(letter("a", 5000))  # it dies after the redrive began
    clock.advance(1)
    step(store)
    assert status(store).moved == 1000
    clock.advance(1)
    step(store)
    assert (status(store).state, status(store).moved) == (State.DONE, 1200)
    assert numbers(store, "a") == [*range(1200)]
    assert len(store.stream("dead")) == 1


def test_a_rate_is_kept_and_survives_a_restart(
    store: Store, clock: ManualClock, reopen: Reopen
) -> None:
    fill(store, 7)
    assert start(store, rate=(3, 1000)).moved == 3
    clock.advance(999)
    step(store)
    assert status(store).moved == 3
    store = reopen(store)
    clock.advance(1)
    step(store)
    assert status(store).moved == 6
    clock.advance(5000)
    step(store)
    assert status(store).state == State.DONE
    assert numbers(store, "a") == [*range(7)]


def test_a_redrive_is_cancelled(store: Store, clock: ManualClock) -> None:
    fill(store, 7)
    start(store, rate=(3, 1000))
    with pytest.raises(RequestError, match="is running"):
        start(store)
    assert store.engine.run(redrive.cancel, DEAD)
    assert not store.engine.run(redrive.cancel, DEAD)
    clock.advance(5000)
    step(store)
    assert (status(store).state, status(store).moved) == (State.CANCELLED, 3)
    assert len(store.stream("dead")) == 4
    assert start(store).moved == 4


def test_many_ids_move_in_the_background(store: Store, clock: ManualClock) -> None:
    ids = fill(store, 1300)
    assert start(store, ids=ids[::2]).state == State.RUNNING
    clock.advance(1)
    step(store)
    assert (status(store).state, status(store).moved) == (State.DONE, 650)
    assert len(store.stream("dead")) == 650


def test_a_target_of_another_type_loses_nothing(store: Store, clock: ManualClock) -> None:
    fill(store, 4, ("a", "b"))
    store.engine.run(strings.put, qualified(0, b"b"), b"text")
    with pytest.raises(WrongType):
        start(store)
    assert len(store.stream("dead")) == 4
    assert start(store, rate=(1, 1000)).moved == 1
    clock.advance(1000)
    step(store)
    job = status(store)
    assert (job.state, job.moved) == (State.FAILED, 1)
    assert b"wrong kind" in job.error
    assert len(store.stream("dead")) == 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"to": b"dead"}, "must be another stream"),
        ({"count": 0}, "at least 1"),
        ({"rate": (0, 5)}, "above 0"),
        ({"ids": [StreamID(1, 1)] * 10_001}, "at most 10000 IDs"),
    ],
)
def test_invalid_arguments_are_refused(
    store: Store, options: dict[str, object], error: str
) -> None:
    fill(store, 1)
    with pytest.raises(InvalidArgument, match=error):
        start(store, **options)


def test_pending_letters_leave_the_groups_of_the_dead_letters(store: Store) -> None:
    fill(store, 2)
    group = store.stream("dead").create_group("g", start="0")
    group.consumer("w").read()
    start(store)
    assert group.pending().count == 0


def test_a_missing_key_has_nothing_to_redrive(store: Store) -> None:
    assert start(store).state == State.DONE
    assert store.engine.run(redrive.status, DEAD) is None
    assert not store.exists("dead")


def execute(store: Store, command: str) -> object:
    def plain(reply: object) -> object:
        if isinstance(reply, Map):
            return {plain(name): plain(value) for name, value in reply.pairs}
        return reply.decode() if isinstance(reply, bytes) else reply

    return plain(Dispatcher(store.engine).execute([word.encode() for word in command.split()]))


def test_the_command_has_all_options(store: Store) -> None:
    ids = fill(store, 6, ("a", "b"))
    found = execute(store, "KVSTREAM.REDRIVE START dead DRYRUN")
    assert found == {
        "state": "dry-run", "moved": 6, "skipped": 0, "streams": {"a": 3, "b": 3}, "error": ""
    }  # fmt: skip
    assert execute(store, "KVSTREAM.REDRIVE STATUS dead") is None
    command = f"KVSTREAM.REDRIVE START dead TO c IDS 2 {ids[0]} {ids[1]} WHERE dead:stream a"
    assert execute(store, f"{command} COUNT 5 RATE 9 1000") == {
        "state": "done", "moved": 1, "skipped": 0, "streams": {"c": 1}, "error": ""
    }  # fmt: skip
    execute(store, "KVSTREAM.REDRIVE START dead RATE 1 1000")
    assert execute(store, "KVSTREAM.REDRIVE CANCEL dead") == 1
    assert execute(store, "KVSTREAM.REDRIVE CANCEL dead") == 0
    assert isinstance(execute(store, "KVSTREAM.REDRIVE START dead IDS 3 1-1"), ErrorReply)
    assert isinstance(execute(store, "KVSTREAM.REDRIVE START dead WHERE a"), ErrorReply)


def test_the_keys_of_start_are_the_letters_and_the_target(store: Store) -> None:
    command = "COMMAND GETKEYS KVSTREAM.REDRIVE START dead IDS 1 1-1 WHERE TO to TO c COUNT 1"
    from kvstream.commands.table import find

    argv = [word.encode() for word in command.split()[2:]]
    assert find(argv).keys_of(argv) == [b"dead", b"c"]


def test_a_timer_without_a_job_does_nothing(store: Store) -> None:
    fill(store, 1)

    def fire(txn: Txn) -> None:
        stream = txn.stream(DEAD)
        assert stream is not None
        redrive.fire(txn, DEAD, stream, [])

    store.engine.run(fire)
    assert len(store.stream("dead")) == 1
