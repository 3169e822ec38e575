"""A web application that hands work to jobs: FastAPI, and workers beside it.

    uvicorn fastapi_app:app          serves requests, and enqueues jobs
    kvstream work fastapi_app:jobs   runs them

They share the directory ``data``; no server is needed. Set ``DATA`` to the URL of
one (``redis://...``) once the two run on different machines.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from fastapi import FastAPI, HTTPException

from kvstream import Jobs

DATA = os.environ.get("DATA", "data")
jobs = Jobs(DATA)


@jobs.task(retries=3, backoff=[1, 10, 60], timeout=30)
async def send_mail(to: str, text: str) -> str:
    """Send a mail; here it is only said."""
    return f"sent {text!r} to {to}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with jobs:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/mails", status_code=202)
async def post_mail(to: str, text: str) -> dict[str, str]:
    handle = await send_mail.with_options(key=to).aenqueue(to, text)
    return {"id": handle.id}


@app.get("/mails/{job_id}")
def get_mail(job_id: UUID) -> dict[str, str | None]:
    handle = jobs.handle(str(job_id))
    status = handle.status
    if status == "unknown":
        raise HTTPException(404)
    result = handle.result() if status == "done" else None
    return {"status": status, "result": result, "error": handle.error}
