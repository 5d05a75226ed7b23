"""A worker process for `test_limits_under_kills`: its handlers record begin and end in a file."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import heatsink
from heatsink.bulk import Actions, BulkSettings, Context, Limit

RUNNING = 5
TAKES_S = 0.5
LEASE_S = 3.0


def actions_into(path: str) -> Actions:
    """Return an action with at most 5 running per tenant, which writes a line at begin and end."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    actions = Actions()

    @actions.action("send", limits=[Limit("tenants", running=RUNNING, per="tenant")])
    async def send(item: Any, context: Context) -> None:
        run = f"{context.tenant} {item}/{context.attempt}"
        os.write(file, f"begin {run} {time.monotonic()}\n".encode())
        try:
            await asyncio.sleep(TAKES_S)
        finally:
            os.write(file, f"end {run} {time.monotonic()}\n".encode())

    return actions


async def main(url: str, path: str) -> None:
    settings = BulkSettings(durability="relaxed")
    async with heatsink.connect("memory://", queue=url, bulk=settings) as hs:
        actions = actions_into(path)
        await hs.worker(actions, workers=24, lease_s=LEASE_S, member_s=1.0).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
