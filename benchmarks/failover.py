"""How long nobody leads after the leader was killed (kill -9): two coordinators on one SQLite file.

The time runs from the signal until the registry names the other coordinator as leader. The killed
one starts again as a standby. Run it beside busy loops to see what a loaded machine does:
`for i in 1 2; do (while :; do :; done) & done; ./dev bench failover; kill %1 %2`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path
from subprocess import DEVNULL, Popen
from time import monotonic

from heatsink.client.urls import open_stores
from heatsink.errors import NoRegistry
from heatsink.primitives.clock import SystemClock
from heatsink.registry.decisions import Meta

from .harness import Bench, Scale, at_most

NAMES = ("one", "two")
LOOK_S = 0.02
PATIENCE_S = 60.0
BOUND_S = 15.0


class Pair:
    """Two coordinators, of which one leads."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "registry.db"
        self._url = f"sqlite:///{self._file}"
        self._stores = open_stores(self._url, SystemClock())
        self._running: dict[str, Popen[bytes]] = {}

    async def __aenter__(self) -> Pair:
        for name in NAMES:
            self._start(name)
        while not self._file.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(1.0)  # until the file is the registry
        await self._stores.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        await self._stores.close()

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "heatsink", "coordinator", "--store", self._url]
        options = ["--name", name, "--port", "0"]
        self._running[name] = Popen([*command, *options], stdout=DEVNULL, stderr=DEVNULL)  # noqa: S603

    async def _meta(self) -> Meta | None:
        try:
            return (await self._stores.registry.meta()).meta
        except NoRegistry:
            return None

    async def _leader_after(self, term: int) -> Meta:
        give_up_s = monotonic() + PATIENCE_S
        while monotonic() < give_up_s:
            meta = await self._meta()
            if meta is not None and meta.term > term and meta.leader:
                return meta
            await asyncio.sleep(LOOK_S)
        raise RuntimeError(f"nobody leads {PATIENCE_S:g} s after term {term}")

    async def _standing_by(self, name: str) -> None:
        """Wait until a coordinator that was started has read the registry for a lease."""
        await asyncio.sleep(4.0)
        if self._running[name].poll() is not None:
            raise RuntimeError(f"coordinator {name} ended")

    async def fail_over(self) -> float:
        """Kill the leader, and return the seconds until the other one leads."""
        before = await self._leader_after(0)
        dead = before.leader.partition(":")[0]
        other = next(name for name in NAMES if name != dead)
        await self._standing_by(other)
        self._running[dead].send_signal(signal.SIGKILL)
        began_s = monotonic()
        self._running[dead].wait()
        after = await self._leader_after(before.term)
        took_s = monotonic() - began_s
        if not after.leader.startswith(other):
            raise RuntimeError(f"{after.leader} leads, not {other}")
        self._start(dead)
        return took_s


async def run(bench: Bench, scale: Scale) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Pair(Path(folder)) as pair:
            samples = [await pair.fail_over() for _ in range(scale(3, 50))]
    bench.add("the other coordinator leads after, median", "s", samples)
    bench.add(
        "the other coordinator leads after, longest", "s", samples, at_most(BOUND_S), None, max
    )
