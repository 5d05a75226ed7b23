"""What `heatsink door` adds to DynamoDB: latency, rate and CPU time of a GetItem, beside none.

Client, door and engine are processes of one machine, and the client is the same for all: raw HTTP
over connections that stay open. So latency and rate say what the door costs on top of an engine
that answers in a fraction of a millisecond. DynamoDB answers in some milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from time import perf_counter

from heatsink.stores.embedded import free_port

from .engine import (
    CPU_KNOWN,
    OURS,
    TABLE,
    WARM_UP,
    Contender,
    Engine,
    Trial,
    answers,
    create,
    reached,
    request,
    started,
)
from .harness import Bench, Samples, Scale, interleave, ratio_at_most

CPU_RATIO = 2.0
KEY = {"pk": {"S": "key0"}, "sk": {"S": "0"}}


def get(_: int) -> bytes:
    return request("GetItem", {"TableName": TABLE, "Key": KEY})


def engine_at(port: int) -> Contender:
    return Contender("engine", [sys.executable, "-c", OURS, str(port), "1"], port, 1.0)


def door_at(port: int, engine: int, processes: int) -> Contender:
    flags = ["--endpoint", f"http://127.0.0.1:{engine}", "--port", str(port)]
    flags += ["--processes", str(processes)]
    return Contender("door", [sys.executable, "-m", "heatsink", "door", *flags], port, 1.0)


class Family(Engine, frozen=True):
    """A contender whose work its child processes do."""

    def cpu_s(self) -> float:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        fields = (
            Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in children
        )
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


class Latencies:
    """One request after the other on one connection; keeps the p50 and p99 of each turn."""

    def __init__(self, port: int, requests: int) -> None:
        self._port = port
        self._requests = requests
        self.p99: Samples = []

    async def __call__(self) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        one, took = get(0), []
        for _ in range(self._requests):
            started_s = perf_counter()
            writer.write(one)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.index(b"content-length:") + len("content-length:")
            await reader.readexactly(int(head[length : head.index(b"\r", length)]))
            took.append(perf_counter() - started_s)
        writer.close()
        cuts = quantiles(took, n=100)
        self.p99.append(cuts[98])
        return cuts[49]


async def compare_latency(bench: Bench, scale: Scale, engine: Engine, door: Engine) -> None:
    requests = scale(200, 1_000)
    ours, plain = (Latencies(each.contender.port, requests) for each in (door, engine))
    p50, plain_p50 = await interleave(scale(5, 21), ours, plain)
    bench.add("GetItem through the door, p50", "µs", p50, None, ("µs direct", plain_p50))
    p99 = (ours.p99[WARM_UP:], plain.p99[WARM_UP:])
    bench.add("GetItem through the door, p99", "µs", p99[0], None, ("µs direct", p99[1]))


async def compare_rates(
    bench: Bench, scale: Scale, engine: Engine, door: Engine, two: Engine
) -> None:
    requests = scale(1_280, 6_400)
    trials = [Trial(each, get, requests) for each in (door, two, engine)]
    rates, two_rates, plain = await interleave(scale(5, 21), *trials)
    bench.add("GetItem through the door, one process", "/s", rates, None, ("/s direct", plain))
    bench.add("GetItem through the door, two processes", "/s", two_rates, None, ("/s one", rates))
    if CPU_KNOWN:
        costs = [trial.cpu_s[WARM_UP:] for trial in trials]
        target, other = ratio_at_most(CPU_RATIO), ("µs engine", costs[2])
        bench.add("GetItem, CPU of the door", "µs", costs[0], target, other)


async def compare_servers(bench: Bench, scale: Scale) -> None:
    """Run all comparisons: a door of one process, a door of two, and the engine behind both."""
    ports = [free_port() for _ in range(3)]
    with ExitStack() as stack:
        engine = stack.enter_context(started(engine_at(ports[0])))
        await reached(ports[0])
        await answers(ports[0], [create()])
        item = {"TableName": TABLE, "Item": {**KEY, "body": {"S": "x" * 200}}}
        await answers(ports[0], [request("PutItem", item)])
        door = stack.enter_context(started(door_at(ports[1], ports[0], 1)))
        many = stack.enter_context(started(door_at(ports[2], ports[0], 2)))
        await asyncio.gather(reached(ports[1]), reached(ports[2]))
        two = Family(many.contender, many.pid)
        await compare_latency(bench, scale, engine, door)
        await compare_rates(bench, scale, engine, door, two)
