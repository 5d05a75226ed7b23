"""`./dev walk append|http|report|item`: the files that one request passes, in order.

A walk does its work once to warm up. Then it runs it again under a profiler and prints each of our
files when it is entered for the first time, without the primitives. A reader who follows the
request opens just these. `MOST` says how many there may be; a test holds them to it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any
from unittest.mock import patch

import httpx

import heatsink
from heatsink import BucketRules, Heatsink
from heatsink.bulk import Actions, Context
from heatsink.bulk.work import consumer
from heatsink.primitives.clock import SystemClock
from heatsink.server.process import ServeSettings, running_app

SOURCE = Path(heatsink.__file__).parent
LEFT_OUT = ("primitives/", "errors.py", "__init__.py")
MOST = {"append": 9, "http": 9, "report": 14, "item": 15}
RULES = BucketRules(bucket_units_s=50)
KEY, WRITES = "chat", 120


class Steps:
    """Our files in the order in which they are entered."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SOURCE):
                name = str(path.relative_to(SOURCE))
                if not name.startswith(LEFT_OUT) and not name.endswith("__init__.py"):
                    self.files.setdefault(name)

    @contextmanager
    def taken(self) -> Iterator[None]:
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


async def append(steps: Steps) -> None:
    """An append to a log in SQLite."""
    async with _alone() as hs:
        await hs.log.append(KEY, b"once")
        with steps.taken():
            await hs.log.append(KEY, b"again")


async def http(steps: Steps) -> None:
    """The same over HTTP: from the ASGI server to the row."""
    async with _alone() as hs:
        settings = ServeSettings(data=Path())
        async with running_app(hs, settings, SystemClock()) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as api:
                path = f"/v1/conversations/{KEY}/messages"
                (await api.post(path, json={"body": "once"})).raise_for_status()
                await hs.parts.registry.keep_ahead(leads=True)
                with steps.taken():
                    await api.post(path, json={"body": "again"})


async def report(steps: Steps) -> None:
    """From the writes of a hot key to a router that spreads the next one."""
    async with _alone() as hs:
        await asyncio.gather(*(hs.log.append(KEY, b"x") for _ in range(WRITES)))
        coordination = hs.parts.coordination
        coordinator, reporter = coordination.coordinator, hs.parts.make_reporter()
        coordinator._loops = coordinator._loops[:1]  # the walk is about keys alone
        router, registry = hs.log._router, hs.parts.registry
        await coordinator.run_once()
        with steps.taken():
            while registry.view.layout(KEY).buckets == 1:
                await reporter.run_once()
                await coordinator.run_once()
                await registry.keep_up(True)
                await asyncio.sleep(0.05)
            router.fresh(KEY)


async def item(steps: Steps) -> None:
    """From `submit` to the end of the batch, on the queue in memory."""
    actions = Actions()

    @actions.action("greet")
    async def greet(_context: Context, _item: object) -> None: ...

    async with _alone() as hs:
        rounds = patch.object(consumer, "LIMITS_S", 3600.0)  # operators change nothing meanwhile
        rounds.start()
        worker = hs.worker(actions)
        running = asyncio.ensure_future(worker.run())
        await _greet(hs)
        with steps.taken():
            await _greet(hs)
        worker.stop()
        await running
        rounds.stop()


async def _greet(hs: Heatsink) -> None:
    batch = await hs.bulk.submit("greet", [{"name": "ada"}, {"name": "bob"}])
    await hs.bulk.wait(batch.id)


WALKS: dict[str, Callable[[Steps], Awaitable[None]]] = {
    "append": append,
    "http": http,
    "report": report,
    "item": item,
}


class _alone:  # noqa: N801
    """A client whose background work stands still, so that only the walk is seen."""

    async def __aenter__(self) -> Heatsink:
        self._folder = TemporaryDirectory()
        url = f"sqlite:///{self._folder.name}/walk.db"
        self._client = heatsink.connect(url, rules=RULES, queue="memory://", coordinate=False)
        hs = await self._client.__aenter__()
        for task in hs.parts.tasks:
            task.cancel()
        await asyncio.gather(*hs.parts.tasks, return_exceptions=True)  # none may end in the walk
        return hs

    async def __aexit__(self, *_: object) -> None:
        with suppress(asyncio.CancelledError):
            await self._client.close()
        self._folder.cleanup()


def walk(name: str) -> list[str]:
    steps = Steps()
    asyncio.run(_run(WALKS[name], steps))
    return list(steps.files)


async def _run(work: Callable[[Steps], Awaitable[None]], steps: Steps) -> None:
    await work(steps)


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in WALKS:
        print(f"./dev walk needs one of {', '.join(WALKS)}", file=sys.stderr)
        return 2
    files = walk(sys.argv[1])
    for number, file in enumerate(files, start=1):
        print(f"{number:3} {file}")
    most = MOST[sys.argv[1]]
    print(f"{len(files)} files; at most {most}")
    return 0 if len(files) <= most else 1


if __name__ == "__main__":
    sys.exit(main())
