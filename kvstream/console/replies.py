"""Replies of JSON: a page, or an error in the form ``{"error": {"status", "title", "text"}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

API = "/api/v1"
"""Where the JSON of the pages is: see ``kvstream.console.api``."""


def is_api(scope: Mapping[str, Any]) -> bool:
    """Return whether a request is for JSON."""
    return str(scope["path"]).startswith(f"{scope.get('root_path', '')}{API}/")


def json_reply(content: Any, status: int = 200) -> Response:
    """Return JSON; half a surrogate pair, as JSON may have it, becomes an escape."""
    made = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return Response(made.encode("utf-8", "backslashreplace"), status, media_type="application/json")


def json_error(status: int, title: str, text: str) -> Response:
    """Return an error."""
    return json_reply({"error": {"status": status, "title": title, "text": text}}, status)
