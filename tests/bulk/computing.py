"""Handlers that run in processes: a process imports this module."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatsink.bulk import Actions, Context, Fail, RateLimited, Retry

LONG_S = 600.0
BEFORE: list[str] = []  # both are of the process
LIMITED: list[str] = []


@contextmanager
def noted(context: Any) -> Iterator[None]:
    if isinstance(context, Context):
        BEFORE.append(context.idempotency_key)
    yield


actions = Actions(middleware=[noted])


@dataclass
class Square:
    n: int


class Odd(Exception):
    """Cannot be made again from its text."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@actions.action("square", process=True)
def square(item: Square, context: Context) -> dict[str, Any]:
    return {"of": item.n**2, "pid": os.getpid(), "noted": BEFORE[-1] == context.idempotency_key}


@actions.action("dies", process=True, max_attempts=2, backoff_s=0.0)
def dies(item: dict[str, Any], context: Context) -> None:
    if item["dies"] and context.attempt <= item["times"]:
        os.kill(os.getpid(), signal.SIGKILL)


@actions.action("hangs", process=True, max_attempts=1, timeout_s=0.3)
def hangs(item: str, _: Context) -> None:
    Path(item).write_text(str(os.getpid()))
    time.sleep(LONG_S)


@actions.action("stays", process=True)
def stays(item: str, context: Context) -> None:
    file = Path(item)
    file.write_text(str(os.getpid()))
    if context.attempt == 1 and not file.with_suffix(".go").exists():
        time.sleep(LONG_S)


@actions.action("raises", process=True, max_attempts=2, backoff_s=0.0)
def raises(item: str, context: Context) -> Any:
    if item == "fail":
        raise Fail("it can never work")
    if item == "retry" and context.attempt == 1:
        raise Retry(after=0.01, reason="once more")
    if item == "limited" and not LIMITED:  # such an attempt does not count
        LIMITED.append(item)
        raise RateLimited(retry_after=0.01)
    if item == "odd":
        raise Odd(1, 2)
    if item == "value":
        raise ValueError("a wrong number")
    return (lambda: None) if item == "result" else None


@actions.action("many", process=True, together=3, max_attempts=1)
def many(items: list[int], _: list[Context]) -> list[Any]:
    return [Fail("odd") if item % 2 else None for item in items]
