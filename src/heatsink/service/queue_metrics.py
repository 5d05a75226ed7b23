"""Metrics of bulk actions: the queue as the coordinator sees it, the work as a worker sees it.

Partitions are few, actions come from the application's own table, and tenants are bounded: the
first fifty have labels of their own, all others share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heatsink.bulk.scaling.load import Observation
from heatsink.bulk.work.consumer import Consumer

GAUGES = {
    "runnable": "Items that wait for nothing but a worker",
    "limited": "Items that wait for their rate",
    "delayed": "Items that wait for their next attempt",
    "in_flight": "Items that are claimed",
    "tenants": "Tenants with items",
    "workers": "Workers of the owner",
}
COUNTERS = {
    "claimed": "Items handed out",
    "done": "Items done",
    "failed": "Items failed for good",
    "retried": "Attempts that are made again",
    "fenced": "Outcomes refused because the lease was lost",
    "expired": "Items whose lease ran out",
}
ITEMS = ("claimed", "done", "failed", "retried", "given_back")


class QueueCollector(Collector):
    """One sample for each partition that has an owner."""

    def __init__(self, read: Callable[[], Observation | None]) -> None:
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
            "heatsink_queue_service_seconds", "What an item takes", labels=["partition"]
        )
        oldest = GaugeMetricFamily(
            "heatsink_queue_oldest_seconds", "Age of the oldest waiting batch", labels=["partition"]
        )
        for number, load in loads.items():
            service.add_metric([str(number)], load.service_us / 1e6)
            oldest.add_metric([str(number)], load.oldest_ms / 1000)
        yield from (service, oldest)


class WorkCollector(Collector):
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def collect(self) -> Iterable[Metric]:
        meter, labels = self._consumer.meter, ["action", "tenant"]
        items = CounterMetricFamily(
            "heatsink_worker_items", "Items by what became of them", labels=[*labels, "outcome"]
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
            "Items that the queue's servers lost; the owner of the first partition tells it",
            value=self._consumer.lost_items,
        )
        yield CounterMetricFamily("heatsink_worker_fenced", "Leases lost", value=meter.fenced)
