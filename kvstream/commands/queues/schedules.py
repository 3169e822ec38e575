"""KVSTREAM.SCHEDULE: messages at the times of a cron expression."""

from dataclasses import dataclass

from kvstream.commands.args import Args, Argv, Option, syntax_error
from kvstream.commands.command import FAST_WRITE, GROW, OURS, READ, SECOND, Family, Session, flags
from kvstream.commands.replies import Map, Reply
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations.queues import schedules
from kvstream.operations.queues.schedules import Misfire, Schedule

COMMANDS = Family("stream")
COMMANDS.add_help("kvstream.schedule", since=OURS)


@dataclass(slots=True)
class _Rule:
    zone: str = ""
    misfire: Misfire = Misfire.ONCE
    most: int = 1


def _zone(args: Args, rule: _Rule) -> None:
    rule.zone = _text(args.next(), "the time zone")


def _misfire(args: Args, rule: _Rule) -> None:
    rule.misfire = Misfire(_text(args.option(), "the misfire rule"))
    if rule.misfire is Misfire.ALL:
        rule.most = args.integer("MISFIRE ALL needs the most messages that it may add")


_OPTIONS: dict[bytes, Option[_Rule]] = {b"TZ": (1, _zone), b"MISFIRE": (1, _misfire)}


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{what} must be UTF-8") from None


@COMMANDS.command(
    "kvstream.schedule|set",
    "key name cron [TZ zone] [MISFIRE SKIP|ONCE|ALL most] FIELDS field value [field value ...]",
    *(GROW, SECOND),
    since=OURS,
    uses="RW update",
)
def schedule_set(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add a message at the times of a cron expression; return the next one in Unix milliseconds.

    TZ: The time zone, such as Europe/Berlin; UTC unless given.
    MISFIRE: What becomes of times that passed while the store was closed; ONCE unless given.
    SKIP: A time that is more than 5 seconds late is left out.
    ONCE: All of them together add one message.
    ALL: Each adds one, the latest `most` of them, at most 1000.
    FIELDS: The fields of the messages.

    The expression has five fields, or six with seconds first; or it is `@every 10s`, `@hourly`,
    `@daily`, `@weekly`, `@monthly` or `@yearly`. Where clocks are changed it is as in Debian's
    cron: a time that is left out comes right after the gap, one that occurs twice counts once.
    Intervals, where the hour or minute begins with `*`, count real time.

    Behind its fields each message has `cron:name`, and `cron:at`: the planned time in Unix
    milliseconds. A planned time fires once, also after a crash or if the clock is set back. A
    schedule that is set again with the same expression and zone keeps its next time.
    """
    args, rule = Args(argv, 5), _Rule()
    args.take_leading_options(_OPTIONS, rule)
    if args.option() != b"FIELDS":
        raise syntax_error()
    schedule = schedules.set_schedule(
        *(txn, session.prefix + argv[2], argv[3], _text(argv[4], "the cron expression")),
        *(args.rest(), rule.zone, rule.misfire, rule.most),
    )
    return schedule.next_ms


@COMMANDS.command("kvstream.schedule|list", "key", READ, SECOND, since=OURS)
def schedule_list(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the schedules of a stream by name, each as a map.

    Times are Unix milliseconds. `next` is 0 if the schedule has stopped; `error` then says why.
    `last` is the planned time of the last message, 0 if there was none.
    """
    return [_schedule_reply(each) for each in schedules.schedules(txn, session.prefix + argv[2])]


def _schedule_reply(each: Schedule) -> Map:
    return Map(
        [
            (b"name", each.name),
            (b"cron", each.cron.encode()),
            (b"zone", (each.zone or "UTC").encode()),
            (b"misfire", each.misfire.encode()),
            (b"most", each.most),
            (b"next", each.next_ms),
            (b"last", each.last_ms),
            (b"error", each.error.encode()),
            (b"fields", [*each.flat]),
        ]
    )


@COMMANDS.command(
    *("kvstream.schedule|del", "key name", FAST_WRITE, SECOND), since=OURS, uses="RW delete"
)
def schedule_del(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete a schedule; return 1 if it existed."""
    return int(schedules.delete_schedule(txn, session.prefix + argv[2], argv[3]))


@COMMANDS.command(
    *("kvstream.schedule|run", "key name", GROW | flags("invalidates"), SECOND),
    since=OURS,
    uses="RW insert",
    tips="nondeterministic_output",
)
def schedule_run(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Add a message of a schedule now, and return its ID; the next time stays."""
    return bytes(schedules.run_schedule(txn, session.prefix + argv[2], argv[3]))
