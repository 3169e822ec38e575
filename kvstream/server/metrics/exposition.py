"""The text of /metrics. Only this module imports prometheus-client, which is optional."""

import gzip
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kvstream.server.metrics.metric import Kind, Metric, View
from kvstream.server.metrics.table import METRICS

PAUSE_S = 0.0005
"""Pause between two metrics, in which the event loop gets the GIL; otherwise it waits for 5 ms."""
_GZIP_LEVEL = 1
"""Ten times smaller, in a tenth of the time of the best level."""


class _ServerCollector(Collector):
    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def collect(self) -> Iterator[Family]:
        view = self._view()
        for metric in METRICS:
            yield family(metric, view)
            time.sleep(PAUSE_S)


def family(metric: Metric, view: View) -> Family:
    """Return a metric with its current values."""
    if metric.histogram is not None:
        histogram = metric.histogram(view)
        buckets = histogram.buckets()
        return HistogramMetricFamily(metric.name, metric.meaning, buckets, histogram.sum)
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    result = make(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in metric.values(view):
        result.add_metric(labels, value)
    return result


class Exposition:
    """Renders all metrics for a scraper."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_ServerCollector(view))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)

    def render(self, accept: str, encodings: str) -> tuple[dict[str, str], bytes]:
        """Return headers and body, in the best format that the scraper accepts."""
        encode, content_type = choose_encoder(accept)
        headers, body = {"Content-Type": content_type}, encode(self._registry)
        if "gzip" in encodings:
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, _GZIP_LEVEL)
        return headers, body
