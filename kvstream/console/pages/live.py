"""The messages for a page that is open: see ``kvstream.console.events``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.routing import Match

from kvstream.console.access import Role, User, requires
from kvstream.console.events import request_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

STILL = (
    "/api/",
    "/do/",
    "/events",
    "/search",
    "/find/",
    "/export",
    "/login",
    "/logout",
    "/healthz",
    "/favicon.ico",
    "/static",
)
"""Pages that do not change while they are open begin so."""


@requires(Role.VIEWER)
async def events(console: Any, request: Request, user: User) -> Response:
    """Answer with server-sent events: the new content of the page that is named."""
    path, _, query = request.query_params.get("page", "").partition("?")
    page, params = _page_of(console, request, path)
    if page is None or not user.may(page.role):
        raise HTTPException(404)
    if console.hub.is_full:
        raise HTTPException(503, "too many pages are open")
    of_page = request_of(request, path, query, params)
    last = request.headers.get("last-event-id", "")
    return StreamingResponse(
        console.hub.messages(of_page, user, page.page, last),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


def _page_of(console: Any, request: Request, path: str) -> tuple[Any, dict[str, Any]]:
    """Return the endpoint of a path, and the names in it; None if it is no live page."""
    if not path.startswith("/") or path.startswith(STILL):
        return None, {}
    scope = {**request.scope, "path": path, "root_path": "", "method": "GET"}
    for route in console.routes:
        match, found = route.matches(scope)
        if match is Match.FULL:
            return route.endpoint, found["path_params"]
    return None, {}
