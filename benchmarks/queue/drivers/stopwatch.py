"""What every driver shares: orders come on its input, answers go out in JSON, a line each.

`with_X.py enqueue` reads lines of `group size pause_ms` and enqueues so many items; `with_X.py
work` runs items and tells of each group when its last item has ended. Times are of the system's
monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
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

    def end(self, group: int, size: int) -> None:
        if next(self._ends) == size:
            now_s, used_s = perf_counter(), process_time()
            seconds, cpu_s = now_s - self._first_s, used_s - self._used_s
            answer(group=group, ended_s=now_s, seconds=seconds, cpu_s=cpu_s)


_groups: dict[int, Group] = {}


def ended(group: int, size: int) -> None:
    (_groups.get(group) or _groups.setdefault(group, Group())).end(group, size)


async def run_item(group: int, size: int, pause_ms: int) -> None:
    if pause_ms:
        await asyncio.sleep(pause_ms / 1000)
    ended(group, size)


def run_item_blocking(group: int, size: int, pause_ms: int) -> None:
    if pause_ms:
        sleep(pause_ms / 1000)
    ended(group, size)


def main(enqueue: Callable[..., Any], work: Callable[..., Any]) -> None:
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
