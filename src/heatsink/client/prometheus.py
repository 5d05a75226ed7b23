"""Prometheus metrics of a client; needs prometheus-client only.

    async with heatsink.connect("sqlite:///chat.db", hooks=[Prometheus()]) as hs: ...

The metrics are the calls and reads of the application, the status of the client, and the state of
the queue that this process knows as coordinator. For a worker, register `WorkCollector(worker)` as
well. A key is never a label. The number of labels is bounded: there are few calls, events,
partitions and actions. The first fifty tenants have a label each, and all other tenants share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from heatsink.bulk.scaling.load import WorkerObservation
from heatsink.bulk.work.consumer import Consumer
from heatsink.bulk.work.pump import WorkMeter
from heatsink.cluster.load import usage_of
from heatsink.errors import Misconfigured
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.hooks import Call, Event, Hook
from heatsink.primitives.words import pip_install

from .heatsink import Heatsink
from .status import Status

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError:
    raise Misconfigured(f"Prometheus needs prometheus-client: {pip_install('metrics')}") from None

if TYPE_CHECKING:
    from heatsink.cluster.balance import ClusterWatch

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
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
MOVED = {
    "slots_moved": ("slots", "Slots moved by this process"),
    "bytes_moved": ("size", "Bytes that nodes received when this process moved slots"),
    "moves_failed": ("failures", "Migrations that failed or were not begun"),
}
ITEMS = ("claimed", "done", "failed", "retried", "given_back")
METRICS = {
    "leads": "1 while this coordinator leads",
    "term": "The leader's term",
    "version": "Version of the registry that this process has applied",
    "horizon_s": "Seconds by which the view's horizon is ahead of now",
    "servers": "Servers that report heat",
    "spread_keys": "Keys with more than one bucket now",
    "extra_buckets": "Buckets of all keys, without the first bucket of each key",
    "pinned_keys": "Keys pinned by an operator",
    "leaderless_s": "Seconds without a leader, as far as this process knows; 0 with a leader",
}
READS = {
    "hits": "Reads answered from the cache",
    "stale_hits": "Reads answered with a stale value while a new one loads",
    "coalesced": "Reads that waited for a load in flight",
    "loads": "Loads made",
}


TABLES = {
    "waits": "Requests on declared tables that waited until their items could be placed",
    "refusals": "Requests on declared tables that Heatsink refused",
}


class Prometheus(Hook, Collector):
    """Counts and times the calls of a client, counts its events, and shows its status.

    The hook registers with `registry` when the client opens, and unregisters when the client
    closes. Give every client a `Prometheus` and a registry of its own::

        async with heatsink.connect(url, hooks=[Prometheus()]) as hs: ...
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, clock: Clock | None = None) -> None:
        self._registry = registry
        self._now_s = (clock or SystemClock()).monotonic_s
        self._lock = Lock()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}
        self._events: Counter[str] = Counter()
        self._client: Heatsink | None = None

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        began_s, outcome = self._now_s(), "ok"
        try:
            yield
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            self._count(call.name, outcome, self._now_s() - began_s)

    def _count(self, name: str, outcome: str, used_s: float) -> None:
        with self._lock:
            self._calls[name, outcome] += 1
            times = self._times.setdefault(name, [0] * (len(BOUNDS_S) + 1))
            times[bisect_left(BOUNDS_S, used_s)] += 1
            self._sums_s[name] = self._sums_s.get(name, 0.0) + used_s

    def on_event(self, event: Event) -> None:
        with self._lock:
            self._events[event.name] += 1

    def on_open(self, client: object) -> None:
        if isinstance(client, Heatsink):
            self._client = client
            self._registry.register(self)

    def on_close(self, client: object) -> None:
        if client is self._client:
            self._client = None
            self._registry.unregister(self)

    def describe(self) -> Iterable[Metric]:
        return []  # nothing is collected before the client is open

    def collect(self) -> Iterable[Metric]:
        yield from self._call_metrics()
        events = CounterMetricFamily(
            "heatsink_events", "Events by name, such as call.throttled", labels=["event"]
        )
        for name, count in list(self._events.items()):
            events.add_metric([name], count)
        yield events
        hs = self._client
        if hs is not None:
            stats = hs.parts.reading.stats()
            for name, text in READS.items():
                yield CounterMetricFamily(f"heatsink_reads_{name}", text, getattr(stats, name))
            for collector in (*collectors_of(hs), TableCollector(hs)):
                yield from collector.collect()

    def _call_metrics(self) -> Iterable[Metric]:
        calls = CounterMetricFamily(
            "heatsink_calls", "Calls by their outcome: ok or an error", labels=["call", "outcome"]
        )
        with self._lock:
            for (name, outcome), count in self._calls.items():
                calls.add_metric([name, outcome], count)
            about = ("heatsink_call_seconds", "Time of a call", "call")
            times = histogram(*about, self._times, self._sums_s)
        yield from (calls, times)


def histogram(
    name: str, text: str, label: str, times: Mapping[str, list[int]], sums_s: Mapping[str, float]
) -> Metric:
    """Return a histogram of durations for each value of `label`.

    `times` has one count for each bin of `BOUNDS_S`, by label value. `sums_s` are the sums of the
    durations.
    """
    made = HistogramMetricFamily(name, text, labels=[label])
    for value, counts in times.items():
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        made.add_metric([value], buckets, sums_s[value])
    return made


def collectors_of(hs: Heatsink) -> list[Collector]:
    """Return the collectors of a client's status, and of the queue that the client coordinates."""
    queue = QueueCollector(lambda: hs.queue_watch.latest if hs.queue_watch else None)
    return [StatusCollector(hs.status), queue, ClusterCollector(lambda: hs.cluster_watch)]


class TableCollector(Collector):
    """Metrics of the user's own tables that a client serves, in a door or an attachment."""

    def __init__(self, hs: Heatsink) -> None:
        self._counts = hs.parts.table_counts

    def collect(self) -> Iterable[Metric]:
        for name, text in TABLES.items():
            yield CounterMetricFamily(f"heatsink_table_{name}", text, self._counts[name])


class QueueCollector(Collector):
    """Metrics of the queue as the coordinator sees it: one sample per partition with an owner."""

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


class ClusterCollector(Collector):
    """Metrics of the cluster that the leader watches. Other processes show no nodes."""

    def __init__(self, read: Callable[[], ClusterWatch | None]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        watch = self._read()
        state = watch.balancer.state if watch and watch.leads else None
        busiest = GaugeMetricFamily(
            "heatsink_cluster_busiest_ratio", "Load of the busiest node ÷ the mean"
        )
        ceiling = GaugeMetricFamily(
            "heatsink_cluster_ceiling_ratio",
            "Load of the busiest slot ÷ the mean node: no move makes the busiest node less busy",
        )
        used = GaugeMetricFamily(
            "heatsink_cluster_node_used", "Share of its capacity that a node uses", labels=["node"]
        )
        slots = GaugeMetricFamily("heatsink_cluster_node_slots", "Slots", labels=["node"])
        if state is not None:
            busiest.add_metric([], state.plan.before)
            ceiling.add_metric([], state.plan.ceiling.ratio if state.plan.ceiling else 0.0)
            for node in usage_of(state.load):
                used.add_metric([node.address], node.used)
                slots.add_metric([node.address], node.slots)
        yield from (busiest, ceiling, used, slots)
        for name, (field, text) in MOVED.items():
            count = getattr(watch.balancer.totals, field) if watch else None
            yield CounterMetricFamily(f"heatsink_cluster_{name}", text, count)


class Working(Protocol):
    """What runs items in a process, as metrics show it."""

    meter: WorkMeter

    @property
    def workers(self) -> dict[int, int]:
        """The number of workers in each partition."""

    @property
    def lost_items(self) -> int:
        """The number of items that batches have lost."""


class WorkCollector(Collector):
    """Metrics of a worker: items by outcome, times, workers by partition, claims, lost leases."""

    def __init__(self, consumer: Consumer | Working) -> None:
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
    """Metrics from the `Status` of a process: what it knows about itself and the fleet."""

    def __init__(self, read: Callable[[], Status]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        status = self._read()
        for name, text in METRICS.items():
            yield GaugeMetricFamily(f"heatsink_{name}", text, float(getattr(status, name)))
