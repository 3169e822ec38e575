"""KVSTREAM.REDRIVE: move dead letters back to where they came from, or elsewhere."""

from kvstream.commands.args import (
    Args,
    Argv,
    Option,
    Values,
    flag_value,
    integer_values,
    stream_ids,
    word_value,
)
from kvstream.commands.command import (
    FAST_READ,
    FAST_WRITE,
    OURS,
    SECOND,
    Answer,
    Family,
    Keys,
    Session,
    flags,
)
from kvstream.commands.incremental import run_plan
from kvstream.commands.replies import Map, Reply
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations.queues import redrive
from kvstream.operations.queues.redrive import Job

COMMANDS = Family("stream")
COMMANDS.add_help("kvstream.redrive", since=OURS)
_NUMIDS = "the number of IDs must be positive, and no more than there are arguments"


def _ids(args: Args, asked: Values) -> None:
    count = args.at_least(1, _NUMIDS, _NUMIDS)
    if count > len(args):
        raise InvalidArgument(_NUMIDS)
    asked["ids"] = stream_ids([*args.take(count)])


def _where(args: Args, asked: Values) -> None:
    asked["where"] = args.next(), args.next()


def _rate(args: Args, asked: Values) -> None:
    asked["rate"] = args.integer(), args.integer()


_OPTIONS: dict[bytes, Option[Values]] = {
    b"TO": word_value("to"),
    b"IDS": (2, _ids),
    b"WHERE": (2, _where),
    b"COUNT": integer_values("count"),
    b"RATE": (2, _rate),
    b"DRYRUN": flag_value("dry"),
}


class _RedriveKeys(Keys):
    """The keys of START: the dead letters, and the stream after TO."""

    def of(self, argv: Argv) -> list[bytes]:
        keys, at = [*argv[2:3]], 3
        while at < len(argv):
            word = argv[at].upper()
            if word == b"TO" and at + 1 < len(argv):
                keys.append(argv[at + 1])
            if word == b"IDS" and at + 1 < len(argv) and argv[at + 1].isdigit():
                at += int(argv[at + 1][:9])
            at += 1 + _WORDS.get(word, 0)
        return keys


_WORDS = {word: option[0] - (word == b"IDS") for word, option in _OPTIONS.items()}
_KEYS = _RedriveKeys(2, 2)


@COMMANDS.command(
    "kvstream.redrive|start",
    "key [TO key] [IDS numids id [id ...]] [WHERE field value] [COUNT count] "
    "[RATE count milliseconds] [DRYRUN]",
    *(flags("write denyoom movablekeys"), _KEYS),
    since=OURS,
    uses="RW access delete,RW insert",
    any_key=lambda argv: len(_KEYS.of(argv)) == 1,
)
def redrive_start(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Move dead letters to the streams they came from, without the fields of the dead letter.

    TO: To this stream. IDS: These letters. WHERE: Those with a field of this value, be it one of
    the entry or one such as `dead:group`. COUNT: At most so many. RATE: At most so many in so many
    milliseconds. DRYRUN: Move nothing, and tell how many would be moved in the end, whatever the
    rate, and where to.

    The first letters are moved at once. If that is all, `state` is `done`; if not, it is `running`:
    a background job moves the others, and STATUS tells how far it is. The job goes on after a
    restart. Each of its steps is one commit: no entry is lost, and none is doubled. One job of a
    key runs at a time.

    Without TO, letters go to the streams that they name: the user needs permission for all keys.
    No letter goes to a key `kvstream:...`, which kvstream keeps for itself.
    """
    asked: Values = {}
    Args(argv, 3).take_options(_OPTIONS, asked)
    name, is_dry = session.prefix + argv[2], asked.pop("dry", False)
    if not is_dry:
        return redrive_reply(redrive.start(txn, name, **asked))
    return run_plan(txn, session, redrive.plan_dry_run(txn, name, **asked), redrive_reply)


@COMMANDS.command("kvstream.redrive|status", "key", FAST_READ, SECOND, since=OURS)
def redrive_status(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return how far the redrive of a key is, or how the last one ended; nil if there was none."""
    job = redrive.status(txn, session.prefix + argv[2])
    return None if job is None else redrive_reply(job)


@COMMANDS.command("kvstream.redrive|cancel", "key", FAST_WRITE, SECOND, since=OURS)
def redrive_cancel(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Stop the redrive of a key; return 1 if one ran. What was moved stays moved."""
    return int(redrive.cancel(txn, session.prefix + argv[2]))


def redrive_reply(job: Job) -> Map:
    """Return the reply for a redrive."""
    streams = Map([(key, count) for key, count in job.streams.items()])
    return Map(
        [
            (b"state", job.state.encode()),
            (b"moved", job.moved),
            (b"skipped", job.skipped),
            (b"streams", streams),
            (b"error", job.error),
        ]
    )
