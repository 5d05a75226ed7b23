"""/metrics: this process, its requests, the queue and the work. A key is never a label.

Labels are bounded: partitions are few, actions come from the application's own table, the first
fifty tenants have labels of their own, and all others share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Literal

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

from .shapes import Requests, RequestTotals

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
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BINS = len(BOUNDS_S) + 1
DATA = ("/v1/conversations/", "/v1/counters/", "/v1/timelines/")
REFUSED = (429, 503)
Kind = Literal["writes", "reads"]


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


class Metrics:
    """Counts of requests, kept in plain dictionaries so that they cost a request a microsecond."""

    def __init__(self, hs: Heatsink) -> None:
        self._hs = hs
        self._answers: Counter[tuple[str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._sums_s: Counter[str] = Counter()
        self.in_flight = 0
        self._registry = CollectorRegistry()
        self.add(_Collected(self._status))
        self.add(_Collected(self._requests))
        self.add(QueueCollector(lambda: hs.queue_watch.latest if hs.queue_watch else None))

    def add(self, collector: Collector) -> None:
        self._registry.register(collector)

    def count(self, label: str, status: int, seconds: float) -> None:
        self._answers[label, status] += 1
        times = self._times.get(label)
        if times is None:
            times = self._times[label] = [0] * BINS
        times[bisect_left(BOUNDS_S, seconds)] += 1
        self._sums_s[label] += seconds  # type: ignore[assignment]

    def totals(self) -> Requests:
        """Totals of calls for data; calls of operators are left out."""
        writes = [label for label in self._times if _is_data(label) and not _is_read(label)]
        reads = [label for label in self._times if _is_data(label) and _is_read(label)]
        kinds = [self._total("writes", writes), self._total("reads", reads)]
        return Requests(list(BOUNDS_S), kinds)

    def _total(self, kind: Kind, labels: list[str]) -> RequestTotals:
        times = [self._times[label] for label in labels]
        statuses = [(s, n) for (label, s), n in self._answers.items() if label in labels]
        return RequestTotals(
            kind=kind,
            answered=sum(count for _, count in statuses),
            refused=sum(count for status, count in statuses if status in REFUSED),
            failed=sum(n for status, n in statuses if status >= 500 and status not in REFUSED),
            times=[sum(counts) for counts in zip(*times, strict=True)] or [0] * BINS,
        )

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _status(self) -> Iterable[Metric]:
        status = self._hs.status()
        for name, text in METRICS.items():
            yield GaugeMetricFamily(f"heatsink_{name}", text, float(getattr(status, name)))

    def _requests(self) -> Iterable[Metric]:
        answers = CounterMetricFamily(
            "heatsink_http_requests", "Requests by route and status", labels=["route", "status"]
        )
        for (label, status), count in self._answers.items():
            answers.add_metric([label, str(status)], count)
        times = HistogramMetricFamily(
            "heatsink_http_seconds", "Time until the answer is sent", labels=["route"]
        )
        for label, counts in self._times.items():
            bounds = [*map(str, BOUNDS_S), "+Inf"]
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            times.add_metric([label], buckets, self._sums_s[label])
        yield answers
        yield times
        yield GaugeMetricFamily("heatsink_http_in_flight", "Requests in progress", self.in_flight)


def _is_data(label: str) -> bool:
    return label.partition(" ")[2].startswith(DATA)


def _is_read(label: str) -> bool:
    return label.startswith("GET ")


class _Collected(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()
