"""Where more workers no longer add throughput.

Every step up is looked at before the next: by Little's law, throughput is what is in flight over
the service time, so a downstream that is full shows as service times that grow with the workers.
"""

from __future__ import annotations

from math import ceil

import msgspec

from .load import Load

STEP = 1.2
GAIN_MIN = 0.7  # of what a step would bring if every worker were as good as the ones before
SETTLE_S = 1.0
LOOK_ITEMS = 100
LOOK_S_MAX = 10.0


class Point(msgspec.Struct, frozen=True):
    workers: int
    per_s: float


class Look:
    """What so many workers get done, once a change has worked itself out."""

    def __init__(self, load: Load) -> None:
        self.workers = load.workers
        self._from_s = load.time_s + SETTLE_S + load.service_s
        self._done: int | None = None
        self._readings: list[float] = []

    def at(self, load: Load) -> Point | None:
        """The result, when enough was seen."""
        if load.time_s < self._from_s or not load.service_s:
            return None
        if self._done is None:
            self._done = load.done
        self._readings.append(min(load.in_flight, load.workers) / load.service_s)
        is_enough = load.done - self._done >= LOOK_ITEMS
        if not is_enough and load.time_s - self._from_s < LOOK_S_MAX + load.service_s:
            return None
        return Point(self.workers, sum(self._readings) / len(self._readings))


class Knee:
    def __init__(self, probe_again_s: float) -> None:
        self._probe_again_s = probe_again_s
        self._look: Look | None = None
        self._before: Point | None = None
        self._proven = 0
        self._found_s: float | None = None

    def rest(self) -> None:
        """There are workers enough: nothing can be learned."""
        self._look = self._before = None

    def allow(self, load: Load, wanted: int) -> tuple[int, str]:
        """How many of the wanted workers pay, as far as is known, and how that is known."""
        if self._found_s is None and load.workers >= self._proven:
            return self._climb(load, wanted)
        if self._found_s is not None and load.time_s - self._found_s >= self._probe_again_s:
            self._step_back()
        self.rest()
        known = f"{self._proven} were of use"
        if self._found_s is not None:
            known = f"more than {self._proven} added no throughput"
        return min(load.workers * 2, self._proven, wanted), known

    def _step_back(self) -> None:
        """The knee may have moved either way: one step back, and up again with open eyes."""
        self.rest()
        self._found_s = None
        self._proven = max(int(self._proven / STEP), 1)

    def _climb(self, load: Load, wanted: int) -> tuple[int, str]:
        if self._look is None or self._look.workers != load.workers:
            self._look = Look(load)
        here = self._look.at(load)
        if here is None:
            return min(load.workers, wanted), "looking whether the last step paid"
        self._look = None
        before, self._before = self._before, here
        if before is not None and here.workers > before.workers and _gain(before, here) < GAIN_MIN:
            self._proven = _knee(before, here)
            self._before, self._found_s = None, load.time_s
            return min(wanted, self._proven), f"{here.workers} got no more done"
        self._proven = here.workers
        return min(
            ceil(here.workers * STEP), wanted
        ), f"{here.workers} get {here.per_s:,.0f}/s done"


def _gain(before: Point, here: Point) -> float:
    more = here.workers / before.workers - 1
    return (here.per_s / before.per_s - 1) / more if before.per_s else 1.0


def _knee(before: Point, here: Point) -> int:
    full = int(before.workers * here.per_s / before.per_s)
    return min(max(full, before.workers), here.workers)
