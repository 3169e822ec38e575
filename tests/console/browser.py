"""A browser without a screen: it asks an ASGI app, keeps cookies, and reads links and forms."""

import asyncio
from collections import Counter
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from kvstream.console.routes import ROUTES

HOST = "http://console.test"
SAME_MAX = 7
"""Pages of one kind that are read."""
VOID = frozenset({"meta", "link", "input", "br", "img"})


def route_of(path: str) -> str:
    """Return the path of the route that a page is of."""
    plain = path.partition("?")[0]
    return next((each.path for each in ROUTES if each.path_regex.match(plain)), plain)


class Page(HTMLParser):
    """A page: its links, forms and tags; AssertionError if its tags do not fit together."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.forms: list[dict[str, str]] = []
        self.texts: list[str] = []
        self.inline_scripts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == [], f"not closed: {self._open}"

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        given = dict(attrs)
        if tag in ("a", "link") and (href := given.get("href")) is not None:
            self.links.append(href)
        if tag == "form":
            self.forms.append({"": given.get("action") or "", "@": given.get("method") or "get"})
        if tag in ("input", "button", "select") and self.forms and (name := given.get("name")):
            self.forms[-1][name] = given.get("value") or ""
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open, tag
        assert self._open.pop() == tag, (tag, self._open)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.inline_scripts.append(data)
        self.texts.append(data)


class Browser:
    """Asks an app under a path; ``root_path`` is that of the server in front of it."""

    def __init__(self, app: Any, root_path: str = "", **headers: str) -> None:
        self._app, self.root_path = app, root_path
        self._headers = {"sec-fetch-site": "same-origin", **headers}
        self.cookies = httpx.Cookies()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**self._headers, **options.pop("headers", {})}

        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, root_path=self.root_path)
            async with httpx.AsyncClient(transport=transport, cookies=self.cookies) as client:
                reply = await client.request(
                    method, urljoin(HOST, path), headers=headers, **options
                )
                self.cookies = client.cookies
                return reply

        return asyncio.run(run())

    def get(self, path: str, code: int = 200, **options: Any) -> httpx.Response:
        reply = self.ask("GET", self.root_path + path, **options)
        assert reply.status_code == code, (path, reply.status_code, reply.text[:2000])
        return reply

    def page(self, path: str, code: int = 200) -> Page:
        return Page(self.get(path, code).text)

    def crawl(self, start: str = "/") -> dict[str, Page]:
        """Read the pages that can be reached by links, some of each kind; each must be there."""
        pages: dict[str, Page] = {}
        waiting, seen = [self.root_path + start], Counter[str]()
        while waiting:
            path = waiting.pop(0)
            reply = self.ask("GET", path, follow_redirects=True)
            assert reply.status_code == 200, (path, reply.status_code, reply.text[:2000])
            if not reply.headers["content-type"].startswith("text/html"):
                continue
            found = pages[path] = Page(reply.text)
            for link in found.links:
                target = urlsplit(urljoin(HOST + path, link))
                assert f"{target.scheme}://{target.netloc}" == HOST, link
                assert target.path.startswith(self.root_path + "/"), link
                whole = target.path + (f"?{target.query}" if target.query else "")
                kind = route_of(target.path.removeprefix(self.root_path))
                if whole not in pages and whole not in waiting and seen[kind] < SAME_MAX:
                    seen[kind] += 1
                    waiting.append(whole)
        return pages
