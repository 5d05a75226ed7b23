"""Workers in Node beside one in Python, fair and exact, while Node workers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

import heatsink
from heatsink import Heatsink
from heatsink.bulk import Batch, BulkSettings
from heatsink.testing.redis import RedisServer
from tests.bulk.overlaps import Overlaps, Run
from tests.nodejs import NODE
from tests.processes import Served, serving
from tests.servers import real
from tests.waiting import soon, until

WORKER = Path(__file__).parents[2] / "examples" / "node_worker" / "worker.mjs"
RUNNING = 3
LEASE_S = 4  # a process of a busy machine may stand still for a second
LONG_LEASE_S = 10
CONCURRENCY = 8
KILLS = 3
ENOUGH = 6  # items of a worker before it is killed
TENANTS, ITEMS = 4, 100
TAKES_S = 0.05
COUNT_S = 0.01
LARGE = 20_000  # more than three workers can run while the small batches run
PYTHON = f"""
import asyncio, os, time
from heatsink.bulk import Actions, Limit

actions = Actions()
file = os.open("python.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(kind, context):
    run = f"{{context.tenant}} {{context.idempotency_key}}/{{context.attempt}}"
    os.write(file, f"{{kind}} {{run}} {{time.monotonic()}}\\n".encode())


async def run(item, context, takes_s):
    note("begin", context)
    await asyncio.sleep(takes_s)
    note("end", context)
    return item * 2


@actions.action("send", limits=[Limit("tenants", running={RUNNING}, per="tenant")])
async def send(item, context):
    return await run(item, context, {TAKES_S})


@actions.action("count")
async def count(item, context):
    return await run(item, context, {COUNT_S})
"""
HANDLERS = """
import { once } from "node:events";
import { appendFileSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

setImmediate(() => writeFileSync(`${process.env.LOG}.ready`, "")); // the worker listens to signals

function note(kind, context) {
  const run = `${context.tenant} ${context.idempotency_key}/${context.attempt}`;
  const at = Number(process.hrtime.bigint()) / 1e9;
  appendFileSync(process.env.LOG, `${kind} ${run} ${at}\\n`);
}
const run = (takes_ms) => async (item, context) => {
  note("begin", context);
  await sleep(takes_ms);
  note("end", context);
  return item * 2;
};
async function hold(item, context) {
  note("begin", context);
  if (process.env.LOG.endsWith("node-1.log")) await once(context.signal, "abort");
  note("end", context);
}
export default {
  send: { run: run(TAKES_MS), limits: [{ name: "tenants", running: RUNNING, per: "tenant" }] },
  count: { run: run(COUNT_MS) },
  hold: { run: hold },
};
""".replace("TAKES_MS", str(int(TAKES_S * 1000))).replace("RUNNING", str(RUNNING))
HANDLERS = HANDLERS.replace("COUNT_MS", str(int(COUNT_S * 1000)))


class Nodes:
    """Workers in Node. Each writes its runs into a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "handlers.mjs").write_text(HANDLERS)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._count = 0
        self.deaths_s: dict[str, float] = {}

    def start(self, server: Served, lease_s: int = LEASE_S) -> str:
        self._count += 1
        name = f"node-{self._count}"
        about = {
            "HEATSINK_SERVER": server.url,
            "LOG": str(self.log(name)),
            "LEASE_S": str(lease_s),
            "CONCURRENCY": str(CONCURRENCY),
        }
        command = [NODE, str(WORKER), str(self._folder / "handlers.mjs")]
        self._running[name] = subprocess.Popen(command, env={**os.environ, **about})
        return name

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def counts(self, name: str) -> tuple[int, int]:
        """Return how many items of the worker have begun, and how many of them run now."""
        lines = self.log(name).read_text().splitlines() if self.log(name).exists() else []
        kinds = Counter(line.split()[0] for line in lines)
        return kinds["begin"], kinds["begin"] - kinds["end"]

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()
        self.deaths_s[name] = time.monotonic()

    def stop(self, name: str) -> int:
        """Ask a worker to end. Returns its exit code."""
        until((self._folder / f"{name}.log.ready").exists)
        process = self._running.pop(name)
        process.terminate()
        return process.wait(60)

    def kill_all(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def runs(self) -> list[Run]:
        """Return the runs of all workers, those in Python too."""
        found = []
        for path in self._folder.glob("*.log"):
            open_runs: dict[str, Run] = {}
            for line in path.read_text().splitlines():
                kind, tenant, item, at_s = line.split()
                if kind == "begin":
                    run = open_runs[item] = Run(path.stem, tenant, float(at_s))
                    found.append(run)
                else:
                    open_runs[item].ended_s = float(at_s)
        return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    yield found
    found.kill_all()


@pytest.fixture
def redis() -> Iterator[str]:
    with real(RedisServer) as server:
        yield server.url


@pytest.fixture
async def pair(tmp_path: Path, redis: str) -> AsyncIterator[tuple[Heatsink, list[Served]]]:
    """Two servers, and a client of their queue."""
    async with AsyncExitStack() as stack:
        queue = ("--queue", redis, "--relaxed", "--no-worker", "--no-dashboard")
        serve = ("--store", "memory://", *queue)
        servers = [stack.enter_context(serving(tmp_path, *serve)) for _ in range(2)]
        settings = BulkSettings(durability="relaxed")
        hs = await stack.enter_async_context(
            heatsink.connect("memory://", queue=redis, bulk=settings)
        )
        yield hs, servers


@pytest.fixture
def fleet(
    tmp_path: Path, redis: str, pair: tuple[Heatsink, list[Served]]
) -> Iterator[tuple[Heatsink, list[Served]]]:
    """Two servers, a Python worker, and a client of their queue."""
    (tmp_path / "remote_app.py").write_text(PYTHON)
    queue = ("--queue", redis, "--relaxed", "--lease", str(LEASE_S))
    bounds = ("--concurrency", str(CONCURRENCY))
    with serving(tmp_path, "remote_app:actions", *queue, *bounds, command="worker"):
        yield pair


@pytest.mark.timeout(400)
async def test_nodes_and_python_drain_exactly_while_nodes_are_killed(
    fleet: tuple[Heatsink, list[Served]], nodes: Nodes
) -> None:
    hs, servers = fleet
    names = [nodes.start(server) for server in servers]

    async def are_members() -> bool:
        stores = hs.parts.queue.queue.stores
        members, _ = await stores.fleet.join("test", [], 1)
        return len(members) == 4 and "send" in (await stores.places.declared()).actions

    await soon(are_members)
    batches: list[Batch] = []

    async def is_due(victim: str) -> bool:
        """Whether the worker has done its share. There is work until then."""
        newest = batches[-TENANTS:]
        states = {(await hs.bulk.status(batch.id)).state for batch in newest}
        if states <= {"done"}:
            for number in range(TENANTS):
                tenant = f"tenant-{number}"
                batch = await hs.bulk.submit("send", range(ITEMS), tenant=tenant, results="keep")
                batches.append(batch)
        begun, running = nodes.counts(victim)
        return begun >= ENOUGH and running > 0 and nodes.counts("python")[0] > 0

    for number in range(KILLS):
        victim = names[number % 2]
        await soon(partial(is_due, victim))
        nodes.kill(victim)
        names[number % 2] = nodes.start(servers[number % 2])
    for batch in batches:
        ended = await hs.bulk.wait(batch.id)
        assert (ended.done, ended.failed, ended.lost) == (ITEMS, 0, 0)
        results = [(each.index, each.value) async for each in hs.bulk.results(batch.id)]
        assert results == [(n, n * 2) for n in range(ITEMS)]
    assert [nodes.stop(name) for name in names] == [0, 0]
    runs = nodes.runs()
    found = Overlaps(runs, nodes.deaths_s)
    assert found.most() == RUNNING
    assert 0 <= len(runs) - len(batches) * ITEMS <= KILLS * CONCURRENCY, (
        "only items of killed workers ran again"
    )


async def test_a_rate_holds_and_a_small_batch_is_not_held_up(
    fleet: tuple[Heatsink, list[Served]], nodes: Nodes
) -> None:
    hs, servers = fleet
    for server in servers:
        nodes.start(server)

    async def are_members() -> bool:
        members, _ = await hs.parts.queue.queue.stores.fleet.join("test", [], 1)
        return len(members) == 4

    await soon(are_members)
    large = await hs.bulk.submit("count", range(LARGE), tenant="large")
    await soon(lambda: any(run.process != "python" for run in nodes.runs()))
    small = await hs.bulk.submit("count", range(40), tenant="small")
    asked_s = time.monotonic()
    paced = await hs.bulk.submit("count", range(60), tenant="paced", rate="30/s")
    await hs.bulk.wait(small.id)
    runs = nodes.runs()
    assert sum(run.key == "large" for run in runs) < LARGE / 2
    assert (await hs.bulk.wait(paced.id)).done == 60
    last_s = max(run.began_s for run in nodes.runs() if run.key == "paced")
    assert last_s - asked_s > 59 / 30 * 0.95  # a busy machine begins items late, but never early
    await hs.bulk.cancel(large.id)
    until(lambda: not any(run.ended_s == float("inf") for run in nodes.runs()))


async def test_a_worker_of_a_frozen_server_stops_its_item_before_another_worker_begins(
    pair: tuple[Heatsink, list[Served]], nodes: Nodes
) -> None:
    hs, (frozen, other) = pair
    first = nodes.start(frozen, LONG_LEASE_S)
    batch = await hs.bulk.submit("hold", [1])
    await soon(lambda: nodes.counts(first)[1] > 0)
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        nodes.start(other, LONG_LEASE_S)
        assert (await hs.bulk.wait(batch.id)).done == 1
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    stopped, again = sorted(nodes.runs(), key=lambda run: run.began_s)
    assert (stopped.process, again.process) == (first, "node-2")
    assert stopped.ended_s < again.began_s
