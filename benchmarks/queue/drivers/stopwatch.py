"""What every driver shares: orders come on its input, answers go out in JSON, a line each.

`with_X.py enqueue` reads lines of `group size pause_ms` and enqueues so many items; `with_X.py
work` runs items and tells of each group when its last item has ended. `with_X.py jobs` reads lines
of `group size producers` and enqueues one item per call, from so many callers at once. Times are of
the system's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction
from itertools import count
from threading import Thread
from time import perf_counter, process_time, sleep
from typing import Any

try:
    import uvloop
except ImportError:
    pass
else:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

URL = os.environ["QUEUE_URL"]
HOST, PORT = URL.removeprefix("redis://").split(":")

_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a library prints is no answer


def answer(**values: float) -> None:
    print(json.dumps(values), file=_answers, flush=True)


class Group:
    """Items that were enqueued together, from the first one's end on."""

    def __init__(self) -> None:
        self._first_s = perf_counter()
        self._used_s = process_time()
        self._ends = count(1)
        self._waited_s = 0.0

    def end(self, group: int, size: int, began_us: int) -> None:
        self._waited_s += perf_counter() - began_us / 1e6
        if next(self._ends) == size:
            now_s, used_s = perf_counter(), process_time()
            seconds, cpu_s = now_s - self._first_s, used_s - self._used_s
            waited_s = self._waited_s / size
            answer(group=group, ended_s=now_s, seconds=seconds, cpu_s=cpu_s, waited_s=waited_s)


_groups: dict[int, Group] = {}


def ended(group: int, size: int, began_us: int = 0) -> None:
    (_groups.get(group) or _groups.setdefault(group, Group())).end(group, size, began_us)


async def run_item(group: int, size: int, pause_ms: int, began_us: int = 0) -> None:
    if pause_ms:
        await asyncio.sleep(pause_ms / 1000)
    ended(group, size, began_us)


def run_item_blocking(group: int, size: int, pause_ms: int, began_us: int = 0) -> None:
    if pause_ms:
        sleep(pause_ms / 1000)
    ended(group, size, began_us)


def _one_by_one(one: Callable[..., Any]) -> Callable[..., Any]:
    """Enqueues one item per call of `one`, from as many tasks or threads as there are producers."""

    async def produce(group: int, size: int, producers: int) -> None:
        left = iter(range(size))

        async def each() -> None:
            for _ in left:
                await one(group, size, 0, int(perf_counter() * 1e6))

        await asyncio.gather(*(each() for _ in range(producers)))

    def produce_blocking(group: int, size: int, producers: int) -> None:
        left = iter(range(size))

        def each() -> None:
            for _ in left:
                one(group, size, 0, int(perf_counter() * 1e6))

        with ThreadPoolExecutor(producers) as threads:
            for thread in [threads.submit(each) for _ in range(producers)]:
                thread.result()

    return produce if iscoroutinefunction(one) else produce_blocking


def main(
    enqueue: Callable[..., Any], work: Callable[..., Any], one: Callable[..., Any] | None = None
) -> None:
    if sys.argv[1] == "jobs":
        assert one is not None
        enqueue = _one_by_one(one)
    with asyncio.Runner() as runner:

        def run(function: Callable[..., Any], *arguments: int) -> None:
            called = function(*arguments)
            if iscoroutinefunction(function):
                runner.run(called)

        if sys.argv[1] == "work":
            Thread(target=_end_with_parent, daemon=True).start()
            run(work)
            return
        for line in sys.stdin:
            began_s, used_s = perf_counter(), process_time()
            run(enqueue, *map(int, line.split()))
            seconds, cpu_s = perf_counter() - began_s, process_time() - used_s
            answer(began_s=began_s, seconds=seconds, cpu_s=cpu_s)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)
