"""What `--quick` takes for a test that needs a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from heatsink.testing.redis import RedisServer

from .selection import Guard, Reader


@contextmanager
def served() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Fleet:
    def start(self) -> None:
        with served():
            pass


def through_a_helper() -> None:
    with served():
        pass


def through_a_class() -> None:
    Fleet().start()


def by_itself() -> None:
    subprocess.run([sys.executable, "--version"], check=True)


def inside() -> None:
    def run() -> None:
        by_itself()

    run()


def nothing() -> None:
    assert len("a process") == 9


@pytest.mark.parametrize("starts", [through_a_helper, through_a_class, by_itself, inside])
def test_code_that_can_start_a_process_is_found(starts: Callable[[], None]) -> None:
    assert Reader().starts(starts)
    assert Reader().starts(partial(starts))


def test_code_that_starts_nothing_is_quick() -> None:
    assert not Reader().starts(nothing)


@pytest.mark.server("it starts one on purpose, to see the guard hear it")
def test_a_process_that_nobody_expected_is_heard() -> None:
    guard = Guard()
    call = guard.pytest_runtest_call()
    next(call)
    by_itself()
    with pytest.raises(pytest.fail.Exception, match=r"mark\.server"):
        next(call)
