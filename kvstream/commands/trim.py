"""XTRIM, and the options that trim in XADD."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from kvstream.commands.args import Args, Argv, Option, syntax_error
from kvstream.commands.command import FIRST, WRITE, Family, Session, flags
from kvstream.commands.replies import Reply
from kvstream.errors import InvalidArgument, InvalidID
from kvstream.meta.txn import Txn
from kvstream.operations import trim
from kvstream.operations.trim import Strategy, Trim
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.options import RefPolicy

COMMANDS = Family("stream")
POLICIES = {policy.encode(): policy for policy in RefPolicy}
POLICY_SYNTAX = "[KEEPREF|DELREF|ACKED]"
_FLAGS = flags("shows_change invalidates")
TRIM_SYNTAX = "MAXLEN|MINID [=|~] threshold [LIMIT count]"


@dataclass(slots=True)
class TrimOptions:
    """The options of XTRIM, which XADD has too."""

    adding: bool = False
    """The command is XADD."""
    strategy: Strategy | None = None
    maxlen: int = 0
    minid: StreamID = MIN_ID
    approximate: bool = False
    limit: int | None = None
    policy: RefPolicy | None = None

    def trim(self) -> Trim | None:
        """Return how to trim; InvalidArgument if the options do not go together."""
        if self.strategy is None:
            if self.limit is None:
                return None
            raise trim.limit_without_strategy(self.limit)
        policy = self.policy or RefPolicy.KEEPREF
        return Trim(self.strategy, self.maxlen, self.minid, self.approximate, self.limit, policy)


def _take_maxlen(args: Args, options: TrimOptions) -> None:
    _take_sign(args, options, Strategy.MAXLEN)
    options.maxlen = args.integer()
    trim.refuse_maxlen(options.maxlen)


def _take_minid(args: Args, options: TrimOptions) -> None:
    _take_sign(args, options, Strategy.MINID)
    options.minid = args.id()


def _take_sign(args: Args, options: TrimOptions, strategy: Strategy) -> None:
    if options.strategy is not None:
        raise trim.two_strategies()
    options.strategy = strategy
    if len(args) >= 2 and args.peek() in (b"~", b"="):
        options.approximate = args.next() == b"~"


def _take_limit(args: Args, options: TrimOptions) -> None:
    options.limit = args.integer()
    trim.refuse_limit(options.limit)


def _take_policy(policy: RefPolicy, args: Args, options: TrimOptions) -> None:
    if options.policy is not None:  # XADD takes a second one for the ID
        raise InvalidID if options.adding else syntax_error()
    options.policy = policy


TRIM_OPTIONS: dict[bytes, Option[Any]] = {
    b"MAXLEN": (1, _take_maxlen),
    b"MINID": (1, _take_minid),
    b"LIMIT": (1, _take_limit),
    **{word: (0, partial(_take_policy, policy)) for word, policy in POLICIES.items()},
}


@COMMANDS.command(
    *("xtrim", f"key {TRIM_SYNTAX} {POLICY_SYNTAX}", WRITE | _FLAGS, FIRST),
    since="5.0.0",
    uses="RW delete",
    tips="nondeterministic_output",
)
def xtrim(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Delete the oldest entries of a stream; return how many were deleted.

    With `~` and DELREF or ACKED entries are deleted one by one up to the threshold. Redis's
    documentation says whole nodes, 8.2 deletes whole nodes or nothing, later versions do as here.
    """
    options = TrimOptions()
    Args(argv, 2).take_options(TRIM_OPTIONS, options)
    if options.strategy is None and not options.limit:
        raise InvalidArgument("syntax error, XTRIM must be called with a trimming strategy")
    how = options.trim()
    assert how is not None
    return trim.trim(txn, session.prefix + argv[1], how)
