"""The console as an ASGI app: its routes, its errors, and what all its requests share."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

from kvstream.console.access import SECURE_COOKIE, Auth, Page, User, cookie_in, form_token
from kvstream.console.applications import Applications
from kvstream.console.events import Hub
from kvstream.console.guard import Guard
from kvstream.console.history.recorder import Histories, Recorder
from kvstream.console.listing import Listings
from kvstream.console.logins.passwords import Account, PasswordLogin
from kvstream.console.logins.sessions import Sessions, TokenLogin
from kvstream.console.places import ReadOnlyDirectory, place_of
from kvstream.console.redaction import Redaction
from kvstream.console.rendering import FOLDER, templates
from kvstream.console.replies import is_api, json_error
from kvstream.console.routes import ROUTES
from kvstream.console.server_info import ServerInfo
from kvstream.console.view import Shown, View
from kvstream.errors import (
    AccessDenied,
    Corruption,
    InvalidArgument,
    KVStreamError,
    NoGroup,
    NoSuchKey,
    NoSuchStore,
    RequestError,
    ServerLoading,
    ServerTooOld,
    ServerUnavailable,
    StoreFull,
    StoreLocked,
    UnknownOutcome,
    WrongType,
)
from kvstream.jobs import Jobs
from kvstream.surface import Public

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

COOKIE = "kvstream-console"
"""The cookie of a mounted console: a secret that forms are made for."""
THREADS = 8
"""Pages that are made at a time."""
_STATUS: dict[type[Exception], int] = {
    AccessDenied: 403,
    Corruption: 500,
    InvalidArgument: 400,
    NoGroup: 404,
    NoSuchKey: 404,
    NoSuchStore: 404,
    ServerLoading: 503,
    ServerTooOld: 501,
    ServerUnavailable: 503,
    StoreFull: 507,
    StoreLocked: 503,
    WrongType: 400,
    RequestError: 400,
}
"""The status of the page of an error; another error of the store is 500."""
_FULL = "No space left on device"
_TITLES = {
    400: "This cannot be done",
    401: "Not logged in",
    403: "Not allowed",
    404: "There is no such page",
    501: "This server cannot do that",
    503: "The store does not answer",
    507: "The disk is full",
}


class Console(Public):
    """A console; it is an ASGI app. ``close`` closes what it has opened."""

    _internal = frozenset({"answer", "in_thread", "run", "secret_of", "set_cookie", "shown_to"})

    def __init__(
        self,
        place: Any,
        auth: Auth,
        *,
        read_only: bool = False,
        hosts: Collection[str] = (),
        root_path: str = "",
        redact: Collection[str] = (),
        hide_values: bool = False,
        **options: Any,
    ) -> None:
        self.auth = auth
        self.place = place_of(place, read_only=read_only, **options)
        self.read_only = read_only or isinstance(self.place, ReadOnlyDirectory)
        self.redaction = Redaction(redact, hide_values)
        self._threads: CapacityLimiter | None = None
        self.listings = Listings()
        self.server_info = ServerInfo()
        self.applications = Applications(place.name if isinstance(place, Jobs) else None)
        self.hub = Hub(self)
        self.has_own_login = isinstance(auth, PasswordLogin) and auth.has_own
        own = self.place if self.has_own_login else None
        self.histories = Histories(own)
        self.recorder = Recorder(
            self.place, self.listings, self.applications.own, opens=self.has_own_login
        )
        self.routes = ROUTES
        self._root_path = root_path.rstrip("/")
        self.templates = templates()
        self.has_login = isinstance(auth, Sessions)
        self.cookie = auth.cookie if isinstance(auth, Sessions) else COOKIE
        inner = Starlette(
            routes=ROUTES,
            exception_handlers={HTTPException: self._refused, Exception: self._broken},
            lifespan=self._lifespan,
        )
        inner.state.console = self
        inner.mount("/static", StaticFiles(directory=FOLDER / "static"), "static")
        self._guarded = Guard(inner, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._root_path and scope["type"] == "http":
            scope = self._rooted(scope)
        await self._guarded(scope, receive, send)

    def _rooted(self, scope: Scope) -> Scope:
        """Return the scope of a request as Starlette's Mount has it, with the path in front."""
        inner = str(scope["path"]).removeprefix(self._root_path).strip("/")
        return {**scope, "root_path": self._root_path, "path": f"{self._root_path}/{inner}"}

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        yield
        self.close()

    def close(self) -> None:
        """Close the store, if the console has opened it; the next page opens it again."""
        self.recorder.close()
        self.place.close()

    # --- replies --------------------------------------------------------------------------------

    def secret_of(self, request: Request) -> str:
        """Return the secret of a browser; empty if it has none yet."""
        return cookie_in(request, self.cookie)

    def shown_to(self, user: User) -> Shown:
        """Return what a user sees: the place of the console, or a server as this user."""
        return user if isinstance(user, Account) else self

    async def run(
        self, page: Page, request: Request, user: User, form: dict[str, str] | None = None
    ) -> Response:
        """Run ``answer`` in a thread.

        The threads are the console's own: when its store is away, those of the program stay free.
        """
        if not self.read_only:
            self.recorder.start()
        reply: Response = await self.in_thread(self.answer, page, request, user, form)
        return reply

    async def in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        """Run a call that may wait for a store."""
        if self._threads is None:
            self._threads = CapacityLimiter(THREADS)
        return await to_thread.run_sync(call, *args, limiter=self._threads)

    def answer(
        self, page: Page, request: Request, user: User, form: dict[str, str] | None
    ) -> Response:
        """Run a page or an action with the store; an error of the store has a page, too."""
        secret, shown = self.secret_of(request) or secrets.token_urlsafe(32), self.shown_to(user)
        try:
            with shown.place.reading() as store:
                view = View(self, request, user, store, form, shown)
                view.token = form_token(secret)
                try:
                    reply: Response = page(view)
                except KVStreamError as error:
                    status, view.has_failed = _status_of(error), True
                    values = {"title": _TITLES.get(status, "An error"), "error": str(error)}
                    values["outcome"] = _outcome(view, error)
                    reply = view.page("error.html", status, values)
        except KVStreamError as error:
            if isinstance(error, AccessDenied) and isinstance(self.auth, PasswordLogin):
                self.auth.end_all_of(user)
            reply = self._bare(request, _status_of(error), str(error))
        if secret != self.secret_of(request) and not _is_json(reply):
            self.set_cookie(request, reply, secret)
        return reply

    def set_cookie(self, request: Request, reply: Response, value: str) -> None:
        """Give a browser its secret; behind a proxy with TLS the header Origin says so."""
        root = request.scope.get("root_path", "")
        by_tls = request.url.scheme == "https"
        by_tls = by_tls or request.headers.get("origin", "").startswith("https://")
        reply.set_cookie(
            (SECURE_COOKIE if by_tls and not root else "") + self.cookie,
            value,
            path=root or "/",
            httponly=True,
            samesite="strict",
            secure=by_tls,
        )

    def _bare(self, request: Request, status: int, text: str) -> Response:
        root, title = request.scope.get("root_path", ""), _TITLES.get(status, "An error")
        if is_api(request.scope):
            return json_error(status, title, text)
        values = {
            "root": root,
            "title": title,
            "text": text,
            "login": _login_of(self.auth) if status == 401 else "",
        }
        return HTMLResponse(self.templates.get_template("bare.html").render(values), status)

    def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = {401: "Log in to see this console.", 404: "Nothing is at this address."}
        text = known.get(error.status_code, error.detail)
        return self._bare(request, error.status_code, text)

    def _broken(self, request: Request, error: Exception) -> Response:
        return self._bare(request, 500, "The page failed; the log of the program says why.")


def _is_json(reply: Response) -> bool:
    """Return whether a reply is for a program, which has no forms and so needs no cookie."""
    return reply.media_type == "application/json"


def _login_of(auth: Auth) -> str:
    """Return how one logs in: by a URL, a form, or elsewhere."""
    kinds = {TokenLogin: "url", PasswordLogin: "form"}
    return next((way for kind, way in kinds.items() if isinstance(auth, kind)), "")


def _status_of(error: KVStreamError) -> int:
    if "permissions to " in str(error):  # NOPERM, for a key or a command
        return 403
    if _FULL in str(error):  # as a server says it
        return 507
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)


def _outcome(view: View, error: KVStreamError) -> str:
    """Return what an action that has failed has changed; empty for a page."""
    if view.form is None:
        return ""
    if isinstance(error, UnknownOutcome):
        return "It is not known whether this was done: look at the page, and at the audit."
    if view.has_begun:
        return "It may be done in part: the audit says that it has begun."
    return "Nothing was changed."


def app(
    place: Any,
    *,
    auth: Auth,
    read_only: bool = False,
    hosts: Collection[str] = (),
    root_path: str = "",
    redact: Collection[str] = (),
    hide_values: bool = False,
    **options: Any,
) -> Console:
    """Return a console as an ASGI app, to be served or mounted under any path.

    ``place`` is a Store, a Jobs, a directory or the URL of a server; ``options`` are those of
    ``kvstream.open``. ``auth`` is called with each request of Starlette, and returns the ``User``,
    or None to refuse it; it may be async. ``read_only`` refuses every action, and opens a
    directory read-only. ``hosts``: the values of the header Host that are served, by default all
    that reach the program. ``root_path``: where it is mounted, for a framework that does not say so
    (Litestar, or a function of one's own).

    ``redact``: patterns of names, such as "password" and "card*"; the values of fields, arguments
    and members of JSON with such a name are hidden from everybody. ``hide_values`` hides all
    values, arguments and results from viewers. Errors and logs are shown. ::

        app.mount("/ops", kvstream.console.app("data", auth=user_of))
    """
    if not callable(auth):
        raise InvalidArgument("auth is a function of the request, which returns a User or None")
    return Console(
        place,
        auth,
        read_only=read_only,
        hosts=hosts,
        root_path=root_path,
        redact=redact,
        hide_values=hide_values,
        **options,
    )
