"""Live pages: each page that is open is rendered once, for all who look at it.

A viewer's connection names its page. Every two seconds the hub renders each such page once for all
viewers of one role, and sends the new content if it differs. Without viewers it sleeps. So the cost
is that of the distinct pages that are open, whatever the number of viewers. A few pages are
rendered at a time, so that one whose data are slow to read does not delay the others.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request

from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.console.access import User

PERIOD_S = 2.0
AWAY_S = 3.0
"""After this time without a page the viewers learn that the store does not answer."""
HEARTBEAT_S = 15.0
RETRY_MS = 3000
LIFE_S = 600.0
"""Then a connection ends, and the browser makes a new one: it may have logged out meanwhile."""
PAGES_MAX = 50
"""Pages of a period: some 0.2 s of the processor a second. If more are open, each waits longer."""
RENDERED_MAX = 4
"""Pages rendered at a time: half of the threads, so that requests have the others."""
VIEWERS_MAX = 100
"""Connections at a time; others ask for their pages every ten seconds."""
_MAIN = re.compile(r"<main[^>]*>(.*)</main>", re.DOTALL)
_TIME = re.compile(r"(<time [^>]*>)[^<]*")
"""Relative times change all the time; the browser shows them itself."""


class Place(NamedTuple):
    """A page as users of one role see it."""

    root: str
    path: str
    query: str
    role: int
    account: int
    """The user of the server whose rights the page has; 0 for a page that all of a role share."""


@dataclass(slots=True, eq=False)
class Topic:
    """A page that is open, and those who look at it."""

    request: Request
    user: User
    page: Any
    viewers: int = 0
    digest: str = ""
    message: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, kind: str, text: str) -> None:
        """Send a message to all viewers, unless it is the one that they have."""
        plain = _TIME.sub(r"\1", text)
        digest = blake2b(f"{kind} {plain}".encode(), digest_size=12).hexdigest()
        if digest == self.digest:
            return
        self.digest = digest
        self.message = f"id: {digest}\nevent: {kind}\ndata: {json.dumps(text)}\n\n"
        self.changed.set()
        self.changed = asyncio.Event()


class Hub:
    """The pages that are open. It is used by one event loop."""

    def __init__(self, console: Any) -> None:
        self._console = console
        self._topics: dict[Place, Topic] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._rendering = asyncio.Semaphore(RENDERED_MAX)
        self._viewers = 0
        self._is_closed = False

    def close(self) -> None:
        """End all connections: the server stops."""
        self._is_closed = True
        for topic in self._topics.values():
            topic.changed.set()

    @property
    def is_full(self) -> bool:
        return self._viewers >= VIEWERS_MAX

    @property
    def is_asleep(self) -> bool:
        """Whether nobody looks, so that nothing is read."""
        return not self._readers

    async def messages(
        self, request: Request, user: User, page: Any, last: str
    ) -> AsyncIterator[str]:
        """Yield the messages for a viewer of a page, who has the one with the ID ``last``."""
        scope = request.scope
        place = Place(
            scope.get("root_path", ""),
            scope["path"],
            scope["query_string"].decode(),
            int(user.role),
            0 if self._console.shown_to(user) is self._console else id(user),
        )
        topic = self._topics.get(place)
        if topic is None:
            topic = self._topics[place] = Topic(request, user, page)
            self._start(topic)
        topic.viewers += 1
        self._viewers += 1
        try:
            yield f"retry: {RETRY_MS}\n\n"
            until = monotonic() + LIFE_S
            while not self._is_closed and monotonic() < until:
                changed = topic.changed
                if topic.digest not in ("", last):
                    last = topic.digest
                    yield topic.message
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await changed.wait()
                except TimeoutError:
                    yield ": alive\n\n"
        finally:
            self._viewers -= 1
            topic.viewers -= 1
            if not topic.viewers:
                self._topics.pop(place, None)

    def _start(self, topic: Topic) -> None:
        """Begin to render a page, until nobody looks at it."""
        if self.is_asleep:
            self._rendering = asyncio.Semaphore(RENDERED_MAX)  # of this event loop
        reader = asyncio.create_task(self._read(topic))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    async def _read(self, topic: Topic) -> None:
        while topic.viewers:
            async with self._rendering:
                await self._render(topic)
            await asyncio.sleep(PERIOD_S * max(1, len(self._topics) / PAGES_MAX))

    async def _render(self, topic: Topic) -> None:
        try:
            reply = await self._answer(topic)
        except Exception as error:  # the page has a fault: its viewers see what they have
            topic.tell("trouble", f"the page failed: {type(error).__name__}")
            return
        found = _MAIN.search(bytes(reply.body).decode())
        if found is None or reply.status_code >= 500:
            topic.tell("trouble", "the store does not answer")
        else:
            topic.tell("main", found[1])

    async def _answer(self, topic: Topic) -> Any:
        """Return the page; while it takes long, all viewers learn of it."""
        run = asyncio.ensure_future(self._console.run(topic.page, topic.request, topic.user))
        await asyncio.wait([run], timeout=AWAY_S)
        if not run.done():
            for each in self._topics.values():
                each.tell("trouble", "the store does not answer")
        return await run


def request_of(request: Request, path: str, query: str, params: dict[str, Any]) -> Request:
    """Return the request for a page, as the one for its messages stands for it."""
    root = request.scope.get("root_path", "")
    scope = {
        **request.scope,
        "path": root + path,
        "raw_path": (root + path).encode(),
        "query_string": query.encode(),
        "path_params": params,
        "method": "GET",
    }
    return Request(scope)
