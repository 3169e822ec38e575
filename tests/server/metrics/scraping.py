"""Scrapes of a server's metrics, as Prometheus makes them."""

from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from tests.patience import PATIENCE_S
from tests.server.conftest import Served

Labels = dict[str, str]


def ask(
    served: Served, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    """Return the response for a path."""
    assert served.metrics_url is not None
    connection = HTTPConnection(urlsplit(served.metrics_url).netloc, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def all(self, name: str) -> list[tuple[Labels, float]]:
        """Return each value of a metric with its labels."""
        return [(sample.labels, sample.value) for sample in self.samples if sample.name == name]

    def one(self, name: str, **labels: str) -> float:
        """Return the only value of a metric with these labels."""
        (value,) = [value for found, value in self.all(name) if labels.items() <= found.items()]
        return value


def scrape(served: Served) -> Scrape:
    """Return the current page of a server."""
    response, body = ask(served)
    assert response.status == 200
    return Scrape(body.decode())
