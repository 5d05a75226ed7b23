"""/metrics of a server: the metrics of its client and its worker, and of its requests."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from heatsink.client.heatsink import Heatsink
from heatsink.client.prometheus import collectors_of, histogram

from .requests import RequestCounts

PROMETHEUS = "text/plain; version=0.0.4"


class RequestCollector(Collector):
    """The requests of an API server, by route."""

    def __init__(self, counts: RequestCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        answers = CounterMetricFamily(
            "heatsink_http_requests", "Requests by route and status", labels=["route", "status"]
        )
        for (label, status), count in self._counts.answers.items():
            answers.add_metric([label, str(status)], count)
        yield answers
        about = ("heatsink_http_seconds", "Time until the answer is sent", "route")
        yield histogram(*about, self._counts.times, self._counts.sums_s)
        in_flight = self._counts.in_flight
        yield GaugeMetricFamily("heatsink_http_in_flight", "Requests in progress", in_flight)


class Metrics:
    """The page /metrics of one process: the values of its collectors when the request comes."""

    def __init__(self, *collectors: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def families(self) -> list[Metric]:
        return list(self._registry.collect())


def metrics_of(hs: Heatsink, *others: Collector) -> Metrics:
    """Return the metrics of a process with a client: its status, the queue, and `others`."""
    return Metrics(*collectors_of(hs), *others)
