"""Runs of experiments in processes of their own."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from heatsink.errors import Unavailable
from heatsink.lab.runs import run_all


def fail() -> None:
    raise ValueError("no such key")


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def test_results_come_in_the_order_of_the_runs() -> None:
    assert run_all([partial(pow, number, 2) for number in range(20)]) == [n * n for n in range(20)]


def test_an_error_of_a_run_is_raised() -> None:
    with pytest.raises(ValueError, match="no such key"):
        run_all([partial(pow, 1, 2), fail])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_is_an_error_and_no_wait_for_ever(number: int) -> None:
    with pytest.raises(Unavailable, match="the process of a run was killed"):
        run_all([partial(pow, 1, 2), partial(die, number), partial(pow, 2, 2)])
