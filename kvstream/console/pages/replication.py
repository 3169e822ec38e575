"""What keeps copies of a store: replicas, its archive, and followers of a migration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvstream.console.access import Role, requires
from kvstream.console.server_info import replicas_in
from kvstream.console.values import whole
from kvstream.errors import Corruption, KVStreamError
from kvstream.migration.items import JOURNAL_PREFIX, STAGED_PREFIX
from kvstream.operations import strings
from kvstream.types.urls import show_place

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View

FOLLOWERS = 20
STAGED = 50
_NOT_ITS_FORM = (
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
    *(Corruption, KVStreamError),
)
"""The errors of a journal that another program has written."""


@requires(Role.VIEWER)
def replicas(view: View) -> Response:
    about = view.info.get("replication", {})
    return view.page("replicas.html", about=about, replicas=list(replicas_in(about))[:100])


@requires(Role.VIEWER)
def archive(view: View) -> Response:
    """A server tells of its archive in INFO, a directory in the status of its engine."""
    of_server = view.info.get("persistence", {})
    facts: dict[str, Any] = dict(view.info.get("archive", {}))
    if not facts and of_server.get("kvstream_archive"):
        facts = {
            "url": of_server["kvstream_archive"],
            "state": of_server.get("archive_state"),
            "error": of_server.get("archive_error"),
            "sequence": of_server.get("archive_sequence"),
            "put_ms": _ms(of_server.get("archive_last_put_time")),
            "behind_s": float(of_server.get("archive_lag_seconds") or 0),
            "behind_bytes": of_server.get("archive_lag_bytes"),
            "snapshot_sequence": of_server.get("archive_snapshot_sequence"),
            "snapshot_ms": _ms(of_server.get("archive_last_snapshot_time")),
            "puts": of_server.get("archive_puts"),
            "put_bytes": of_server.get("archive_put_bytes"),
        }
    if facts:
        facts["url"] = show_place(facts["url"])
    return view.page("archive.html", facts=facts)


def _ms(seconds: Any) -> int | None:
    return seconds * 1000 if isinstance(seconds, int) and seconds else None


@requires(Role.VIEWER)
def migrations(view: View) -> Response:
    """The journals that followers keep at their target, and streams that are being copied."""
    own = view.listing.migrations
    found = [each for each in own if each.startswith(JOURNAL_PREFIX)]
    staged = [each for each in own if each.startswith(STAGED_PREFIX)]
    return view.page(
        "migrations.html",
        followers=[_follower(view, each) for each in found[:FOLLOWERS]],
        left_out=max(0, len(found) - FOLLOWERS),
        staged=staged[:STAGED],
        staged_count=len(staged),
    )


def _follower(view: View, key: bytes) -> dict[str, Any]:
    """Return what the journal of a follower says, in the form of ``migration.replication``."""
    try:
        value = view.store.run(strings.get, key)
        fields = json.loads(value or b"")
        return {
            "key": key,
            "source": show_place(str(fields["source"])),
            "state": str(fields["state"]),
            "offset": whole(str(fields["offset"])),
            "again": len(fields["again"]),
            "skipped": {str(name): int(count) for name, count in fields["skipped"].items()},
            "refused": {str(name): int(count) for name, count in fields["refused"].items()},
            "error": "",
        }
    except _NOT_ITS_FORM as error:
        unknown = dict.fromkeys(("source", "state", "offset", "again", "skipped", "refused"))
        return {"key": key, "error": f"{type(error).__name__}: {error}", **unknown}
