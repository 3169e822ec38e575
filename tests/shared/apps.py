"""Programs of many processes that share a store: for uvicorn, gunicorn and Celery.

Each adds numbers to the stream ``n`` of the store in KVSTREAM_STORE. The web programs answer
``GET /N`` once N is added.
"""

import os
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Any

import kvstream
from kvstream.aio import AsyncStore

STORE = os.environ.get("KVSTREAM_STORE", "")


# --- uvicorn --------------------------------------------------------------------------------------

_of_loop: list[AsyncStore] = []


async def asgi(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    if scope["type"] == "lifespan":
        await receive()
        async with kvstream.aio.open(STORE, shared=True, durability="no") as store:
            _of_loop.append(store)
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await _of_loop[0].stream("n").add({"n": scope["path"][1:]})
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"added"})


# --- gunicorn -------------------------------------------------------------------------------------


@cache
def store() -> kvstream.Store:
    """Return the store of this process; a forked one goes on with that of its parent."""
    return kvstream.open(STORE, shared=True, durability="no")


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    store().stream("n").add({"n": environ["PATH_INFO"][1:]})
    start_response("200 OK", [("Content-Length", "5")])
    return [b"added"]


def preloaded() -> Callable[..., Iterable[bytes]]:
    """Return the program after opening the store: with --preload in the parent of the workers."""
    store()
    return wsgi


# --- Celery ---------------------------------------------------------------------------------------


def celery() -> Any:
    """Return the program of Celery, whose broker is a Redis."""
    from celery import Celery  # type: ignore[import-untyped,unused-ignore]

    app = Celery("apps", broker=os.environ["KVSTREAM_BROKER"])
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )

    def add(n: int) -> None:
        store().stream("n").add({"n": n})

    app.task(name="add")(add)
    return app
