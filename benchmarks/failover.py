"""How long nobody leads after the leader was killed (kill -9): two coordinators on one store.

The time runs from the signal until the registry names the other coordinator as leader. The killed
one starts again as a standby. There are two deployments: a SQLite file, and DynamoDB (our engine)
with a Redis for news. Run it beside busy loops to see what a loaded machine does:
`for i in 1 2; do (while :; do :; done) & done; ./dev bench failover; kill %1 %2`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen
from subprocess import run as run_command
from tempfile import TemporaryDirectory
from time import monotonic
from urllib.request import urlopen

from heatsink.client.urls import open_stores
from heatsink.errors import NoRegistry, NoTable
from heatsink.primitives.clock import SystemClock
from heatsink.registry.decisions import Meta
from heatsink.stores.embedded import free_port
from heatsink.stores.stores import Stores
from heatsink.testing.redis import RedisServer

from .harness import Bench, Samples, Scale, at_most

NAMES = ("one", "two")
HEATSINK = (sys.executable, "-m", "heatsink")
LOOK_S = 0.02
WATCHES_S = 1.5  # a standby that was started has seen the leader's beats for this long
PATIENCE_S = 60.0
BOUND_S = 6.0
Deployment = Callable[[], AbstractContextManager[list[str]]]


@contextmanager
def on_sqlite() -> Iterator[list[str]]:
    """The options of a coordinator on a new SQLite file."""
    with TemporaryDirectory() as folder:
        yield ["--store", f"sqlite:///{Path(folder) / 'registry.db'}"]


@contextmanager
def on_dynamodb() -> Iterator[list[str]]:
    """The options of a coordinator on a new table of our engine, with news over a Redis."""
    port = free_port()
    store = f"dynamodb://messages?endpoint=http://127.0.0.1:{port}"
    with RedisServer() as redis, _process("dynamo", "--port", str(port)):
        give_up_s = monotonic() + PATIENCE_S
        create = [*HEATSINK, "table", "create", store]
        while run_command(create, capture_output=True, check=False).returncode:  # noqa: S603
            if monotonic() > give_up_s:
                raise RuntimeError("the DynamoDB engine did not start")
        yield ["--store", store, "--news", redis.url]


@contextmanager
def _process(*words: str) -> Iterator[None]:
    process = _start(*words)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _start(*words: str) -> Popen[bytes]:
    return Popen([*HEATSINK, *words], stdout=DEVNULL, stderr=DEVNULL)  # noqa: S603


class Pair:
    """Two coordinators, of which one leads."""

    def __init__(self, options: list[str], stores: Stores) -> None:
        self._options = options
        self._stores = stores
        self._running: dict[str, Popen[bytes]] = {}
        self._ports: dict[str, int] = {}
        for name in NAMES:
            self._start(name)

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def _start(self, name: str) -> None:
        port = self._ports[name] = free_port()
        names = ["--name", name, "--port", str(port)]
        self._running[name] = _start("coordinator", *self._options, *names)

    async def _leader_after(self, term: int) -> Meta:
        give_up_s = monotonic() + PATIENCE_S
        while monotonic() < give_up_s:
            meta = await _meta(self._stores)
            if meta is not None and meta.term > term and meta.leader:
                return meta
            await asyncio.sleep(LOOK_S)
        raise RuntimeError(f"nobody leads {PATIENCE_S:g} s after term {term}")

    async def fail_over(self) -> float:
        """Kill the leader, and return the seconds until the other one leads."""
        before = await self._leader_after(0)
        dead = before.leader.partition(":")[0]
        other = next(name for name in NAMES if name != dead)
        self._running[dead].send_signal(signal.SIGKILL)
        began_s = monotonic()
        self._running[dead].wait()
        after = await self._leader_after(before.term)
        took_s = monotonic() - began_s
        if not after.leader.startswith(other):
            raise RuntimeError(f"{after.leader} leads, not {other}")
        self._start(dead)
        return took_s

    async def standing_by(self) -> None:
        """Wait until both are ready, and the standby has watched the lease for a while."""
        for name, port in self._ports.items():
            while not await asyncio.to_thread(_is_ready, port):
                if self._running[name].poll() is not None:
                    raise RuntimeError(f"coordinator {name} ended")
                await asyncio.sleep(LOOK_S)
        await asyncio.sleep(WATCHES_S)


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def _meta(stores: Stores) -> Meta | None:
    try:
        return (await stores.registry.meta()).meta
    except (NoRegistry, NoTable):
        return None


@asynccontextmanager
async def pair_of(options: list[str]) -> AsyncIterator[Pair]:
    stores = open_stores(options[1], SystemClock())
    await stores.open()
    pair = Pair(options, stores)
    try:
        yield pair
    finally:
        pair.end()
        await stores.close()


async def fail_overs(deployment: Deployment, kills: int) -> Samples:
    with deployment() as options:
        async with pair_of(options) as pair:
            samples = []
            for _ in range(kills):
                await pair.standing_by()
                samples.append(await pair.fail_over())
    return samples


async def run(bench: Bench, scale: Scale) -> None:
    deployments = {"SQLite": on_sqlite, "DynamoDB, Redis news": on_dynamodb}
    for name, deployment in deployments.items():
        samples = await fail_overs(deployment, scale(3, 50))
        bench.add(f"{name}: the other leads after, median", "s", samples)
        longest = f"{name}: the other leads after, longest"
        bench.add(longest, "s", samples, at_most(BOUND_S), None, max)
