"""/metrics: this process, its requests, the queue and the work. A key is never a label.

Labels are bounded: partitions are few, actions come from the application's own table, the first
fifty tenants have labels of their own, and all others share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from heatsink.bulk.scaling.load import WorkerObservation
from heatsink.bulk.work.consumer import Consumer
from heatsink.client.heatsink import Heatsink
from heatsink.client.status import Status

from .requests import BOUNDS_S, RequestCounts

GAUGES = {
    "runnable": "Items that wait only for a worker",
    "limited": "Items that wait for their rate limit",
    "delayed": "Items that wait for their retry",
    "in_flight": "Items that workers have claimed",
    "tenants": "Tenants with items",
    "workers": "Workers of the partition's owner",
}
COUNTERS = {
    "claimed": "Items claimed by workers",
    "done": "Items done",
    "failed": "Items failed for good",
    "retried": "Attempts that are retried",
    "fenced": "Outcomes refused because the lease was lost",
    "expired": "Items whose lease expired",
}
ITEMS = ("claimed", "done", "failed", "retried", "given_back")
PROMETHEUS = "text/plain; version=0.0.4"
METRICS = {
    "leads": "1 while this coordinator leads",
    "term": "The leader's term",
    "version": "Version of the registry that this process has applied",
    "horizon_s": "Seconds by which the view's horizon is ahead of now",
    "servers": "Servers that report heat",
    "spread_keys": "Keys with more than one bucket now",
    "extra_buckets": "Buckets beyond the first of every key",
    "pinned_keys": "Keys pinned by an operator",
    "leaderless_s": "Seconds without a leader, as far as this process knows; 0 with a leader",
}


class QueueCollector(Collector):
    """The queue as the coordinator sees it: one sample per partition that has an owner."""

    def __init__(self, read: Callable[[], WorkerObservation | None]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        seen = self._read()
        loads = {n: reading.load for n, reading in seen.partitions.items()} if seen else {}
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"heatsink_queue_{name}", text, labels=["partition"])
            for number, load in loads.items():
                gauge.add_metric([str(number)], getattr(load, name))
            yield gauge
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"heatsink_queue_{name}", text, labels=["partition"])
            for number, load in loads.items():
                counter.add_metric([str(number)], getattr(load, name))
            yield counter
        service = GaugeMetricFamily(
            "heatsink_queue_service_seconds", "Service time of an item", labels=["partition"]
        )
        oldest = GaugeMetricFamily(
            "heatsink_queue_oldest_seconds", "Age of the oldest waiting batch", labels=["partition"]
        )
        for number, load in loads.items():
            service.add_metric([str(number)], load.service_us / 1e6)
            oldest.add_metric([str(number)], load.oldest_ms / 1000)
        yield from (service, oldest)


class WorkCollector(Collector):
    """The work as a worker sees it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def collect(self) -> Iterable[Metric]:
        meter, labels = self._consumer.meter, ["action", "tenant"]
        items = CounterMetricFamily(
            "heatsink_worker_items", "Items by outcome", labels=[*labels, "outcome"]
        )
        busy = CounterMetricFamily(
            "heatsink_worker_busy_seconds", "Time spent in handlers", labels=labels
        )
        waited = CounterMetricFamily(
            "heatsink_worker_waited_seconds", "From submission to claim, all items", labels=labels
        )
        for (action, tenant), tally in list(meter.tallies.items()):
            for outcome in ITEMS:
                items.add_metric([action, tenant, outcome], getattr(tally, outcome))
            busy.add_metric([action, tenant], tally.busy_s)
            waited.add_metric([action, tenant], tally.waited_s)
        workers = GaugeMetricFamily(
            "heatsink_worker_workers", "Workers by partition", labels=["partition"]
        )
        for partition, count in self._consumer.workers.items():
            workers.add_metric([str(partition)], count)
        yield from (items, busy, waited, workers)
        yield CounterMetricFamily("heatsink_worker_claims", "Claims made", value=meter.claims)
        yield GaugeMetricFamily(
            "heatsink_worker_lost_items",
            "Items that the queue's servers lost; reported by the owner of the first partition",
            value=self._consumer.lost_items,
        )
        yield CounterMetricFamily("heatsink_worker_fenced", "Leases lost", value=meter.fenced)


class StatusCollector(Collector):
    """What a process knows of the fleet."""

    def __init__(self, read: Callable[[], Status]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        status = self._read()
        for name, text in METRICS.items():
            yield GaugeMetricFamily(f"heatsink_{name}", text, float(getattr(status, name)))


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
        times = HistogramMetricFamily(
            "heatsink_http_seconds", "Time until the answer is sent", labels=["route"]
        )
        for label, counts in self._counts.times.items():
            bounds = [*map(str, BOUNDS_S), "+Inf"]
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            times.add_metric([label], buckets, self._counts.sums_s[label])
        yield answers
        yield times
        in_flight = self._counts.in_flight
        yield GaugeMetricFamily("heatsink_http_in_flight", "Requests in progress", in_flight)


class Metrics:
    """/metrics of one process: what its collectors find at that moment."""

    def __init__(self, *collectors: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def families(self) -> list[Metric]:
        return list(self._registry.collect())


def metrics_of(hs: Heatsink, *others: Collector) -> Metrics:
    """The metrics of a process with a client: its status and the queue, and `others`."""
    queue = QueueCollector(lambda: hs.queue_watch.latest if hs.queue_watch else None)
    return Metrics(StatusCollector(hs.status), *others, queue)
