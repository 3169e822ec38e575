"""Metrics and health of one server on a port of their own, where the options ask for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from kvstream.errors import InvalidArgument
from kvstream.server.listening import listening
from kvstream.server.metrics.endpoint import Answer, Endpoint, Headers, plain
from kvstream.server.metrics.meter import Meter
from kvstream.server.metrics.metric import View
from kvstream.server.metrics.sample import Sampler
from kvstream.server.net import Listener

if TYPE_CHECKING:
    from kvstream.server.executor import Executor

HUNG_S = 10.0
"""A loop that was not seen for so long takes no writes, whatever the store would do."""
_NOT_INSTALLED = "metrics need prometheus-client: pip install 'kvstream[server]'"


@contextmanager
def metered(listener: Listener) -> Iterator[str | None]:
    """Measure a server and serve what is measured; yield the URL, None where that is off.

    For the loop's thread. Raises InvalidArgument without prometheus-client, OSError where the port
    is taken.
    """
    options = listener.executor.options
    if options.metrics_port is None:
        yield None
        return
    service = Service(listener)
    try:
        yield service.start(options.metrics_host, options.metrics_port)
    finally:
        service.stop()


class Service:
    """What answers /metrics and /healthz."""

    def __init__(self, listener: Listener) -> None:
        try:
            from kvstream.server.metrics.exposition import Exposition
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("prometheus_client"):
                raise
            raise InvalidArgument(_NOT_INSTALLED) from None
        self._listener = listener
        self._executor: Executor = listener.executor
        self._meter = Meter()
        self._sampler: Sampler | None = None
        self._exposition = Exposition(self._view)
        self._endpoint: Endpoint | None = None

    def start(self, host: str, port: int) -> str:
        """Begin; return the URL of the metrics."""
        pages = {"/metrics": self._metrics, "/healthz": self._health}
        with listening(host, port):
            self._endpoint = Endpoint(host, port, pages, quick={"/healthz"})
        self._sampler = Sampler(self._executor.engine, self._executor.options.metrics_streams)
        self._meter.start(self._listener)
        self._executor.options.metrics_port = self._endpoint.place[1]
        return f"{self._endpoint.url}/metrics"

    def stop(self) -> None:
        if self._endpoint is not None:
            self._endpoint.stop()
        if self._sampler is not None:
            self._sampler.stop()
        self._meter.stop()

    def _view(self) -> View:
        assert self._sampler is not None
        sample = self._sampler.latest()
        return View(self._executor, self._meter, sample, self._sampler.failures)

    def _metrics(self, headers: Headers) -> Answer:
        accept, encodings = headers.get("Accept", ""), headers.get("Accept-Encoding", "")
        return Answer(HTTPStatus.OK, *self._exposition.answer(accept, encodings))

    def _health(self, headers: Headers) -> Answer:
        """Tell whether the server takes writes now; nothing here waits for anything."""
        if self._listener.stopping:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
        silence = self._meter.silence()
        if silence > HUNG_S:
            text = f"the loop was last seen {silence:.0f} seconds ago"
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, text)
        refusal = self._executor.engine.database.refusal()
        if refusal is not None:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, str(refusal))
        return plain(HTTPStatus.OK, "ok")
