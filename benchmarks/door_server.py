"""What `heatsink door` adds to DynamoDB: latency, rate and CPU time of a GetItem, beside none.

Client, door and engine are processes of one machine, and the client is the same for all: raw HTTP
over connections that stay open. So latency and rate say what the door costs on top of an engine
that answers in a fraction of a millisecond. DynamoDB answers in some milliseconds.

One door has no declared tables, and passes all requests on as they are. Another one declares the
table: it reads each request, looks its key up, finds it cold and passes the request on.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

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
KEY = {"pk": {"S": "key0"}, "sk": {"S": "2026-11-15T12:00:00.000Z#1"}}
DECLARED = f"""
[[table]]
name = "{TABLE}"
partition_key = "pk"
sort_key = "sk"

[[table.rule]]
prefix = ""
time = "iso_text"
"""


def get(_: int) -> bytes:
    return request("GetItem", {"TableName": TABLE, "Key": KEY})


def engine_at(port: int) -> Contender:
    return Contender("engine", [sys.executable, "-c", OURS, str(port), "1"], port, 1.0)


def door_at(port: int, engine: int, processes: int, folder: Path | None = None) -> Contender:
    """Return a door. With `folder`, it declares the table, and has its registry there."""
    flags = ["--endpoint", f"http://127.0.0.1:{engine}", "--port", str(port)]
    flags += ["--processes", str(processes)]
    if folder is not None:
        tables = folder / "tables.toml"
        tables.write_text(DECLARED)
        flags += ["--tables", str(tables), "--store", f"sqlite:///{folder}/registry.db"]
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


class Doors(NamedTuple):
    """Doors in front of one engine. `two` has two processes, `declared` a declared table."""

    engine: Engine
    one: Engine
    declared: Engine
    two: Engine


async def compare_latency(bench: Bench, scale: Scale, doors: Doors) -> None:
    requests = scale(200, 1_000)
    among = (doors.one, doors.declared, doors.engine)
    one, declared, plain = (Latencies(each.contender.port, requests) for each in among)
    p50s = await interleave(scale(5, 21), one, declared, plain)
    p99s = [each.p99[WARM_UP:] for each in (one, declared, plain)]
    for name, samples in (("p50", p50s), ("p99", p99s)):
        other = ("µs direct", samples[2])
        bench.add(f"GetItem through the door, {name}", "µs", samples[0], None, other)
        bench.add(f"GetItem of a declared table, {name}", "µs", samples[1], None, other)


async def compare_rates(bench: Bench, scale: Scale, doors: Doors) -> None:
    requests = scale(1_280, 6_400)
    among = (doors.one, doors.declared, doors.two, doors.engine)
    trials = [Trial(each, get, requests) for each in among]
    rates, declared, two, plain = await interleave(scale(5, 21), *trials)
    bench.add("GetItem through the door, one process", "/s", rates, None, ("/s direct", plain))
    bench.add("GetItem of a declared table", "/s", declared, None, ("/s direct", plain))
    bench.add("GetItem through the door, two processes", "/s", two, None, ("/s one", rates))
    if CPU_KNOWN:
        costs = [trial.cpu_s[WARM_UP:] for trial in trials]
        target, other = ratio_at_most(CPU_RATIO), ("µs engine", costs[3])
        bench.add("GetItem, CPU of the door", "µs", costs[0], target, other)
        bench.add("GetItem of a declared table, CPU of the door", "µs", costs[1], target, other)


async def compare_servers(bench: Bench, scale: Scale) -> None:
    """Run all comparisons: three doors, and the engine behind them."""
    at, one, declared, two = (free_port() for _ in range(4))
    with ExitStack() as stack:
        engine = stack.enter_context(started(engine_at(at)))
        await reached(at)
        item = {"TableName": TABLE, "Item": {**KEY, "body": {"S": "x" * 200}}}
        await answers(at, [create(), request("PutItem", item)])
        folder = Path(stack.enter_context(TemporaryDirectory()))
        made = [door_at(one, at, 1), door_at(declared, at, 1, folder), door_at(two, at, 2)]
        first, second, many = (stack.enter_context(started(door)) for door in made)
        await asyncio.gather(*(reached(door.port) for door in made))
        doors = Doors(engine, first, second, Family(many.contender, many.pid))
        await compare_latency(bench, scale, doors)
        await compare_rates(bench, scale, doors)
