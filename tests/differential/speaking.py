"""The same bytes to two servers over several connections, and the replies of both, as they came."""

import re
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.differential.sameness import (
    Difference,
    Incomparable,
    Version,
    difference,
    is_abort,
    is_outdated,
    parse,
)
from tests.patience import PATIENCE_S

Argv = list[str]

LOOK_S = 0.002
TOUCHING = {"SWAPDB", "XSETID"}
"""Commands after which WATCH may tell otherwise: a key that was moved there and back has changed in
Redis alone, and one whose IDs were set has changed here alone."""
CONNECTIONS = (2, 2, 3, 3)
"""What protocol each speaks."""
_BLOCKED = re.compile(rb" flags=[A-Za-z]*b")


def frame(argv: Argv) -> bytes:
    words = [word.encode() for word in argv]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Wire:
    """One connection to one server; replies come out of it whole."""

    def __init__(self, port: int, protocol: int = 2, by_bytes: bool = False) -> None:
        self._by_bytes = by_bytes
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        if protocol == 3:
            self.ask(["HELLO", "3"])
        self.number = self.ask(["CLIENT", "ID"])[1:-2].decode()

    def send(self, data: bytes) -> None:
        step = 1 if self._by_bytes else len(data)
        for at in range(0, len(data), step):
            self._socket.sendall(data[at : at + step])

    def ask(self, argv: Argv) -> bytes:
        self.send(frame(argv))
        return self.read()

    def read(self) -> bytes:
        """Return the next reply, in its bytes."""
        while (end := parse(self._received)[1]) < 0:
            self._receive(PATIENCE_S)
        reply, self._received = self._received[:end], self._received[end:]
        return reply

    def come(self) -> list[bytes]:
        """Return the replies that have come by now."""
        try:
            while True:
                self._receive(0)
        except BlockingIOError:
            pass
        replies = []
        while (end := parse(self._received)[1]) >= 0:
            replies.append(self._received[:end])
            self._received = self._received[end:]
        return replies

    def _receive(self, seconds: float) -> None:
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(1 << 16)
        finally:
            self._socket.settimeout(PATIENCE_S)
        if not data:
            raise EOFError("the server has closed the connection")
        self._received += data

    def close(self) -> None:
        self._socket.close()


@dataclass
class Pair:
    """One connection to each of the servers, and what has not been answered yet."""

    ours: Wire
    theirs: Wire
    asked: deque[Argv] = field(default_factory=deque)
    queued: list[Argv] = field(default_factory=list)
    """The requests that EXEC will run."""
    watched_at: int = 0
    """How many commands of TOUCHING had been said when it last began to watch a key."""
    said: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))

    def listen(self) -> None:
        self.said[0].extend(self.ours.come())
        self.said[1].extend(self.theirs.come())

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Conversation:
    """Several clients that say the same to kvstream and to another server."""

    def __init__(
        self, our_port: int, their_port: int, version: Version, by_bytes: bool = False
    ) -> None:
        """``by_bytes``: each byte is sent by itself."""
        self._version = version
        self._ports = (our_port, their_port)
        self._by_bytes = by_bytes
        self._touches = 0
        self._group_was_set = False
        self._control = self._pair(2)
        self._pairs = [self._pair(protocol) for protocol in CONNECTIONS]
        self.ask(["FLUSHALL"])

    def _pair(self, protocol: int) -> Pair:
        ours, theirs = self._ports
        by_bytes = self._by_bytes
        return Pair(Wire(ours, protocol, by_bytes), Wire(theirs, protocol, by_bytes))

    def close(self) -> None:
        for pair in (*self._pairs, self._control):
            pair.close()

    def room(self, at: int) -> int | None:
        """Return how many requests a client may send now; None: any number.

        One client alone may have requests behind one that waits: in which order those of several go
        on is nobody's promise.
        """
        others = (pair for n, pair in enumerate(self._pairs) if n != at)
        if all(len(pair.asked) < 2 for pair in others):
            return None
        return 0 if self._pairs[at].asked else 1

    def say(self, at: int, *requests: Argv) -> list[Any]:
        """Send requests at once over one connection; compare what comes of it over all of them.

        Returns the replies over this connection, as redis-server has given them.
        """
        pair = self._pairs[at]
        pair.ours.send(b"".join(frame(self._named(argv, ours=True)) for argv in requests))
        pair.theirs.send(b"".join(frame(self._named(argv, ours=False)) for argv in requests))
        pair.asked.extend(requests)
        self._group_was_set = any(argv[:2] == ["XGROUP", "SETID"] for argv in requests)
        return self._compare(pair)

    def _named(self, argv: Argv, ours: bool) -> Argv:
        """Return a request in which ``#2`` has become that client's number."""
        return [self._number(int(word[1:]), ours) if word[:1] == "#" else word for word in argv]

    def _number(self, at: int, ours: bool) -> str:
        pair = self._pairs[at]
        return (pair.ours if ours else pair.theirs).number

    def ask(self, argv: Argv) -> Any:
        """Ask by a connection of its own, which nothing blocks, compare, and return the reply."""
        return self.ask_all([argv])[0]

    def ask_all(self, requests: list[Argv]) -> list[Any]:
        """The same with several requests at once."""
        data = b"".join(map(frame, requests))
        wires = (self._control.ours, self._control.theirs)
        for wire in wires:
            wire.send(data)
        replies = []
        for argv in requests:
            ours, theirs = (wire.read() for wire in wires)
            self._hold_against(argv, ours, theirs, [])
            replies.append(parse(theirs)[0])
        return replies

    def leave(self, at: int) -> None:
        """Close a connection, whatever it waits for, and open another in its place."""
        self._pairs[at].close()
        self._pairs[at] = self._pair(CONNECTIONS[at])
        others = len(self._pairs) + 1
        deadline = time.monotonic() + PATIENCE_S
        for wire in (self._control.ours, self._control.theirs):
            while wire.ask(["CLIENT", "LIST"]).count(b" addr=") > others:
                assert time.monotonic() < deadline
                time.sleep(LOOK_S)

    def _compare(self, asker: Pair) -> list[Any]:
        """Compare all that has come by now; one server is waited for if the other has answered."""
        self.ask(["PING"])
        deadline = time.monotonic() + PATIENCE_S
        replies: list[Any] = []
        for pair in self._pairs:
            pair.listen()
            while self._is_late(pair):
                if len(pair.said[0]) > len(pair.said[1]) and self._group_was_set:
                    raise Incomparable  # Redis lets readers wait on
                if any(map(is_outdated, pair.said[1][len(pair.said[0]) :])):
                    raise Incomparable
                assert time.monotonic() < deadline, f"answered by one alone: {pair}"
                time.sleep(LOOK_S)
                pair.listen()
            while pair.said[0]:
                reply = self._compare_one(pair)
                if pair is asker:
                    replies.append(reply)
        return replies

    def _is_late(self, pair: Pair) -> bool:
        if len(pair.said[0]) != len(pair.said[1]):
            return True
        waiting = list(pair.asked)[len(pair.said[0]) :]
        return bool(waiting) and not (blocks_for_ever(waiting[0]) and self._waits(pair))

    def _waits(self, pair: Pair) -> bool:
        """Return whether a client waits on both servers and has all replies that come before.

        The next requests of a served client may run while others are answered already.
        """
        before = [len(said) for said in pair.said]
        sides = ((self._control.ours, pair.ours), (self._control.theirs, pair.theirs))
        for control, wire in sides:
            if not _BLOCKED.search(control.ask(["CLIENT", "LIST", "ID", wire.number])):
                return False
        for control, _ in sides:
            control.ask(["PING"])  # all its earlier messages are sent by then
        pair.listen()
        return [len(said) for said in pair.said] == before

    def _compare_one(self, pair: Pair) -> Any:
        argv = pair.asked.popleft()
        ours, theirs = pair.said[0].pop(0), pair.said[1].pop(0)
        if is_abort(theirs) != is_abort(ours) and pair.watched_at < self._touches:
            raise Incomparable
        if self._version.parts(theirs):
            raise Incomparable
        self._hold_against(argv, ours, theirs, pair.queued)
        self._note(pair, argv, theirs)
        return parse(theirs)[0]

    def _note(self, pair: Pair, argv: Argv, reply: bytes) -> None:
        name = argv[0].upper()
        if reply == b"+QUEUED\r\n":
            pair.queued.append(argv)
        elif name == "EXEC" or (name in ("DISCARD", "RESET", "MULTI") and reply[:1] == b"+"):
            pair.queued = []
        elif name == "WATCH":
            pair.watched_at = self._touches
        if name in TOUCHING:
            self._touches += 1

    def _hold_against(self, argv: Argv, ours: bytes, theirs: bytes, queued: list[Argv]) -> None:
        if ours == theirs:
            return
        found = difference(argv, ours, theirs, queued, self._version)
        if found:
            raise Difference(f"{argv} answered {ours!r}, by redis-server {theirs!r}: {found}")


def blocks_for_ever(argv: Argv) -> bool:
    """Tell whether a request may wait without end: ``BLOCK 0``, unless it is refused."""
    words = [word.upper() for word in argv]
    return any(pair == ("BLOCK", "0") for pair in pairwise(words))
