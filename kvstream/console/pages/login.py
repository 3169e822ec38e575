"""What everybody may see: the login, the sign of life, and the icon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse

from kvstream.console.access import Sessions, public

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


@public
async def log_in(request: Request) -> Response:
    """Exchange the token of a login URL for a session."""
    console: Any = request.app.state.console
    if not isinstance(console.auth, Sessions):
        raise HTTPException(404)
    session = console.auth.log_in(request.query_params.get("token", ""))
    if session is None:
        raise HTTPException(401)
    root = request.scope.get("root_path", "")
    # A redirect would still count as a request from where the URL was opened: a page is none.
    reply = HTMLResponse(console.templates.get_template("welcome.html").render(root=root))
    console.set_cookie(request, reply, session)
    return reply


@public
async def health(_: Request) -> Response:
    return PlainTextResponse("ok\n")


@public
async def icon(request: Request) -> Response:
    """Send a browser that asks at the usual address to the icon."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/static/icon.svg")
