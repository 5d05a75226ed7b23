"""What an open dashboard costs the server: CPU time, and the latency of appends, with four tabs.

One server, the same slow stream of appends all the time; rounds with tabs and without take turns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import perf_counter

import httpx

from heatsink.stores.embedded import free_port

from .clients import ARTIFACTS
from .harness import Bench, Scale, at_most, ratio_at_most
from .http import SETTLE_S, server

TABS = 4
BATCHES = 6
APPENDS = 200
EVERY_S = 0.02
CPU_TARGET = 2.0
P99_TARGET = 1.2


class Cost:
    """Of one kind of round."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.p99_s: list[float] = []

    async def measure(self, api: httpx.AsyncClient, pid: int) -> None:
        used_s, started_s, taken_s = cpu_s(pid), perf_counter(), []
        for number in range(APPENDS):
            await asyncio.sleep(max(0.0, started_s + number * EVERY_S - perf_counter()))
            asked_s = perf_counter()
            await api.post("/v1/conversations/chat/messages", json={"body": "hey"})
            taken_s.append(perf_counter() - asked_s)
        self.cpu.append(100 * (cpu_s(pid) - used_s) / (perf_counter() - started_s))
        self.p99_s.append(quantiles(taken_s, n=100)[-1])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def tabs(port: int, count: int) -> AsyncIterator[None]:
    async def look() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        try:
            while await reader.read(65_536):
                pass
        finally:
            writer.close()

    looking = [asyncio.ensure_future(look()) for _ in range(count)]
    await asyncio.sleep(1)
    try:
        yield
    finally:
        for task in looking:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*looking)


async def submit_paused(api: httpx.AsyncClient) -> None:
    """Something to show, that does not run meanwhile."""
    for tenant in range(BATCHES):
        made = await api.post(f"/v1/bulk/mail?tenant=t{tenant}", json=list(range(2_000)))
        await api.post(f"/v1/bulk/{made.json()['id']}/pause")


async def run(bench: Bench, scale: Scale) -> None:
    port = free_port()
    ARTIFACTS.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ARTIFACTS, prefix="bench-") as name:
        flags = ("--port", str(port), "--data", f"{name}/data")
        command = ("heatsink", "serve", *flags)
        address = f"http://127.0.0.1:{port}"
        async with (
            server(*command, folder=Path(name), port=port) as ours,
            httpx.AsyncClient(base_url=address, timeout=30) as api,
        ):
            await asyncio.sleep(SETTLE_S)
            await submit_paused(api)
            alone, watched = Cost(), Cost()
            for _ in range(scale(3, 15)):
                await alone.measure(api, ours.pid)
                async with tabs(port, TABS):
                    await watched.measure(api, ours.pid)
    extra = [more - less for more, less in zip(watched.cpu, alone.cpu, strict=True)]
    bench.add(f"{TABS} tabs, CPU", "% of a core", extra, at_most(CPU_TARGET))
    target = ratio_at_most(P99_TARGET)
    bench.add("append p99, watched", "ms", watched.p99_s, target, ("alone", alone.p99_s))
