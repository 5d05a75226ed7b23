"""How many items of each key ran at a time, and how much of what was possible that was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class Run:
    """One run of a handler, in a process. It ends with its handler, or with the process."""

    process: str
    key: str
    began_s: float
    ended_s: float = float("inf")


class Leased(NamedTuple):
    """Places that a dead process has until its lease ends."""

    places: int
    from_s: float
    to_s: float


@dataclass
class Overlaps:
    """Runs of handlers that record begin and end, and deaths of processes."""

    runs: list[Run] = field(default_factory=list)
    deaths_s: dict[str, float] = field(default_factory=dict)
    leased: list[Leased] = field(default_factory=list)

    def ended(self) -> list[Run]:
        """Return all runs, which end when their process dies."""
        return [
            Run(
                r.process, r.key, r.began_s, min(r.ended_s, self.deaths_s.get(r.process, r.ended_s))
            )
            for r in self.runs
        ]

    def begins(self) -> Iterator[tuple[float, int]]:
        """Yield for each begin of a run its time, and how many runs of the key there are then."""
        changes: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        for run in self.ended():
            changes[run.key] += [(run.began_s, 1), (run.ended_s, -1)]
        for each in changes.values():
            count = 0
            for at_s, change in sorted(each):  # an end comes before a begin of the same moment
                count += change
                if change > 0:
                    yield at_s, count

    def most(self) -> int:
        """Return the largest number of runs of one key at a time."""
        return max((count for _, count in self.begins()), default=0)

    def share(self, running: int, keys: int, from_s: float, to_s: float) -> float:
        """Return which part of the possible work was done between two times.

        A place of a process that has died is not possible until its lease has ended.
        """
        used = sum(max(min(r.ended_s, to_s) - max(r.began_s, from_s), 0.0) for r in self.ended())
        leased = sum(
            each.places * max(min(each.to_s, to_s) - max(each.from_s, from_s), 0.0)
            for each in self.leased
        )
        return used / (running * keys * (to_s - from_s) - leased)
