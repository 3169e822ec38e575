"""The addresses of the console: one table."""

from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import Route

from kvstream.console.actions.table import ROUTES as ACTIONS
from kvstream.console.api.routes import routes_of
from kvstream.console.names import name_of, segment_of
from kvstream.console.pages.dead import dead, dead_stream
from kvstream.console.pages.entries import entries, entry, find_entries
from kvstream.console.pages.exports import export_entries, export_jobs
from kvstream.console.pages.group import group
from kvstream.console.pages.jobs import job, jobs, workers
from kvstream.console.pages.live import events
from kvstream.console.pages.login import health, icon, log_in, log_in_by_password, log_out
from kvstream.console.pages.overview import overview
from kvstream.console.pages.queues import queue, queues
from kvstream.console.pages.replication import archive, migrations, replicas
from kvstream.console.pages.schedules import schedules
from kvstream.console.pages.search import search
from kvstream.console.pages.server import clients, config, server, slow_log
from kvstream.console.pages.streams import stream, streams


class _NameConvertor(Convertor[bytes]):
    """A name in the path, as ``names`` writes it."""

    regex = "[^/]+"

    def convert(self, value: str) -> bytes:
        return name_of(value)

    def to_string(self, value: bytes) -> str:
        return segment_of(value)


register_url_convertor("kvname", _NameConvertor())

PAGES = [
    Route("/", overview),
    Route("/queues", queues),
    Route("/queues/{queue:kvname}", queue),
    Route("/dead", dead),
    Route("/dead/{stream:kvname}", dead_stream),
    Route("/jobs", jobs),
    Route("/jobs/{id}", job),
    Route("/workers", workers),
    Route("/streams", streams),
    Route("/streams/{stream:kvname}", stream),
    Route("/streams/{stream:kvname}/entries", entries),
    Route("/streams/{stream:kvname}/entries/{id}", entry),
    Route("/streams/{stream:kvname}/groups/{group:kvname}", group),
    Route("/schedules", schedules),
    Route("/server", server),
    Route("/server/clients", clients),
    Route("/server/slowlog", slow_log),
    Route("/server/config", config),
    Route("/replicas", replicas),
    Route("/archive", archive),
    Route("/migrations", migrations),
    Route("/search", search),
    Route("/find/{stream:kvname}", find_entries),
]
"""What is shown: each of them is there as JSON, too."""

ROUTES = [
    *PAGES,
    *routes_of(PAGES),
    Route("/export/{stream:kvname}", export_entries, methods=["POST"]),
    Route("/export-jobs", export_jobs, methods=["POST"]),
    Route("/events", events),
    Route("/login", log_in, methods=["GET"]),
    Route("/login", log_in_by_password, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
    Route("/healthz", health),
    Route("/favicon.ico", icon),
    *ACTIONS,
]
