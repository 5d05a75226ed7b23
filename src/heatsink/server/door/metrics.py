"""/metrics of the door: its requests, and the status of its Heatsink client."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heatsink.client.heatsink import Heatsink
from heatsink.client.prometheus import TableCollector, collectors_of
from heatsink.server.api.metrics import Metrics

from .gate import Gate


class DoorCollector(Collector):
    """The requests of one process of the door."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterable[Metric]:
        answers = CounterMetricFamily(
            "heatsink_door_requests",
            "Requests by operation and status; passed on, or adapted to a spread table",
            labels=["operation", "way", "status"],
        )
        for (operation, way, status), count in self._gate.answers.items():
            answers.add_metric([operation, way, str(status)], count)
        yield answers
        seconds = CounterMetricFamily(
            "heatsink_door_seconds", "Time from request to answer, summed up", labels=["way"]
        )
        for way, total_s in self._gate.seconds.items():
            seconds.add_metric([way], total_s)
        yield seconds
        in_progress = self._gate.in_progress
        yield GaugeMetricFamily("heatsink_door_in_progress", "Requests in progress", in_progress)
        connections = len(self._gate.crowd.all)
        yield GaugeMetricFamily("heatsink_door_connections", "Open connections", connections)


def metrics_of(gate: Gate, hs: Heatsink | None) -> Metrics:
    """Return the metrics of one process of the door."""
    of_client = (*collectors_of(hs), TableCollector(hs)) if hs is not None else ()
    return Metrics(DoorCollector(gate), *of_client)
