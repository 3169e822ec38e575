"""The console inside applications of others, and the Python of its page in the docs."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from kvstream import Store
from kvstream.console import Console, User, app
from tests.cli.program import ENVIRONMENT, ROOT
from tests.console.browser import Browser
from tests.patience import PATIENCE_S

PAGE = ROOT / "docs" / "console.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def in_starlette(console: Console) -> Any:
    return Starlette(routes=[Mount("/ops/console", console)])


def in_fastapi(console: Console) -> Any:
    site = FastAPI()
    site.mount("/ops/console", console)
    return site


class Stripping:
    """An application that routes as Litestar does: it takes the path away, and says nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        inner = scope["path"].removeprefix("/ops/console").strip("/")
        await self._console({**scope, "path": f"/{inner}/", "root_path": ""}, receive, send)


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi, Stripping])
def test_every_link_leads_to_a_page_of_the_mounted_console(full: Store, mount: Any) -> None:
    root_path = "/ops/console" if mount is Stripping else ""
    console = app(full, auth=lambda _: User("ann", "admin"), root_path=root_path)
    browser = Browser(mount(console))
    for path in ("/", "/streams/orders/entries", "/dead/emails:dead", "/do/pause?queue=emails"):
        page = browser.page("/ops/console" + path)
        own = [each for each in page.links if each != "#main"]
        assert all(each.startswith("/ops/console/") for each in own), path
        for link in own[:12]:
            assert browser.ask("GET", link).status_code in (200, 303), link
    page = browser.page("/ops/console/do/pause?queue=emails")
    (form,) = [each for each in page.forms if each["@"] == "post"]
    reply = browser.ask("POST", form[""], data={"csrf": form["csrf"]})
    assert reply.headers["location"] == "/ops/console/queues/emails"


def test_requests_that_are_no_http_pass_through(full: Store) -> None:
    """Mount hands on the lifespan of nobody, and WebSockets: the console has none."""

    async def main() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        console = app(full, auth=lambda _: User("ann"))
        scope = {"type": "websocket", "path": "/", "root_path": "", "headers": []}
        await console({**scope, "subprotocols": [], "query_string": b""}, receive, send)
        return sent

    assert asyncio.run(main())[0]["type"] == "websocket.close"


SETTINGS = """
SECRET_KEY = "of a test"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
ROOT_URLCONF = "mysite.urls"
ALLOWED_HOSTS = ["*"]
"""
ASKED = """
import asyncio, httpx

async def ask(path):
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.get(path)).status_code

assert asyncio.run(ask("/ops/")) == 401
assert asyncio.run(ask("/elsewhere")) == 404
"""


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_python_of_the_docs_runs(tmp_path: Path, number: int) -> None:
    with Store.open(tmp_path / "data", durability="no") as store:
        store.stream("orders").add({"a": "1"})
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite" / "settings.py").write_text(SETTINGS)
    (tmp_path / "mysite" / "urls.py").write_text("urlpatterns = []")
    code = BLOCKS[number] + (ASKED if "django" in BLOCKS[number] else "")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
