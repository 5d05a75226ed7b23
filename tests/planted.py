"""What tests of simulations share: seeds that hold, and bugs that some seed must find.

A bug is one that somebody might write, planted into the production code for one run. That every one
of them is found shows that the simulation bites.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest

Plant = Callable[[], AbstractContextManager[None]]
Simulate = Callable[[int], object]
Ran = TypeVar("Ran")
Violations = type[Exception] | tuple[type[Exception], ...]
FULL = "HEATSINK_FULL_TESTS" in os.environ  # set by `./dev test --full`


def usually(usual: int, full: int) -> int:
    """How many seeds or examples a test plays: the usual number, or `full` in a full run."""
    return full if FULL else usual


class Bugs(dict[str, Plant]):
    """By their names. As a decorator: of functions that plant a bug, yield, and take it out."""

    def __call__(self, plant: Callable[[], Iterator[None]]) -> Plant:
        self[plant.__name__] = contextmanager(plant)
        return self[plant.__name__]


def hold(
    simulate: Callable[[int], Ran], seeds: range, violations: Violations, of: str
) -> list[Ran]:
    """What the runs return, if there is no violation in any."""
    ran = []
    for seed in seeds:
        try:
            ran.append(simulate(seed))
        except violations as violation:
            pytest.fail(f"{violation}\nreplay: ./dev soak --of {of} --first {seed} --seeds 1")
    return ran


def from_seed(first: int, count: int) -> list[int]:
    """All seeds below `count`, from the one on where a bug was found last."""
    return [*range(first, count), *range(first)]


def find(plant: Plant, simulate: Simulate, seeds: Sequence[int], violations: Violations) -> None:
    with plant():
        for seed in seeds:
            try:
                simulate(seed)
            except violations:
                return
    pytest.fail(f"not found in {len(seeds)} seeds")
