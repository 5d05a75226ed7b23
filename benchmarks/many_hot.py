"""How long it takes to spread 10,000 keys that get hot in the same moment, with default settings.

Real parts: our DynamoDB engine, a Valkey, two coordinators as processes of their own, and a
follower (a client in this process). Three servers report 10,000 keys with 1,200 writes a second
each, where a bucket is to take 800. Their reports are made beforehand. The time runs from the first
report until the follower routes all keys on their new layouts. All of it shares this machine.

We measure without DynamoDB's limits, and with them: a partition takes 1,000 units a second. A key
costs two units beside its rows, two in the registry's list of layouts, and about half a unit in its
log. Both have shards. With the limits, most of the time goes to two or three shards that share a
partition.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

from heatsink.client import Heatsink, Settings
from heatsink.heat.heat import Heat, Report
from heatsink.heat.report import HeatBus
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.embedded import free_port
from heatsink.stores.redis import with_redis
from heatsink.testing.redis import RedisServer

from .clients import CLOCK, stores_at
from .engine import reached
from .harness import Bench, Scale, at_most
from .jump import process, somebody_leads

KEYS = 10_000
SERVERS = 3
COORDINATORS = 2
UNITS = 400  # of a key, on each server and in each window
UNLIMITED = ["--write-limit", "1000000", "--read-limit", "1000000"]
PARTITIONS = ["--partitions", "64"]  # a table that takes such a load has thousands
PATIENCE_S = 60.0
LOOK_S = 0.02


def reports(window: int) -> list[Report]:
    """The same keys on every server, in as many reports as a report has room for keys."""
    heat = Heat(UNITS, UNITS)
    names = [f"hot-{n}" for n in range(KEYS)]
    parts = [names[first : first + 2_500] for first in range(0, KEYS, 2_500)]
    return [
        Report(f"s{server}-{part}", window, 1.0, True, 1, dict.fromkeys(keys, heat))
        for server in range(SERVERS)
        for part, keys in enumerate(parts)
    ]


async def report_on(bus: HeatBus, hs: Heatsink) -> None:
    """Send the reports of every window, until cancelled."""
    while True:
        window = int(hs.parts.registry.fleet_now_s()) - 1
        for report in reports(window):
            await bus.send(report)
        await asyncio.sleep(1.0)


async def spread_all(bus: HeatBus, hs: Heatsink) -> float:
    """The time until the follower routes all keys on new layouts."""
    registry, began_s = hs.parts.registry, perf_counter()
    reporting = asyncio.ensure_future(report_on(bus, hs))
    names = [f"hot-{n}" for n in range(KEYS)]
    try:
        while perf_counter() - began_s < PATIENCE_S:
            await asyncio.sleep(LOOK_S)
            layouts = registry.view.layouts
            if names[-1] not in layouts or not all(name in layouts for name in names):
                continue
            starts = max(layouts[name].epochs[-1].start_ms for name in names)
            if starts <= registry.past_ms():
                return perf_counter() - began_s
    finally:
        reporting.cancel()
        with suppress(asyncio.CancelledError):
            await reporting
    raise RuntimeError(f"not all keys were spread after {PATIENCE_S:g} s")


async def one_round(engine: list[str]) -> tuple[float, int]:
    """The time of a round on new servers, and how often the leader changed."""
    port, ports = free_port(), [free_port() for _ in range(COORDINATORS)]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="heatsink-many-")))
        news = stack.enter_context(RedisServer()).url
        stack.enter_context(process("engine", folder, "dynamo", "--port", str(port), *engine))
        await reached(port)
        endpoint = f"http://127.0.0.1:{port}"
        await make_table(parse("messages", {"endpoint": endpoint}), CLOCK)
        url = f"dynamodb://messages?endpoint={endpoint}"
        for own in ports:
            where = ["--store", url, "--news", news, "--port", str(own)]
            stack.enter_context(process(f"{own}", folder, "coordinator", *where))
        await somebody_leads(ports)
        stores = with_redis(stores_at(url), news, CLOCK, Random(1))
        settings = Settings(name="follower", coordinate=False)
        hs = await stack.enter_async_context(Heatsink(stores, settings, CLOCK, Random(1)))
        term = (await hs.parts.registry.renew()).meta.term
        took_s = await spread_all(stores.bus, hs)
        return took_s, (await hs.parts.registry.renew()).meta.term - term


async def run(bench: Bench, scale: Scale) -> None:
    what = f"{KEYS:,} keys hot at once, until all are spread"
    found, limited = [], []
    for _ in range(scale(1, 11)):
        found.append(await one_round([*UNLIMITED, *PARTITIONS]))
        limited.append(await one_round(PARTITIONS))
    changes = sum(more for _, more in found + limited)
    for where, rounds in (("", found), (", within DynamoDB's limits", limited)):
        bench.add(what + where, "s", [took_s for took_s, _ in rounds], at_most(5.0), middle=max)
    bench.add("changes of the term", "", [float(changes)], at_most(0))
