"""A chat: FastAPI, and a stream for each room, whose readers follow it by server-sent events.

    python examples/chat.py   tries itself, and ends
    uvicorn chat:app          serves http://localhost:8000

A thousand open pages are a thousand tasks that wait, and no thread. A browser that comes back
names the last event that it has seen (``Last-Event-ID``), and misses nothing. The data is in the
folder that ``DATA`` names in the environment, else in a temporary one.
"""

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, Header
from fastapi.responses import StreamingResponse

import kvstream


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with tempfile.TemporaryDirectory() as temporary:
        data = os.environ.get("DATA", temporary)
        async with kvstream.aio.open(data, decode=True) as store:
            app.state.store = store
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/rooms/{room}", status_code=201)
async def say(room: str, who: str, text: str) -> dict[str, str]:
    stream = app.state.store.stream(f"room:{room}")
    return {"id": str(await stream.add({"who": who, "text": text}, maxlen=10_000))}


@app.get("/rooms/{room}/events")
async def follow(room: str, last_event_id: str = Header("$")) -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        yield ": welcome\n\n"
        async for entry in app.state.store.stream(f"room:{room}").tail(after=last_event_id):
            yield f"id: {entry.id}\ndata: {json.dumps(entry.fields)}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def listen(client: httpx.AsyncClient, count: int, after: str = "$") -> list[str]:
    """Return the texts of the next events in the room."""
    texts: list[str] = []
    headers = {"Last-Event-ID": after}
    async with client.stream("GET", "/rooms/tea/events", headers=headers) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                texts.append(json.loads(line.removeprefix("data: "))["text"])
            if len(texts) == count:
                break
    return texts


async def try_out() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve([listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        first = await client.post("/rooms/tea", params={"who": "ann", "text": "hello"})
        id = first.json()["id"]
        readers = [asyncio.create_task(listen(client, 2, after=id)) for _ in range(3)]
        for text in ("tea?", "at five"):
            await client.post("/rooms/tea", params={"who": "bob", "text": text})
        for texts in await asyncio.gather(*readers):
            print("read:", texts)
        print("from the start:", await listen(client, 3, after="0"))
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(try_out())
