"""A queue of mails: one fails, backs off, ends in the dead letters, and is redriven.

The mail server is down at first, so the worker fails. The store waits before it delivers the
message again, and gives it up after the last delivery. Once the server is up again, a redrive moves
the message back, and it is sent. It takes half a second.
"""

import time
from collections.abc import Callable
from pathlib import Path

from demo.job import DemoFailed
from kvstream import Message, Queue, Store

EMAILS = "emails"
BACKOFF_S = (0.1, 0.3)
DELIVERIES = 3
WAIT_S = 10.0

Say = Callable[[str], None]


class MailServer:
    """Sends mails, if it is up."""

    def __init__(self) -> None:
        self.up = False
        self.sent: list[str] = []

    def send(self, to: str) -> None:
        if not self.up:
            raise ConnectionError("the mail server is down")
        self.sent.append(to)


def work_once(emails: Queue, server: MailServer, say: Say, start: float) -> None:
    """Take the next message, and send it or give it back."""
    for message in emails.get(block=WAIT_S):
        at = f"{time.perf_counter() - start:.1f} s"
        try:
            server.send(message.fields[b"to"].decode())
        except ConnectionError as error:
            message.nack(error=error)
            say(f"at {at}  delivery {message.deliveries} fails, {_following(emails, message)}")
        else:
            message.ack()
            say(f"at {at}  delivery {message.deliveries} is [green]sent[/]")


def _following(emails: Queue, message: Message) -> str:
    if message.deliveries == DELIVERIES:
        return "[red]given up[/]"
    return f"waits {BACKOFF_S[message.deliveries - 1]} s: {emails.info().waiting} waiting"


def run(folder: Path, say: Say) -> None:
    """Run it in ten lines of output; raise DemoFailed unless the mail was sent exactly once."""
    server, start = MailServer(), time.perf_counter()
    with Store.open(folder) as store:
        emails = Queue(store, EMAILS, lease=5, max_deliveries=DELIVERIES, backoff=BACKOFF_S)
        say(f"put       {emails.put({'to': 'ann@example.org'})} to ann@example.org")
        for _ in range(DELIVERIES):
            work_once(emails, server, say, start)
        (letter,) = emails.dead()
        key = emails.dead_stream().key.decode()
        say(f"dead      {letter.origin_id} in {key}, reason {letter.reason}")
        say(f"because   {letter.error.decode()}")
        server.up = True
        say(f"redriven  {emails.redrive().moved} dead letter, the mail server is up again")
        work_once(emails, server, say, start)
        info = emails.info()
        left = info.ready + info.leased + info.waiting + info.delayed + info.dead
        if server.sent != ["ann@example.org"] or left:
            raise DemoFailed(f"sent {server.sent}, and {left} messages are left")
        say("left      nothing is ready, leased, waiting or dead")
