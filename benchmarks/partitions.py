"""A queue with 1,024 partitions: the coordinator's look, an idle worker, and submit to run.

One worker process owns all partitions of a real Redis, and another process looks at the load of all
of them, as the coordinator does once a second. Nothing else happens, so every command is what the
partitions cost by being there. CPU time is that of the processes themselves. To compare with an
earlier commit, check it out: `git worktree add --detach .tools/before COMMIT`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter

from redis.asyncio import Redis

from heatsink.testing.redis import RedisServer

from .environments import TOOLS
from .harness import Bench, Samples, Scale, at_most

PARTITIONS = 1_024
DRIVER = Path(__file__).parent / "drivers" / "partitions.py"
BEFORE = TOOLS / "before" / "src"
SUBMITS = 5
SETTLE_S = 5.0  # a worker that has just started polls more
READY_S_MAX = 30.0


class Driver:
    """A process of the queue, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), READY_S_MAX)
        found: dict[str, float] = json.loads(line)
        return found

    async def ask(self, command: str) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        await self._process.stdin.drain()
        return await self.says()


@asynccontextmanager
async def started(role: str, url: str, source: Path | None) -> AsyncIterator[Driver]:
    environment = {**os.environ, "PYTHONPATH": str(source)} if source else dict(os.environ)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(DRIVER), role, url, str(PARTITIONS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        yield Driver(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), READY_S_MAX)
        except TimeoutError:
            process.kill()
            await process.wait()


class RedisMeter:
    """CPU seconds that a Redis used, and commands that it ran."""

    def __init__(self, server: RedisServer) -> None:
        self._redis = Redis.from_url(server.url)

    async def read(self) -> tuple[float, int]:
        info = await self._redis.info()
        cpu_s = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        return cpu_s, int(info["total_commands_processed"])

    async def close(self) -> None:
        await self._redis.aclose()


class Contender:
    """One version of our code. A round starts its worker anew and measures everything."""

    def __init__(self, source: Path | None, looks: int, idle_s: float) -> None:
        self._source = source
        self._looks = looks
        self._idle_s = idle_s
        self.samples: defaultdict[str, Samples] = defaultdict(list)

    async def round(self) -> None:
        async with AsyncExitStack() as stack:
            server = stack.enter_context(RedisServer())
            meter = RedisMeter(server)
            stack.push_async_callback(meter.close)
            client = await stack.enter_async_context(started("client", server.url, self._source))
            await client.ask("look")  # founds the queue
            async with started("worker", server.url, self._source) as worker:
                await self._work(client, worker, meter)
            await self._measure_looks(client, meter)

    async def _work(self, client: Driver, worker: Driver, meter: RedisMeter) -> None:
        try:
            ready = (await worker.says())["ready_s"]
        except TimeoutError:  # it is late for its own leases, again and again
            ready = READY_S_MAX
        self.samples["ready"].append(ready)
        if ready == READY_S_MAX:
            return
        await asyncio.sleep(SETTLE_S)
        await self._measure_idle(worker, meter)
        for _ in range(SUBMITS):
            asked = await client.ask("submit")
            ran = await worker.says()
            self.samples["run"].append(ran["ran_s"] - asked["asked_s"])

    async def _measure_idle(self, worker: Driver, meter: RedisMeter) -> None:
        before, (redis_s, _) = await worker.ask("cpu"), await meter.read()
        await asyncio.sleep(self._idle_s)
        after, (redis_later_s, _) = await worker.ask("cpu"), await meter.read()
        passed_s = after["now_s"] - before["now_s"]
        self.samples["worker"].append(1000 * (after["cpu_s"] - before["cpu_s"]) / passed_s)
        self.samples["redis"].append(1000 * (redis_later_s - redis_s) / passed_s)

    async def _measure_looks(self, client: Driver, meter: RedisMeter) -> None:
        """Without a worker, so that all commands are those of the look."""
        for _ in range(self._looks):
            _, commands = await meter.read()
            looked = await client.ask("look")
            _, later = await meter.read()
            self.samples["look"].append(looked["took_s"])
            self.samples["look_cpu"].append(looked["cpu_s"])
            self.samples["commands"].append(float(later - commands))


async def run(bench: Bench, scale: Scale) -> None:
    sources = [None, *([BEFORE] if BEFORE.exists() else [])]
    contenders = [Contender(source, scale(3, 3), 2.0) for source in sources]
    for turn in range(scale(1, 11)):
        for contender in contenders if turn % 2 else reversed(contenders):
            began_s = perf_counter()
            await contender.round()
            contender.samples["round"].append(perf_counter() - began_s)
    ours = contenders[0].samples
    theirs = contenders[1].samples if len(contenders) > 1 else None

    def add(metric: str, unit: str, name: str, limit: float | None = None) -> None:
        found = theirs and len(theirs[name]) == len(ours[name])
        other = ("the commit before", theirs[name]) if theirs and found else None
        bench.add(metric, unit, ours[name], at_most(limit) if limit else None, other)

    add(f"the coordinator's look at {PARTITIONS:,} partitions", "ms", "look", 100)
    add("CPU of a look", "ms", "look_cpu")
    add("commands of a look", "", "commands", PARTITIONS / 4)
    add("idle worker, CPU", "ms/s", "worker")
    add("its Redis, CPU", "ms/s", "redis")
    add("worker owns all partitions after", "ms", "ready")
    add("submit to run", "ms", "run", 100)
    slowest = [max(ours["run"])]
    bench.add("submit to run, the slowest", "ms", slowest, at_most(1_000))
