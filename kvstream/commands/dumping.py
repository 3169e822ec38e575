"""DUMP and RESTORE: whole keys as the payloads that Redis makes and takes."""

from dataclasses import dataclass

from kvstream.commands.args import (
    I64_MAX,
    Args,
    Argv,
    Option,
    at_least,
    syntax_error,
)
from kvstream.commands.command import LATER, Answer, Session
from kvstream.commands.paging import behind_steps, in_steps
from kvstream.commands.replies import OK, Bulk, Paged, Reply
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations import dumping, payloads
from kvstream.operations.loading import refuse_existing

_FREQ_MAX = 255


def dump(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer a key as a payload that RESTORE takes, here and in Redis; a null for a missing one."""
    name = session.prefix + argv[1]
    if not (session.steps and dumping.is_long(txn, name)):
        return payloads.dump(txn, name)
    if txn.dirty:
        return LATER
    made = dumping.LongDump(txn, name)
    return in_steps(made.step, lambda told: Paged(Bulk(*told)) if told[1] else None)


@dataclass(slots=True)
class _Options:
    replace: bool = False
    absolute: bool = False
    idle_s: int = -1
    """Negative: none is given."""
    has_freq: bool = False


def restore(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Make a key of a payload that DUMP answered, here or in Redis."""
    options = _options(Args(argv, 4))
    name = session.prefix + argv[1]
    refuse_existing(txn, name, options.replace)
    ttl = at_least(0, argv[2], "Invalid TTL value, must be >= 0")
    expire_at = ttl + txn.now_ms if ttl and not options.absolute else ttl
    if expire_at > I64_MAX:
        raise InvalidArgument("invalid expire time in 'restore' command")

    def done(txn: Txn, session: Session) -> Reply:
        txn.catalog.index.usage.note([name], txn.now_ms, max(options.idle_s, 0))
        return OK

    arguments = name, argv[3], options.replace, expire_at
    if session.steps and len(argv[3]) > dumping.LONG_BYTES:
        work = dumping.LongRestore(*arguments)
        return behind_steps(work.step, done, work.undo)
    payloads.restore(txn, *arguments)
    return done(txn, session)


def _options(args: Args) -> _Options:
    options = _Options()
    while args:
        if not args.take_option(_OPTIONS, options):
            raise syntax_error()
    return options


def _replace(args: Args, options: _Options) -> None:
    options.replace = True


def _absttl(args: Args, options: _Options) -> None:
    options.absolute = True


def _idletime(args: Args, options: _Options) -> None:
    """Take for how many seconds nobody has used the key."""
    if options.has_freq:
        raise syntax_error()
    options.idle_s = args.at_least(0, "Invalid IDLETIME value, must be >= 0")


def _freq(args: Args, options: _Options) -> None:
    """Take how often it was used, which is not noted here."""
    if options.idle_s >= 0:
        raise syntax_error()
    if not 0 <= args.integer() <= _FREQ_MAX:
        raise InvalidArgument("Invalid FREQ value, must be >= 0 and <= 255")
    options.has_freq = True


_OPTIONS: dict[bytes, Option[_Options]] = {
    b"REPLACE": (0, _replace),
    b"ABSTTL": (0, _absttl),
    b"IDLETIME": (1, _idletime),
    b"FREQ": (1, _freq),
}
