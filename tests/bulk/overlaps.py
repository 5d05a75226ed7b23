"""How many items of each key ran at a time, and how much of what was possible that was."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Run:
    """One run of a handler, in a process. It ends with its handler, or with the process."""

    process: str
    key: str
    began_s: float
    ended_s: float = float("inf")


@dataclass
class Overlaps:
    """Runs of handlers that record begin and end, and deaths of processes."""

    lease_s: float
    runs: list[Run] = field(default_factory=list)
    deaths_s: dict[str, float] = field(default_factory=dict)

    def ended(self) -> list[Run]:
        """Return all runs, which end when their process dies."""
        return [
            Run(
                r.process, r.key, r.began_s, min(r.ended_s, self.deaths_s.get(r.process, r.ended_s))
            )
            for r in self.runs
        ]

    def most(self) -> int:
        """Return the largest number of runs of one key at a time."""
        changes: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        for run in self.ended():
            changes[run.key] += [(run.began_s, 1), (run.ended_s, -1)]
        most = 0
        for each in changes.values():
            count = 0
            for _, change in sorted(each):  # an end comes before a begin of the same moment
                count += change
                most = max(most, count)
        return most

    def share(self, running: int, keys: int, from_s: float, to_s: float) -> float:
        """Return which part of the possible work was done between two times.

        A place of a process that has died is not possible until its lease has ended.
        """
        used = lost = 0.0
        for run in self.ended():
            used += max(min(run.ended_s, to_s) - max(run.began_s, from_s), 0.0)
            died_s = self.deaths_s.get(run.process)
            if died_s is not None and run.ended_s == died_s:
                lost += max(min(died_s + self.lease_s, to_s) - max(died_s, from_s), 0.0)
        return used / (running * keys * (to_s - from_s) - lost)
