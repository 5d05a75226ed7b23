"""Appends a second over HTTP: `heatsink serve` against a bare Starlette endpoint on SQLite.

Each server is a process of its own; this one is the client of both: connections that are kept, and
one request after the other on each. They take turns, many short rounds, because the client and the
disk weigh on both.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from heatsink.stores.embedded import free_port

from .clients import ARTIFACTS
from .harness import Bench, Scale, interleave, ratio_at_least

BODY = b'{"body":"' + b"x" * 200 + b'"}'
CROWDS = (1, 32)
TARGET = 0.60
START_S = 30.0
SETTLE_S = 3.0  # a worker that starts takes its partitions first
keys = count()


def request() -> bytes:
    head = (
        f"POST /v1/conversations/conversation-{next(keys) % 4096:04d}/messages HTTP/1.1\r\n"
        f"host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
    )
    return head.encode() + BODY


class Client:
    """Connections to one server: those of one round are kept for the round."""

    def __init__(self, port: int, pid: int) -> None:
        self.pid = pid
        self._port = port
        self._connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self, count: int) -> None:
        for _ in range(count):
            self._connections.append(await asyncio.open_connection("127.0.0.1", self._port))

    async def close(self) -> None:
        connections, self._connections = self._connections, []
        for _, writer in connections:
            writer.close()
            await writer.wait_closed()

    async def per_second(self, crowd: int, each: int) -> float:
        await self.open(crowd)
        started_s = perf_counter()
        await asyncio.gather(*(self._ask(n, each) for n in range(crowd)))
        taken_s = perf_counter() - started_s
        await self.close()
        return crowd * each / taken_s

    async def _ask(self, number: int, times: int) -> None:
        reader, writer = self._connections[number]
        for _ in range(times):
            writer.write(request())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 201"):
                raise AssertionError(head)
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))


@asynccontextmanager
async def server(*command: str, folder: Path, port: int) -> AsyncIterator[Client]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *command, cwd=folder)
    client = Client(port, process.pid)
    try:
        for _ in range(int(START_S / 0.1)):
            await asyncio.sleep(0.1)
            try:
                await client.open(1)
                break
            except OSError:
                continue
        await client.close()
        yield client
    finally:
        await client.close()
        process.terminate()
        await process.wait()


async def run(bench: Bench, scale: Scale) -> None:
    ports = free_port(), free_port()
    here = Path(__file__).parent.parent
    ARTIFACTS.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ARTIFACTS, prefix="bench-") as name:
        flags = ("--port", str(ports[0]), "--data", f"{name}/data")
        bare = ("benchmarks.bare_server", f"{name}/bare.db", str(ports[1]))
        async with (
            server("heatsink", "serve", *flags, folder=Path(name), port=ports[0]) as ours,
            server(*bare, folder=here, port=ports[1]) as plain,
        ):
            await asyncio.sleep(SETTLE_S)
            for crowd in CROWDS:
                each = 50 if crowd == 1 else 20
                rounds = scale(10, 60)
                taken = await interleave(
                    rounds,
                    partial(ours.per_second, crowd, each),
                    partial(plain.per_second, crowd, each),
                )
                what = "in turn" if crowd == 1 else f"{crowd} at once"
                target = ratio_at_least(TARGET)
                bench.add(f"append, {what}", "/s", taken[0], target, ("bare Starlette", taken[1]))
