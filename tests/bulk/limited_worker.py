"""Worker processes for `test_limits_under_kills`: handlers record begin and end in a file.

`python -m tests.bulk.limited_worker URL` imports all modules once, and then follows commands on its
standard input: it forks workers, and sends them signals. So a new worker is there at once, as if
there were many machines.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import heatsink
from heatsink.bulk import Actions, BulkSettings, Context, Limit
from heatsink.primitives.processes import tie_to

RUNNING = 5
TAKES_S = 0.5
LEASE_S = 3.0
LIMIT = Limit("tenants", running=RUNNING, per="tenant")


def actions_into(path: str) -> Actions:
    """Return an action with at most 5 running per tenant, which writes a line at begin and end."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    actions = Actions()

    @actions.action("send", limits=[LIMIT])
    async def send(item: Any, context: Context) -> None:
        run = f"{context.tenant} {item}/{context.attempt}"
        os.write(file, f"begin {run} {time.monotonic()}\n".encode())
        try:
            await asyncio.sleep(TAKES_S)
        finally:
            os.write(file, f"end {run} {time.monotonic()}\n".encode())

    return actions


def connect(url: str) -> heatsink.Heatsink:
    return heatsink.connect("memory://", queue=url, bulk=BulkSettings(durability="relaxed"))


async def import_all(url: str) -> None:
    """Do what a worker does at first, since this imports further modules."""
    async with connect(url) as hs:
        hs.worker(Actions())
        await hs.bulk.plan()


async def main(url: str, path: str) -> None:
    async with connect(url) as hs:
        actions = actions_into(path)
        await hs.worker(actions, workers=24, lease_s=LEASE_S, member_s=1.0).run()


def start(url: str, path: str) -> int:
    parent, child = os.getpid(), os.fork()
    if child == 0:
        tie_to(parent)
        asyncio.run(main(url, path))
        os._exit(0)
    return child


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def follow_commands(url: str) -> None:
    verbs: dict[str, Callable[[str], object]] = {
        "start": lambda path: start(url, path),
        "kill": lambda process: kill(int(process)),
        "stop": lambda process: os.kill(int(process), signal.SIGSTOP),
        "continue": lambda process: os.kill(int(process), signal.SIGCONT),
    }
    asyncio.run(import_all(url))
    for line in sys.stdin:
        verb, word = line.split()
        sys.stdout.write(f"{verbs[verb](word)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    follow_commands(*sys.argv[1:])
