"""The login and its end, the sign of life, and the icon: most of it is for everybody."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse

from kvstream.console.access import (
    Role,
    User,
    check_form,
    form_of,
    form_token,
    public,
    requires,
)
from kvstream.console.logins.passwords import WAIT, PasswordLogin
from kvstream.console.logins.sessions import Sessions, TokenLogin
from kvstream.console.logins.tries import TooManyTries
from kvstream.errors import KVStreamError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


@public
async def log_in(request: Request) -> Response:
    """Exchange the token of a login URL for a session, or show the form of a login."""
    console: Any = request.app.state.console
    if isinstance(console.auth, PasswordLogin):
        return _form(console, request)
    if not isinstance(console.auth, TokenLogin):
        raise HTTPException(404)
    session = console.auth.log_in(request.query_params.get("token", ""))
    if session is None:
        raise HTTPException(401)
    root = request.scope.get("root_path", "")
    # A redirect would still count as a request from where the URL was opened: a page is none.
    reply = HTMLResponse(console.templates.get_template("welcome.html").render(root=root))
    return await _entered(console, request, reply, session)


@public
async def log_in_by_password(request: Request) -> Response:
    """Log a user of the server in; the browser gets another secret than it had before."""
    console: Any = request.app.state.console
    if not isinstance(console.auth, PasswordLogin):
        raise HTTPException(404)
    form = await form_of(request)
    check_form(form, console.secret_of(request))
    name, address = form.get("name", ""), request.client.host if request.client else ""
    try:
        session = await console.in_thread(
            console.auth.log_in,
            *(name, form.get("password", ""), address, console.secret_of(request)),
        )
    except TooManyTries:
        return _form(console, request, 429, name, WAIT)
    except KVStreamError as error:
        return _form(console, request, 503, name, f"The server does not answer: {error}")
    if session is None:
        wrong = "The server does not let in this name with this password."
        return _form(console, request, 401, name, wrong)
    reply = RedirectResponse(f"{request.scope.get('root_path', '')}/", 303)
    return await _entered(console, request, reply, session)


async def _entered(console: Any, request: Request, reply: Response, session: str) -> Response:
    """Give a browser its session, and end the one that it had: its cookie is of no use any more."""
    await console.in_thread(console.auth.end, console.secret_of(request))
    console.set_cookie(request, reply, session)
    return reply


def _form(
    console: Any, request: Request, code: int = 200, name: str = "", wrong: str = ""
) -> Response:
    secret = console.secret_of(request) or secrets.token_urlsafe(32)
    values = {
        "root": request.scope.get("root_path", ""),
        "token": form_token(secret),
        "title": console.place.title,
        "name": name,
        "wrong": wrong,
    }
    made = console.templates.get_template("login.html").render(values)
    reply = HTMLResponse(made.encode("utf-8", "backslashreplace"), code)
    if secret != console.secret_of(request):
        console.set_cookie(request, reply, secret)
    return reply


@requires(Role.VIEWER)
async def log_out(console: Any, request: Request, _: User) -> Response:
    """End the session of a browser."""
    if not isinstance(console.auth, Sessions):
        raise HTTPException(404)
    await console.in_thread(console.auth.end, console.secret_of(request))
    return RedirectResponse(f"{request.scope.get('root_path', '')}/", 303)


@public
async def health(_: Request) -> Response:
    return PlainTextResponse("ok\n")


@public
async def icon(request: Request) -> Response:
    """Send a browser that asks at the usual address to the icon."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/static/icon.svg")
