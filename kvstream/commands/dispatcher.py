"""The dispatcher: one request in, one reply out, for a caller that may wait.

A server does the same with ``find`` and the handlers, and queues what is Blocked instead of
waiting.
"""

from typing import Any

from kvstream.blocking import wait_for
from kvstream.commands.args import Argv
from kvstream.commands.command import Answer, Blocked, Later, Session, Stepwise
from kvstream.commands.replies import ErrorReply, Reply
from kvstream.commands.table import find
from kvstream.engine import Engine
from kvstream.errors import KVStreamError

_MS = 1000


class Dispatcher:
    """A client's door to an open store, in its own process."""

    def __init__(self, engine: Engine, db: int = 0) -> None:
        self.engine = engine
        self.session = Session(engine.options.databases, db)

    def execute(self, argv: Argv) -> Reply:
        """Run one command, waiting where it blocks; an error becomes an ErrorReply.

        Inside ``engine.transaction()`` it becomes a part of that commit, and nothing waits.
        """
        try:
            command = find(argv)
            reply: Answer = self.engine.run(command.run, self.session, argv)
            assert not isinstance(reply, Later | Stepwise)  # the session takes no pages
            return self._wait(reply) if isinstance(reply, Blocked) else reply
        except KVStreamError as error:
            return ErrorReply.of(error)

    def _wait(self, wait: Blocked) -> Reply:
        timeout_s = None if wait.timeout_ms is None else wait.timeout_ms / _MS
        found: Any = wait_for(self.engine, wait.names, wait.attempt, timeout_s, wait.retry_at)
        reply: Reply = wait.expired if found is None else found
        return reply
