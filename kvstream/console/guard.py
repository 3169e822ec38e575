"""Rules for every request and reply: headers, names of the host, the origin of writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With no-referrer browsers would send "Origin: null" with forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SAFE = ("GET", "HEAD")
BODY_MAX = 64_000
"""Bytes of a form."""


class Guard:
    """An ASGI app around another one, for HTTP alone."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        """``hosts``: the values of the header Host that are served; empty: all."""
        self._app, self._hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Any:
        """Return the reply to a request that is not let through; None for others."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts and host not in self._hosts:
            # another name that leads here: DNS rebinding
            return PlainTextResponse(f"this console is served at {min(self._hosts)}", 421)
        if scope["method"] in _SAFE:
            return None
        if scope["method"] != "POST":
            return PlainTextResponse("only GET and POST are known here", 405)
        if not _is_same_origin(headers, host):
            return PlainTextResponse(
                "a form of another site was refused; a proxy in front must pass on the header Host",
                403,
            )
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > BODY_MAX or "transfer-encoding" in headers:
            return PlainTextResponse("the form is too long", 413)
        return None


def _is_same_origin(headers: Headers, host: str) -> bool:
    """Return whether a browser says that a request comes from a page of this host.

    Every browser since 2023 sends Sec-Fetch-Site to trustworthy addresses, and Origin with POST.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site == "same-origin" and (origin is None or urlsplit(origin).netloc == host)
    return origin is not None and urlsplit(origin).netloc == host
