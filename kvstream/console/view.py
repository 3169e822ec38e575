"""One request for a page: the store, the user, the URLs, and the reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, RedirectResponse, Response

from kvstream.console.access import Role, User
from kvstream.console.command_lines import Part, line, program_of
from kvstream.console.names import name_of, segment_of
from kvstream.console.replies import API, json_error, json_reply
from kvstream.console.server_info import Sections, has_archive, has_replicas
from kvstream.console.values import raw_of
from kvstream.errors import RequestError
from kvstream.types.clock import SystemClock

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request

    from kvstream.console.applications import Applications
    from kvstream.console.history.recorder import Histories
    from kvstream.console.listing import Listing, Listings
    from kvstream.console.places import AnyPlace
    from kvstream.console.redaction import Redaction
    from kvstream.console.server_info import ServerInfo
    from kvstream.store import Store

ROWS = 50
"""Rows of a table on one page."""


MENU = [
    ("", "Overview"),
    ("queues", "Queues"),
    ("dead", "Dead letters"),
    ("jobs", "Jobs"),
    ("streams", "Streams"),
    ("schedules", "Schedules"),
    ("server", "Server"),
]
_MORE: list[tuple[tuple[str, str], Callable[[Sections, Listing | None], bool]]] = [
    (("replicas", "Replicas"), lambda sections, _: has_replicas(sections)),
    (("archive", "Archive"), lambda sections, _: has_archive(sections)),
    (("migrations", "Migrations"), lambda _, listing: bool(listing and listing.migrations)),
]
"""Pages of the menu for features that not every place has."""
SERVER_TABS = [
    ("", Role.VIEWER, "Figures"),
    ("clients", Role.OPERATOR, "Clients"),
    ("slowlog", Role.VIEWER, "Slow log"),
    ("config", Role.ADMIN, "Settings"),
]
"""The pages of a server, with the roles of ``pages.server``."""


class Shown(Protocol):
    """A place, and what is kept of it for all who see it: that of the console, or of one user."""

    @property
    def applications(self) -> Applications: ...
    @property
    def histories(self) -> Histories: ...
    @property
    def listings(self) -> Listings: ...
    @property
    def place(self) -> AnyPlace: ...
    @property
    def server_info(self) -> ServerInfo: ...


class AnyConsole(Shown, Protocol):
    """The console, as its pages see it."""

    has_login: bool
    has_own_login: bool
    read_only: bool
    redaction: Redaction
    templates: Environment


class AnyForm(Protocol):
    """The JSON of a page, as the view sees it: see ``kvstream.console.api``."""

    def json_of(self, view: View, page: Mapping[str, Any]) -> dict[str, Any]: ...


class View:
    """What a page is made of. It is used by one thread."""

    def __init__(
        self,
        console: AnyConsole,
        request: Request,
        user: User,
        store: Store,
        form: dict[str, str] | None,
        shown: Shown | None = None,
    ) -> None:
        self.console, self.request, self.user, self.store = console, request, user, store
        self.form = form
        self.shown: Shown = shown or console
        self.has_failed = False
        """Whether the page is that of an error, which asks the store for nothing."""
        self.token = ""
        """The token against forgery that the forms of this page have."""
        self.now_ms = _now_ms(store)
        self.form_of_page: AnyForm | None = None
        """What the JSON of the page is made by; None: the page is HTML."""
        self.has_begun = False
        """An action of many commits has begun, so some of them may be made."""

    # --- the request ----------------------------------------------------------------------------

    def part(self, name: str) -> bytes:
        """Return a name in the path, such as the stream."""
        found: bytes = self.request.path_params[name]
        return found

    def asked(self, name: str, default: str = "") -> str:
        """Return a value of the query."""
        return self.request.query_params.get(name, default)

    def name(self, name: str) -> bytes:
        """Return a name of a stream or the like in the query; empty if there is none."""
        return name_of(self.asked(name)) if self.asked(name) else b""

    def given(self, name: str, default: str = "") -> str:
        """Return a value of the form."""
        return default if self.form is None else self.form.get(name, default)

    def may(self, role: str) -> bool:
        """Return whether the user may act in a role; nobody may in a read-only console."""
        return not self.console.read_only and self.user.may(Role[role.upper()])

    @property
    def has_login(self) -> bool:
        """Whether the user has logged in here, and so may log out."""
        return self.console.has_login

    @property
    def listing(self) -> Listing:
        return self.shown.listings.get(self.store)

    @property
    def histories(self) -> Histories:
        """The samples: read by the console if it has a name of its own, else by the user."""
        return (self.console if self.console.has_own_login else self.shown).histories

    @property
    def sees_all(self) -> bool:
        """Whether the user sees what the console sees."""
        return self.shown is self.console

    @property
    def info(self) -> Sections:
        """The sections of INFO, or the figures of a directory."""
        return self.shown.server_info.get(self.store)

    @property
    def menu(self) -> list[tuple[str, str]]:
        """The pages of the menu: those of what this place does not have are left out."""
        sections = self.shown.server_info.last if self.has_failed else self.info
        listing = None if self.has_failed else self.listing
        return [*MENU, *(page for page, exists in _MORE if exists(sections, listing))]

    @property
    def server_tabs(self) -> list[tuple[str, str]]:
        """The pages of a server which the user may see."""
        return [(path, title) for path, role, title in SERVER_TABS if self.user.may(role)]

    # --- URLs -----------------------------------------------------------------------------------

    def url(self, *parts: str | bytes, **query: Any) -> str:
        """Return the URL of a page; bytes are names of streams, groups and the like."""
        if self.form_of_page is not None:
            parts = parts if any(parts) else ("overview",)
        segments = [each if isinstance(each, str) else segment_of(each) for each in parts]
        asked = {name: _query(value) for name, value in query.items() if value not in (None, "")}
        end = f"?{urlencode(asked)}" if asked else ""
        return f"{self._root}/{'/'.join(segments)}{end}"

    def here(self, **query: Any) -> str:
        """Return the URL of this page with other values in the query; None leaves one out."""
        kept = [each for each in self.request.query_params.multi_items() if each[0] not in query]
        more = [(name, _query(value)) for name, value in query.items() if value not in (None, "")]
        end = urlencode([*kept, *more])
        return self.url(self.path.strip("/")) + (f"?{end}" if end else "")

    @property
    def path(self) -> str:
        """The path of the page within the console."""
        return str(self.request.scope["path"]).removeprefix(self._root) or "/"

    @property
    def _root(self) -> str:
        """The path before those of the pages."""
        root: str = self.request.scope.get("root_path", "")
        return root if self.form_of_page is None else root + API

    @property
    def section(self) -> str:
        """The first part of the path, which is a page of the menu."""
        return self.path.strip("/").partition("/")[0]

    @staticmethod
    def segment(name: bytes) -> str:
        """Return a name as a value of a form, as ``name`` reads it."""
        return segment_of(name)

    @property
    def live(self) -> str | None:
        """The URL of the messages that renew this page; None for a page that does not change."""
        if self.request.method != "GET" or self.section in ("do", "search", "find"):
            return None
        query = self.request.scope["query_string"].decode("ascii", "replace")
        return self.url("events", page=self.path + (f"?{query}" if query else ""))

    @staticmethod
    def raw(name: str) -> bytes:
        """Return a name as bytes."""
        return raw_of(name)

    def command(self, *parts: Part) -> str:
        """Return a command line for this place; see ``command_lines.line``."""
        return f"{program_of(self.shown.place.title, self.store.db)} {line(*parts)}"

    # --- values -----------------------------------------------------------------------------------

    def value(self, name: bytes, value: bytes) -> bytes:
        """Return a value of a field as this user may see it."""
        if self.console.redaction.hides_all(self.user):
            return b"(hidden)"
        return self.console.redaction.value(name, value)

    def data(self, value: Any) -> Any:
        """Return plain data, such as a result, as this user may see it."""
        if self.console.redaction.hides_all(self.user):
            return "(hidden)"
        return self.console.redaction.plain(value)

    # --- the reply ------------------------------------------------------------------------------

    def page(
        self, template: str, code: int = 200, values: Mapping[str, Any] | None = None, **more: Any
    ) -> Response:
        """Return a page from a template, or as JSON from the same values."""
        if self.form_of_page is not None:
            return self._json({**(values or {}), **more}, code)
        made = self.render(template, **(values or {}), **more)
        return HTMLResponse(made.encode("utf-8", "backslashreplace"), code)

    def _json(self, values: Mapping[str, Any], code: int) -> Response:
        if self.has_failed or self.form_of_page is None:
            return json_error(code, values["title"], values["error"])
        links = {"self": self.here()}
        return json_reply({**self.form_of_page.json_of(self, values), "links": links}, code)

    def render(self, template: str, **values: Any) -> str:
        names = {"view": self, "now_ms": self.now_ms, **values}
        return self.console.templates.get_template(template).render(names)

    def go(self, *parts: str | bytes, **query: Any) -> Response:
        """Send the browser to another page."""
        return self.to(self.url(*parts, **query))

    def to(self, url: str) -> Response:
        """Send the browser to a URL of this console."""
        return RedirectResponse(url, 303)


def _now_ms(store: Store) -> int:
    """Return the time of the store; that of this machine for a user without the right to ask."""
    try:
        return store.now_ms()
    except RequestError:
        return SystemClock().now_ms()


def _query(value: Any) -> str | bytes:
    return segment_of(value) if isinstance(value, bytes) else raw_of(str(value))
