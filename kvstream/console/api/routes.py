"""The addresses of the JSON: those of the pages, under ``/api/v1``, and for reading alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from kvstream.console.access import Page, requires
from kvstream.console.api.fields import Form
from kvstream.console.api.forms import FORMS
from kvstream.console.replies import API

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View


def path_of(page: str) -> str:
    """Return the path of the JSON of a page."""
    return API + ("/overview" if page == "/" else page)


def routes_of(pages: Iterable[Route]) -> list[Route]:
    """Return a route for each page that has a form; its role is that of the page."""
    return [
        Route(path_of(each.path), _endpoint(each.endpoint, FORMS[each.path]), methods=["GET"])
        for each in pages
        if each.path in FORMS
    ]


def _endpoint(page: Any, form: Form) -> Any:
    return requires(page.role)(_as_json(page.page, form))


def _as_json(page: Page, form: Form) -> Page:
    def answer(view: View) -> Response:
        view.form_of_page = form
        reply: Response = page(view)
        return reply

    return answer
