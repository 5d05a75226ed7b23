"""What `/metrics` serves, asked of the collectors of each process."""

from __future__ import annotations

import asyncio
from random import Random

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from docs.generate.markdown import code, table
from heatsink import connect
from heatsink.bulk import Actions
from heatsink.client.prometheus import (
    ClusterCollector,
    Prometheus,
    QueueCollector,
    StatusCollector,
    WorkCollector,
)
from heatsink.primitives.clock import SystemClock
from heatsink.server.api.metrics import Metrics, RequestCollector, metrics_of
from heatsink.server.api.requests import RequestCounts
from heatsink.server.door.gate import DoorLimits, Gate
from heatsink.server.door.metrics import metrics_of as metrics_of_door
from heatsink.server.door.upstream import Upstream
from heatsink.stores.dynamodb import open_table
from heatsink.stores.dynamodb.address import parse

Families = dict[str, list[Metric]]


def markdown() -> str:
    families = asyncio.run(_families())
    known = {metric.name: metric for metrics in families.values() for metric in metrics}
    rows = [_row(metric, _served_by(metric.name, families)) for metric in known.values()]
    return table(["metric", "type", "labels", "meaning", "served by"], rows)


async def _families() -> Families:
    registry = CollectorRegistry()
    async with connect("memory://", hooks=[Prometheus(registry)]) as hs:
        queue, work = QueueCollector(lambda: None), WorkCollector(hs.worker(Actions()))
        cluster = ClusterCollector(lambda: None)
        requests = RequestCollector(RequestCounts())
        client = open_table(parse("door", {"endpoint": "http://127.0.0.1:1"}), SystemClock())[1]
        gate = Gate(Upstream(client), DoorLimits(), SystemClock(), Random())
        return {
            "coordinator": Metrics(queue, cluster, StatusCollector(hs.status)).families(),
            "serve": metrics_of(hs, requests, work).families(),
            "worker": Metrics(work).families(),
            "door": metrics_of_door(gate, hs).families(),
            "Prometheus()": list(registry.collect()),
        }


def _served_by(name: str, families: Families) -> str:
    here = [who for who, metrics in families.items() if name in {each.name for each in metrics}]
    return ", ".join(map(code, here))


def _row(metric: Metric, served_by: str) -> list[str]:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    labels = ", ".join(map(code, getattr(metric, "_labelnames", ())))
    return [code(name), metric.type, labels, metric.documentation, served_by]
