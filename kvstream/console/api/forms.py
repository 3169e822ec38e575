"""The JSON of each page, by the path of its route.

A form reads the values that the page gives to its template. So JSON and HTML have one page function
with one role, one bound, and one rule of what is hidden.
"""

from kvstream.console.api import jobs, queues, server, streams
from kvstream.console.api.fields import Form

FORMS: dict[str, Form] = {
    "/": queues.OVERVIEW,
    "/queues": queues.QUEUES,
    "/queues/{queue:kvname}": queues.QUEUE_PAGE,
    "/dead": queues.DEAD,
    "/dead/{stream:kvname}": queues.DEAD_STREAM,
    "/jobs": jobs.JOBS,
    "/jobs/{id}": jobs.JOB_PAGE,
    "/workers": jobs.WORKERS,
    "/streams": streams.STREAMS,
    "/streams/{stream:kvname}": streams.STREAM_PAGE,
    "/streams/{stream:kvname}/entries": streams.ENTRIES,
    "/streams/{stream:kvname}/entries/{id}": streams.ENTRY_PAGE,
    "/streams/{stream:kvname}/groups/{group:kvname}": streams.GROUP_PAGE,
    "/find/{stream:kvname}": streams.FIND,
    "/schedules": jobs.SCHEDULES,
    "/search": streams.SEARCH,
    "/server": server.SERVER,
    "/server/clients": server.CLIENTS,
    "/server/slowlog": server.SLOW_LOG,
    "/server/config": server.CONFIG,
    "/replicas": server.REPLICAS,
    "/archive": server.ARCHIVE,
    "/migrations": server.MIGRATIONS,
}
"""The form of each page, by the path of its route."""
