"""What tests of simulations share: seeds that hold, and bugs that some seed must find.

A bug is one that somebody might write, planted into the production code for one run. That every one
of them is found shows that the simulation bites.

A hunt begins at the seed that found the bug last (`planted_seeds.json`), since most seeds do not
find it and each costs seconds. After a change of a protocol, other seeds find it. Then the hunt
tries all seeds, a line at the end of the tests says so, and `./dev soak --renew-bugs` writes the
new seeds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

Plant = Callable[[], AbstractContextManager[object]]
Simulate = Callable[[int], object]
Ran = TypeVar("Ran")
Violations = type[Exception] | tuple[type[Exception], ...]
FULL = "HEATSINK_FULL_TESTS" in os.environ  # set by `./dev test --full`
RENEW = "./dev soak --renew-bugs"
SEEDS_FILE = Path(__file__).with_name("planted_seeds.json")


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


def known_seeds() -> dict[str, dict[str, int]]:
    """By hunt and bug: the seed at which the hunt begins. It is 0 for a bug that is not listed."""
    found: dict[str, dict[str, int]] = json.loads(SEEDS_FILE.read_text())
    return found


@dataclass(frozen=True)
class Hunt:
    """A simulation, and the bugs that it must find in at most `seeds` seeds."""

    name: str
    bugs: Mapping[str, Plant]
    simulate: Simulate
    violations: Violations
    seeds: int

    def __post_init__(self) -> None:
        HUNTS[self.name] = self

    def finds(self, bug: str, seed: int) -> bool:
        """Whether this seed finds the bug."""
        with self.bugs[bug]():
            try:
                self.simulate(seed)
            except self.violations:
                return True
        return False

    def order(self, bug: str) -> list[int]:
        """All seeds, beginning with the one that found the bug last."""
        first = known_seeds().get(self.name, {}).get(bug, 0)
        return [first, *(seed for seed in range(self.seeds) if seed != first)]

    def must_find(self, bug: str) -> None:
        """Fails if no seed finds the bug. Notes it in `STALE` if the first one does not."""
        order = self.order(bug)
        for tried, seed in enumerate(order, start=1):
            if self.finds(bug, seed):
                if tried > 1:
                    found = f"seed {seed} found it, after {tried - 1} others from {order[0]} on"
                    STALE.append(f"{self.name}: {bug}: {found}")
                return
        pytest.fail(
            f"{self.name}: {bug}: none of {len(order)} seeds found this planted bug. The code may "
            "no longer contain what the bug breaks (then change the bug), or the simulation no "
            "longer plays or checks it (then mend the simulation)"
        )


HUNTS: dict[str, Hunt] = {}
STALE: list[str] = []
"""Bugs whose known seed no longer finds them: `tests/plugins/planted.py` prints them."""
