"""Fails tests that wait for a duration: over a second in all of sleeps that ran to their end.

A test waits for a condition (`tests/waiting.py`), because a duration is too short on a busy machine
and too long on every other. So this counts the real time in which the code of a test sleeps by
`time.sleep` or `asyncio.sleep`. It does not count sleeps of at most 0.1 s (a look between two
checks, or the pace of traffic), sleeps in virtual time, sleeps that were cancelled (they stand for
work that never ends), and what the package itself sleeps. Sleeps of several tasks at the same time
count once.

`@pytest.mark.sleeps("reason")` is for tests whose subject is the passing of real time;
at most 20 test functions have it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from heatsink.testing.clocks import VirtualLoop

MOST_S = 1.0
EXCEPTIONS_MAX = 20
LOOK_S = 0.1

really_sleep = time.sleep
really_sleep_async = asyncio.sleep


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sleeps(reason): may sleep over a second; real time matters")
    watch = Watch()
    time.sleep = watch.sleep  # type: ignore[assignment]
    asyncio.sleep = asyncio.tasks.sleep = watch.sleep_async
    config.pluginmanager.register(watch)


def pytest_unconfigure() -> None:
    time.sleep = really_sleep
    asyncio.sleep = asyncio.tasks.sleep = really_sleep_async


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = set[str]()
    for item in items:
        if mark := item.get_closest_marker("sleeps"):
            marked.add(name := item.nodeid.partition("[")[0])
            if not mark.args or not str(mark.args[0]).strip():
                raise pytest.UsageError(f'{name}: say why: @pytest.mark.sleeps("reason")')
    if len(marked) > EXCEPTIONS_MAX:
        names = ", ".join(sorted(marked))
        raise pytest.UsageError(f"{len(marked)} tests may sleep, {EXCEPTIONS_MAX} at most: {names}")


class Watch:
    """Adds up the time in which at least one task or thread of a test sleeps."""

    def __init__(self) -> None:
        self.slept_s = 0.0
        self._until_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.slept_s = 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        if self.slept_s > MOST_S and not item.get_closest_marker("sleeps"):
            cure = "wait for a condition (tests/waiting.py)"
            pytest.fail(f"slept for {self.slept_s:.1f} s in all: {cure}", pytrace=False)

    def sleep(self, seconds: float, /) -> None:
        begun_s = time.monotonic()
        really_sleep(seconds)
        if seconds > LOOK_S and is_ours(sys._getframe(1).f_globals):
            self._add(begun_s)

    def sleep_async(self, delay: float, result: Any = None) -> Coroutine[Any, Any, Any]:
        if delay <= LOOK_S or is_virtual() or not is_ours(sys._getframe(1).f_globals):
            return really_sleep_async(delay, result)
        return self._timed(delay, result)

    async def _timed(self, delay: float, result: Any) -> Any:
        begun_s = time.monotonic()
        slept = await really_sleep_async(delay, result)
        self._add(begun_s)
        return slept

    def _add(self, begun_s: float) -> None:
        now_s = time.monotonic()
        self.slept_s += max(0.0, now_s - max(begun_s, self._until_s))
        self._until_s = max(self._until_s, now_s)


def is_virtual() -> bool:
    return isinstance(asyncio.get_running_loop(), VirtualLoop)


def is_ours(namespace: dict[str, Any]) -> bool:
    return str(namespace.get("__name__", "")).startswith("tests.")
